"""Measure which questions can be answered from what compression sends, and what it saves.

    python -m benchmarks.compression_questions [--documents N] [--mode MODE] [--headroom PYTHON]
                                               [--json]

No model is asked. Each document is generated, so it is known which text an answer needs, and which
text would be a wrong fact. *Asked first*: the question stands before the document, as it does in a
turn with a tool call. *Asked later*: the document was read for another reason before.
``--headroom`` is the interpreter of an environment with headroom-ai.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.compression_documents import KINDS, documents
from benchmarks.compression_types import MODEL, conversation, headrooms
from headstart import compress
from headstart.compression.tokens import count_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.compression_documents import Document, Question
    from headstart.settings import CompressionMode

LATER = "Please have a look at this."


class Trial(NamedTuple):
    """One question, and the text from which it is to be answered."""

    document: Document
    question: Question
    sent: str


def ours(kind: str, count: int, mode: CompressionMode, later: str = "") -> list[Trial]:
    """Compress each document for each of its questions, or once for the words ``later``."""
    trials = []
    for document in documents(kind, count):
        forms: dict[str, str] = {}
        for question in document.questions:
            words = later or question.words
            if words not in forms:
                done = compress(conversation(document.text, words), mode=mode)
                forms[words] = done.messages[-1]["content"]
            trials.append(Trial(document, question, forms[words]))
    return trials


def theirs(kind: str, count: int, python: Path) -> list[Trial]:
    """Let headroom-ai compress the same conversations."""
    asked = [
        (document, question)
        for document in documents(kind, count)
        for question in document.questions[:: max(1, len(document.questions) // 3)]
    ]
    with tempfile.TemporaryDirectory() as scratch:
        cases = [conversation(document.text, question.words) for document, question in asked]
        sent = headrooms(cases, python, Path(scratch))
    return [Trial(*each, text) for each, (text, _) in zip(asked, sent, strict=True)]


def row(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the shares of answered and falsified questions, and of saved tokens."""
    sizes = {trial.document.text: 0 for trial in trials}
    sizes = {text: count_tokens(text, MODEL).tokens for text in sizes}
    sent = {trial.sent: 0 for trial in trials}
    sent = {text: count_tokens(text, MODEL).tokens for text in sent}
    before = sum(sizes[trial.document.text] for trial in trials)
    after = sum(sent[trial.sent] for trial in trials)
    return {
        "documents": len(sizes),
        "questions": len(trials),
        "answered": round(_share(trial.question.is_answered(trial.sent) for trial in trials), 4),
        "wrong facts": sum(trial.question.is_falsified(trial.sent) for trial in trials),
        "tokens": round(after / before - 1, 3),
    }


def by_topic(trials: Sequence[Trial]) -> dict[str, float]:
    """Return the share of answered questions of each topic."""
    groups: dict[str, list[bool]] = defaultdict(list)
    for trial in trials:
        groups[trial.question.topic].append(trial.question.is_answered(trial.sent))
    return {topic: round(_share(found), 3) for topic, found in sorted(groups.items())}


def _share(found: Iterable[bool]) -> float:
    every = list(found)
    return sum(every) / max(1, len(every))


def main() -> None:
    """Print a row for each kind of document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", help=", ".join(KINDS))
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--mode", default="balanced", choices=("safe", "balanced", "aggressive"))
    parser.add_argument("--headroom", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for kind in args.kinds or KINDS:
        first = ours(kind, args.documents, args.mode)
        later = ours(kind, args.documents, args.mode, LATER)
        results[kind] = {
            "unchanged": row([trial._replace(sent=trial.document.text) for trial in first]),
            "asked first": row(first) | {"topics": by_topic(first)},
            "asked later": row(later) | {"topics": by_topic(later)},
        }
        if args.headroom:
            results[kind]["headroom"] = row(theirs(kind, args.documents, args.headroom))
        if not args.json:
            for name, found in results[kind].items():
                print(f"{kind:6} {name:12} {found}", flush=True)
    if args.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

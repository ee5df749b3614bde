"""Measure how many questions can be answered from compressed documents, and the saved tokens.

    python -m benchmarks.compression_questions [--documents N] [--mode MODE] [--headroom PYTHON]
                                               [--json]

No model is asked. Each document is generated, so it is known which text an answer needs, and which
text would be a wrong fact. *Asked first*: the question stands before the document, as it does in a
turn with a tool call. *Asked later*: the document was read for another reason before.

With ``--mode recoverable`` the model calls ``headstart_retrieve`` if the answer is missing: first
with the question as its query, then without one. If the answer is still missing, the model gets the
whole document. ``with retrievals`` shows how many questions are answered then, how many needed a
call, and the tokens of prompts and results.
``--headroom`` is the interpreter of an environment with headroom-ai.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.compression_documents import KINDS, Document, Question, documents
from benchmarks.compression_types import MODEL, conversation, headrooms
from headstart import compress
from headstart.compression.tokens import count_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headstart.compression.result import Compression
    from headstart.settings import CompressionMode

MODES = ("safe", "recoverable", "balanced", "aggressive")
LATER = "Please have a look at this."


class Trial(NamedTuple):
    """One question, and the text from which it is to be answered."""

    document: Document
    question: Question
    sent: str
    results: tuple[str, ...] = ()
    """The parts of the cut text that the model got back, in the order of its calls."""

    @property
    def read(self) -> str:
        """The whole text that the model has read."""
        return "\n".join((self.sent, *self.results))


def ours(kind: str, count: int, mode: CompressionMode, later: str = "") -> list[Trial]:
    """Compress each document for each of its questions, or once for the words ``later``."""
    trials = []
    for document in documents(kind, count):
        forms: dict[str, Compression] = {}
        for question in document.questions:
            words = later or question.words
            if words not in forms:
                forms[words] = compress(conversation(document.text, words), mode=mode)
            done = forms[words]
            sent = done.messages[-1]["content"]
            results = tuple(looked_up(done, question, sent)) if mode == "recoverable" else ()
            trials.append(Trial(document, question, sent, results))
    return trials


def looked_up(done: Compression, question: Question, sent: str) -> Iterator[str]:
    """Yield the results of the calls of a model that does not find the answer in ``sent``."""
    read = sent
    for id in done.cut_texts:
        for arguments in ({"id": id, "query": question.words}, {"id": id}):
            if question.is_answered(read):
                return
            result = done.retrieve(json.dumps(arguments))
            read += "\n" + result
            yield result
    if not question.is_answered(read):
        yield str(done.source[-1]["content"])


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
    sizes = Counts()
    before = sum(sizes[trial.document.text] for trial in trials)
    after = sum(sizes[trial.sent] for trial in trials)
    return {
        "documents": len({trial.document.text for trial in trials}),
        "questions": len(trials),
        "answered": round(_share(trial.question.is_answered(trial.sent) for trial in trials), 4),
        "wrong facts": sum(trial.question.is_falsified(trial.sent) for trial in trials),
        "tokens": round(after / before - 1, 3),
    }


def row_with_retrievals(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the same shares after the calls for cut texts, and the share of such calls."""
    sizes = Counts()
    before = sum(sizes[trial.document.text] for trial in trials)
    after = sum(sizes[text] for trial in trials for text in (trial.sent, *trial.results))
    return {
        "answered": round(_share(trial.question.is_answered(trial.read) for trial in trials), 4),
        "wrong facts": sum(trial.question.is_falsified(trial.read) for trial in trials),
        "asked back": round(_share(bool(trial.results) for trial in trials), 4),
        "calls": round(sum(len(trial.results) for trial in trials) / max(1, len(trials)), 3),
        "tokens": round(after / before - 1, 3),
    }


class Counts(dict[str, int]):
    """The tokens of texts, each counted once."""

    def __missing__(self, text: str) -> int:
        self[text] = count_tokens(text, MODEL).tokens
        return self[text]


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
    parser.add_argument("--mode", default="balanced", choices=MODES)
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
        if args.mode == "recoverable":
            results[kind]["with retrievals"] = row_with_retrievals([*first, *later])
        if args.headroom:
            results[kind]["headroom"] = row(theirs(kind, args.documents, args.headroom))
        if not args.json:
            for name, found in results[kind].items():
                print(f"{kind:6} {name:15} {found}", flush=True)
    if args.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

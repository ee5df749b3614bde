"""Write the streams that ``benchmarks.safe_hits_http`` was run with.

    python -m benchmarks.safe_hits_streams mix data_full.json train.csv > mix.jsonl
    python -m benchmarks.safe_hits_streams retrieval > retrieval.jsonl
    python -m benchmarks.safe_hits_streams conversations data_full.json > conversations.jsonl
    python -m benchmarks.safe_hits_streams templated data_full.json --template before > before.jsonl
    python -m benchmarks.safe_hits_streams courteous NQ.json > courteous.jsonl

``mix`` holds CLINC150 (``data_full.json``), Banking77 (``train.csv``) and the synthetic slots of
the tests, shuffled, without repeats. The classes of a third of the intents, and of all slots, are
named ``family/...``: their answers differ from their family's in one to three facts only.
``retrieval`` holds templates with documents and reworded questions, which it names.
``conversations`` holds texts of CLINC150 that end one of 100 conversations. Popular conversations
come more often. All end with the same 20 intents, and each has its own answers.
``templated`` holds 6,000 texts of CLINC150 in one template, for ``benchmarks.safe_hits --files``.
``courteous`` holds natural questions. A quarter of its prompts are questions that were asked
before, with a greeting, "please", "thanks" or another sign at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.convert import TextRow, banking77, clinc150, naturalqa
from benchmarks.slots import retrieval_stream, slots_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


NEAR_DUPLICATES = 3
"""One in so many intents has an answer that is nearly its family's."""
SEED = 7
RETRIEVAL_PROMPTS = 2500
CONVERSATIONS, INTENTS, ENDINGS = 100, 20, 5000
TEMPLATED = 6000
COURTEOUS, FIRST_QUESTIONS, AGAIN = 3000, 50, 0.25
OPENINGS = ("", "please tell me: ", "Hi, ", "hello! ", "quick question: ", "")
CLOSINGS = ("", "?", " please", " thanks", "? Thank you.", "!")
TEMPLATES = {
    "none": "{}",
    "before": "You are the assistant of a company. Read the following message from a customer and "
    "decide which of our help articles answers it. Reply with the title of the article only.\n\n"
    "Message: {}",
    "after": "{}\n\nReply with the title of the help article only, in English, without any further "
    "text or explanation.",
    "question": "Please answer the question of this customer.\n\nQuestion: {}",
    "translation": "Translate the following text into German. Reply with the translation only.\n\n"
    "Text: {}",
}


def mixed(clinc: Path, banking: Path) -> list[dict[str, str]]:
    """Return the lines of the mix, each prompt once."""
    rows = [
        *_named("clinc", clinc150(clinc)),
        *_named("banking", banking77(banking)),
        *((row.text, f"slots/{row.label}", "slots") for row in slots_stream()),
    ]
    lines: dict[str, dict[str, str]] = {}
    for text, label, category in rows:
        line = {"prompt": text, "class": label, "category": category}
        lines.setdefault(" ".join(text.split()).casefold(), line)
    found = list(lines.values())
    random.Random(SEED).shuffle(found)
    return found


def _named(name: str, rows: Iterable[TextRow]) -> Iterator[tuple[str, str, str]]:
    for text, intent in rows:
        drawn = int(sha256(intent.encode()).hexdigest(), 16) % NEAR_DUPLICATES == 0
        yield text, f"{name}{'/' if drawn else ':'}{intent}", name


def retrieval() -> list[dict[str, str]]:
    """Return the lines of the retrieval stream."""
    return [
        {"prompt": row.text, "class": row.label, "query": row.query}
        for row in retrieval_stream(prompts=RETRIEVAL_PROMPTS)
    ]


def conversations(clinc: Path) -> list[dict[str, object]]:
    """Return the lines of the conversations."""
    chance = random.Random(SEED)
    texts: dict[str, list[str]] = {}
    for text, intent in clinc150(clinc):
        texts.setdefault(intent, []).append(text)
    shared = sorted(intent for intent, own in texts.items() if len(own) > 1)
    intents = chance.sample(shared, INTENTS)
    lines: list[dict[str, object]] = []
    for _ in range(ENDINGS):
        number = int(chance.expovariate(3 / CONVERSATIONS)) % CONVERSATIONS
        intent = chance.choice(intents)
        begin = f"Tell me about offer {number}.", f"Offer {number} is open to all customers."
        messages = [
            {"role": "user", "content": begin[0]},
            {"role": "assistant", "content": begin[1]},
            {"role": "user", "content": chance.choice(texts[intent])},
        ]
        lines.append({"prompt": messages, "class": f"{number} {intent}"})
    return lines


def templated(clinc: Path, template: str) -> list[dict[str, str]]:
    """Return lines in a template. Each text has its own translation."""
    rows = list(clinc150(clinc))
    random.Random(3).shuffle(rows)
    return [
        {
            "prompt": TEMPLATES[template].format(text),
            "class": text.lower() if template == "translation" else intent,
        }
        for text, intent in rows[:TEMPLATED]
    ]


def courteous(questions: Path) -> list[dict[str, str]]:
    """Return natural questions, and some of them again with courtesy, each prompt once."""
    chance = random.Random(SEED)
    texts = [text for text, _ in naturalqa(questions) if isinstance(text, str)]
    chance.shuffle(texts)
    lines: dict[str, str] = {}
    fresh = iter(texts)
    asked = [next(fresh) for _ in range(FIRST_QUESTIONS)]
    for _ in range(COURTEOUS):
        if chance.random() < AGAIN:
            question = chance.choice(asked)
            text = chance.choice(OPENINGS) + question.rstrip("?") + chance.choice(CLOSINGS)
        else:
            question = text = next(fresh)
            asked.append(question)
        lines.setdefault(text, question)
    return [{"prompt": text, "class": question} for text, question in lines.items()]


def main() -> None:
    """Write a stream to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    streams = parser.add_subparsers(dest="stream", required=True)
    mix = streams.add_parser("mix")
    mix.add_argument("clinc", type=Path)
    mix.add_argument("banking", type=Path)
    streams.add_parser("retrieval")
    talks = streams.add_parser("conversations")
    talks.add_argument("clinc", type=Path)
    framed = streams.add_parser("templated")
    framed.add_argument("clinc", type=Path)
    framed.add_argument("--template", choices=TEMPLATES, required=True)
    again = streams.add_parser("courteous")
    again.add_argument("questions", type=Path)
    arguments = parser.parse_args()
    if arguments.stream == "mix":
        lines: Iterable[object] = mixed(arguments.clinc, arguments.banking)
    elif arguments.stream == "retrieval":
        lines = retrieval()
    elif arguments.stream == "courteous":
        lines = courteous(arguments.questions)
    elif arguments.stream == "templated":
        lines = templated(arguments.clinc, arguments.template)
    else:
        lines = conversations(arguments.clinc)
    for line in lines:
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

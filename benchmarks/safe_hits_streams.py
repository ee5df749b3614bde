"""Write the streams that ``benchmarks.safe_hits_http`` was run with.

    python -m benchmarks.safe_hits_streams mix data_full.json train.csv > mix.jsonl
    python -m benchmarks.safe_hits_streams retrieval > retrieval.jsonl

``mix`` holds CLINC150 (``data_full.json``), Banking77 (``train.csv``) and the synthetic slots of
the tests, shuffled, without repeats. The classes of a third of the intents, and of all slots, are
named ``family/...``: their answers differ from their family's in one to three facts only.
``retrieval`` holds templates with documents and reworded questions, which it names.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.convert import banking77, clinc150
from benchmarks.slots import retrieval_stream, slots_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.convert import TextRow

NEAR_DUPLICATES = 3
"""One in so many intents has an answer that is nearly its family's."""
SEED = 7
RETRIEVAL_PROMPTS = 2500


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


def main() -> None:
    """Write a stream to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    streams = parser.add_subparsers(dest="stream", required=True)
    mix = streams.add_parser("mix")
    mix.add_argument("clinc", type=Path)
    mix.add_argument("banking", type=Path)
    streams.add_parser("retrieval")
    arguments = parser.parse_args()
    wanted_mix = arguments.stream == "mix"
    for line in mixed(arguments.clinc, arguments.banking) if wanted_mix else retrieval():
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

"""Turn public labelled sets into the formats of ``headstart evaluate``.

    python benchmarks/convert.py banking77 train.csv --sample 6000 --seed 1 > banking77.jsonl
    python benchmarks/convert.py clinc150 data_full.json --sample 6000 --seed 1 > clinc150.jsonl

Banking77 is PolyAI's CSV of ``text,category``; CLINC150 is oos-eval's JSON of splits, each a list
of ``[text, intent]``. The sample is drawn and shuffled with the seed, so it can be made again.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = tuple[str, str]


def banking77(path: Path) -> Iterator[Row]:
    """Yield (text, intent)."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield row["text"], row["category"]


def clinc150(path: Path) -> Iterator[Row]:
    """Yield (text, intent). Out-of-scope texts share no answer, so each is a class of its own."""
    splits = json.loads(path.read_text(encoding="utf-8"))
    for split, rows in splits.items():
        for place, (text, intent) in enumerate(rows):
            yield text, f"{split}-{place}" if intent == "oos" else intent


READERS = {"banking77": banking77, "clinc150": clinc150}


def main() -> None:
    """Write the stream to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("set", choices=READERS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--sample", type=int, help="how many texts; without it, all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = list(READERS[arguments.set](arguments.path))
    random.Random(arguments.seed).shuffle(rows)
    for text, label in rows[: arguments.sample]:
        sys.stdout.write(json.dumps({"prompt": text, "class": label}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

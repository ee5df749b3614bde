"""Build the table of sketches that ships in ``headstart/embeddings/model``. Downloads nothing.

    git clone https://github.com/OWNER/NAME FOLDER/NAME    # each repository of SOURCES
    OPENBLAS_NUM_THREADS=1 python scripts/build_sketch.py FOLDER    # threads only cost here

The texts are questions and requests of people, without labels. None of them ships: the table holds
one vector for each word of the encoder's vocabulary. The sets that the documentation measures with
(CLINC150, Banking77, natural questions) are not among the sources. The card of the table has the
SHA-256 of all texts.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headstart.embeddings.encoder import DEFAULT_MODEL
from headstart.embeddings.sketch import make_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOTICE_FILE = "NOTICE-sketch"
NOTICE = """\
sketch.npy in this folder was trained on texts of these public data sets, and
contains none of them. scripts/build_sketch.py names the commits and draws the
texts.

"""
TABLE_SHA256 = "f1569759d923d20dd482a239c354af57ae7ada4fd0ab1e3fb02d0306654a61ae"
"""Of the ``sketch.npy`` that ships. Another processor or version of numpy may round differently."""
LONGEST = 600
SEED = 1


class Source(NamedTuple):
    """A public repository with texts, at one commit."""

    repository: str
    commit: str
    licence: str
    read: Callable[[Clone], Iterator[str]]
    most: int
    sha256: str
    """Of the texts that are drawn."""


class Clone(NamedTuple):
    """A clone of a source, or its bare repository."""

    folder: Path
    commit: str

    def read(self, path: str) -> str:
        """Return the text of a file."""
        return self._git("show", f"{self.commit}:{path}")

    def list(self, folder: str) -> list[str]:
        """Return the paths of the files in a folder."""
        return self._git("ls-tree", "--name-only", self.commit, f"{folder}/").splitlines()

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.folder), *arguments]
        done = subprocess.run(command, check=True, capture_output=True)  # noqa: S603
        return done.stdout.decode(errors="replace")


def _well_formed(clone: Clone) -> Iterator[str]:
    for name in ("train", "dev", "test"):
        for line in clone.read(f"{name}.tsv").splitlines():
            yield re.sub(r" ([?.,!'])", r"\1", line.partition("\t")[0])


def _web_questions(clone: Clone) -> Iterator[str]:
    for name in ("trainmodel", "val", "devtest", "test"):
        for row in json.loads(clone.read(f"main/{name}.json")):
            yield row["qText"]


def _trivia(clone: Clone) -> Iterator[str]:
    for path in clone.list("categories"):
        for line in clone.read(path).splitlines():
            if line.startswith("#Q "):
                yield line.removeprefix("#Q ")


def _sums(clone: Clone) -> Iterator[str]:
    for line in clone.read("grade_school_math/data/train.jsonl").splitlines():
        yield json.loads(line)["question"]


def _intents(clone: Clone) -> Iterator[str]:
    folder = "2017-06-custom-intent-engines"
    for path in clone.list(folder):
        name = path.removeprefix(f"{folder}/")
        if name[0].isupper() and "." not in name:
            rows = json.loads(clone.read(f"{path}/train_{name}_full.json"))[name]
            yield from ("".join(part["text"] for part in row["data"]) for row in rows)


def _home(clone: Clone) -> Iterator[str]:
    name = "2018_03_22-13_01_25_169"
    folder = f"CrossValidation/out4WatsonReal/Watson_{name}_trainset/CrossValidation"
    for fold in (1, 4):
        path = f"{folder}/KFold_{fold}/merged/intents/WatsonNluIntentsMerged_{name}.csv"
        yield from (row[0] for row in csv.reader(io.StringIO(clone.read(path))) if row)


def _orders(clone: Clone) -> Iterator[str]:
    for part in range(8):
        for dialog in json.loads(clone.read(f"TM-4-2024/data/data_0{part}.json")):
            for said in dialog["utterances"]:
                if said["speaker"] == "user":
                    yield said["text"]


SOURCES = (
    Source(
        "google-research-datasets/query-wellformedness",
        "fb69c21416195cddc797277ea9e4d393226571d2",
        "CC BY-SA 4.0",
        _well_formed,
        9000,
        "5cf6220ce12f031041e2f6556a004a7c7f345a434b2c64b54c14a38bdf05adc7",
    ),
    Source(
        "brmson/dataset-factoid-webquestions",
        "668890853388010fe6ae9a5eb035a7917b88933b",
        "CC BY 4.0",
        _web_questions,
        3000,
        "6146888c8148c58493c1ade59752223d3467c6e038f3ac120ab9466305037124",
    ),
    Source(
        "uberspot/OpenTriviaQA",
        "dd31530bfbb19f9505b160b89c9df4b1127e3c70",
        "CC BY-SA 4.0",
        _trivia,
        7000,
        "8cdc2cc73b4023141b54b14a18818b8f803f18506009f48d7e02344ec98882e6",
    ),
    Source(
        "openai/grade-school-math",
        "3101c7d5072418e28b9008a6636bde82a006892c",
        "MIT",
        _sums,
        1000,
        "4c62f99f3246d1d7749d98c8586d2bb623c37991e664616921afe1a55d110a45",
    ),
    Source(
        "sonos/nlu-benchmark",
        "b86ac7f1577868c42158d0dec77db50956046696",
        "CC0 1.0",
        _intents,
        3000,
        "8f25f68f42750bb9a610fceadc1657e79723541721774fd6af536c445c4556c3",
    ),
    Source(
        "xliuhw/NLU-Evaluation-Data",
        "f6071b496b17d71e6eb43f543af0707f4ff30557",
        "CC BY 4.0",
        _home,
        8000,
        "e8807868b3316df3221131ec788882584236468f45d7f0a67012b11dbbd0d9a9",
    ),
    Source(
        "google-research-datasets/Taskmaster",
        "d92cb6af3005f1dc09c39e75e7daf4a04905e00b",
        "CC BY 4.0",
        _orders,
        3000,
        "5579350c37aeb6663f7836ba028ccc456ff89df036c9b230def96618093891d3",
    ),
)


def gather(folder: Path) -> list[str]:
    """Return the texts of all sources, each once, after a check of their SHA-256."""
    texts: list[str] = []
    for source in SOURCES:
        clone = Clone(folder / source.repository.partition("/")[2], source.commit)
        found = dict.fromkeys(text.strip()[:LONGEST] for text in source.read(clone))
        found.pop("", None)
        drawn = random.Random(SEED).sample(list(found), min(source.most, len(found)))  # noqa: S311
        digest = hashlib.sha256("\0".join(drawn).encode()).hexdigest()
        print(f"{source.repository}: {len(drawn)} of {len(found)} texts, {source.licence}")
        if digest != source.sha256:
            sys.exit(f"its texts have sha256 {digest}, expected {source.sha256}")
        texts += drawn
    return texts


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder with the clones")
    parser.add_argument("--encoder", type=Path, default=DEFAULT_MODEL)
    arguments = parser.parse_args()
    card = make_table(arguments.encoder, gather(arguments.folder), report=print)
    named = "".join(f"  {source.repository} ({source.licence})\n" for source in SOURCES)
    (arguments.encoder / NOTICE_FILE).write_text(NOTICE + named)
    print(f"{card.texts} texts: {card.namespace}")
    same = card.table_sha256 == TABLE_SHA256
    print("the same bytes as the table that ships" if same else f"new table: {card.table_sha256}")


if __name__ == "__main__":
    main()

"""The converters write what ``headstart evaluate`` reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from headstart.lab.labelled import Stream, read_labelled

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "convert.py"


def convert(*arguments: str) -> list[tuple[str | None, str]]:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], check=True, capture_output=True)
    stream = read_labelled(done.stdout.splitlines())
    assert isinstance(stream, Stream)
    return [(row.prompt.query, row.label) for row in stream.rows]


def test_banking77_is_sampled_by_seed(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    rows = [f'"Question, {number}?",intent-{number % 3}' for number in range(20)]
    path.write_text("text,category\n" + "\n".join(rows) + "\n", encoding="utf-8")
    sample = convert("banking77", str(path), "--sample", "5", "--seed", "3")
    assert len(sample) == 5
    assert sample == convert("banking77", str(path), "--sample", "5", "--seed", "3")
    assert sample != convert("banking77", str(path), "--sample", "5", "--seed", "4")
    assert len(convert("banking77", str(path))) == 20


def test_clinc150_gives_every_out_of_scope_text_a_class_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "data_full.json"
    splits = {
        "train": [["play jazz", "music"], ["play rock", "music"]],
        "oos_val": [["why so blue", "oos"], ["what is it", "oos"]],
    }
    path.write_text(json.dumps(splits), encoding="utf-8")
    labels = dict(convert("clinc150", str(path)))
    assert labels["play jazz"] == labels["play rock"] == "music"
    assert labels["why so blue"] != labels["what is it"]

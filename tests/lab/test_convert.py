"""The converters write what ``headstart evaluate`` reads."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

from headstart.lab.rates import Pairs, Stream, read_labelled

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


def convert_pairs(*arguments: str) -> list[tuple[str | None, str | None, bool]]:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], check=True, capture_output=True)
    pairs = read_labelled(done.stdout.splitlines())
    assert isinstance(pairs, Pairs)
    return [(row.a.query, row.b.query, row.same_answer) for row in pairs.rows]


def test_text2sql_fills_the_values_into_question_and_query(tmp_path: Path) -> None:
    path = tmp_path / "geography.json"
    query = {
        "sentences": [
            {"text": "how big is state0 ?", "variables": {"state0": "ohio"}},
            {"text": "size of state0", "variables": {"state0": ""}},
            {"text": "size of state0", "variables": {"state0": ""}},
        ],
        "sql": ['SELECT AREA FROM STATE WHERE NAME = "state0"', "SELECT 1"],
        "variables": [{"name": "state0", "example": "utah"}],
    }
    path.write_text(json.dumps([query]), encoding="utf-8")
    assert dict(convert("text2sql", str(path))) == {
        "how big is ohio?": 'SELECT AREA FROM STATE WHERE NAME = "ohio"',
        "size of utah": 'SELECT AREA FROM STATE WHERE NAME = "utah"',
    }


def test_paws_is_joined_and_parts_share_no_text(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    lines = ["id\tsentence1\tsentence2\tlabel", "0\tb\"Is n't it ?\"\tb'Is it n\\'t ?'\t0"]
    lines += ["1\tThe same , twice\tThe same, twice\t1"]
    lines += [f"{n}\ttext {n // 2}\ttext {n // 2} or {n}\t{n % 2}" for n in range(2, 60)]
    path.write_text("\n".join(lines), encoding="utf-8")
    whole = convert_pairs("paws", str(path))
    assert ("Isn't it?", "Is itn't?", False) in whole
    assert len(whole) == 59
    parts = [convert_pairs("paws", str(path), "--part", f"{number}/3") for number in range(3)]
    assert sorted(chain(*parts)) == sorted(whole)
    texts = [{text for row in part for text in row[:2]} for part in parts]
    assert all(texts)
    assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2]

"""The converters write what ``headstart evaluate`` reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from headstart.lab.rates import Pairs, Stream, read_labelled

FOLDER = "de"
"""The folder of the files; ``homeassist`` takes it for the language."""
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


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("bbh", json.dumps({"examples": [{"input": "( [", "target": ") ]"}]}), [("( [", "( [")]),
        (
            "covidq",
            "Category,Question ID,Question\nDuration,42,will it end\n",
            [("will it end", "42")],
        ),
        ("gsm", json.dumps({"question": "Two and two?"}), [("Two and two?", "Two and two?")]),
        (
            "aiabde",
            "P:Quem paga?\nVG1:Quem é?\nVUC:Paga quem?\nR:Nós.\nP:Onde?\n",
            [("Quem paga?", "1"), ("Paga quem?", "1"), ("Onde?", "2")],
        ),
        (
            "stackfaq",
            json.dumps(
                {
                    "root": {
                        "qapair": [
                            {"question": "Undo", "rephr": ["How to  undo?", "*", None]},
                            {"question": "Redo", "rephr": "Redo it"},
                        ]
                    }
                }
            ),
            [("Undo", "0"), ("How to undo?", "0"), ("Redo", "1"), ("Redo it", "1")],
        ),
        (
            "homeassist",
            (
                "language: de\ntests:\n  - sentences: [Licht an]\n"
                "    intent: {name: Turn, slots: {area: Flur}}\n    response: An\n"
                "  - sentences: [Was]\n"
            ),
            [("Licht an", f'["{FOLDER}", "Turn", {{"area": "Flur"}}, null, "An"]')],
        ),
        (
            "hwu64",
            (
                "scenario;intent;answer_annotation;answer_from_user\n"
                "alarm;set;wake me at [Time : nine];Wake me at 9\nqa;maths;two by two;Two by two?\n"
            ),
            [("Wake me at 9", "alarm set time : nine"), ("Two by two?", "Two by two?")],
        ),
        ("simpleq", "Q1\tR19\tQ2\twho was born in oslo\n", [("who was born in oslo", "Q1 R19")]),
        (
            "snips",
            json.dumps({"Play": [{"data": [{"text": "Play "}, {"text": "Jazz", "entity": "s"}]}]}),
            [("Play Jazz", "Play s=jazz")],
        ),
        (
            "svamp",
            json.dumps([{"Body": "If 2 left", "Question": "How many?"}]),
            [("If 2 left, How many?", "If 2 left, How many?")],
        ),
        (
            "toolformer",
            json.dumps([{"instruction": "Sum", "input": "1"}, {"instruction": "Go", "input": ""}]),
            [("Sum\n\n1", "Sum\n\n1"), ("Go", "Go")],
        ),
        (
            "webq",
            json.dumps([{"qText": "who sang", "answers": ["Bo", "Al"]}]),
            [("who sang", "al | bo")],
        ),
        (
            "boolqcs",
            json.dumps(
                {
                    "data": [
                        {},
                        {
                            "paragraph": "P.",
                            "question": "is it",
                            "answer": "TRUE",
                            "perturbed_questions": [{"perturbed_q": "was it?", "answer": "FALSE"}],
                        },
                    ]
                }
            ),
            [("P.\n\nQuestion: is it?", "P. TRUE"), ("P.\n\nQuestion: was it?", "P. FALSE")],
        ),
        (
            "gsmplus",
            "\n".join(
                json.dumps({"seed_question": "1+1?", "seed_answer": "2", **variant})
                for variant in (
                    {"question": "One and one?", "answer": "2.0"},
                    {"question": "And more?", "answer": "None"},
                )
            ),
            [("1+1?", "1+1? 2"), ("One and one?", "1+1? 2"), ("And more?", "And more?")],
        ),
        (
            "rqe",
            (
                '<pair value="true"> <chq>Is  it bad?</chq> <faq>Bad?</faq></pair>'
                '<pair value="false"> <chq>Is it new?</chq> <faq>Bad?</faq></pair>'
            ),
            [("Is it bad?", "Bad?"), ("Bad?", "Bad?"), ("Is it new?", "Is it new?")],
        ),
        (
            "wino",
            "[MASK] left.\n[MASK]\nThe maid,the cook\nThe maid\n",
            [
                (
                    '___ left. What does "___" refer to: The maid or the cook?',
                    "['the maid', 'the cook'] the maid",
                )
            ],
        ),
    ],
)
def test_streams_of_one_file(
    name: str, text: str, expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / FOLDER / "data"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    assert sorted(convert(name, str(path))) == sorted(expected)


def test_onecell_changes_one_cell_and_exchanges_two(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("\n".join(f"row {n}#red {n}#sea {n}" for n in range(6)), encoding="utf-8")
    tables = Counter(label for _, label in convert("onecell", str(path)))
    assert sorted(tables.values()) == [2, 2, 2]
    (whole,) = (table for table in tables if table == path.read_text().replace("#", ","))
    changes = [
        sum(a != b for a, b in zip(re.split("[,\n]", one), re.split("[,\n]", whole), strict=True))
        for one in tables
    ]
    assert sorted(changes) == [0, 1, 2]


def test_spidersyn_names_the_database_in_the_system_prompt(tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    row = {"db_id": "pets", "query": "SELECT  1;", "SpiderQuestion": "Cats?"}
    path.write_text(json.dumps([row | {"SpiderSynQuestion": "Felines?"}]), encoding="utf-8")
    expected = {("Cats?", "pets select 1"), ("Felines?", "pets select 1")}
    assert set(convert("spidersyn", str(path))) == expected


def test_convq_rewords_the_last_question_and_whole_conversations(tmp_path: Path) -> None:
    turns = [
        {
            "answer": f"A{turn}",
            "question": f"q{turn}",
            "paraphrased_question": [f"q{turn} again", f"q{turn} once more"],
            "verbalized_answer": f"It is [A{turn}].",
            "paraphrased_answer": [f"[A{turn}]."],
        }
        for turn in range(2)
    ]
    path = tmp_path / "books.json"
    talk = {"seed_entity": "Q1", "seed_entity_text": "Pel\u00c3\u00a9", "questions": turns}
    path.write_text(json.dumps([talk]), encoding="utf-8")
    rows = convert("convq", str(path))
    assert sorted(query or "" for query, _ in rows) == [
        "q1",
        "q1 again",
        "q1 again",
        "q1 once more",
    ]
    assert {label for _, label in rows} == {"Q1 a1"}


def test_xsid_takes_the_class_from_the_english_text(tmp_path: Path) -> None:
    (tmp_path / "en.test.conll").write_text(
        "# text: rain today\n# intent: weather\n1\train\tweather\tO\n2\ttoday\tweather\tB-when\n",
        encoding="utf-8",
    )
    for language, note in (("de-ba", "# text-en = rain today"), ("gsw", "# text-en: rain today")):
        (tmp_path / f"{language}.test.conll").write_text(
            f"{note}\n# text = Regen {language}\n# intent = weather\n1\tRegen\tweather\tO\n",
            encoding="utf-8",
        )
    rows = convert("xsid", *map(str, sorted(tmp_path.glob("*.conll"))))
    assert {label for _, label in rows} == {"de weather when=today", "en weather when=today"}

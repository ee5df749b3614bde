"""``headstart evaluate`` with the encoder that ships."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from headstart.cli.evaluate import evaluate
from headstart.errors import ConfigError
from headstart.policies.labelled import LabelledDataError

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = [
    {
        "a": "How do I bake bread?",
        "b": "how do i bake bread",
        "same_answer": True,
        "category": "re",
    },
    {"a": "Wait 5 minutes", "b": "Wait 9 minutes", "same_answer": False, "category": "trap"},
]
STREAM = [
    {"prompt": "How do I bake bread?", "class": "bread"},
    {"prompt": "Who painted the ceiling?", "class": "art"},
    {"prompt": "How do I bake a bread?", "class": "bread"},
    {"prompt": "How do I bake bread?", "class": "bread"},
]


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    return write(tmp_path / "pairs.jsonl", [dict(row) for row in PAIRS])


@pytest.fixture
def stream(tmp_path: Path) -> str:
    return write(tmp_path / "stream.jsonl", [dict(row) for row in STREAM])


def run(*arguments: str) -> str:
    return CliRunner().invoke(evaluate, arguments, catch_exceptions=False).stdout


def test_pairs_report_as_json(pairs: str) -> None:
    report = json.loads(run(pairs, "--json"))
    assert report["n"] == 2
    assert (report["genuine_served"], report["traps_served"]) == (1, 0)
    assert report["wrong_per_hit"] == 0.0
    assert report["categories"]["trap"] == {
        "genuine": 0, "genuine_served": 0, "traps": 1, "traps_served": 0,
    }  # fmt: skip
    assert set(report["intervals"]) == {"hit_rate", "wrong_per_hit", "wrong_per_request"}


def test_guards_can_be_switched_off(pairs: str) -> None:
    report = json.loads(run(pairs, "--no-guards", "--policy", "static:0.5", "--json"))
    assert report["traps_served"] == 1


def test_stream_report_leaves_out_exact_repeats(stream: str) -> None:
    report = json.loads(run(stream, "--json"))
    assert (report["n"], report["hits"], report["wrong"]) == (3, 1, 0)


def test_seed_shuffles_repeatably(stream: str) -> None:
    assert run(stream, "--seed", "4", "--json") == run(stream, "--seed", "4", "--json")


def test_report_is_readable(pairs: str) -> None:
    output = run(pairs, "--policy", "static:0.5")
    assert "genuine served     1 of 1" in output
    assert "refused by         number 1" in output


def test_nothing_served_is_said_in_words(pairs: str) -> None:
    assert "none: nothing was served" in run(pairs, "--policy", "static:1")


@pytest.mark.parametrize("policy", ["verified", "static:high", "static:7"])
def test_unknown_policy_names_the_choices(pairs: str, policy: str) -> None:
    with pytest.raises(ConfigError, match=r"static|threshold"):
        run(pairs, "--policy", policy)


def test_unusable_line_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", [{"prompt": "x", "class": "c"}, {"prompt": "x"}])
    with pytest.raises(LabelledDataError, match="line 2"):
        run(path)

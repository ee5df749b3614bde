"""``headstart evaluate`` with the encoder that ships."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from headstart.errors import ConfigError, HeadstartError
from headstart.lab.commands.evaluate import evaluate
from headstart.lab.rates import LabelledDataError

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


def test_a_file_of_windows_and_a_spreadsheet_are_read(pairs: str, tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in PAIRS]
    marked, table = tmp_path / "marked.jsonl", tmp_path / "pairs.csv"
    marked.write_text("\r\n".join([*lines, ""]), encoding="utf-8-sig")
    cells = [f"{row['a']},{row['b']},{row['same_answer']},{row['category']}" for row in PAIRS]
    table.write_text("\n".join(["a,b,same_answer,category", *cells]), encoding="utf-8-sig")
    usual = json.loads(run(pairs, "--json"))
    for file in (marked, table):
        assert json.loads(run(str(file), "--json")) == usual


def test_guards_can_be_switched_off(pairs: str) -> None:
    report = json.loads(run(pairs, "--no-guards", "--policy", "static:0.5", "--json"))
    assert report["traps_served"] == 1


def test_stream_report_leaves_out_exact_repeats(stream: str) -> None:
    report = json.loads(run(stream, "--policy", "static", "--json"))
    assert (report["n"], report["hits"], report["wrong"]) == (3, 1, 0)


def test_seed_shuffles_repeatably(stream: str) -> None:
    assert run(stream, "--seed", "4", "--json") == run(stream, "--seed", "4", "--json")


def test_report_is_readable(pairs: str) -> None:
    output = run(pairs, "--policy", "static:0.5")
    assert "same answer        1 of 1 served" in output
    assert "refused by         number 1" in output


def test_nothing_served_is_said_in_words(pairs: str) -> None:
    assert "none: nothing was served" in run(pairs, "--policy", "static:1")


@pytest.mark.parametrize("policy", ["verify", "static:high", "static:7", "verified:all", "off:1"])
def test_unknown_policy_names_the_choices(pairs: str, policy: str) -> None:
    with pytest.raises(ConfigError, match=r"verified|share|threshold"):
        run(pairs, "--policy", policy)


def test_unusable_line_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", [{"prompt": "x", "class": "c"}, {"prompt": "x"}])
    with pytest.raises(LabelledDataError, match=r"bad\.jsonl: line 2"):
        run(path)


def test_a_share_may_be_given_in_per_cent(pairs: str) -> None:
    assert run(pairs, "--max-error", "2%") == run(pairs, "--policy", "verified:0.02").replace(
        "verified:0.02", "verified"
    )


def test_a_stream_is_learned_from_and_orderings_are_reported(stream: str) -> None:
    report = json.loads(run(stream, "--orderings", "2", "--judge", "real", "--json"))
    assert report["n"] == 6
    assert [ordering["seed"] for ordering in report["orderings"]] == [0, 1]


def test_gate_fails_only_beyond_chance(tmp_path: Path) -> None:
    rows = [{"prompt": f"How do I bake bread number {i}?", "class": str(i)} for i in range(40)]
    path = write(tmp_path / "stream.jsonl", [dict(row) for row in rows])
    arguments = [path, "--policy", "bare:0.5", "--json", "--fail-over"]
    failed = CliRunner().invoke(evaluate, [*arguments, "1%"])
    assert failed.exit_code == 1
    assert "--fail-over 1.00%" in failed.stderr
    assert json.loads(failed.stdout)["wrong"] == 39
    assert CliRunner().invoke(evaluate, [*arguments, "100%"]).exit_code == 0


@pytest.mark.parametrize("labelled", ["pairs", "stream"])
def test_a_state_of_another_version_is_refused(
    labelled: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    state = tmp_path / "state.bin"
    state.write_bytes(b"not a snapshot")
    path = request.getfixturevalue(labelled)
    refused = CliRunner().invoke(evaluate, [path, "--state", str(state)])
    assert isinstance(refused.exception, HeadstartError)
    assert not refused.stderr  # nothing was encoded before

"""``headstart tune --cascade`` reports how much the drafts of a cheap model would save."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from headstart.config.loading import load_settings
from headstart.errors import ConfigError
from headstart.lab.commands.tune import tune

if TYPE_CHECKING:
    from pathlib import Path


EASY = "What is the capital of country number {}?"
HARD = (
    "If box {} holds twice as many apples as three quarters of the rest, and each of the 12 "
    "others holds 3/4 more than the one before, how many are left in total after 5 days?"
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The strong model gains where the prompt is hard, and there only."""
    lines = ["prompt,cheap,strong,cheap_usd,strong_usd"]
    lines += [f'"{EASY.format(i)}",True,True,0.001,0.01' for i in range(60)]
    lines += [f'"{HARD.format(i)}",False,True,0.001,0.01' for i in range(40)]
    path = tmp_path / "outcomes.csv"
    path.write_text("\n".join(lines))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(tune, ["--cascade", *map(str, arguments)], catch_exceptions=False)


def study(*arguments: object) -> dict[str, Any]:
    found = run(*arguments, "--json")
    assert found.exit_code == 0, found.stderr
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def test_the_suggestion_escalates_the_hard_prompts_and_few_others(table: Path) -> None:
    found = study(table)
    point = found["at_min_confidence"]
    assert point["recovered"] >= 0.8
    assert 0.3 <= point["strong_share"] <= 0.4
    assert point["cost_usd"] < 0.011
    assert found["report"]["apgr"] > found["baselines"][0]["apgr"] == 0.5
    assert [each["name"] for each in found["baselines"]] == ["chance", "length of the prompt"]


def test_the_snippet_is_a_route_that_serve_takes(table: Path, tmp_path: Path) -> None:
    found = study(table)
    settings = tmp_path / "headstart.toml"
    upstreams = "".join(
        f'[[upstream]]\nname = "{name}"\nbase_url = "http://127.0.0.1:1"\n'
        for name in ("cheap", "strong")
    )
    settings.write_text(upstreams + found["toml"])
    route = load_settings(settings, {}, {}).route[0]
    assert route.judge == ("refusal", "format", "prompt")
    assert route.min_confidence == found["min_confidence"]


def test_people_get_the_curve_the_scores_and_the_snippet(table: Path) -> None:
    shown = run(table).stdout
    for words in (
        "100 prompts",
        "APGR",
        "length of the prompt",
        "judges of the cascade",
        "$ a call",
    ):
        assert words in shown
    snippet = shown[shown.index("[[route]]") :]
    assert tomllib.loads(snippet)["route"][0]["strategy"] == "cascade"


def test_a_folder_of_tables_and_named_columns_are_read(table: Path, tmp_path: Path) -> None:
    row = {"prompt": "Why?", "small": 0.5, "large": 1}
    (tmp_path / "more.jsonl").write_text(json.dumps(row) + "\n")
    table.write_text("prompt,small,large\nWho?,1,1\n")
    assert study(tmp_path, "--cheap", "small", "--strong", "large")["report"]["n"] == 2


def test_answers_are_compared_where_nobody_graded_them(tmp_path: Path) -> None:
    rows = [
        {"prompt": "Capital of Peru?", "cheap_answer": "Lima", "strong_answer": "Lima."},
        {"prompt": "Capital of Cuba?", "cheap_answer": "Quito", "strong_answer": "Havana"},
        {"prompt": "Capital of Mali?", "cheap_answer": "I don't know.", "strong_answer": "Bamako"},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    report = study(path)["report"]
    assert report["cheap"] == pytest.approx(1 / 3)
    assert report["curve"][1]["threshold"] > 0, "the vetoed draft is the first to be escalated"
    assert report["curve"][1]["recovered"] == pytest.approx(0.5)


def test_scores_of_a_table_are_those_of_its_own_judge(tmp_path: Path) -> None:
    path = tmp_path / "scored.csv"
    path.write_text("score,cheap,strong\n" + "0.1,0,1\n" * 10 + "0.9,1,1\n" * 10)
    found = study(path)
    assert found["judge"] == "logprob"
    assert found["report"]["apgr"] == pytest.approx(0.75)


def test_a_strong_model_that_is_not_better_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "equal.csv"
    path.write_text("prompt,cheap,strong\nWho?,1,1\nWhy?,1,0\n")
    assert "not better" in run(path).stdout
    assert study(path)["toml"] is None


def test_an_unreadable_line_is_named(table: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'small'"):
        run(table, "--cheap", "small")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no \.csv"):
        run(tmp_path / "empty")


def test_a_log_and_outcomes_are_not_read_at_once(table: Path) -> None:
    assert CliRunner().invoke(tune, [str(table), "--cascade", str(table)]).exit_code == 2
    assert CliRunner().invoke(tune, ["--cascade", str(table), "--max-error", "1%"]).exit_code == 2
    assert CliRunner().invoke(tune, []).exit_code == 2
    shown = CliRunner().invoke(tune, ["--help"]).stdout
    assert "headstart tune --cascade outcomes.csv" in shown

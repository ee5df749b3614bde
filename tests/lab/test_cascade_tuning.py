"""The results that a table of outcomes gives for a cascade."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from headstart.errors import ConfigError
from headstart.lab.quality import CascadeRow, read_rows, tune_cascade

if TYPE_CHECKING:
    from pathlib import Path


def test_a_perfect_score_escalates_only_what_gains() -> None:
    rows = [CascadeRow(0.1, 0, 1, 1.0, 10.0)] * 20 + [CascadeRow(0.9, 1, 1, 1.0, 10.0)] * 80
    report = tune_cascade(rows)
    assert (report.cheap, report.strong, report.either) == (0.8, 1.0, 1.0)
    assert report.cpt50 == pytest.approx(0.1)
    assert report.cpt80 == pytest.approx(0.16)
    assert report.apgr == pytest.approx(0.9)
    assert report.suggested
    assert report.suggested.threshold == 0.9
    assert report.suggested.strong_share == pytest.approx(0.2)
    assert report.suggested.cost_usd == pytest.approx(1.0 + 0.2 * 10.0)


def test_equal_scores_are_as_good_as_chance() -> None:
    report = tune_cascade([CascadeRow(0.5, i % 2, 1) for i in range(100)])
    assert report.apgr == pytest.approx(0.5)
    assert report.cpt50 == pytest.approx(0.5)
    assert [point.strong_share for point in report.curve] == [0.0, 1.0]


def test_the_curve_runs_from_none_escalated_to_all() -> None:
    report = tune_cascade([CascadeRow(i / 1000, i % 2, 1) for i in range(1000)])
    assert len(report.curve) == 101
    assert (report.curve[0].strong_share, report.curve[0].quality) == (0.0, 0.5)
    assert (report.curve[-1].strong_share, report.curve[-1].recovered) == (1.0, 1.0)
    assert report.curve[-1].threshold > 0.999


def test_a_strong_model_that_is_no_better_is_not_suggested() -> None:
    report = tune_cascade([CascadeRow(0.2, 1, 1), CascadeRow(0.4, 1, 0)])
    assert (report.apgr, report.cpt50, report.suggested) == (None, None, None)


def test_nothing_to_tune_on_is_said() -> None:
    with pytest.raises(ConfigError, match="both models"):
        tune_cascade([])


def test_a_csv_table_with_named_columns_is_read(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.csv"
    path.write_text("prompt,small,large\nHow many eggs?,True,False\nWhy?,0.25,yes\n")
    rows = read_rows(path, "small", "large")
    assert [(row.cheap, row.strong) for row in rows] == [(1.0, 0.0), (0.25, 1.0)]
    assert all(0.0 <= row.score <= 1.0 for row in rows)


def test_json_lines_with_scores_and_costs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    line = {"score": 0.7, "cheap": False, "strong": 1, "cheap_usd": 0.1, "strong_usd": 2}
    path.write_bytes(msgspec.json.encode(line) + b"\n")
    assert read_rows(path) == [CascadeRow(0.7, 0.0, 1.0, 0.1, 2.0)]


def test_empty_lines_between_json_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_text(
        '{"score": 1, "cheap": 1, "strong": 1}\n\n  \n{"score": 0, "cheap": 0, "strong": 1}\n\n'
    )
    assert read_rows(path) == [CascadeRow(1.0, 1.0, 1.0), CascadeRow(0.0, 0.0, 1.0)]


def test_a_line_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_text("[1]\n")
    with pytest.raises(ConfigError, match=r"outcomes\.jsonl needs the columns.*got `array`"):
        read_rows(path)


@pytest.mark.parametrize(
    "text", ["prompt,cheap\nx,1\n", "prompt,cheap,strong\nx,maybe,1\n", "cheap,strong\n1,1\n"]
)
def test_a_table_without_outcomes_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "outcomes.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match="needs the columns"):
        read_rows(path)

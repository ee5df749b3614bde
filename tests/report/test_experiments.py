"""Shorter answers in the report: what is saved, against conversations that were left alone."""

from __future__ import annotations

import random
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from headstart.attempts import ShapingEffect
from headstart.cli.report import print_tables
from headstart.report.sections import render_page
from support.booked import report_on, served

if TYPE_CHECKING:
    from headstart.observe import Served


def answered(kind: str, tokens: int, *, status: int = 200) -> Served:
    shaped = (ShapingEffect(kind=kind, tokens_before=tokens, tokens_after=tokens),)
    return served(status=status, total_s=0.5 + tokens / 100, shaped=shaped)


def both_sides(seed: int) -> list[Served]:
    draw = random.Random(seed)
    short = [answered("concise", max(1, round(draw.gauss(200, 50)))) for _ in range(900)]
    alone = [answered("concise-holdout", max(1, round(draw.gauss(300, 80)))) for _ in range(100)]
    return [*short, *alone]


def test_the_saving_comes_with_an_interval_that_holds_the_truth() -> None:
    held = 0
    for seed in range(20):
        (trial,) = report_on(*both_sides(seed)).trials
        assert (trial.name, trial.answers, trial.held_out) == ("concise", 900, 100)
        saved = trial.saved_tokens
        assert saved is not None
        assert saved.low is not None
        assert saved.high is not None
        assert saved.value == pytest.approx(100, abs=40)
        held += saved.low <= 100 <= saved.high
    assert held >= 17


def test_time_is_measured_too_and_the_share_is_of_what_was_left_alone() -> None:
    (trial,) = report_on(*both_sides(1)).trials
    assert trial.saved_s is not None
    assert trial.saved_s.value == pytest.approx(1.0, abs=0.3)
    assert trial.saved_share == pytest.approx(1 / 3, abs=0.1)


def test_failed_answers_measure_nothing() -> None:
    (trial,) = report_on(answered("tight", 100), answered("tight", 9, status=502)).trials
    assert (trial.answers, trial.held_out, trial.saved_tokens) == (1, 0, None)


def test_without_an_experiment_there_is_nothing_to_tell() -> None:
    assert report_on(answered("guard", 100)).trials == ()


def test_the_saving_is_shown_but_not_counted_as_cut_from_prompts() -> None:
    report = report_on(*both_sides(1))
    assert report.reshaped == ()
    page, out = render_page(report), StringIO()
    print_tables(Console(file=out, width=160), report)
    for shown in (page, out.getvalue()):
        assert "concise" in shown
        assert "left alone" in shown
        assert "900" in shown

"""``headstart tune --cascade``: what a cheap model's drafts would save, and at what quality."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from headstart.cli import lab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.table import Table

    from headstart.lab.cascade import CascadeReport, CascadeTuning, Point

_STEPS = 10


def tune_cascade(path: Path, cheap: str, strong: str, *, as_json: bool) -> None:
    """Print what the outcomes in ``path`` say of a cascade. Raises ConfigError."""
    from headstart.lab.cascade import read_rows, study_cascade

    found = study_cascade(read_rows(path, cheap, strong))
    if as_json:
        document = {**msgspec.to_builtins(found), "toml": _snippet(found)}
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
    else:
        _print(found)


def _print(found: CascadeTuning) -> None:
    from rich.console import Console

    report = found.report
    click.echo(
        f"{report.n:,} prompts: the cheap model alone {report.cheap:.1%}, the strong one "
        f"{report.strong:.1%}, the better answer of both {report.either:.1%}"
    )
    console = Console()
    console.print(_curve(report))
    console.print(_scores(found))
    point = found.at_min_confidence
    if point is None:
        click.echo("The strong model is not better here: nothing is gained by asking it.")
        return
    click.echo(
        f"{lab.percent(point.strong_share)} of the calls to the strong model keep "
        f"{lab.percent(point.recovered)} of what it is better: quality {point.quality:.1%}"
        + (f", ${point.cost_usd:.6f} a call" if point.cost_usd else "")
    )
    click.echo(_snippet(found))


def _curve(report: CascadeReport) -> Table:
    """Return quality and cost for every tenth of the calls that the strong model may get."""
    table = _table("strong calls", "quality", "gap recovered", "$ a call")
    for point in _tenths(report):
        table.add_row(
            lab.percent(point.strong_share),
            lab.percent(point.quality),
            lab.percent(point.recovered),
            f"{point.cost_usd:.6f}" if point.cost_usd else "unknown",
        )
    return table


def _tenths(report: CascadeReport) -> Iterator[Point]:
    shown = set()
    for step in range(_STEPS + 1):
        point = min(report.curve, key=lambda each: abs(each.strong_share - step / _STEPS))
        if point.strong_share not in shown:
            shown.add(point.strong_share)
            yield point


def _scores(found: CascadeTuning) -> Table:
    """Return how well the score chooses, beside those who know less."""
    table = _table("chosen by", "APGR", "half of it at", "80 % of it at")
    report = found.report
    rows = [(each.name, each.apgr, each.cpt50, each.cpt80) for each in found.baselines]
    own = "judges of the cascade" if found.judge == "prompt" else "the table's score"
    for name, apgr, *shares in [*rows, (own, report.apgr, report.cpt50, report.cpt80)]:
        known = "none" if apgr is None else f"{apgr:.3f}"
        table.add_row(name, known, *map(lab.percent, shares))
    return table


def _table(first: str, *more: str) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for name in more:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _snippet(found: CascadeTuning) -> str | None:
    """Return a route with these settings, or None where a cascade gains nothing."""
    if found.min_confidence is None:
        return None
    return (
        "[[route]]\n"
        'name = "cascade"\n'
        'strategy = "cascade"\n'
        'upstreams = ["cheap", "strong"]  # the names of yours\n'
        f'judge = ["refusal", "format", "{found.judge}"]\n'
        f"min_confidence = {found.min_confidence:g}"
    )

"""One self-contained HTML page: no script, no request to anywhere, light and dark."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from headstart.report.plots import STACK, distributions, instant, timeline
from headstart.report.wording import (
    dollars,
    duration,
    estimate,
    money_note,
    percent,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headstart.report.values import Group, Holdout, Quantiles, Report

MAX_REASONS = 12


def render_page(report: Report) -> str:
    """Return the report as an HTML document."""
    template = files("headstart.report").joinpath("page.html").read_text(encoding="utf-8")
    period = "No requests are booked."
    if report.first is not None and report.last is not None:
        period = f"{report.overall.requests:,} requests, {instant(report.first)} to "
        period += f"{instant(report.last)} UTC"
    return Template(template).substitute(period=period, body="\n".join(_sections(report)))


def _sections(report: Report) -> Iterator[str]:
    if report.first is None:
        return
    yield _tiles(report)
    yield _section("Time to first token", _latency(report))
    if report.timeline:
        key = _key((outcome.value, outcome.value) for outcome in STACK)
        yield _section(
            "Requests over time", key + timeline(report.timeline, report.timeline_step_s)
        )
    if report.holdout is not None:
        yield _section("Savings, measured by holdout", _holdout(report.holdout))
    yield _section("By model", _groups("model", report.models))
    yield _section("By endpoint", _groups("endpoint", report.endpoints))
    if report.reasons:
        rows = [(why, f"{count:,}") for why, count in list(report.reasons.items())[:MAX_REASONS]]
        yield _section("Why requests were no hits", _table(("reason", "requests"), rows))


def _tiles(report: Report) -> str:
    group, savings = report.overall, report.overall.savings
    tiles = (
        (
            "hit rate",
            percent(group.hit_rate),
            f"exact {percent(group.exact_rate)}, semantic {percent(group.semantic_rate)}",
        ),
        (
            "time saved, net",
            duration(savings.total_s),
            f"to the first token {duration(savings.ttft_s)}",
        ),
        ("money saved", dollars(savings.usd), money_note(savings) or "at the prices configured"),
        (
            "tokens saved",
            f"{savings.tokens:,}",
            f"{savings.estimated_hits:,} hits estimated" if savings.estimated_hits else "",
        ),
    )
    cells = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(note)}</span></div>"
        for name, value, note in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _latency(report: Report) -> str:
    hits, misses = report.overall.hits, report.overall.misses
    rows = [
        (label, *_quantiles(times))
        for label, times in (
            ("hits, first token", hits.ttft),
            ("misses, first token", misses.ttft),
            ("hits, whole answer", hits.total),
            ("misses, whole answer", misses.total),
        )
    ]
    table = _table(("", "requests", "p50", "p95", "p99"), rows)
    if not (report.hit_curve or report.miss_curve):
        return table
    key = _key((("exact", "hits"), ("miss", "misses")))
    note = '<p class="soft">Share of requests whose first token came within the time below.</p>'
    return note + key + distributions(report.hit_curve, report.miss_curve) + table


def _quantiles(times: Quantiles | None) -> tuple[str, str, str, str]:
    if times is None:
        return ("0", duration(None), duration(None), duration(None))
    return (f"{times.n:,}", duration(times.p50_s), duration(times.p95_s), duration(times.p99_s))


def _holdout(holdout: Holdout) -> str:
    rows = [
        ("by hits", estimate(holdout.by_hits_s), estimate(holdout.by_hits_usd, "usd")),
        ("by holdout", estimate(holdout.by_holdout_s), estimate(holdout.by_holdout_usd, "usd")),
    ]
    table = _table(("estimate, with 95 % interval", "time saved", "money saved"), rows)
    words = (
        f"{holdout.held_out:,} would-be hits were sent upstream at random, beside "
        f"{holdout.hits:,} hits: {verdict(disagree=holdout.disagree)}."
    )
    return f"<p>{escape(words)}</p>{table}"


def _groups(title: str, groups: Sequence[Group]) -> str:
    rows = [
        (
            group.name,
            f"{group.requests:,}",
            f"{group.failures:,}",
            percent(group.exact_rate),
            percent(group.semantic_rate),
            duration(group.hits.ttft.p50_s if group.hits.ttft else None),
            duration(group.misses.ttft.p50_s if group.misses.ttft else None),
            duration(group.savings.total_s),
            dollars(group.savings.usd),
        )
        for group in groups
    ]
    header = (
        title, "requests", "failed", "exact", "semantic", "hit p50", "miss p50", "saved", "money",
    )  # fmt: skip
    return _table(header, rows)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _key(entries: Iterable[tuple[str, str]]) -> str:
    marks = "".join(f'<span><i class="{kind}"></i>{name}</span>' for kind, name in entries)
    return f'<div class="key">{marks}</div>'


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'

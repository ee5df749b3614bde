"""One self-contained HTML page: no script, no request to anywhere, light and dark."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from headstart.report.markup import document, key, section, table
from headstart.report.plots import STACK, distributions, instant, timeline
from headstart.report.wording import (
    UNKNOWN,
    dollars,
    duration,
    estimate,
    extra_note,
    money_note,
    percent,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.report.values import Group, Holdout, Quantiles, Report, Reshaped, Trial

MAX_REASONS = 12
NOTES = """\
A hit's saving is what its answer took and cost when it was made, less what the hit took. Time is
summed over requests and net of what all other requests spent on looking for a hit. Joined requests,
which shared another caller's answer in flight, count as requests and as no hit. Times are UTC."""


def render_page(report: Report) -> str:
    """Return the report as an HTML document."""
    period = "No requests are booked."
    if report.first is not None and report.last is not None:
        period = f"{report.overall.requests:,} requests, {instant(report.first)} to "
        period += f"{instant(report.last)} UTC"
    return document(
        title="Headstart report",
        heading="What the cache saved",
        period=period,
        body="\n".join(_sections(report)),
        notes=NOTES,
    )


def _sections(report: Report) -> Iterator[str]:
    if report.first is None:
        return
    yield _tiles(report)
    yield section("Time to first token", _latency(report))
    if report.timeline:
        marks = key((outcome.value, outcome.value) for outcome in STACK)
        yield section(
            "Requests over time", marks + timeline(report.timeline, report.timeline_step_s)
        )
    if report.holdout is not None:
        yield section("Savings, measured by holdout", _holdout(report.holdout))
    yield section("By model", _groups("model", report.models))
    yield section("By endpoint", _groups("endpoint", report.endpoints))
    if report.calls:
        yield section("Upstream calls", _calls(report))
    if report.reshaped:
        yield section("Prompts and answers reshaped", _reshaped(report.reshaped))
    if report.trials:
        yield section("Shorter answers, measured by holdout", _trials(report.trials))
    if report.reasons:
        rows = [(why, f"{count:,}") for why, count in list(report.reasons.items())[:MAX_REASONS]]
        yield section("Why requests were no hits", table(("reason", "requests"), rows))


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
    times = table(("", "requests", "p50", "p95", "p99"), rows)
    if not (report.hit_curve or report.miss_curve):
        return times
    marks = key((("exact", "hits"), ("miss", "misses")))
    note = '<p class="soft">Share of requests whose first token came within the time below.</p>'
    return note + marks + distributions(report.hit_curve, report.miss_curve) + times


def _quantiles(times: Quantiles | None) -> tuple[str, str, str, str]:
    if times is None:
        return ("0", duration(None), duration(None), duration(None))
    return (f"{times.n:,}", duration(times.p50_s), duration(times.p95_s), duration(times.p99_s))


def _holdout(holdout: Holdout) -> str:
    rows = [
        ("by hits", estimate(holdout.by_hits_s), estimate(holdout.by_hits_usd, "usd")),
        ("by holdout", estimate(holdout.by_holdout_s), estimate(holdout.by_holdout_usd, "usd")),
    ]
    estimates = table(("estimate, with 95 % interval", "time saved", "money saved"), rows)
    words = (
        f"{holdout.held_out:,} would-be hits were sent upstream at random, beside "
        f"{holdout.hits:,} hits: {verdict(disagree=holdout.disagree)}."
    )
    return f"<p>{escape(words)}</p>{estimates}"


def _calls(report: Report) -> str:
    rows = [
        (
            each.name,
            f"{each.calls:,}",
            f"{each.won:,}",
            f"{each.lost:,}",
            f"{each.failed:,}",
            *_quantiles(each.ttft)[1:],
            UNKNOWN if each.tokens_per_s is None else f"{each.tokens_per_s:,.0f}",
            dollars(each.usd),
        )
        for each in report.calls
    ]
    header = (
        "provider and model", "calls", "won", "lost", "failed", "first token p50", "p95", "p99",
        "tokens/s", "money",
    )  # fmt: skip
    note = "" if report.extra is None else f'<p class="soft">{escape(extra_note(report.extra))}</p>'
    return note + table(header, rows)


def _reshaped(reshaped: Sequence[Reshaped]) -> str:
    rows = [
        (
            each.kind,
            f"{each.requests:,}",
            f"{each.tokens_before:,}",
            f"{each.tokens_after:,}",
            percent(1 - each.tokens_after / each.tokens_before if each.tokens_before else None),
        )
        for each in reshaped
    ]
    return table(("what", "requests", "tokens before", "after", "saved"), rows)


def _trials(trials: Sequence[Trial]) -> str:
    rows = [
        (
            each.name,
            f"{each.answers:,}",
            f"{each.held_out:,}",
            estimate(each.saved_tokens, "tokens"),
            percent(each.saved_share),
            estimate(each.saved_s),
        )
        for each in trials
    ]
    header = (
        "saved an answer, with 95 % interval", "answers", "left alone", "tokens", "share", "time",
    )  # fmt: skip
    return table(header, rows)


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
    return table(header, rows)

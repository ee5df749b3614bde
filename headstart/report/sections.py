"""The report as a list of sections, each with a title, and with a note, a table or a plot.

The terminal and the HTML page show the same list. The page is one file that loads nothing: it has
no script, and its plots are inline SVG. It has colours for light and for dark screens.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from html import escape
from importlib.resources import files
from math import ceil, floor, log10
from string import Template
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from headstart.decisions import Outcome
from headstart.report.accounts import NONE
from headstart.report.estimates import quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headstart.report.values import (
        CallStats,
        Estimate,
        Estimates,
        ExtraCalls,
        Group,
        Interval,
        LatencyQuantiles,
        OutputExperiment,
        Point,
        Reconciliation,
        RelayStats,
        Report,
        ReshapedTokens,
        Savings,
        SavingsLine,
        TimelineBar,
        UsageSums,
    )
    from headstart.types import LimitUse
    from headstart.usual_calls import MachineStats


WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 54, 696, 14, 244
SHORTEST_S = 1e-5
"""The left end of the time axis: a logarithmic axis has no zero."""
MAX_BAR = 24.0
GAP = 2.0
STACK = (Outcome.EXACT, Outcome.SEMANTIC, Outcome.JOINED, Outcome.MISS, Outcome.BYPASS)
"""The outcomes in one bar, from the axis upwards."""


def key(entries: Iterable[tuple[str, str]]) -> str:
    """Return the key of a plot from pairs of CSS class and name."""
    marks = "".join(f'<span><i class="{kind}"></i>{escape(name)}</span>' for kind, name in entries)
    return f'<div class="key">{marks}</div>'


def frame(label: str, parts: Iterable[str]) -> str:
    """Return the plot; screen readers read ``label``."""
    return (
        f'<div class="scroll"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg></div>'
    )


def place_x(share: float) -> float:
    """Return the abscissa of a share of the plot's width."""
    return LEFT + share * (RIGHT - LEFT)


def place_y(share: float) -> float:
    """Return the ordinate of a share of the plot's height, from the axis upwards."""
    return BOTTOM - share * (BOTTOM - TOP)


def percent_label(share: float) -> str:
    """Return ``25 %``."""
    return f"{share * 100:.0f} %"


def grid(label: Callable[[float], str] = percent_label) -> list[str]:
    """Return five grid lines; ``label`` names the line at a share of the height."""
    return [grid_line(place_y(share), label(share)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]


def grid_line(y: float, label: str) -> str:
    """Return a grid line with its label; the line at the bottom is the axis."""
    kind = "axis" if y == BOTTOM else "grid"
    line = f'<line class="{kind}" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + text_at(LEFT - 8, y + 4, label, "end")


def tick(x: float, label: str, anchor: str = "middle") -> str:
    """Return a label below the axis."""
    return text_at(x, BOTTOM + 20, label, anchor)


def text_at(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    """Return a text at a place."""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def curve_through(kind: str, points: Sequence[tuple[float, float]]) -> str:
    """Return a curve through points; the CSS class ``kind`` gives its colour."""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="curve {kind}" d="M{path}"/>'


def distributions(hits: Sequence[Point], misses: Sequence[Point]) -> str:
    """Plot the share of hits and of misses whose first token came within a time."""
    seconds = [max(point.seconds, SHORTEST_S) for point in (*hits, *misses)]
    low, high = floor(log10(min(seconds))), ceil(log10(max(seconds)))
    high = max(high, low + 1)

    def x(value: float) -> float:
        return place_x((log10(max(value, SHORTEST_S)) - low) / (high - low))

    parts = grid()
    parts += [tick(x(10.0**power), _decade(power)) for power in range(low, high + 1)]
    for name, points in (("misses", misses), ("hits", hits)):
        if points:
            steps = "".join(f"H{x(p.seconds):.1f}V{place_y(p.share):.1f}" for p in points)
            path = f"M{x(points[0].seconds):.1f} {BOTTOM}{steps}H{RIGHT}"
            parts.append(f'<path class="curve {name}" d="{path}"/>')
            # Low on the curve there is room to its right. Different heights keep the labels apart.
            share = 0.3 if name == "hits" else 0.15
            place = x(quantile([point.seconds for point in points], share)) + 8
            anchor = "start" if place < RIGHT - 60 else "end"
            place -= 0 if anchor == "start" else 16
            parts.append(text_at(place, place_y(share), name, anchor, "label"))
    note = '<p class="soft">Share of requests whose first token came within the time below.</p>'
    marks = key((("exact", "hits"), ("miss", "misses")))
    return note + marks + frame("Distribution of the time to first token", parts)


def timeline(bars: Sequence[TimelineBar], step_s: float) -> str:
    """Plot requests by outcome over time, in stacked bars."""
    first = bars[0].start
    places = round((bars[-1].start - first) / step_s) + 1
    pitch = (RIGHT - LEFT) / places
    width = max(1.0, min(MAX_BAR, pitch - GAP))
    tallest = max(sum(bar.outcomes.values()) for bar in bars)
    counts = sorted({0, ceil(tallest / 2), tallest})
    parts = [grid_line(place_y(number / tallest), f"{number:,}") for number in counts]
    for bar in bars:
        left = LEFT + pitch * ((bar.start - first) / step_s + 0.5) - width / 2
        parts.append(_draw_bar(bar, left, width, tallest))
    parts.append(tick(LEFT, instant(first), "start"))
    if places > 1:
        parts.append(tick(RIGHT, instant(bars[-1].start), "end"))
    marks = key((outcome.value, outcome.value) for outcome in STACK)
    return marks + frame("Requests over time, by outcome", parts)


def instant(unix: float) -> str:
    """Return a time as UTC, to the second."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _draw_bar(bar: TimelineBar, left: float, width: float, tallest: int) -> str:
    below = 0
    parts = []
    for outcome in STACK:
        number = bar.outcomes.get(outcome.value, 0)
        if number:
            top, bottom = place_y((below + number) / tallest), place_y(below / tallest)
            height = max(bottom - top - (1 if below else 0), 0.5)
            parts.append(
                f'<rect class="{outcome.value}" x="{left:.1f}" y="{top:.1f}" '
                f'width="{width:.1f}" height="{height:.1f}"/>'
            )
            below += number
    counts = ", ".join(f"{name} {number:,}" for name, number in sorted(bar.outcomes.items()))
    return f"<g><title>{instant(bar.start)}: {escape(counts)}</title>{''.join(parts)}</g>"


def _decade(power: int) -> str:
    return f"{10.0 ** (power + 3):g} ms" if power < 0 else f"{10**power:,} s"


# --- sections -------------------------------------------------------------------------------------

NOTES = """\
Savings are compared with Headstart without its cache: a hit saves what recent calls of the same
kind took, less its own time. Time is summed over requests. A joined request shared another
request's answer in flight; it is no hit. Times are UTC."""


def render_page(report: Report) -> str:
    """Return the report as an HTML document."""
    period, tiles = "No requests are booked.", ""
    if report.first is not None and report.last is not None:
        period = f"{report.overall.requests:,} requests, {instant(report.first)} to "
        period += f"{instant(report.last)} UTC"
        if bill := bill_note(report.overall):
            period += f". {bill}"
        tiles = _tiles(report)
    return render_document(
        title="Headstart report",
        heading="What the cache saved",
        period=period,
        before=tiles,
        parts=sections(report),
        notes=NOTES,
    )


def render_document(
    *,
    title: str,
    heading: str,
    period: str,
    parts: Iterable[ReportSection],
    notes: str,
    before: str = "",
) -> str:
    """Return a whole HTML document. ``before`` is HTML, everything else is text."""
    template = files("headstart.report").joinpath("page.html").read_text(encoding="utf-8")
    texts = {"title": title, "heading": heading, "period": period, "notes": notes}
    return Template(template).substitute(
        {name: escape(text) for name, text in texts.items()},
        body="\n".join((before, *map(_section, parts))),
    )


def _section(section: ReportSection) -> str:
    note = "".join(f'<p class="soft">{escape(line)}</p>' for line in section.note.splitlines())
    plot = "" if section.plot is None else section.plot()
    table = "" if section.table is None else _table_rows(section.table)
    return f"<section><h2>{escape(section.title)}</h2>{note}{plot}{table}</section>"


def _table_rows(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{inner}</div>'


def _tiles(report: Report) -> str:
    group, savings = report.overall, report.overall.savings
    hits = f"exact {percent(group.exact_rate)}, semantic {percent(group.semantic_rate)}"
    estimated = f"{savings.estimated_hits:,} hits estimated" if savings.estimated_hits else ""
    money = money_note(savings) or "at the prices configured"
    tiles = (
        ("hit rate", percent(group.hit_rate), hits),
        (
            "time saved, net",
            duration(savings.total_s),
            f"to the first token {duration(savings.ttft_s)}",
        ),
        ("money saved", dollars(savings.usd), money),
        ("tokens saved", f"{savings.tokens:,}", estimated),
    )
    cells = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(note)}</span></div>"
        for name, value, note in tiles
    )
    return f'<div class="tiles">{cells}</div>'


T = TypeVar("T")

MAX_REASONS = 12
MAX_LINES = 50
NAMED_SHARE = 0.1
"""A share of the hits above which the entry that answered them is named."""
UNKNOWN = "-"


class Table(NamedTuple):
    """A table of texts. The first column holds names, the other columns hold numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    page_only: frozenset[str] = frozenset()
    """The columns that a terminal has no room for."""
    short_name: Callable[[str], str] = str
    """How a terminal writes a name."""


class ReportSection(NamedTuple):
    """One section of a report."""

    title: str
    table: Table | None = None
    note: str = ""
    """Its lines are paragraphs."""
    plot: Callable[[], str] | None = None
    """Draws the plot as HTML. A terminal shows no plot."""


def sections(report: Report) -> Iterator[ReportSection]:
    """Yield the sections of a report; none for a report over no request."""
    if report.first is None:
        return
    yield _savings(report.overall.savings)
    if report.estimates is not None:
        yield _estimates(report.estimates)
    curves = report.hit_curve or report.miss_curve
    yield ReportSection(
        "Time to first token",
        _latencies(report.overall),
        plot=partial(distributions, report.hit_curve, report.miss_curve) if curves else None,
    )
    if report.timeline:
        draw = partial(timeline, report.timeline, report.timeline_step_s)
        yield ReportSection("Requests over time", plot=draw)
    for name, groups in (("model", report.models), ("endpoint", report.endpoints)):
        columns = {name: lambda group: group.name, **_GROUP}
        yield ReportSection(f"By {name}", _table(columns, groups, page_only=_GROUP_PAGE_ONLY))
    yield from _bills(report)
    if report.calls:
        calls = _table(_CALLS, report.calls, short_name=_short_model)
        note = "" if report.extra is None else extra_note(report.extra)
        yield ReportSection("Upstream calls", calls, note)
    if report.machines:
        note = (
            "No other number contains these dollars. Break-even load: at this multiple of the "
            "present load, the machine costs as much as the price by tokens."
        )
        yield ReportSection("Machines by the hour", _table(_MACHINES, report.machines), note)
    if report.reshaped:
        yield ReportSection("Prompts and answers reshaped", _table(_RESHAPED, report.reshaped))
    if report.trials:
        yield ReportSection(
            "Shorter answers, measured by holdout", _table(_EXPERIMENTS, report.trials)
        )
    if report.relays:
        note = "Paths that are not cached. No other number counts these requests."
        yield ReportSection("Relayed requests", _table(_RELAYS, report.relays), note)
    if report.reconciliation is not None:
        yield _reconciliation(report.reconciliation)
    if report.reasons:
        rows = [(why, f"{number:,}") for why, number in report.reasons.items()][:MAX_REASONS]
        yield ReportSection("Why requests were no hits", Table(("reason", "requests"), rows))


def _table(
    columns: Mapping[str, Callable[[T], str]],
    rows: Iterable[T],
    *,
    page_only: frozenset[str] = frozenset(),
    short_name: Callable[[str], str] = str,
) -> Table:
    cells = [tuple(cell(row) for cell in columns.values()) for row in rows]
    return Table(tuple(columns), cells, page_only, short_name)


_GROUP: Mapping[str, Callable[[Group], str]] = {
    "requests": lambda group: f"{group.requests:,}",
    "failed": lambda group: f"{group.failures:,}",
    "exact": lambda group: percent(group.exact_rate),
    "semantic": lambda group: percent(group.semantic_rate),
    "hit p50": lambda group: _quantiles(group.hits.ttft)[0],
    "miss p50": lambda group: _quantiles(group.misses.ttft)[0],
    "saved": lambda group: duration(group.savings.total_s),
    "money": lambda group: dollars(group.savings.usd),
}
_GROUP_PAGE_ONLY = frozenset(("hit p50", "miss p50"))
_CALLS: Mapping[str, Callable[[CallStats], str]] = {
    "upstream, model": lambda each: each.name,
    "calls": lambda each: f"{each.calls:,}",
    "won": lambda each: f"{each.won:,}",
    "lost": lambda each: f"{each.lost:,}",
    "failed": lambda each: f"{each.failed:,}",
    "ttft p50": lambda each: _quantiles(each.ttft)[0],
    "p95": lambda each: _quantiles(each.ttft)[1],
    "p99": lambda each: _quantiles(each.ttft)[2],
    "tok/s": lambda each: UNKNOWN if each.tokens_per_s is None else f"{each.tokens_per_s:,.0f}",
    "money": lambda each: dollars(each.usd),
}
_RESHAPED: Mapping[str, Callable[[ReshapedTokens], str]] = {
    "reshaped": lambda each: each.kind,
    "requests": lambda each: f"{each.requests:,}",
    "tokens before": lambda each: f"{each.tokens_before:,}",
    "after": lambda each: f"{each.tokens_after:,}",
    "saved": lambda each: percent(
        1 - each.tokens_after / each.tokens_before if each.tokens_before else None
    ),
    "money": lambda each: dollars(each.saved_usd) if each.saved_usd else UNKNOWN,
}
_LIMITS: Mapping[str, Callable[[LimitUse], str]] = {
    "key": lambda each: each.caller,
    "limit": lambda each: each.limit,
    "used": lambda each: _limited(each, each.used),
    "of": lambda each: _limited(each, each.most),
    "share": lambda each: percent(each.share),
    "begins again": lambda each: f"{datetime.fromtimestamp(each.resets_at, UTC):%Y-%m-%d %H:%M}",
}


def _limited(use: LimitUse, amount: float) -> str:
    return dollars(amount) if use.limit.startswith("usd") else f"{amount:,.0f}"


_MACHINES: Mapping[str, Callable[[MachineStats], str]] = {
    "upstream": lambda each: each.name,
    "calls": lambda each: f"{each.calls:,}",
    "cost": lambda each: dollars(each.usd),
    "busy": lambda each: percent(each.busy_share),
    "at a time": lambda each: f"{each.calls_at_a_time:.2f}",
    "$/M answer": lambda each: dollars(each.usd_per_million),
    "by tokens": lambda each: dollars(each.metered_usd),
    "break even": lambda each: (
        UNKNOWN if each.break_even_load is None else f"{each.break_even_load:,.2f} x"
    ),
}
_RELAYS: Mapping[str, Callable[[RelayStats], str]] = {
    "path, upstream": lambda each: each.name,
    "requests": lambda each: f"{each.requests:,}",
    "failed": lambda each: f"{each.failures:,}",
    "others asked": lambda each: f"{each.others_asked:,}",
    "KB up": lambda each: f"{each.bytes_up / 1000:,.1f}",
    "down": lambda each: f"{each.bytes_down / 1000:,.1f}",
    "p50": lambda each: _quantiles(each.total)[0],
    "p95": lambda each: _quantiles(each.total)[1],
}
_EXPERIMENTS: Mapping[str, Callable[[OutputExperiment], str]] = {
    "saved an answer, 95 %": lambda each: each.name,
    "answers": lambda each: f"{each.answers:,}",
    "left alone": lambda each: f"{each.held_out:,}",
    "tokens": lambda each: estimate(each.saved_tokens, "tokens"),
    "share": lambda each: percent(each.saved_share),
    "time": lambda each: estimate(each.saved_s),
}


_BILL: Mapping[str, Callable[[Group], str]] = {
    "requests": lambda group: f"{group.requests:,}",
    "hits": lambda group: percent(group.hit_rate),
    "would have cost": lambda group: dollars(group.costs.would_have_usd),
    "did cost": lambda group: dollars(group.costs.paid_usd),
    "saved": lambda group: percent(group.costs.saved_share),
}


def _bills(report: Report) -> Iterator[ReportSection]:
    """Yield the providers' bill by caller, route, tag and day, and the used part of limits.

    A single day, and a single group without a name, would only repeat the whole bill.
    """
    for name, groups in (
        ("caller", report.callers),
        ("route", report.routes),
        ("tag", report.tags),
        ("day", report.days),
    ):
        has_name = name != "day" and any(group.name != NONE for group in groups)
        if len(groups) > 1 or has_name:
            columns = {name: lambda group: group.name, **_BILL}
            yield ReportSection(f"Bill by {name}", _table(columns, groups))
    if report.limits:
        note = "What is used by now, with the calls in flight. Times are in UTC."
        yield ReportSection("Limits of client keys", _table(_LIMITS, report.limits), note)


def _latencies(group: Group) -> Table:
    times = {
        "hits, first token": group.hits.ttft,
        "misses, first token": group.misses.ttft,
        "hits, whole answer": group.hits.total,
        "misses, whole answer": group.misses.total,
    }
    rows = [
        (name, "0" if each is None else f"{each.n:,}", *_quantiles(each))
        for name, each in times.items()
    ]
    return Table(("", "requests", "p50", "p95", "p99"), rows)


def _quantiles(times: LatencyQuantiles | None) -> tuple[str, str, str]:
    if times is None:
        return (UNKNOWN,) * 3
    return duration(times.p50_s), duration(times.p95_s), duration(times.p99_s)


_LINES: Mapping[str, Callable[[SavingsLine], str]] = {
    "": lambda line: line.name,
    "number": lambda line: f"{line.requests:,}",
    "time": lambda line: duration(line.total_s),
    "to the first token": lambda line: duration(line.ttft_s),
    "tokens": lambda line: f"{line.tokens:,}",
    "money": lambda line: dollars(line.usd),
}


def _savings(savings: Savings) -> ReportSection:
    """Return the parts of the savings and their sum, with notes on the sum."""
    table = _table(_LINES, savings.lines)
    sums = (
        "saved", "", duration(savings.total_s), duration(savings.ttft_s),
        f"{savings.tokens:,}", dollars(savings.usd),
    )  # fmt: skip
    notes = []
    if savings.usd_cold is not None and savings.usd_cold != savings.usd_prefix_cached:
        notes.append(
            f"Money: {dollars(savings.usd_prefix_cached)} if the provider's prefix cache had held "
            f"the prompt of each hit, {dollars(savings.usd_cold)} if it had held none."
        )
    if savings.outlier_calls:
        notes.append(
            f"Calls so slow that only a part of their time counts: {savings.outlier_calls:,}; "
            f"with all of it, hits would have saved {duration(savings.outliers_s)} more."
        )
    if savings.uncompared_hits:
        notes.append(
            f"Hits whose first token has no call to be compared with: {savings.uncompared_hits:,}."
        )
    return ReportSection(
        "What was saved", table._replace(rows=[*table.rows, sums]), " ".join(notes)
    )


_MEASURES: Mapping[str, tuple[str, str]] = {
    "total_s": ("time", "s"),
    "ttft_s": ("to the first token", "s"),
    "tokens": ("tokens", "tokens"),
    "usd": ("money", "usd"),
}


def _estimates(estimates: Estimates) -> ReportSection:
    columns: dict[str, Callable[[Estimate], str]] = {
        "saved, 95 % interval": lambda each: _MEASURES[each.measure][0],
        "by recent calls": lambda each: estimate(each.by_calls, _MEASURES[each.measure][1]),
    }
    if estimates.held_out:
        columns["by holdout"] = lambda each: estimate(each.by_holdout, _MEASURES[each.measure][1])
    entries = counted(estimates.entries, "entry", "entries")
    hits = counted(estimates.hits, "hit")
    notes = [f"{hits} from {entries}, compared with recent calls of the same kind."]
    if estimates.largest_share > NAMED_SHARE and estimates.entries > 1:
        notes.append(
            f"Entry {estimates.largest_entry} answered {percent(estimates.largest_share)} of them."
        )
    if estimates.held_out:
        notes.append(
            f"{estimates.held_out:,} would-be hits were sent upstream at random: "
            f"{verdict(estimates)}."
        )
    table = _table(columns, estimates.estimates)
    return ReportSection("How sure the savings are", table, " ".join(notes))


_COLUMNS = {
    "calls": "calls",
    "prompt_tokens": "prompt",
    "completion_tokens": "answer",
    "usd": "money",
}
"""The columns of a comparison with an export, as far as the export has them."""


def _reconciliation(found: Reconciliation) -> ReportSection:
    """Return the lines that differ, with the provider's values beside ours."""
    names = [name for name in _COLUMNS if getattr(found.theirs, name) is not None]
    apart = [line for line in found.lines if line.differs]
    rows = [
        [f"{line.day} {line.model}", *_beside(line.ours, line.theirs, names, line.differs)]
        for line in apart[:MAX_LINES]
    ]
    rows.append(["all", *_beside(found.ours, found.theirs, names, ())])
    header = ["day, model"]
    for name in names:
        header += [f"{_COLUMNS[name]}, books", "provider"]
    notes = [f"{len(found.lines) - len(apart):,} of {len(found.lines):,} days and models agree."]
    if len(apart) > MAX_LINES:
        notes.append(f"{len(apart) - MAX_LINES:,} more differ (--json shows all).")
    estimated = sum(line.estimated for line in found.lines)
    if estimated:
        notes.append(f"The tokens of {estimated:,} of our calls are estimates.")
    if found.days_before_the_books:
        notes.append(f"{found.days_before_the_books:,} days are older than the books.")
    return ReportSection("Beside the provider's export", Table(header, rows), " ".join(notes))


def _beside(
    ours: UsageSums, theirs: UsageSums, names: Sequence[str], differs: Sequence[str]
) -> Iterator[str]:
    """Yield our number and the provider's. A star marks a difference."""
    for name in names:
        for sums, mark in ((ours, ""), (theirs, "*" if name in differs else "")):
            number = getattr(sums, name)
            written = dollars(number) if name == "usd" or number is None else f"{number:,}"
            yield written + mark


def _short_model(name: str) -> str:
    """Return upstream and model without the model's path, so that the table fits a terminal."""
    upstream, _, model = name.partition(" ")
    return f"{upstream} {model.rpartition('/')[2]}".rstrip()


# --- numbers -------------------------------------------------------------------------------


def duration(seconds: float | None) -> str:
    """Return ``0.25 ms``, ``1.2 ms``, ``3.4 s``, ``2.1 min`` or ``5.6 h``."""
    if seconds is None:
        return UNKNOWN
    size = abs(seconds)
    if size < 0.9995:
        digits = 2 if 0 < size < 0.000995 else 1 if size < 0.09995 else 0
        return f"{seconds * 1000:.{digits}f} ms"
    if size < 120:
        return f"{seconds:.{2 if size < 10 else 1}f} s"
    if size < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"


def dollars(usd: float | None) -> str:
    """Return ``$1.23``, with more digits for small sums."""
    if usd is None:
        return UNKNOWN
    sign = "-" if usd < 0 else ""
    size = abs(usd)
    return f"{sign}${size:,.{2 if size >= 1 or size == 0 else 4}f}"


def count(number: float) -> str:
    """Return ``1,234``; a number below 100 has one digit after the point."""
    return f"{number:,.{0 if abs(number) >= 100 else 1}f}"


def counted(number: int, one: str, several: str = "") -> str:
    """Return ``1 hit``, ``2 hits``; ``several`` is the plural of an irregular word."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def percent(share: float | None) -> str:
    """Return ``12.3 %``."""
    return UNKNOWN if share is None else f"{share * 100:.1f} %"


def estimate(interval: Interval | None, show: str = "s") -> str:
    """Return a value with its interval. ``show`` is ``s``, ``usd`` or ``tokens``."""
    write = {"s": duration, "usd": dollars, "tokens": count}[show]
    if interval is None:
        return UNKNOWN
    if interval.low is None or interval.high is None:
        return f"{write(interval.value)} (too few)"
    return f"{write(interval.value)} ({write(interval.low)} to {write(interval.high)})"


def money_note(savings: Savings) -> str:
    """Return a note on what the sum of saved money leaves out, and what was subtracted from it."""
    notes = []
    if savings.unpriced_hits:
        notes.append(f"{counted(savings.unpriced_hits, 'hit')} without a known price")
    if savings.audits:
        audits = counted(savings.audits, "audit")
        notes.append(f"net of {audits} for {dollars(savings.audits_usd)}")
    return "; ".join(notes)


def bill_note(group: Group, number: Callable[[str], str] = str) -> str:
    """Return a sentence with the providers' bill, or "" without a price. ``number`` marks sums."""
    bill = group.costs
    if not bill.would_have_usd:
        return ""
    return (
        f"The providers cost {number(dollars(bill.paid_usd))}; without Headstart "
        f"{number(dollars(bill.would_have_usd))}: saved {number(percent(bill.saved_share))}"
    )


def extra_note(extra: ExtraCalls) -> str:
    """Return a sentence about the cost of races, hedges, retries and fallbacks."""
    requests = counted(extra.requests, "request")
    words = f"{percent(extra.calls_share)} extra calls for {requests}"
    if extra.usd_share is None:
        return f"{words}."
    share = percent(extra.usd_share)
    return f"{words}; calls whose answer no client got cost {dollars(extra.usd)}, {share} of all."


def verdict(estimates: Estimates) -> str:
    """Return a sentence on whether both estimates of the savings agree."""
    if all(each.disagree is None for each in estimates.estimates):
        return "too few held-out requests to compare the estimates"
    apart = [_MEASURES[each.measure][0] for each in estimates.estimates if each.disagree]
    if apart:
        return f"the estimates disagree ({', '.join(apart)}): trust the one by holdout"
    return "the estimates agree within their uncertainty"

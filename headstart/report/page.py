"""Reports as one self-contained HTML page: no script, no request, light and dark."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from headstart.report.plots import instant
from headstart.report.sections import dollars, duration, money_note, percent, sections

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headstart.report.sections import ReportSection, Table
    from headstart.report.values import Report

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
    note = f'<p class="soft">{escape(section.note)}</p>' if section.note else ""
    plot = "" if section.plot is None else section.plot()
    table = "" if section.table is None else _table(section.table)
    return f"<section><h2>{escape(section.title)}</h2>{note}{plot}{table}</section>"


def _table(table: Table) -> str:
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

"""Pieces of a page: sections, keys, tables, and the page itself."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def document(*, title: str, heading: str, period: str, body: str, notes: str) -> str:
    """Return a whole HTML document: no script, no request to anywhere, light and dark.

    ``body`` is HTML; everything else is text.
    """
    template = files("headstart.report").joinpath("page.html").read_text(encoding="utf-8")
    texts = {"title": title, "heading": heading, "period": period, "notes": notes}
    return Template(template).substitute(
        {name: escape(text) for name, text in texts.items()}, body=body
    )


def section(title: str, body: str) -> str:
    """Return a card with a heading. ``body`` is HTML."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def key(entries: Iterable[tuple[str, str]]) -> str:
    """Return the key of a plot from (CSS class, name)."""
    marks = "".join(f'<span><i class="{kind}"></i>{escape(name)}</span>' for kind, name in entries)
    return f'<div class="key">{marks}</div>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the first column holds names, the others numbers."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{inner}</div>'

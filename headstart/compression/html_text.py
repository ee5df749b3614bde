"""HTML as the text that a reader sees: headings, lists, tables and paragraphs stay apart."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

_HEADER = "[HTML as text]\n"
_HIDDEN = re.compile(r"<(?:!--|(script|style|svg|noscript|template|head|iframe)\b)", re.IGNORECASE)
_TITLE = re.compile(r"<title[^<>]*>([^<>]*)</title", re.IGNORECASE)
_START = re.compile(r"\s*(?:<\?xml[^<>]*>\s*)?(?:<!doctype\s+html|<html\b)", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:div|p|span|a|td|tr|li|ul|h[1-6]|table|section|article|br)\b", re.IGNORECASE
)
_MIN_TAGS = 10
_MIN_TAGS_PER_CHAR = 1 / 100
_MAX_UNCLOSED = 50
"""Tags that are never closed make the parser start over for each."""

_BREAKS = frozenset(
    (
        "address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset",
        "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header",
        "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "tr", "ul",
    )
)  # fmt: skip
_BEFORE = {f"h{level}": "#" * level + " " for level in range(1, 7)} | {"li": "- "}
_SPACES = re.compile(r"[ \t\r\f\v\xa0]+")
_BREAK = re.compile(r"(?<![ \t\n])[ \t]*\n(?:[ \t]*\n)*")


def is_html(text: str) -> bool:
    """Is ``text`` an HTML page or a large part of one, not prose that mentions a tag?"""
    if _START.match(text):
        return True
    if not text.lstrip().startswith("<"):
        return False
    return len(_TAG.findall(text)) >= max(_MIN_TAGS, len(text) * _MIN_TAGS_PER_CHAR)


def html_to_text(html: str) -> str | None:
    """Return what a reader of the page sees, with its title, under a line that says so.

    None for markup too broken to tell.
    """
    visible = _visible(html)
    if visible is None or visible.count("<", visible.rfind(">") + 1) > _MAX_UNCLOSED:
        return None
    reader = _Reader()
    reader.feed(visible)
    reader.close()
    body = _BREAK.sub("\n", "".join(reader.out)).strip()
    title = _TITLE.search(html)
    heading = " ".join(unescape(title[1]).split()) + "\n" if title else ""
    return _HEADER + heading + body


def _visible(html: str) -> str | None:
    """Cut comments, scripts and the like out; None when one is never closed."""
    lower = html.lower()
    out: list[str] = []
    at = 0
    while found := _HIDDEN.search(html, at):
        out.append(html[at : found.start()])
        close = "-->" if found[1] is None else f"</{found[1].lower()}"
        end = lower.find(close, found.end())
        end = lower.find(">", end) if end >= 0 else end
        if end < 0:
            return None
        at = end + 1
    return " ".join([*out, html[at:]])


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.out: list[str] = []
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BREAKS:
            self.out.append("\n" + _BEFORE.get(tag, ""))
        elif tag in {"td", "th"}:
            self.out.append(" | ")
        elif tag == "img":
            self.out += [f"[image: {alt}]" for name, alt in attrs if name == "alt" and alt]
        self._verbatim += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        self._verbatim = max(0, self._verbatim - (tag == "pre"))
        if tag in _BREAKS:
            self.out.append("\n")

    def handle_data(self, data: str) -> None:
        self.out.append(data if self._verbatim else _SPACES.sub(" ", data.replace("\n", " ")))

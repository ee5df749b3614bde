"""HTML as plain text: headings, lists, tables and paragraphs stay on lines of their own."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

_HEADER = "[HTML as text]\n"
_HIDDEN = re.compile(r"<(?:!--|(script|style|svg|noscript|template|head|iframe)\b)", re.IGNORECASE)
_TITLE = re.compile(r"<title[^<>]*>([^<>]*)</title", re.IGNORECASE)
_START = re.compile(r"\s*(?:<\?xml[^<>]*>\s*)?(?:<!doctype\s+html|<html\b)", re.IGNORECASE)
_TAG = re.compile(r"</?([a-zA-Z][^\s<>/]*+)([^<>]*+)>")
_ATTRIBUTE = re.compile(r"(?<![^\s\"'])([^\s=<>\"'/]++)\s*+=\s*+(?:\"[^\"]*\"|'[^']*'|[^\s\"'>]+)")
_MIN_TAGS = 10
_MIN_TAGS_PER_CHAR = 1 / 100
_MAX_FOREIGN = 0.2
"""The largest share of a fragment's tags or attributes that are unknown in HTML, or hold data."""
_MAX_UNCLOSED = 50
"""The largest number of unclosed tags: the parser starts again for each of them."""

_LOOKS = re.compile(
    r"(?:class|id|style|href|src|srcset|sizes|alt|title|width|height|align|valign|border|bgcolor"
    r"|color|face|size|cell\w+|colspan|rowspan|scope|target|rel|lang|xml:lang|dir|role|tabindex"
    r"|loading|decoding|hidden|viewbox|fill|stroke|d|xmlns|(?:aria|data)-.*|on\w+|item\w+)$",
    re.IGNORECASE,
)
"""Attributes that set the look of an element, or its link."""
_BREAKS = frozenset(
    (
        "address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset",
        "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header",
        "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "tr", "ul",
    )
)  # fmt: skip
_ELEMENTS = _BREAKS | frozenset(
    (
        "a", "abbr", "acronym", "area", "audio", "b", "base", "bdi", "bdo", "big", "body",
        "button", "canvas", "caption", "center", "circle", "cite", "code", "col", "colgroup",
        "data", "datalist", "del", "details", "dfn", "dialog", "em", "embed", "font", "frame",
        "frameset", "g", "head", "hgroup", "html", "i", "iframe", "img", "input", "ins", "kbd",
        "label", "legend", "link", "map", "mark", "menu", "meta", "meter", "noscript", "object",
        "optgroup", "option", "output", "param", "path", "picture", "polygon", "progress", "q",
        "rect", "rp", "rt", "ruby", "s", "samp", "script", "search", "select", "slot", "small",
        "source", "span", "strike", "strong", "style", "sub", "summary", "sup", "svg", "tbody",
        "td", "template", "textarea", "tfoot", "th", "thead", "time", "title", "track", "tt", "u",
        "use", "var", "video", "wbr",
    )
)  # fmt: skip
_BEFORE = {f"h{level}": "#" * level + " " for level in range(1, 7)} | {"li": "- "}
_SPACES = re.compile(r"[ \t\r\f\v\xa0]+")
_BREAK = re.compile(r"(?<![ \t\n])[ \t]*\n(?:[ \t]*\n)*")


def is_html(text: str) -> bool:
    """Return whether ``text`` is an HTML page or a large part of one.

    Prose that mentions a tag is no HTML. XML is none either: its elements and attributes may hold
    data that the plain text would lose.
    """
    if _START.match(text):
        return True
    if not is_markup(text) or text.lstrip().startswith("<?xml"):
        return False
    tags = [(name.lower(), rest) for name, rest in _TAG.findall(text)]
    foreign = sum(name not in _ELEMENTS for name, _ in tags)
    attributes = [name for _, rest in tags if rest for name in _ATTRIBUTE.findall(rest)]
    data = sum(_LOOKS.match(name) is None for name in attributes)
    return foreign <= _MAX_FOREIGN * len(tags) and data <= _MAX_FOREIGN * len(attributes)


def is_markup(text: str) -> bool:
    """Return whether ``text`` is mostly tags, of HTML or of any XML."""
    if not text.lstrip().startswith("<"):
        return False
    return len(_TAG.findall(text)) >= max(_MIN_TAGS, len(text) * _MIN_TAGS_PER_CHAR)


def html_to_text(html: str) -> str | None:
    """Return the visible text of the page, below a header line and the page's title.

    None if the markup is too broken.
    """
    visible = _visible(html)
    if visible is None or visible.count("<", visible.rfind(">") + 1) > _MAX_UNCLOSED:
        return None
    reader = _HTMLReader()
    try:
        reader.feed(visible)
        reader.close()
    except AssertionError:  # raised by the parser for a text that begins like a marked section
        return None
    body = _BREAK.sub("\n", "".join(reader.out)).strip()
    title = _TITLE.search(html)
    heading = " ".join(unescape(title[1]).split()) + "\n" if title else ""
    return _HEADER + heading + body


def _visible(html: str) -> str | None:
    """Remove comments, scripts and other hidden elements; None if one is never closed."""
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


class _HTMLReader(HTMLParser):
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

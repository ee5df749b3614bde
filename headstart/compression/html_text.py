"""HTML as plain text: headings, lists, tables and paragraphs stay on lines of their own.

Facts that are not in the words are written out: the addresses of links (each once), the state of
forms, dates and labels that only an attribute has, data for search engines, and markup that changes
the meaning, as in ``10^6`` or ``[was: $99]``. For example,

    <h1>Offer</h1><p>A <a href="/lamp">lamp</a>, <del>$99</del> $79</p>

becomes

    # Offer
    A [lamp](/lamp), [was: $99] $79

``html_to_text`` first removes what is hidden (``_visible``). Then it refuses pages whose meaning is
not in their words (templates, formulas, cells that differ only by colour). Then ``_HTMLReader``
writes the text. An element with something around its text, such as a link, is written when it ends.
Last, a page that is only the frame of a program is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from headstart.compression.lossless import minify
from headstart.types import lower_case, read_vocabulary, words_of

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = "[HTML as text]\n"
_HIDDEN = re.compile(
    r"<(?:!--|(script|style|svg|template(?!\s[^<>]*\bshadowroot)|title)\b([^<>]*))", re.IGNORECASE
)
_DATA = re.compile(r"type\s*=\s*[\"']?application/(ld\+)?json\b", re.IGNORECASE)
_MOST_DATA = 8000
"""The largest number of characters of a script's JSON that is sent; JSON-LD is always sent."""
_MOST_SHOWN, _SHOWN_SHARE = 5000, 0.075
"""A page is only the frame of a program if the text that it shows, with the data that is sent, has
fewer characters than this, and is a smaller share than this of the data that is not sent."""
_IN_SCRIPT = re.compile(
    r"[\[{](?=\s*+(?:[\"'\[{]|[-+.\w$]++\s*+[:,]))"
    r"(?:\"(?:[^\"\\]|\\.)*+\"|(?<=[\[{,:\s])'(?:[^'\\]|\\.)*+'|[\[\]{},:\s]++"
    r"|(?:void )?[-+.!$\w]++(?=\s*+[,:\]}]))*+"
    # The text that JSON.parse reads
    r"|\"\s*+[\[{]\s*+\\\"(?:[^\"\\]|\\.)*+",
    re.DOTALL,
)
"""Matches JSON in a script of any type, as far as it goes. Its values may be names."""
_WORDS = r"(?=(?:[\w'\u2019]++[,.]?\s++){2}|[^\x00-\x7f]{2})"
_IN_ATTRIBUTE = re.compile(
    r"=\s*+(?:\"\s*+[\[{][^\"]*+|'\s*+[\[{][^']*+)"
    rf"|\sdata-[\w-]++=(?:\"{_WORDS}[^\"]*+\"|'{_WORDS}[^']*+')"
)
"""Matches JSON in an attribute, or words in a ``data-`` attribute: a program shows them."""
_FORMULA = re.compile(r"<m(?:sup|sub|frac|sqrt|root|over|under|table)", re.IGNORECASE)
_MATH = re.compile(r"<math\b(?![^<>]*\salttext\s*=)", re.IGNORECASE)
_TEMPLATE = re.compile(
    r"<\?(?!xml)[a-z=]|<%|\{%|\{\{|\{#(?:each|if)\b|<(?:c|fmt|jsp|ui):\w|<cf(?:script|if|loop|output|set)\b"
    r"|\s(?:(?:th|py|tal|xsl):\w+|v-if|v-for|\*ng\w+|x-for|x-if)=",
    re.IGNORECASE,
)
"""Marks of a program that makes pages: PHP, ERB, ASP, Jinja, Handlebars, Go, JSP, Vue and so on."""
_MOST_TEMPLATE_MARKS = 20
"""The largest number of such marks that are looked at: pages about templates show them as code."""
_SHOWN = ("pre", "code", "textarea", "kbd", "samp")
_CELL = re.compile(r"<t[dh]\b", re.IGNORECASE)
_EMPTY_CELL = re.compile(
    r"<t[dh]\b[^<>]*+>(?:\s|&nbsp;|</?(?:b|div|em|i|p|span)\b[^<>]*+>"
    r"|<img\b(?![^<>]*\balt\s*=\s*[\"'][^\"'])[^<>]*+>)*+</t[dh]",
    re.IGNORECASE,
)
"""Matches a cell without words."""
_MOST_EMPTY = 0.2
"""The largest share of the cells that may have a look of their own and no words."""
_ATTRIBUTE_VALUE = re.compile(r"=\s*+(?:\"[^\"]*\"|'[^']*'|[^\s\"'>]+)")
_LABELS_IN_SVG = r"(?:desc|foreignobject|text|title)\b"
# Python 3.11.2 goes on where a repetition failed, unless an alternative fails at once.
_LABEL_IN_SVG = re.compile(
    rf"<{_LABELS_IN_SVG}[^<>]*+>((?:(?!</?{_LABELS_IN_SVG}).|(?!))*+)(?=<)",
    re.DOTALL | re.IGNORECASE,
)
_COMMENT = re.compile(r"<!--(?:(?!-->|<!--).|(?!))*+-->", re.DOTALL)
_APART_IN_SVG = re.compile(r"(?=<tspan\b[^<>]*\s(?:x|y|dy)\s*=)", re.IGNORECASE)
"""Matches before a part of a label with a place of its own, such as its second line."""
_START = re.compile(r"\s*(?:<\?xml[^<>]*>\s*)?(?:<!doctype\s+html|<html\b)", re.IGNORECASE)
_TAG = re.compile(r"</?([a-zA-Z][^\s<>/]*+)([^<>]*+)>")
_ATTRIBUTE = re.compile(r"(?<![^\s\"'])([^\s=<>\"'/]++)\s*+=\s*+(?:\"[^\"]*\"|'[^']*'|[^\s\"'>]+)")
_MIN_TAGS = 10
"""Fewest tags of a text that counts as HTML."""
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
_VOCABULARY = read_vocabulary(__name__)
_BREAKS = words_of(_VOCABULARY["block_elements"])
_ELEMENTS = _BREAKS | words_of(_VOCABULARY["inline_elements"])
_BEFORE = {f"h{level}": "#" * level + " " for level in range(1, 7)} | {"dd": ": "}
_APART = words_of("a button data del img input ins label output s select small span strike time")
"""Inline elements between which a space is written, because their style separates them."""
_WRAPPED = words_of("a abbr button data del option q rp rt s select strike sub sup textarea time")
"""Elements whose text is written with something around it."""
_VOID = words_of("base embed iframe img input link meta meter progress video")
_VERBATIM = frozenset(("pre", "textarea"))
_LANDMARKS = _BREAKS - {"div", "li", "p"} | {"body", "html", "svg"}
"""Elements whose labels only name a part of the page."""
_SENT_PROPERTY = re.compile(
    r"description|author|keywords|price|amount|currency|availab|publish|modified|date|time|rating"
    r"|review|sku|gtin|mpn|brand|isbn|^(?:article|product|book|citation|dc|geo)\b",
    re.IGNORECASE,
)
"""Names of the properties of a page that are sent."""
_ORDINAL = words_of("st nd rd th e er re o a tm sm \u2122 \xae")
_PLAIN = re.compile(r"[-+\u2212]?\w+")
_INPUT_STATES = ("required", "readonly", "disabled", "multiple")
_LIMITS = ("min", "max", "pattern")
_MOST_OPEN = 60
"""The largest number of elements that wait for their ends. Deeper ones are written plainly."""
_DEEPEST_INDENT = 20
"""The deepest level of a list with an indent of its own. Without a limit, lists in lists would make
a text whose length is the square of the page's."""
_INTEGER = re.compile(r"\s*[-+]?\d{1,9}\s*")
"""A number of an attribute. Each item of a list writes its number, so a longer one has no use."""
_SPACES = re.compile(r"[ \t\r\f\v\xa0]+")
_BREAK = re.compile(r"(?<![ \t\n])[ \t]*\n(?:[ \t]*\n)*")


# --- is it HTML? ----------------------------------------------------------------------------------


def is_html(text: str) -> bool:
    """Return whether ``text`` is an HTML page or a large part of one.

    Prose that mentions a tag does not count. XML does not count either: its elements and attributes
    may hold data that the plain text would lose.
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


def is_inside_tags(text: str) -> bool:
    """Return whether half of a text is in tags, with their attributes, as in reports in XML."""
    if not text.lstrip().startswith("<"):
        return False
    return 2 * sum(len(tag[0]) for tag in _TAG.finditer(text)) >= len(text)


# --- HTML as text ---------------------------------------------------------------------------------


class _Visible(NamedTuple):
    html: str
    data: list[str]
    """The JSON in scripts that is sent."""
    unsent: list[str]
    """The other scripts; long JSON is one, too."""
    title: str


def html_to_text(html: str) -> str | None:
    """Return the visible text of the page, below a header line and the page's title.

    None if the markup is too broken, has no text, has formulas, is only the frame of a program, or
    is the template from which a program makes pages.
    """
    visible = _visible(html)
    if visible is None or visible.html.count("<", visible.html.rfind(">") + 1) > _MAX_UNCLOSED:
        return None
    if _MATH.search(visible.html) and _FORMULA.search(visible.html):
        return None
    if _is_template(visible.html) or _shows_by_colour(visible.html):
        return None
    reader = _HTMLReader()
    try:
        reader.feed(visible.html)
        reader.close()
    except AssertionError:  # the parser raises it for text like "<![ "
        return None
    body = _BREAK.sub("\n", reader.text()).strip()
    if not body or _is_frame(visible, len(body) + sum(map(len, visible.data))):
        return None
    heading = f"{visible.title}\n" if visible.title else ""
    data = [f"[data: {each}]" for each in dict.fromkeys(visible.data)]
    return "\n".join([_HEADER + heading + body, *data])


def _is_frame(visible: _Visible, shown: int) -> bool:
    """Tell whether a page that shows so many characters holds much more data for its program."""
    if shown >= _MOST_SHOWN:
        return False
    found = [data for script in visible.unsent for data in _IN_SCRIPT.findall(script)]
    found += _IN_ATTRIBUTE.findall(visible.html)
    return shown < _SHOWN_SHARE * sum(map(len, found))


def _is_template(html: str) -> bool:
    """Tell whether a mark of a template stands outside all code that the page shows."""
    lower = lower_case(html)
    marks = islice(_TEMPLATE.finditer(html), _MOST_TEMPLATE_MARKS)
    return any(
        all(
            lower.rfind(f"<{tag}", 0, mark.start()) <= lower.rfind(f"</{tag}", 0, mark.start())
            for tag in _SHOWN
        )
        for mark in marks
    )


def _shows_by_colour(html: str) -> bool:
    """Tell whether cells without words have a meaning by their look, as in a table of results."""
    looks = Counter(_EMPTY_CELL.findall(html))
    often = {cell: count for cell, count in looks.items() if count > 1}
    styled = sum(count for cell, count in often.items() if "=" in cell)
    if styled <= _MOST_EMPTY * len(_CELL.findall(html)):
        return False
    # A single cell counts if it differs only in a value: it may be the one test that failed.
    forms = {_ATTRIBUTE_VALUE.sub("=", cell) for cell in often}
    return len(often) > 1 or any(
        cell not in often and _ATTRIBUTE_VALUE.sub("=", cell) in forms for cell in looks
    )


def _visible(html: str) -> _Visible | None:
    """Remove comments, scripts and other hidden elements; None if one is never closed."""
    lower = lower_case(html)
    out: list[str] = []
    data: list[str] = []
    unsent: list[str] = []
    at, title = 0, ""
    while found := _HIDDEN.search(html, at):
        is_comment = found[1] is None
        # A comment may stand within a word, as React writes them: ``$<!-- -->5``.
        out.append(html[at : found.start()] + ("" if is_comment else " "))
        close = "-->" if is_comment else f"</{found[1].lower()}"
        # The shortest comment is ``<!-->``: its end begins with the last two signs of its start.
        close_at = lower.find(close, found.end() - 2 * is_comment)
        end = lower.find(">", close_at) if close_at >= 0 else close_at
        if end < 0:
            return None
        attributes, body = found[2] or "", html[found.end() + 1 : close_at].strip()
        if close == "</svg":
            out.append(_drawing(attributes, body))
        elif close == "</title":
            title = title or " ".join(unescape(body).split())
        kind = _DATA.search(attributes)
        if kind is not None and (kind[1] or len(body) <= _MOST_DATA):
            data.append(minify(body) or body)
        elif kind is not None or close == "</script":
            unsent.append(body)
        at = end + 1
    return _Visible("".join([*out, html[at:]]), data, unsent, title)


def _drawing(attributes: str, body: str) -> str:
    """Return what stands for a drawing: its labels, else a mark that the reader leaves out.

    The mark depends on the drawing: where cells have no words, it shows which of them differ.
    """
    drawn = _APART_IN_SVG.sub(" ", _COMMENT.sub("", body))
    labels = " | ".join(filter(None, map(str.strip, _LABEL_IN_SVG.findall(drawn))))
    return f"[image: {labels}] " if labels else f"<i id={_crc(attributes + body)}></i>"


def _crc(text: str) -> int:
    return crc32(text.encode("utf-8", "surrogatepass"))


class _Open(NamedTuple):
    """An open element, and the place in the output where its text begins."""

    tag: str
    at: int
    attributes: dict[str, str]


class _HTMLReader(HTMLParser):
    """Writes the text of a page, element by element. Read ``text`` after ``close``."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._out: list[str] = []
        """The text so far. The pieces of an open element are joined when it ends."""
        self._pre = 0
        """The number of open elements whose white space counts."""
        self._code = 0
        """The number of open ``code`` elements."""
        self._open: list[_Open] = []
        """The open elements with something around their text, the innermost last."""
        self._lists: list[int | None] = []
        """The next number of each open list; None if its items have none."""
        self._tables: list[bool] = []
        """For each open table, whether the current row holds a table that has ended."""
        self._linked: set[str] = set()
        """The addresses that were written: each is written once."""
        self._seen_texts: set[str] = set()
        """The properties and addresses of media that were written."""
        self._after = ""
        """The inline element that has just ended."""
        self._skipped = ""
        """The element whose content is not read."""

    def text(self) -> str:
        """Return the text of all elements, also of those that never ended."""
        while self._open:
            self._end(self._open.pop())
        return "".join(self._out)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped:
            return
        attributes = {name: value or "" for name, value in reversed(attrs)}
        after, self._after = self._after, ""
        if tag in _APART and after and not (self._pre or self._code):
            self._out.append(" ")
        if tag in _BREAKS:
            self._break(tag, attributes)
        elif tag in {"td", "th"}:
            self._cell(attributes)
        elif tag == "math":
            self._out.append(attributes.get("alttext", ""))
            self._skipped = tag if "alttext" in attributes else ""
        else:
            self._out.append(self._void(tag, attributes))
        self._pre += tag in _VERBATIM
        self._code += tag == "code"
        if tag in _VOID or len(self._open) >= _MOST_OPEN:
            return
        if tag in _WRAPPED or (_label(attributes) and tag not in _LANDMARKS):
            self._open.append(_Open(tag, len(self._out), attributes))

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._skipped = "" if tag == self._skipped else self._skipped
            return
        self._pre = max(0, self._pre - (tag in _VERBATIM))
        self._code = max(0, self._code - (tag == "code"))
        if any(each.tag == tag for each in self._open):
            while (last := self._open.pop()).tag != tag:
                self._end(last)
            self._end(last)
        if tag in {"ol", "ul"} and self._lists:
            self._lists.pop()
        if tag == "table" and self._tables:
            self._tables.pop()
            if self._tables:
                self._tables[-1] = True
        if tag in _BREAKS:
            self._out.append("\n")
        self._after = tag if tag in _APART else ""

    def handle_data(self, data: str) -> None:
        if self._skipped:
            return
        self._after = ""
        self._out.append(data if self._pre else _SPACES.sub(" ", data.replace("\n", " ")))

    # --- blocks --------------------------------------------------------------------------

    def _break(self, tag: str, attributes: dict[str, str]) -> None:
        """Begin a line for a block element, with its mark: ``#`` for a heading, for example."""
        mark = _BEFORE.get(tag, "")
        if tag in {"ol", "ul"}:
            numbered = tag == "ol" and "reversed" not in attributes
            self._lists.append(_number(attributes.get("start"), 1) if numbered else None)
        elif tag == "li":
            mark = self._item(attributes)
        elif tag == "table":
            self._tables.append(False)
        elif tag == "tr" and self._tables:
            self._tables[-1] = False
        elif tag == "form":
            method, action = attributes.get("method", "get").upper(), attributes.get("action", "")
            mark = f"[form: {method} {action}".rstrip() + "]\n"
        self._out.append("\n" + mark)

    def _item(self, attributes: dict[str, str]) -> str:
        """Return the indent and the bullet or number of an item of a list."""
        indent = "  " * (min(len(self._lists), _DEEPEST_INDENT) - 1)
        if not self._lists or self._lists[-1] is None:
            return f"{indent}- "
        number = _number(attributes.get("value"), self._lists[-1])
        self._lists[-1] = number + 1
        return f"{indent}{number}. "

    def _cell(self, attributes: dict[str, str]) -> None:
        """Begin a cell. After a table within the row, it says that the row goes on."""
        if self._tables and self._tables[-1]:
            self._tables[-1] = False
            self._out.append("\n[same row]")
        self._out.append(" | ")
        for name, unit in (("colspan", "columns"), ("rowspan", "rows")):
            count = _number(attributes.get(name), 1)
            if count > 1:
                self._out.append(f"[{count} {unit}] ")

    # --- elements without a text -----------------------------------------------------------

    def _void(self, tag: str, attributes: dict[str, str]) -> str:
        """Return the text for an element that has no text of its own."""
        text = ""
        match tag:
            case "base" if href := attributes.get("href"):
                text = f"\n[base of links: {href}]\n"
            case "img":
                alt = attributes.get("alt") or _label(attributes)
                text = f"[image: {alt}]" if alt else ""
            case "input":
                text = self._input(attributes)
            case "link":
                relation, href = attributes.get("rel", "").lower(), attributes.get("href", "")
                is_sent = relation in {"canonical", "next", "prev"} and href
                text = f"\n[{relation}: {href}]\n" if is_sent else ""
            case "meta":
                text = self._property(attributes)
            case "meter" | "progress" if "value" in attributes:
                of = f" of {attributes['max']}" if "max" in attributes else ""
                text = f"[{attributes['value']}{of}] "
            case "embed" | "iframe" | "video":
                source = attributes.get("src", "")
                text = f"[media: {source}]" if source and self._is_new(source) else ""
        return text

    def _input(self, attributes: dict[str, str]) -> str:
        """Return a field of a form, such as ``[x] (news=yes)`` or ``[input email required]``."""
        kind, name = attributes.get("type", "text").lower(), attributes.get("name", "")
        value, label = attributes.get("value"), _label(attributes)
        if kind in {"checkbox", "radio"}:
            words = ["[x]" if "checked" in attributes else "[ ]"]
            words.append(f"({name}={value})" if value and name else f"({name})" if name else "")
            words.append("(disabled)" if "disabled" in attributes else "")
            return " ".join(filter(None, [*words, label]))
        words = ["input" if kind == "text" else f"input {kind}", name or attributes.get("id", "")]
        words += [f"{limit}={attributes[limit]}" for limit in _LIMITS if limit in attributes]
        words += [state for state in _INPUT_STATES if state in attributes]
        shown = {"placeholder": attributes.get("placeholder"), "label": label, "value": value}
        words += [f'{key}="{each}"' for key, each in shown.items() if each]
        return f"[{' '.join(filter(None, words))}]"

    def _property(self, attributes: dict[str, str]) -> str:
        """Return a property of the page, such as its author, if it is sent and new."""
        name = next(filter(None, map(attributes.get, ("itemprop", "property", "name"))), "")
        content = " ".join(attributes.get("content", "").split())
        if attributes.get("http-equiv", "").lower() == "refresh":
            name = "date of the next refresh"
        is_sent = content and _SENT_PROPERTY.search(name) is not None and self._is_new(content)
        return f"\n[{name}: {content}]\n" if is_sent else ""

    def _is_new(self, text: str) -> bool:
        new = text not in self._seen_texts
        self._seen_texts.add(text)
        return new

    # --- elements with an end --------------------------------------------------------------

    def _end(self, element: _Open) -> None:
        """Write the text of an element that has ended, in the form of this element."""
        text = "".join(self._out[element.at :])
        del self._out[element.at :]
        tag, attributes, label = element.tag, element.attributes, _label(element.attributes)
        if tag == "a":
            text = self._link(text, attributes)
        elif tag == "button":
            said = " ".join(text.split())
            disabled = ", disabled" if "disabled" in attributes else ""
            text = f"[button: {said or label}{disabled}]"
        elif tag in _FORMS:
            text = _FORMS[tag](text, attributes)
        if label and label.lower() not in text.lower():
            text = _beside(text, f"({label})" if text.strip() else f"[{label}]")
        self._out.append(text)

    def _link(self, text: str, attributes: dict[str, str]) -> str:
        """Return a link as ``[words](address)``; only its words if its address is known."""
        href = attributes.get("href", "").strip()
        words = text.strip()
        if not href or href.startswith("#") or href.lower().startswith("javascript:"):
            is_note = href.startswith("#") and self._open and self._open[-1].tag == "sup"
            return f"[{words.strip('[]')}]" if is_note and words else text
        if href in self._linked or href == words:
            return text
        self._linked.add(href)
        if "\n" in words:
            return _beside(text, f"(link: {href})")
        before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        return f"{before}[{words or _label(attributes) or 'link'}]({href}){after if words else ''}"


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and _INTEGER.fullmatch(text) else default


def _label(attributes: dict[str, str]) -> str:
    """Return what an element says only in an attribute: for screen readers, or as a tooltip."""
    return " ".join((attributes.get("aria-label") or attributes.get("title") or "").split())


def _beside(text: str, addition: str) -> str:
    """Return the text with an addition after its words, before the white space at its end."""
    words = text.rstrip()
    return f"{words} {addition}{text[len(words) :]}" if words else addition


def _raised(sign: str, text: str) -> str:
    """Return raised or lowered text: ``^6`` or ``_(n-1)``; the ending of an ordinal as it is."""
    words = text.strip()
    if not words or words.startswith("[") or words.lower() in _ORDINAL:
        return text
    return sign + (words if _PLAIN.fullmatch(words) else f"({words})")


def _struck(text: str, _: dict[str, str]) -> str:
    return f"[was: {text.strip()}]" if text.strip() else text


def _with(name: str, text: str, attributes: dict[str, str]) -> str:
    """Return a text with the value of an attribute beside it, unless the text has the value."""
    value = attributes.get(name, "")
    return _beside(text, f"({value})" if text.strip() else value) if value not in text else text


def _option(text: str, attributes: dict[str, str]) -> str:
    words = " ".join(text.split()) or attributes.get("label", "")
    value = attributes.get("value", words)
    shown = words if value == words else f"{words} (={value})"
    return f" | {'[x] ' if 'selected' in attributes else ''}{shown}"


def _field(kind: str, text: str, attributes: dict[str, str]) -> str:
    name = f"{kind} {attributes.get('name', '')}".rstrip()
    return f"[{name}: {text.strip().removeprefix('| ')}]"


_FORMS: dict[str, Callable[[str, dict[str, str]], str]] = {
    "abbr": lambda text, _: text,
    "data": lambda text, attributes: _with("value", text, attributes),
    "del": _struck,
    "option": _option,
    "q": lambda text, _: f'"{text}"',
    "rp": lambda *_: "",
    "rt": lambda text, _: f"({text.strip()})",
    "s": _struck,
    "select": lambda text, attributes: _field("select", text, attributes),
    "strike": _struck,
    "sub": lambda text, _: _raised("_", text),
    "sup": lambda text, _: _raised("^", text),
    "textarea": lambda text, attributes: _field("textarea", text, attributes),
    "time": lambda text, attributes: _with("datetime", text, attributes),
}
"""The form in which the text of each element is written."""

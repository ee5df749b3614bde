"""Chooses and applies the transforms of a text, by the mode, the kind of text and the question.

``shorten_text`` tests for these kinds in this order. The first that fits decides:

1. **A listing with line numbers** loses the blanks before the numbers.
2. **JSON** is written in a shorter form. In the mode ``safe`` all other texts stay as they are.
3. **HTML** becomes plain text, which is then shortened as prose.
4. **A log** keeps a few of many similar lines.
5. **Code** stays as it is, except for comments if the configuration says so.
6. **A list or a table, or data within other text**, stays as it is.
7. **Prose** loses spare white space, sentences that do not concern the question (``aggressive``
   and ``recoverable`` only), and passages that were sent before.

JSON, logs, lists and prose that were sent before as a whole become a pointer to the earlier text.

Before kinds 4 to 7 are tested, the output of a program is written as a terminal shows it in the
end: of a line that shows "10 %", a carriage return and "100 %", only "100 %" stays. Of many lines
that one progress bar wrote, the first and the last line stay. A text without progress stays as it
is, because a carriage return may also end a line.
"""

from __future__ import annotations

import csv
import re
import tokenize
from collections import Counter
from itertools import pairwise
from token import EXACT_TOKEN_TYPES
from typing import TYPE_CHECKING, NamedTuple

from headstart.compression import lossless
from headstart.compression.html_text import html_to_text, is_html, is_inside_tags, is_markup
from headstart.compression.logs import collapse_log, is_log, loses_asked, reports_problem
from headstart.compression.lossless import Layout, Padding, strip_padding
from headstart.compression.passages import Passages, has_mark, omission_mark, sentences
from headstart.compression.selection import TextPurpose, select
from headstart.types import Frozen, Memo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.compression.result import Transform
    from headstart.settings import CompressionMode


COST_MS_PER_1K: dict[Transform, float] = {
    "json": 0.5,
    "padding": 0.1,
    "minify": 0.3,
    "html": 0.2,
    "progress": 0.2,
    "log": 0.8,
    "space": 0.1,
    "comments": 3.0,
    "duplicate": 0.3,
    "selection": 1.5,
    "history": 0.0,
    "reread": 0.3,
}
"""The milliseconds that each transform takes for a thousand tokens
(``benchmarks/compression.py``)."""

_TRAILING = re.compile(r"(?<![ \t])(?: | {3,})$", re.MULTILINE)
"""Spaces at the end of a line, without tabs: these end the empty cells of a table. Two spaces are a
line break in Markdown."""
_HERE_DOCUMENT = re.compile(r"<<[-~]?\s?[\"']?[A-Za-z_]")
_MANY_BREAKS = re.compile(r"\n{3,}")


class Shortened(Frozen):
    """A text to send in place of another, and the transforms that made it."""

    text: str
    applied: tuple[Transform, ...] = ()
    layout: Layout | Padding | None = None

    def then(self, transform: Transform, text: str) -> Shortened:
        """Return the result of one more transform, ``text``; ``self`` if it changed nothing."""
        if text == self.text:
            return self
        return Shortened(text=text, applied=(*self.applied, transform))


class AllowedTransforms(NamedTuple):
    """The transforms that the configuration allows."""

    mode: CompressionMode
    comments: bool
    """Comments may be removed from code."""
    pointers: bool = True
    """A pointer to an earlier message may replace a text."""
    repeated_reads: bool = False
    """A reference to an earlier message may replace lines of a file that is read again."""

    @property
    def recoverable(self) -> bool:
        """Whether the model can get back the texts that were cut."""
        return self.mode == "recoverable"


def shorten_text(
    text: str, purpose: TextPurpose, allowed: AllowedTransforms, sent: Passages, memo: Memo
) -> Shortened:
    """Apply the transforms that fit a text. ``sent`` has the texts before it in the conversation.

    Of a text with a mark, or one that the model shall repeat word for word (``purpose.verbatim``),
    only the blanks before line numbers are left out.
    """
    listing = unpadded(text, memo)
    if listing.applied or has_mark(text) or purpose.verbatim:
        return listing
    table = memo.call(lossless.shorten_json, text)
    if allowed.mode == "safe":
        return _lossless(table) if table else Shortened(text=text)
    minified = None if table else memo.call(lossless.minify, text)
    if table or minified is not None:
        short = _lossless(table) if table else _minified(text, minified or "", memo)
        return _pointed(short, sent)
    if is_html(text):
        return _shorten_html(text, purpose, allowed, sent, memo)
    return _shorten_output(text, purpose, allowed, sent, memo)


def unpadded(text: str, memo: Memo) -> Shortened:
    """Return a listing without the blanks before its numbers; any other text as it is."""
    listing = memo.call(strip_padding, text)
    if listing is None:
        return Shortened(text=text)
    return Shortened(text=listing.text, applied=("padding",), layout=listing.padding)


def _lossless(table: lossless.CompactJSON) -> Shortened:
    return Shortened(text=table.text, applied=("json",), layout=table.layout)


def _minified(text: str, minified: str, memo: Memo) -> Shortened:
    short = Shortened(text=text).then("minify", minified)
    table = memo.call(lossless.shorten_json, minified)
    return short.then("json", table.text) if table else short


def _pointed(short: Shortened, sent: Passages) -> Shortened:
    """Return a pointer if the whole text was sent before."""
    pointer = sent.point(short.text)
    return short if pointer is None else short.then("duplicate", pointer)


def _shorten_html(
    text: str, purpose: TextPurpose, allowed: AllowedTransforms, sent: Passages, memo: Memo
) -> Shortened:
    """Shorten a page as plain text.

    It stays HTML if the question is about markup, or names an id that the plain text would lack.
    """
    short = Shortened(text=text)
    if purpose.markup:
        return short
    words = memo.call(html_to_text, text)
    if words is not None and not loses_asked(text, words, purpose.words):
        short = short.then("html", words)
    return _shorten_prose(short, purpose, allowed, sent, memo)


def _shorten_output(
    text: str, purpose: TextPurpose, allowed: AllowedTransforms, sent: Passages, memo: Memo
) -> Shortened:
    """Shorten what a program wrote: a log, code, a list or prose."""
    shown = memo.call(play_back, text)
    source = Shortened(text=text)
    if memo.call(is_log, shown):
        return _shorten_log(source.then("progress", shown), purpose, sent, memo)
    if memo.call(is_code, shown):
        bare = memo.call(_without_comments, shown) if allowed.comments else shown
        return source.then("progress", shown).then("comments", bare)
    short = source.then("progress", memo.call(fold_steps, shown))
    if memo.call(is_list, short.text):
        return _pointed(short, sent)
    return _shorten_prose(short, purpose, allowed, sent, memo)


def _shorten_prose(
    short: Shortened, purpose: TextPurpose, allowed: AllowedTransforms, sent: Passages, memo: Memo
) -> Shortened:
    """Shorten sentences, unless the text may be data for a program."""
    if memo.call(_is_data, short.text):
        return _pointed(short, sent)
    short = short.then("space", _without_spare_space(short.text))
    if allowed.mode in {"aggressive", "recoverable"} and not purpose.whole:
        # Before duplicates: a pointer's target must not be left out after it was pointed to.
        short = short.then("selection", memo.call(select, short.text, purpose.topic) or short.text)
    return _deduplicated(short, sent, memo)


def _shorten_log(short: Shortened, purpose: TextPurpose, sent: Passages, memo: Memo) -> Shortened:
    """Leave out similar lines of a log, unless the question is how many there are."""
    if purpose.counts:
        return _pointed(short, sent)
    short = short.then("log", memo.call(collapse_log, short.text, purpose.words))
    return _deduplicated(short, sent, memo, whole_lines=True)


def _without_comments(text: str) -> str:
    """Remove comments, but only if the rest still looks like code."""
    bare = strip_comments(text)
    return bare if is_code(bare) and not is_log(bare) else text


def _without_spare_space(text: str) -> str:
    """Drop spaces at the ends of lines, and more than two line breaks in a row.

    A text with quotes or here-documents over several lines stays whole: the spaces may belong to
    them.
    """
    if _HERE_DOCUMENT.search(text) or any(line.count('"') % 2 for line in text.split("\n")):
        return text
    if " \n" in text or text.endswith(" "):
        text = _TRAILING.sub("", text)
    return _MANY_BREAKS.sub("\n\n", text) if "\n\n\n" in text else text


def _is_data(text: str) -> bool:
    """Tell whether the text may be data for a program, in which no sentence may be left out."""
    return lossless.holds_json(text) or is_markup(text) or is_inside_tags(text)


_AFTER_END = "\"')]*_\u201d\u2019\xbb\u300d"
_SENTENCE_ENDS = frozenset(
    ".!?\u2026\u3002\uff0e\uff61\uff01\uff1f\u0964\u061f\u06d4\u0589\u104b\u1362\u17d4"
)
_WRAPPED_WORDS = 5
"""The fewest words at the beginning of a line that goes on in the next line."""
_MIN_PROSE = 0.4
"""The least share of the lines of prose that are sentences, or parts of wrapped ones."""


def is_list(text: str) -> bool:
    """Tell whether a text is a list or a table: most lines are no sentences or parts of sentences.

    Such lines are settings, records or cells. Each of them may be the answer, and a program may
    read them. The cells of a table may be sentences, too.
    """
    if _is_table(text):
        return True
    pieces = [piece for start, end in sentences(text) if (piece := text[start:end].strip())]
    found = sum(
        piece.rstrip(_AFTER_END)[-1:] in _SENTENCE_ENDS or _is_wrapped(piece, after)
        for piece, after in pairwise((*pieces, ""))
    )
    return found < _MIN_PROSE * len(pieces)


_MIN_ROWS = 5
_MIN_EQUAL = 0.8
"""The least share of the rows of a table that have equally many cells."""
_LONGEST_NAME = 4
"""The most words of the first cell of a row, if a space follows each sign between cells."""
_CELL_SIGNS = {"\t": 1, "|": 1, "&": 2}
"""The signs between the cells of a table, and the fewest of them in a row."""


def _is_table(text: str) -> bool:
    """Tell whether the lines are rows with equally many cells, as in CSV, Markdown or LaTeX."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) < _MIN_ROWS:
        return False
    for sign, least in _CELL_SIGNS.items():
        # A tab before a line of prose is an indent.
        if sign in text and _are_equal(
            [line.count(sign) if sign in line.strip() else 0 for line in lines], least
        ):
            return True
    return any(sign in text and _is_csv(lines, sign) for sign in ",;")


def _is_csv(lines: Sequence[str], sign: str) -> bool:
    try:
        rows = list(csv.reader(lines, delimiter=sign))
        spaced = sum(cell.startswith(" ") for row in rows for cell in row)
        if 2 * spaced < len(rows):
            return _are_equal([len(row) - 1 for row in rows], 1)
        # A space follows the sign in prose, too, but mostly after more words.
        rows = list(csv.reader(lines, delimiter=sign, skipinitialspace=True))
    except csv.Error:
        return False
    named = [len(row) - 1 if len(row[0].split()) <= _LONGEST_NAME else 0 for row in rows if row]
    return _are_equal(named, 2) if named else False


def _are_equal(counts: Sequence[int], least: int) -> bool:
    ((count, times),) = Counter(counts).most_common(1)
    return count >= least and times >= _MIN_EQUAL * len(counts) and len(counts) >= _MIN_ROWS


def _is_wrapped(line: str, after: str) -> bool:
    if not after[:1].islower():
        return False
    words = line.split(None, _WRAPPED_WORDS)[:_WRAPPED_WORDS]
    return len(words) == _WRAPPED_WORDS and all(word[0].isalpha() for word in words)


def _deduplicated(
    short: Shortened, sent: Passages, memo: Memo, *, whole_lines: bool = False
) -> Shortened:
    """Return a text with pointers in place of all of it, or of the passages, sent before."""
    pointed = _pointed(short, sent)
    if pointed is not short or memo.call(_is_data, short.text):
        return pointed
    return short.then("duplicate", sent.shorten(short.text, whole_lines=whole_lines))


# --- output of programs ---------------------------------------------------------------------------

_OVERWRITES = re.compile(r"\r+(?!\n|\Z)|\x08")
"""Matches what moves the cursor back within a line. A return before a line break only ends it."""
_STEERING = re.compile(r"\r+|\x08|\x1b\[[0-9;]*[Km]|[^\r\x08\x1b]+|\x1b")
"""Matches one step of a terminal: a return, a backspace, a code, or text to be shown."""
_PROGRESS = re.compile(
    r"\d ?%|\d(?:\.\d+)?\s?(?:[kKMG]i?B)?\s?(?:/|of)\s?\d|\[[=#>.\s-]{5,}\]"
    r"|[\u2588\u2501\u2580-\u259f\u2800-\u28ff]"
)
"""Matches signs of progress: "50 %", "3 MB/10 MB", "3 of 10", "[===>   ]", blocks and spinners."""
_BAR = re.compile(
    r"\[[.\s-]*+[=#>][=#>.\s-]{4,}+\]|[\u2500-\u259f]{2}[\u2500-\u259f\s]*|\|[#= ]{5,}\|"
)
"""Matches a whole bar: "[====>....]", drawn blocks, or "|####   |"."""
_DONE = re.compile(r"(?<!\d)(\d++(?:\.\d++)?)\s?(?:([kKMG])i?B)?\s?/\s?(\d[\d.]*\s?(?:[kKMG]i?B)?)")
"""Matches how much is done, its unit, and the total: "3.5 MB / 10 MB"."""
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
_NUMBER = re.compile(r"(?<![A-Za-z_.\d-])\d[\d.,:]*(?:\s?[kKMG]i?B)?")
"""A number of its own. In ``test_5.py`` it belongs to a name."""
_MIN_STEPS = 4
"""The fewest lines, or overwritten states, of one form that count as steps of a progress bar."""
_MIN_SHARE = 0.6
"""The smallest share of a line's overwritten states that must show progress."""


def play_back(text: str) -> str:
    """Return the text as a terminal shows it in the end: the last state of each line."""
    if not ("\r" in text or "\x08" in text) or _OVERWRITES.search(text) is None:
        return text
    return "\n".join(map(_last_state, text.split("\n")))


def fold_steps(text: str) -> str:
    """Return the text with the first and the last of the lines that one progress bar wrote."""
    out: list[str] = []
    run: list[str] = []
    form, done = None, 0.0
    for line in text.split("\n"):
        step = _step(line)
        # A bar that begins again, or stands still, is another bar. The end of each one matters.
        if step is None or step.form != form or step.done <= done:
            out += _folded(run)
            run = []
        run.append(line)
        form, done = (step.form, step.done) if step else (None, 0.0)
    return "\n".join([*out, *_folded(run)])


def _folded(run: list[str]) -> list[str]:
    """Return the lines of one progress bar: of a long run, only the first and the last line."""
    if len(run) < _MIN_STEPS:
        return run
    return [run[0], omission_mark(len(run) - 2, "line"), run[-1]]


class _Step(NamedTuple):
    form: tuple[str, str]
    """The form of a line with a bar, and the total that it counts up to."""
    done: float


def _step(line: str) -> _Step | None:
    """Return the step that a line of a progress bar shows; None for any other line."""
    # A bar is looked for first, because few lines have one.
    found = _DONE.search(line) if "/" in line and _BAR.search(line) else None
    if found is None:
        return None
    done = float(found[1]) * _UNITS[(found[2] or "").upper()]
    return _Step((_form(line), found[3]), done)


def _last_state(line: str) -> str:
    """Return a line that shows progress as it looked at its end.

    Reports of problems that were overwritten stay, each as a line of its own.
    """
    if not _OVERWRITES.search(line):
        return line
    states = [state for state in re.split(r"[\r\x08]+", line) if state.strip()]
    if sum(_PROGRESS.search(state) is not None for state in states) < _MIN_SHARE * len(states):
        return line
    forms = Counter(map(_form, states))
    reports = dict.fromkeys(
        state
        for state in states[:-1]
        if reports_problem(state) and forms[_form(state)] < _MIN_STEPS
    )
    return "\n".join([*reports, _played(line)]) + "\r" * line.endswith("\r")


def _played(line: str) -> str:
    """Return what a terminal shows after this line, with its returns and deletions."""
    shown: list[str] = []
    at = 0
    for piece in _STEERING.findall(line.rstrip("\r")):
        if piece[0] == "\r":
            at = 0
        elif piece == "\x08":
            at = max(0, at - 1)
        elif piece == "\x1b[2K":
            # The blanks before what follows are left out: each of many codes would write them.
            shown, at = [], 0
        elif piece.startswith("\x1b[") and piece[-1] == "K":
            del shown[at:]
        elif piece[0] != "\x1b":
            shown[at : at + len(piece)] = piece
            at += len(piece)
    return "".join(shown).rstrip()


def _form(state: str) -> str:
    """Return what all states of one progress bar have in common: bar and numbers are replaced."""
    return _NUMBER.sub("#", _BAR.sub("~", state))


# --- code ---------------------------------------------------------------------------------------

_CODE_LINE = re.compile(
    r"(?:(?:async\s+)?def\s|class\s+\w+\s*[(:{]|import\s+\w|from\s+\S+\s+import|#include\b|using\s"
    r"|package\s+\w|(?:pub(?:lic)?|private|protected|static|export|const|let|var|func|fn|function)\s"
    r"|return\b|(?:if|for|while|switch|elif|catch)\s*[(\w].*[:{]$|@@ |\+\+\+ |--- |diff --git"
    r"|</?[A-Z]\w*[\s/>]|[})\]]+[;,)]*$|\w[\w.\[\]]*\s*[-+*/|&]?=\s*\S|SELECT\s|INSERT\s|\d+(?:\t|:\s|\u2192|\s*[|\u2502]))"
    r"|.*[;{]$"
    # shells, Ruby, Haskell, Prolog, COBOL, assemblers
    r"|#!/|(?:fi|done|esac|then|else|do|end|begin|where)$|(?:if|elif|while|until)\s+!?\s*\[+\s"
    r"|(?:echo|export|local|source|sudo|set|unset|require|puts|print|include|attr_\w+)\s+[-$\"':/~]"
    r"|(?:case|for)\s.*\s(?:in|do)\b|\S+\)\s.*;;$|.*<<-?\s?['\"]?[A-Z]\w*['\"]?$"
    r"|[\w']+(?:,\s*[\w']+)*\s*::\s|(?:module|data|newtype|instance|type)\s+[A-Z][\w.]*(?:\s|$)"
    r"|[a-z][\w']*(?:\s+[\w'_()]+){1,5}\s+=\s|[|]\s+\S.*\s=\s|.*:-|[a-z]\w*\(.*\)\.$"
    r"|(?:\d{6}\s+)?(?:[A-Z][A-Z0-9-]+\s+){1,4}(?:DIVISION|SECTION|RUN)\.|.*\sPIC\s"
    r"|(?:MOVE|DISPLAY|PERFORM|ADD|COMPUTE|IF|END-IF|ELSE|ACCEPT|STOP)\b[^a-z]*$"
    r"|\.(?:text|data|bss|globa?l|section|byte|word|quad|asciz)\b|\.\w+:$"
    r"|[a-z]{2,7}[lqwb]?\s+[%$\[(#-]?\w[\w%()\[\]+*-]*,\s*[%$\[(#-]?\w[\w%()\[\]+*-]*\s*(?:[;#].*)?$"
)
_PROGRAM = re.compile(
    r"\A#!|^(?:@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@|diff --git |\*\*\* Begin Patch)", re.MULTILINE
)
"""Matches what begins a script, or a patch: most lines of a patch may be prose."""
_MIN_CODE_LINES = 0.2
_LONGEST_LINE = 400
"""The longest line that is read as a whole. Of a longer one, only both ends are read."""
_COMMENTS = ("#", ";", "//")


def is_code(text: str) -> bool:
    """Return whether ``text`` holds code, a patch or a numbered listing."""
    if "```" in text or "~~~" in text or _PROGRAM.search(text):
        return True
    lines = [line for raw in text.split("\n") if (line := raw.strip())]
    half = _LONGEST_LINE // 2
    lines = [line if len(line) <= _LONGEST_LINE else line[:half] + line[-half:] for line in lines]
    # Comments of a configuration file read like prose; headings of Markdown rarely follow another.
    found = sum(
        _CODE_LINE.match(line) is not None
        or any(line.startswith(mark) and before.startswith(mark) for mark in _COMMENTS)
        for before, line in pairwise(("", *lines))
    )
    return found > _MIN_CODE_LINES * len(lines)


_KEPT = re.compile(r"#!|#.*coding[:=]|#\s*type:")
"""Comments that change the meaning of the code."""
_NOT_PYTHON = (tokenize.TokenError, SyntaxError, UnicodeError)
_LAYOUT = frozenset((tokenize.COMMENT, tokenize.NL))
LONGEST_SOURCE_LINE = 4096
"""A text with a longer line keeps its comments: Python 3.12.0 to 3.12.3 need time that grows with
the square of a line's length. People do not write such lines."""
# Since Python 3.12 the parts of an f-string are tokens. 3.14 adds t-strings.
_STRING_STARTS = frozenset(
    getattr(tokenize, name, None) for name in ("FSTRING_START", "TSTRING_START")
) - {None}
_STRING_ENDS = frozenset(
    getattr(tokenize, name, None) for name in ("FSTRING_END", "TSTRING_END")
) - {None}


def strip_comments(text: str) -> str:
    """Return Python source without comments; any other ``text`` is returned unchanged.

    Lines keep their numbers: a line that held only a comment becomes empty. The remaining tokens
    are compared with those of ``text``, so the code is the same, with its docstrings.
    """
    try:
        tokens = _tokens(text)
    except _NOT_PYTHON:
        return text
    lines = text.split("\n")
    for token in tokens:
        if token.type == tokenize.COMMENT and not _KEPT.match(token.string):
            row, column = token.start
            ending = "\r" if lines[row - 1].endswith("\r") else ""
            lines[row - 1] = lines[row - 1][:column].rstrip() + ending
    stripped = "\n".join(lines)
    try:
        return stripped if _code(_tokens(stripped)) == _code(tokens) else text
    except _NOT_PYTHON:
        return text


def _code(tokens: list[tokenize.TokenInfo]) -> list[tuple[int, str]]:
    return [(token.type, token.string) for token in tokens if token.type not in _LAYOUT]


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    """Return the tokens of Python source. Raises one of ``_NOT_PYTHON`` for any other text."""
    *lines, last = text.split("\n")
    if max(map(len, (*lines, last))) > LONGEST_SOURCE_LINE:
        raise SyntaxError("a line is too long")
    found = []
    depth = 0
    for token in tokenize.generate_tokens(iter([*(f"{line}\n" for line in lines), last]).__next__):
        if token.type in _STRING_STARTS:
            depth += 1
        elif token.type in _STRING_ENDS:
            depth -= 1
        # Stop at an error, because each string that never ends costs a scan. Since Python 3.12 a
        # character that Python does not have is no error: it is an operator that does not exist.
        is_foreign = token.type == tokenize.OP and (
            token.string not in EXACT_TOKEN_TYPES or (token.string == "!" and not depth)
        )
        if is_foreign or token.type == tokenize.ERRORTOKEN:
            raise SyntaxError("not Python")
        found.append(token)
    return found

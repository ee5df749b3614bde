"""Changes of one document: requests for them, search/replace blocks, predictions. Pure.

A document with one mistake does more harm than a document that is generated again. So in case of
doubt a text does not count as a request for a change, and a block is not applied.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headstart.attempts import CHARS_PER_TOKEN
from headstart.types import Frozen, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headstart.canonical_request import CanonicalRequest

# --- lines that stand for lines left out ----------------------------------------------------------

_REMARK = re.compile(
    r"[#;%!]|//|--|\{?/\*|<!--|\(\*|\{[-#!]|[*_]*[\[(<{]+[\w\s.,:'/\u2026-]*[\])>}]+[*_]*$"
)
"""The beginning of a comment, or words in brackets."""
_BESIDE = re.compile(r"\s((?:#|//|--|\{?/\*|<!--)\s.*)")
_GAP = re.compile(r"[^\w).\u2026]*(?:\.{3}|\u2026|etc\b)(?:\W*|\s.*|\w+(?: \w+)+\W*)")
"""A text that begins with an ellipsis; ``...name`` alone is code."""
_ELLIPSIS = re.compile(r"\.{3}|\u2026|\betc\b")
_LEFT_OUT = re.compile(
    r"\b(?:rest|remain(?:s|ing|der)|existing|unchanged|same|omitted|elided|truncated"
    r"|snip(?:ped)?|previous|original|unmodified|untouched|continue[sd]|and so on|code here"
    r"|everything else|(?:as|like) (?:before|above|is))\b",
    re.IGNORECASE,
)
_MANY = 2
"""Number of lines by which a block may shrink without being suspect."""
_LONG = 80
"""Number of characters above which a line with such a word counts as prose."""


def leaves_out(search: Sequence[str], replace: Sequence[str]) -> bool:
    """Tell whether a new line seems to stand for omitted lines, such as ``# ... rest as before``.

    Models write such lines in more ways than anyone can list. So in addition to the usual words,
    the context counts: many lines were removed, few were added, and one of these is a comment. A
    line that occurs as often in the search as in the replacement is not new.
    """
    shrinks = len(search) - len(replace) > _MANY
    came = Counter(map(_remark_in, replace)) - Counter(map(_remark_in, search))
    return any(_is_elision(remark, shrinks=shrinks) for remark in came)


def _remark_in(line: str) -> str:
    """Return the comment of a line, or the whole line if it has none."""
    line = line.strip()
    beside = None if _REMARK.match(line) or len(line) > _LONG else _BESIDE.search(line)
    return beside[1] if beside else line


def _is_elision(remark: str, *, shrinks: bool) -> bool:
    if _GAP.fullmatch(remark):
        return True
    if len(remark) > _LONG:
        return False
    words = set(map(str.lower, _LEFT_OUT.findall(remark)))
    if _REMARK.match(remark):
        return shrinks or bool(words or _ELLIPSIS.search(remark))
    return len(words) > 1 or (shrinks and bool(words or _ELLIPSIS.search(remark)))


# --- search/replace blocks in an answer -----------------------------------------------------------

_SEARCH = re.compile(r"<{5,9} SEARCH>?[ \t]*")
_DIVIDER = re.compile(r"={5,9}[ \t]*")
_REPLACE = re.compile(r">{5,9} REPLACE[ \t]*")
_LIKE_SEARCH = re.compile(r"[ \t>]*<{5,9}[ \t]*\w")
_OTHER_FORM = re.compile(
    r"[ \t>]*+(?:@@ |\*\*\* (?:Begin Patch|Update File)|(?:---|\+\+\+) \S"
    r"|</?(?:search|replace|edit)\b|<*\s*SEARCH\b|[-+](?![-+\s]))",
    re.IGNORECASE,
)
"""A line of a patch or of another form of edits."""
_DOCUMENT_SHARE = 2
"""An answer with edits in another form does not count as a document if it is shorter by this
factor."""
_ADDED = re.compile(r"\+")
_NUMBERED = re.compile(r"[ \t]*\d+(?:\t|[:|](?=\s)|[ \t]+[|\u2502]|\u2192| {2,})")
_MARKER = re.compile(r"^(?:<{5,9}(?:[ \t]|$)|={5,9}[ \t]*$|>{5,9}(?:[ \t]|$))", re.MULTILINE)
_FENCE = re.compile(r"(?:`{3,}|~{3,})[\w.+#/-]*[ \t]*")

_REMARK_SHARE = 4
_REMARK_CHARS = 400


class EditDoubt(StrEnum):
    """The reason why blocks cannot be applied."""

    MALFORMED = "malformed"
    NOT_FOUND = "not-found"
    NOT_UNIQUE = "not-unique"
    OVERLAPPING = "overlapping"
    UNCHANGED = "unchanged"
    REPEATS_NEIGHBOR = "repeats-neighbor"
    """The block would repeat a neighbouring line, because its search lacks that line."""
    ELIDED = "elided"
    """A new line seems to replace lines left out."""
    REMARKS = "remarks"
    """There is so much text beside the blocks that it may be the document itself."""


class EditedDocument(Frozen):
    """A document with its blocks applied, and the model's words around the blocks."""

    document: str
    before: str
    after: str


class _Replacement(Frozen):
    start: int
    end: int
    lines: tuple[str, ...]


def has_markers(text: str) -> bool:
    """Tell whether a line of a text could be mistaken for a line of a block."""
    return _MARKER.search(text) is not None


class EditReader:
    """Applies the search/replace blocks of one answer, which comes in pieces of any size.

    The blocks have the form in which Aider's models write them. A block counts only if its search
    lines stand in the document once and whole. The document has no markers (``has_markers``).
    """

    def __init__(self, document: str) -> None:
        self.doubt: EditDoubt | None = None
        """Set as soon as it is known; later text is not read."""
        self.begun = False
        """A block has come, or a text that resembles one."""
        self._lines = document.split("\n")
        self._places: dict[str, list[int]] = {}
        for place, line in enumerate(self._lines):
            self._places.setdefault(line, []).append(place)
        self._rest = ""
        self._search: list[str] | None = None
        self._replace: list[str] | None = None
        self._place = 0
        self._replacements: list[_Replacement] = []
        self._remarks: list[list[str]] = [[]]
        """The lines before the first block, between two blocks, and after the last one."""
        self._fenced = False
        self._other_form = False
        self._chars = 0

    def feed(self, text: str) -> None:
        """Take in a piece of the answer."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if self.doubt is None:
                self._read(line)

    def end(self) -> EditedDocument | None:
        """Return the document; None if no block came, or if there is a ``doubt``."""
        if self._rest and self.doubt is None:
            self._read(self._rest)
        self._rest = ""
        size = sum(map(len, self._lines)) + len(self._lines)
        if not self.begun and self._other_form and _DOCUMENT_SHARE * self._chars < size:
            # Edits in a form of the model's own: the client asked for the document.
            self.begun = True
            self._doubt(EditDoubt.MALFORMED)
        if not self.begun or self.doubt is not None:
            return None
        if self._search is not None or self._fenced:
            self._doubt(EditDoubt.MALFORMED)
            return None
        before, *others = ("\n".join(lines).strip() for lines in self._remarks)
        after = "\n\n".join(each for each in others if each)
        if len(before) + len(after) > _REMARK_CHARS + size // _REMARK_SHARE:
            self._doubt(EditDoubt.REMARKS)
            return None
        return EditedDocument(document=self._apply(), before=before, after=after)

    def _read(self, line: str) -> None:
        self._chars += len(line) + 1
        self._other_form = self._other_form or _OTHER_FORM.match(line) is not None
        if self._replace is not None:
            self._read_replacing(line, self._replace)
        elif self._search is not None:
            self._read_searching(line, self._search)
        elif _SEARCH.fullmatch(line):
            self.begun = True
            self._search = []
            self._open_fence(self._remarks[-1])
        elif _LIKE_SEARCH.match(line) or _REPLACE.fullmatch(line):
            self.begun = True
            self._doubt(EditDoubt.MALFORMED)
        elif self._fenced and line.strip() in {"```", "~~~", "````"}:
            self._fenced = False
        else:
            self._remarks[-1].append(line)

    def _read_searching(self, line: str, search: list[str]) -> None:
        if _DIVIDER.fullmatch(line):
            self._find(search)
            self._replace = []
        elif _SEARCH.fullmatch(line) or _REPLACE.fullmatch(line):
            self._doubt(EditDoubt.MALFORMED)
        else:
            search.append(line)

    def _read_replacing(self, line: str, replace: list[str]) -> None:
        if _REPLACE.fullmatch(line):
            self._add(self._search or [], replace)
            self._search = self._replace = None
            self._remarks.append([])
        elif _SEARCH.fullmatch(line) or _DIVIDER.fullmatch(line):
            self._doubt(EditDoubt.MALFORMED)
        else:
            replace.append(line)

    def _open_fence(self, before: list[str]) -> None:
        """Remove the fence around a block from the words before it."""
        while before and not before[-1].strip():
            before.pop()
        if before and not self._fenced and _FENCE.fullmatch(before[-1]):
            before.pop()
            self._fenced = True

    def _find(self, search: Sequence[str]) -> None:
        """Set the place of a search, or a doubt. It must occur once; empty lines may differ."""
        written = [number for number, line in enumerate(search) if line.strip()]
        if not written:
            self._doubt(EditDoubt.MALFORMED)
            return
        first, last = written[0], written[-1] + 1
        places = [
            place - first
            for place in self._places.get(search[first], ())
            if self._lines[place : place + last - first] == search[first:last]
        ]
        if len(places) > 1:
            self._doubt(EditDoubt.NOT_UNIQUE)
        elif not places or self._lines[places[0] : places[0] + len(search)] != search:
            self._doubt(EditDoubt.NOT_FOUND)
        else:
            self._place = places[0]

    def _add(self, search: Sequence[str], replace: Sequence[str]) -> None:
        start, end = self._place, self._place + len(search)
        if search == replace:
            self._doubt(EditDoubt.UNCHANGED)
        elif _adds_marks(search, replace):
            self._doubt(EditDoubt.MALFORMED)
        elif leaves_out(search, replace):
            self._doubt(EditDoubt.ELIDED)
        elif self._repeats_neighbor(start, end, replace):
            self._doubt(EditDoubt.REPEATS_NEIGHBOR)
        elif any(start < other.end and other.start < end for other in self._replacements):
            self._doubt(EditDoubt.OVERLAPPING)
        else:
            self._replacements.append(_Replacement(start=start, end=end, lines=tuple(replace)))

    def _repeats_neighbor(self, start: int, end: int, replace: Sequence[str]) -> bool:
        """Tell whether the new lines begin or end with a line next to their place."""
        search = self._lines[start:end]
        before = self._lines[start - 1] if start else None
        after = self._lines[end] if end < len(self._lines) else None
        return _lacks_line(search, replace, after) or _lacks_line(
            search[::-1], replace[::-1], before
        )

    def _apply(self) -> str:
        lines: list[str] = []
        at = 0
        for each in sorted(self._replacements, key=lambda each: each.start):
            lines += self._lines[at : each.start]
            lines += each.lines
            at = each.end
        return "\n".join((*lines, *self._lines[at:]))

    def _doubt(self, doubt: EditDoubt) -> None:
        self.doubt = self.doubt or doubt


def _adds_marks(search: Sequence[str], replace: Sequence[str]) -> bool:
    """Tell whether new lines have marks that no old line has: a ``+``, a number, a fence."""
    old, new = ([line for line in lines if line.strip()] for lines in (search, replace))
    if not new:
        return False
    for mark in (_ADDED, _NUMBERED):
        if all(map(mark.match, new)) and not any(map(mark.match, old)):
            return True
    return _FENCE.fullmatch(new[0]) is not None and not any(map(_FENCE.fullmatch, old))


def _lacks_line(search: Sequence[str], replace: Sequence[str], after: str | None) -> bool:
    """Tell whether the line ``after`` seems to be missing at the end of a search."""
    if not replace or after is None:
        return False
    count, last = len(search), replace[-1]
    if last == after and last != search[-1]:
        return True
    if last == after and search[-2:] != [last, last] and replace[-2:] == [last, last]:
        return True  # the line would then stand there three times
    is_framed = count > 1 and search[0] == replace[0] and search[-1] == last
    return not is_framed and replace[: count + 1] == [*search, after]


# --- requests for a change ------------------------------------------------------------------------

MIN_TOKENS = 600
"""Blocks about a shorter document cost more than the document (``docs/output-edits.md``)."""
_MAX_WORDS_CHARS = 2000
_SNIPPET_SHARE = 4
_ROOM = 1.5
"""The caller's own limit must have room for this number of documents."""

_OPENING = re.compile(r"(`{3,}|~{3,})([^`]*)|<(document|file|code|content)(?:[ \t][^<>]*)?>[ \t]*")
_VERB = re.compile(
    r"(?:^|[.!;:,\n][ \t>*-]*|\d[.)]\s+|\b(?:please|then|and|also|just|should|must)\s+"
    r"|\b(?:like|want|need|have)\s+(?:you\s+)?to\s+|\b(?:can|could|would|will)\s+you\s+)"
    r"(?:add|adjust|amend|append|bump|capitali[sz]e|change|correct|delete|drop|edit|extend|fix"
    r"|insert|make\s+(?:the|this|it|all|every|each|sure|these|those)|modify|move|refactor|remove"
    r"|rename|reorder|replace|set|swap|tidy|tweak|update|use(?=[^.\n]*\binstead\b))\b",
    re.IGNORECASE,
)
_OTHER_REQUEST = re.compile(
    r"\b(?:summar\w*|translat\w*|explain\w*|explanation|describ\w*|analy[sz]\w*|compar\w*|extract"
    r"|convert|rewrite|re-write|rephrase|paraphrase|shorten|answer|tell me|show me|give me an?"
    r"|list (?:the|all|every|each)|review|critique|suggest\w*|diff|patch|unified|snippet"
    r"|json only|as json|in json|from scratch"
    r"|(?:write|add|create|generate|make)\s+(?:\w+\s+){0,3}(?:tests?|summary|list|table of)\b"
    r"|(?:only|just)\s+(?:\w+\s+){0,2}(?:return|show|output|print|reply|give|send|write|the"
    r" (?:new|changed?|modified|edited|updated|function|method|class|line|lines|part))\b"
    r"|(?:return|show|output|print|reply|give|send|write)\s+(?:\w+\s+)?(?:only|just|nothing)\b"
    r"|(?:do not|don'?t|without|instead of|no need to)\s+(?:\w+\s+)?"
    r"(?:return|show|output|print|repeat|writ|send)\w*)",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"(?:^|(?<=[?\n])|(?<=[.!])(?=\s))(?:[^.!?\n]++|[.!](?=\S))++\?")
_POLITE = re.compile(
    r"[\s>*-]*(?:(?:hi|hello|hey|please|so|then|also|and|now)[,!]?\s+)*"
    r"(?:can|could|would|will) you\b",
    re.IGNORECASE,
)


class EditRequest(Frozen):
    """A document to change, and the two lines that border it."""

    document: str
    opening: str
    closing: str

    def bordered(self, document: str) -> str | None:
        """Return another document within the same border, or None if it contains that border."""
        ends = self.closing[:3] if self.opening.startswith(("`", "~")) else self.closing
        if any(line.startswith(ends) for line in document.split("\n")):
            return None
        return f"{self.opening}\n{document}\n{self.closing}"


class _BorderedPart(Frozen):
    start: int
    end: int
    """The number of the line that closes the border."""


def find_edit(text: str) -> EditRequest | None:
    """Return the document to change, if the text asks for its change and nothing else.

    The border is a code fence, or ``<document>``, ``<file>``, ``<code>`` or ``<content>`` on lines
    of their own. The text holds one document of at least ``MIN_TOKENS``, and no other that is large
    enough to be meant. Only English is understood: in other languages nothing is found.
    """
    if len(text) < MIN_TOKENS * CHARS_PER_TOKEN or "\r" in text:
        return None
    lines = text.split("\n")
    blocks = _find_blocks(lines)
    if not blocks:
        return None
    bodies = ["\n".join(lines[block.start + 1 : block.end]) for block in blocks]
    largest = max(range(len(blocks)), key=lambda number: len(bodies[number]))
    document, block = bodies[largest], blocks[largest]
    others = sum(map(len, bodies)) - len(document)
    if len(document) < MIN_TOKENS * CHARS_PER_TOKEN or others * _SNIPPET_SHARE > len(document):
        return None
    if has_markers(document) or not _asks_to_edit(_outside(lines, blocks)):
        return None
    return EditRequest(
        document=document, opening=lines[block.start].rstrip(), closing=lines[block.end].rstrip()
    )


def _find_blocks(lines: list[str]) -> list[_BorderedPart] | None:
    """Return the bordered parts; None if a border is unclear."""
    blocks: list[_BorderedPart] = []
    at = 0
    while at < len(lines):
        opening = _OPENING.fullmatch(lines[at])
        if opening is None:
            at += 1
            continue
        end = _closing(lines, at, opening)
        if end is None:
            return None
        blocks.append(_BorderedPart(start=at, end=end))
        at = end + 1
    return blocks


def _closing(lines: list[str], start: int, opening: re.Match[str]) -> int | None:
    """Return the line that closes a border, unless a line in between could be one of its kind."""
    fence, tag = opening[1], opening[3]
    begins, closes = (fence[:3], fence) if fence else (f"<{tag}", f"</{tag}>")
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if line.rstrip() == closes:
            return number
        if line.startswith(begins) or (tag and number == start + 1 and line.startswith("<")):
            return None
    return None


def _outside(lines: list[str], blocks: list[_BorderedPart]) -> str:
    words: list[str] = []
    at = 0
    for block in blocks:
        words += lines[at : block.start]
        at = block.end + 1
    return "\n".join((*words, *lines[at:])).strip()


def _asks_to_edit(words: str) -> bool:
    if not 0 < len(words) <= _MAX_WORDS_CHARS or _OTHER_REQUEST.search(words):
        return False
    questions = _QUESTION.findall(words)
    return _VERB.search(words) is not None and all(_POLITE.match(each) for each in questions)


def may_edit(asked: CanonicalRequest, edit: EditRequest) -> bool:
    """Tell whether an answer may be made of blocks: it is plain text, and its limit leaves room."""
    document = len(edit.document) // CHARS_PER_TOKEN
    return (
        asked.choices == 1
        and not (asked.tools or asked.stop or asked.logprobs or asked.extra.get("prediction"))
        and asked.wants_text
        and (asked.max_tokens is None or asked.max_tokens > _ROOM * document)
    )


# --- predictions ----------------------------------------------------------------------------------

MIN_PREDICTED_CHARS = 200
"""Minimum length of a prediction: a shorter answer is written before a prediction could help."""
_UNPREDICTABLE_FIELDS = words_of(
    "audio function_call functions logprobs max_completion_tokens prediction tool_choice tools "
    "top_logprobs web_search_options"
)
_PENALTIES = ("frequency_penalty", "presence_penalty")


def may_predict(document: Mapping[str, Any], prediction: str) -> bool:
    """Tell whether a Chat Completions request may have this prediction.

    The restrictions are those of OpenAI's *Predicted Outputs* guide; other providers have fewer.
    """
    if len(prediction) < MIN_PREDICTED_CHARS or any(
        document.get(name) for name in _UNPREDICTABLE_FIELDS
    ):
        return False
    if document.get("n") not in (None, 1) or document.get("modalities") not in (None, ["text"]):
        return False
    return not any(document.get(name) for name in _PENALTIES)


def with_prediction(document: Mapping[str, Any], prediction: str) -> dict[str, Any]:
    """Return the document with the prediction of its answer's text."""
    return {**document, "prediction": {"type": "content", "content": prediction}}


def predicted_tokens(usage: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the accepted and the rejected tokens of a usage object; None if it has neither.

    Rejected tokens are billed: they are part of its completion tokens.
    """
    details = usage.get("completion_tokens_details")
    if not isinstance(details, dict):
        return None
    accepted, rejected = (
        details.get(f"{kind}_prediction_tokens") for kind in ("accepted", "rejected")
    )
    if type(accepted) is not int or type(rejected) is not int:
        return None
    return accepted, rejected

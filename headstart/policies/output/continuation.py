"""Continuation of an answer that was cut: the request for the rest, and the splice. Pure.

**An answer that reached its limit.** Some providers continue a last assistant message exactly
(prefill). All others are asked to begin with the last words of the first part. These words show
where the second part starts, even if spaces and half words differ or the model says something
before them. If they are missing, the overlap is the longest suffix of the first part that is a
prefix of the second part.

**An answer that broke off** is rescued by a second run. With a restart, the second run writes the
whole answer. Its text is dropped as long as it repeats, character by character, what the caller
already has; the text after that is new. If it differs before, the two runs cannot be joined.

With a prefill, the second run is given the caller's text and continues it. If it repeats the end of
that text nevertheless, the repetition is dropped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from headstart.dialects.request_form import RequestForm


# --- answers that broke off -----------------------------------------------------------------------

OVERLAP = 20
"""A shorter repetition, in characters, may be chance and belong to the new text."""


class RestartSplice:
    """Matches a second run against the ``shown`` text. Pieces may end anywhere."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._matched = 0

    @property
    def reached(self) -> bool:
        """Whether all of the shown text was repeated, so that the next text is new."""
        return self._matched == len(self._shown)

    def feed(self, text: str) -> str | None:
        """Return the new part of the next piece of text, maybe ""; None if the run diverges.

        After None the two cannot be joined, and nothing more may be fed.
        """
        ahead = min(len(text), len(self._shown) - self._matched)
        if not self._shown.startswith(text[:ahead], self._matched):
            return None
        self._matched += ahead
        return text[ahead:]

    def end(self) -> str | None:
        """Return "", as no text is buffered; None: not all of the shown text was repeated."""
        return "" if self.reached else None


class PrefillSplice:
    """Joins a run that was asked to continue the ``shown`` text, without the space at its end.

    The run may repeat the last words exactly, or all words. A repetition of ``OVERLAP`` characters
    or more is dropped, and so is the space that the caller already has.
    """

    def __init__(self, shown: str) -> None:
        self._shown = shown.rstrip()
        self._space = shown[len(self._shown) :]
        self._pending: str | None = ""
        """The text so far, while it may still be a repetition."""

    def feed(self, text: str) -> str | None:
        """Return the new part of the next piece of text, maybe "".

        None: the run started over and differs.
        """
        if self._pending is None:
            return self._after_space(text)
        self._pending += text
        return "" if self._pending.lstrip() in self._shown else self.end()

    def end(self) -> str | None:
        """Return the new part of the buffered text, after the last piece. None as in ``feed``."""
        pending, self._pending = self._pending or "", None
        start = pending.lstrip()
        overlap = self._overlap(start)
        if overlap:
            pending = start[overlap:]
        elif len(start) >= OVERLAP and self._shown.startswith(start[:OVERLAP]):
            return None
        return self._after_space(pending)

    def _overlap(self, text: str) -> int:
        """Return the length of the longest suffix of the shown text with which ``text`` begins."""
        if len(text) < OVERLAP:
            return 0
        shown, start = self._shown, text[:OVERLAP]
        at = shown.find(start, max(0, len(shown) - len(text)))
        while at >= 0 and not text.startswith(shown[at:]):
            at = shown.find(start, at + 1)
        return 0 if at < 0 else len(shown) - at

    def _after_space(self, text: str) -> str:
        while text and self._space.startswith(text[0]):
            text, self._space = text[1:], self._space[1:]
        if text:
            self._space = ""
        return text


# --- answers that reached their limit -------------------------------------------------------------

Prefill: TypeAlias = Literal["no", "plain", "prefix"]
"""How a provider continues a last assistant message, as in ``Quirks``."""

_ANCHOR = 80
"""Maximum number of characters of the last words."""
_WINDOW = 240
"""Number of characters of the first part that the second may repeat unasked."""
_SURE = 8
"""A shorter overlap may be chance, unless it is a word of its own."""
_LEAD = 400
"""Number of characters that a model may write before it repeats the last words."""
_LONGEST_THOUGHT = 60_000
"""Number of characters after which a text that begins like a thought counts as text."""
_DISTINCTIVE = 40
"""Last words with fewer characters may occur again by chance."""
_MARKS = r"\s*(?:`{3,}[^\n`]*\n|\.{3}|[\u2026\"'\u201c>]|\*+)?\s*"
_OPENING = re.compile(_MARKS)
"""Marks that a model puts before the text that it repeats."""
_ENDS_COMMENT = re.compile(r"(?:[:.!?\u2026][*_)\]]*\s|[*_)\]]\s|\n)" + _MARKS + r"\Z")
"""The end of the model's own comment: the end of a sentence, a heading or a line, followed by
marks."""
_PREFACES = (
    "ok", "sure", "yes", "right", "alright", "sorry", "going on", "continu", "here", "the rest",
    "resum", "let me", "let's", "i'll", "i will", "as requested", "of course", "certainly",
)  # fmt: skip
"""Beginnings of such comments in lower case."""
_THOUGHT = re.compile(r"\s*<(think(?:ing)?)>")
_WITHIN = re.compile(r"\s*[a-z\d_]")
"""A text that continues within a sentence."""
INSTRUCTION = (
    "Your answer was cut off. Continue it: begin by repeating its last words exactly as they are "
    "given below, and go on from there to its end. Do not comment, and do not start over.\n\n"
)


def continuing(
    document: dict[str, Any], form: RequestForm, written: str, prefill: Prefill
) -> dict[str, Any]:
    """Return the request for the rest of an answer that begins with ``written``.

    With a ``prefill``, the provider continues the text itself: only for forms with ``prefills``.
    """
    written = written.rstrip() if prefill != "no" else written
    more = [form.turn(form.assistant, written)]
    if prefill == "no":
        more.append(form.turn("user", INSTRUCTION + anchor(written)))
    elif prefill == "prefix":
        more[0]["prefix"] = True
    return form.with_turns(document, more)


def anchor(text: str) -> str:
    """Return the last words of a text, without the space around them."""
    text = text.strip()
    if len(text) <= _ANCHOR:
        return text
    _, *words = text[-_ANCHOR:].split(maxsplit=1)
    return words[0] if words and len(words[0]) >= _DISTINCTIVE else text[-_ANCHOR:].lstrip()


class TextJoin:
    """Finds the new text in a continuation, which comes in pieces of any size.

    ``prefilled``: the provider continued the text itself, without the space at its end. In the
    other case, a continuation is buffered until the last words, and what may come before them, are
    read.
    """

    def __init__(self, written: str, *, prefilled: bool) -> None:
        words, space = anchor(written), written[len(written.rstrip()) :]
        self._written = written
        self._prefilled = prefilled
        self._space = space
        self._tail = space if prefilled else written[-_WINDOW:]
        self._anchor = "" if prefilled else words + space
        self._words: re.Pattern[str] | None = None
        if not prefilled and len(words) >= _DISTINCTIVE:
            self._words = re.compile(r"\s+".join(map(re.escape, words.split())))
        self._is_unique = written.find(words) == len(written) - len(words) - len(space)
        self._reach = _LEAD + len(words)
        self._pending = ""
        self._joined = not self._tail
        thinks = written.rfind("<think") > written.rfind("</think")
        self._thinks = not (prefilled or thinks or self._joined)
        """The continuation may begin with a thought, which does not belong to the answer."""

    def feed(self, text: str) -> str:
        """Return the new text; nothing while it may be a repetition."""
        if self._joined:
            return text
        self._pending += text
        return "" if self._leave_thought() or self._is_open() else self.end()

    def end(self) -> str:
        """Return the new text in the buffered text, when no more text comes."""
        if self._joined:
            return ""
        self._joined = True
        if self._leave_thought() and _THOUGHT.match(self._pending):
            return ""
        return self._pending[self._surely_repeated() or self._repetition_end(0) :]

    def _leave_thought(self) -> bool:
        """Remove a thought at the beginning; return whether more text is needed for that."""
        if not self._thinks:
            return False
        found = _THOUGHT.match(self._pending)
        if found is None:
            start = self._pending.lstrip()
            self._thinks = any(tag.startswith(start) for tag in ("<think>", "<thinking>"))
            return self._thinks
        end = self._pending.find(f"</{found[1]}>", found.end())
        if end >= 0:
            self._pending = self._pending[end + len(found[1]) + 3 :]
        self._thinks = end < 0 and len(self._pending) <= _LONGEST_THOUGHT
        return self._thinks

    def _is_open(self) -> bool:
        """Tell whether more text could change the extent of the repetition."""
        if any(map(self._may_repeat, self._starts())):
            return True
        if self._words is None:
            return False
        if seam := self._surely_repeated():
            more = self._pending[seam:]
            return more != self._space and self._space.startswith(more)
        goes_on = _goes_on(self._pending) and self._pending.lstrip()[0] != self._anchor[0]
        return not goes_on and len(self._pending) < self._reach

    def _starts(self) -> tuple[int, ...]:
        """Return the places where a repetition may start."""
        opening = None if self._words is None else _OPENING.match(self._pending)
        return (0, opening.end()) if opening else (0,)

    def _may_repeat(self, begin: int) -> bool:
        """Tell whether more text could change the extent of a repetition that starts there."""
        pending = self._pending[begin:]
        start = pending.lstrip()
        if not start or (len(start) < len(self._anchor) and self._anchor.startswith(start)):
            return not self._prefilled or self._tail.startswith(pending)
        places = range(len(self._tail) - len(pending))
        return any(self._tail.startswith(pending, place) for place in places)

    def _surely_repeated(self) -> int:
        """Return the end of a repetition that cannot be chance, or 0."""
        if self._words is None:
            return 0
        for begin in self._starts():
            end = self._repetition_end(begin)
            if end - begin >= _SURE:
                return end
        found = self._words.search(self._pending, 0, self._reach)
        if found is None or not _is_comment(self._pending[: found.start()]):
            return 0
        # A text that repeats itself word for word comes to its last words again by itself.
        goes_on = not self._is_unique and self._pending[: found.start()].strip() in self._written
        return 0 if goes_on else self._with_space(found.end())

    def _with_space(self, end: int) -> int:
        return end + len(self._space) * self._pending.startswith(self._space, end)

    def _repetition_end(self, begin: int) -> int:
        """Return the end of a repetition that starts at ``begin``; ``begin`` if there is none."""
        pending = self._pending[begin:]
        start = pending.lstrip()
        for words in (self._anchor, self._anchor.rstrip()):
            if words and start.startswith(words):
                return begin + len(pending) - len(start) + len(words)
        lengths = range(min(len(pending), len(self._tail)), 0, -1)
        overlaps = (each for each in lengths if self._tail.endswith(pending[:each]))
        return begin + next(filter(self._counts, overlaps), 0)

    def _counts(self, length: int) -> bool:
        """Tell whether an overlap of this length is more than chance."""
        if self._prefilled:
            return True
        overlap = self._tail[-length:]
        if not any(map(str.isalpha, overlap)):
            return False
        before = self._tail[-length - 1 : -length]
        return length >= _SURE or not (before.isalnum() and overlap[0].isalnum())


def _goes_on(text: str) -> bool:
    """Tell whether a text continues within a sentence and does not begin a comment."""
    start = text.lstrip().lower()
    comment = any(start.startswith(each) or each.startswith(start) for each in _PREFACES)
    return _WITHIN.match(text) is not None and not comment


def _is_comment(lead: str) -> bool:
    """Tell whether the text before the last words is the model's own: marks, or whole sentences."""
    if _OPENING.fullmatch(lead):
        return True
    return not _goes_on(lead) and _ENDS_COMMENT.search(lead) is not None

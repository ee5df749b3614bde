"""The splice of a rescued answer: where the text of a second run continues that of the first.

Restart: the second run writes the whole answer. Its text is dropped as long as it repeats the text
that the caller already has, character by character; the text after that is new. If it differs
earlier, the two runs cannot be joined.

Prefill: the second run was given the caller's text and continues it. If it still repeats the end of
that text, the repetition is dropped.
"""

from __future__ import annotations

OVERLAP = 20
"""A repetition of fewer characters may be chance, and belong to the text."""


class RestartSplice:
    """Matches a second run against the ``shown`` text. Pieces may end anywhere."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._matched = 0

    @property
    def reached(self) -> bool:
        """All of the shown text has been repeated: the next text is new."""
        return self._matched == len(self._shown)

    def feed(self, text: str) -> str | None:
        """Return the new part of the next piece of text, maybe ""; None: the run diverges.

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
        """Return the length of the longest end of the shown text with which ``text`` begins."""
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

"""The seam of a rescued answer: where a second run's text goes on from what the caller has. Pure.

Restart and match: the second run begins afresh and is held back while it repeats, character by
character, what the caller already has. What follows is new. Where it says something else before
that point, there is no way to join the two.

Prefill: the second run was given what the caller has and goes on from there. What it repeats of
that all the same is left out.
"""

from __future__ import annotations

OVERLAP = 20
"""Characters: a shorter repetition may be chance, and belong to the text."""


class Seam:
    """Matches a second run against the text that was ``shown``, however either is cut up."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._matched = 0

    @property
    def reached(self) -> bool:
        """All that was shown has been repeated: what comes now is new."""
        return self._matched == len(self._shown)

    def feed(self, text: str) -> str | None:
        """Return what is new in the next piece of text, maybe nothing, or None: it diverges.

        After None the seam is lost; nothing more may be fed.
        """
        ahead = min(len(text), len(self._shown) - self._matched)
        if not self._shown.startswith(text[:ahead], self._matched):
            return None
        self._matched += ahead
        return text[ahead:]

    def end(self) -> str | None:
        """Return what was held back at the end, which is nothing; None: not all was repeated."""
        return "" if self.reached else None


class Continuation:
    """Joins a run that was given the text ``shown``, but for the space at its end, to go on from.

    It may repeat the last words exactly, or all of them; from ``OVERLAP`` characters on they are
    left out. So is the space that the caller has already.
    """

    def __init__(self, shown: str) -> None:
        self._shown = shown.rstrip()
        self._space = shown[len(self._shown) :]
        self._held: str | None = ""
        """What came, while it may still be a repetition."""

    def feed(self, text: str) -> str | None:
        """Return what is new in the next piece of text, maybe nothing yet.

        None: it began anew and says something else.
        """
        if self._held is None:
            return self._after_space(text)
        self._held += text
        return "" if self._held.lstrip() in self._shown else self.end()

    def end(self) -> str | None:
        """Return what is new of what was held back: no more comes. None as in ``feed``."""
        held, self._held = self._held or "", None
        start = held.lstrip()
        overlap = self._overlap(start)
        if overlap:
            held = start[overlap:]
        elif len(start) >= OVERLAP and self._shown.startswith(start[:OVERLAP]):
            return None
        return self._after_space(held)

    def _overlap(self, text: str) -> int:
        """Return the length of the longest end of what was shown that ``text`` begins with."""
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

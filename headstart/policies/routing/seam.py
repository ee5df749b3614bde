"""The seam of a rescued answer: where a second run's text goes on from what the caller has. Pure.

Restart and match: the second run begins afresh and is held back while it repeats, character by
character, what the caller already has. What follows is new. Where it says something else before
that point, there is no way to join the two.
"""

from __future__ import annotations


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

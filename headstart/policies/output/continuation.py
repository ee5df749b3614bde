"""Going on with an answer that was cut: what to ask, and how the two parts join. Pure.

Where a provider goes on from a last assistant message (prefill), its text continues to the letter.
Everybody else is asked to begin with the last words once more, which tells where the second part
starts whatever became of spaces and half words in between; a part that does not begin so is
searched for the longest end of the first that it begins with.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

Prefill: TypeAlias = Literal["no", "plain", "prefix"]
"""As in ``Quirks``: whether a provider goes on from a last assistant message."""

_ANCHOR = 80
"""Characters of the last words, at most."""
_WINDOW = 240
"""Characters of the first part that the second may repeat unasked."""
_SURE = 8
"""A shorter overlap may be chance, unless it is a word of its own."""
INSTRUCTION = (
    "Your answer was cut off. Continue it: begin by repeating its last words exactly as they are "
    "given below, and go on from there to its end. Do not comment, and do not start over.\n\n"
)


def continuing(document: dict[str, Any], said: str, prefill: Prefill) -> dict[str, Any]:
    """Return the request for the rest of an answer of which ``said`` is the beginning."""
    said = said.rstrip() if prefill != "no" else said
    if "contents" in document:
        ask = {"role": "user", "parts": [{"text": INSTRUCTION + anchor(said)}]}
        answer: dict[str, Any] = {"role": "model", "parts": [{"text": said}]}
        return {**document, "contents": [*document["contents"], answer, ask]}
    answer = {"role": "assistant", "content": said}
    if prefill == "prefix":
        answer["prefix"] = True
    more = [answer]
    if prefill == "no":
        more.append({"role": "user", "content": INSTRUCTION + anchor(said)})
    return {**document, "messages": [*document["messages"], *more]}


def anchor(said: str) -> str:
    """Return the last words of a text, without the space around them."""
    said = said.strip()
    if len(said) <= _ANCHOR:
        return said
    words = said[-_ANCHOR:]
    return words.partition(" ")[2].lstrip() or words.lstrip()


class Join:
    """Gives what is new in a continuation, however it is cut up.

    ``prefilled``: the provider went on from the text itself, without the space at its end.
    """

    def __init__(self, said: str, *, prefilled: bool) -> None:
        space = said[len(said.rstrip()) :]
        self._prefilled = prefilled
        self._tail = space if prefilled else said[-_WINDOW:]
        self._anchor = "" if prefilled else anchor(said) + space
        self._pending = ""
        self._joined = not self._tail

    def feed(self, text: str) -> str:
        """Return what is new, nothing while that cannot be told."""
        if self._joined:
            return text
        self._pending += text
        return "" if self._is_open() else self.end()

    def end(self) -> str:
        """Return what is new of what was held back: no more text comes, or it is known."""
        if self._joined:
            return ""
        self._joined = True
        return self._pending[self._repeated() :]

    def _is_open(self) -> bool:
        """Could more text change what is a repetition?"""
        pending = self._pending
        start = pending.lstrip()
        if not start or (len(start) < len(self._anchor) and self._anchor.startswith(start)):
            return not self._prefilled or self._tail.startswith(pending)
        return any(
            self._tail.startswith(pending, begin) for begin in range(len(self._tail) - len(pending))
        )

    def _repeated(self) -> int:
        """Return how much of the continuation repeats the end of the first part."""
        pending = self._pending
        start = pending.lstrip()
        for words in (self._anchor, self._anchor.rstrip()):
            if words and start.startswith(words):
                return len(pending) - len(start) + len(words)
        longest = min(len(pending), len(self._tail))
        lengths = (k for k in range(longest, 0, -1) if self._tail.endswith(pending[:k]))
        return next((k for k in lengths if self._prefilled or self._counts(k)), 0)

    def _counts(self, length: int) -> bool:
        """Is an overlap of this length more than chance?"""
        overlap = self._tail[-length:]
        if not any(map(str.isalpha, overlap)):
            return False
        before = self._tail[-length - 1 : -length]
        return length >= _SURE or not (before.isalnum() and overlap[0].isalnum())

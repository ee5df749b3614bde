"""Into how many pieces a replayed text is cut."""

from __future__ import annotations

CHUNK_CHARACTERS = 200
"""Clients spend about 0.3 ms on a chunk: one a token, as providers send them, wastes that."""


def split_text(text: str) -> list[str]:
    """Return the text in pieces of ``CHUNK_CHARACTERS``, the last shorter; none for no text."""
    starts = range(0, len(text), CHUNK_CHARACTERS)
    return [text[start : start + CHUNK_CHARACTERS] for start in starts]

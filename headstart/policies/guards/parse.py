"""The parse of a prompt that all guards share: made once, stored with the entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headstart.policies.guards.dates import dates
from headstart.policies.guards.negation import is_negated
from headstart.policies.guards.numbers import quantities
from headstart.policies.guards.roles import roles
from headstart.policies.guards.words import Word, is_function_word, split_words, stem
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.types import Encoding

MOST_VECTORS = 48
"""Content words beyond which no vectors are kept: 18 KB an entry at 384 dimensions."""


class Parse(Frozen, frozen=True, kw_only=True, array_like=True):
    """What the guards compare. About 400 bytes a content word at 384 dimensions."""

    stems: tuple[str, ...]
    """Every word but numbers, in order."""
    content: tuple[str, ...]
    """Stems that carry content, each once, in order of appearance."""
    vectors: bytes
    """One int8 row for each of ``content``, scaled to its own maximum; empty if there are none."""
    quantities: tuple[tuple[str, str], ...] = ()
    dates: tuple[str, ...] = ()
    roles: tuple[tuple[str, str], ...] = ()
    negated: bool = False


def parse_prompt(text: str, encoding: Encoding) -> Parse:
    """Parse a prompt. ``encoding`` must be of the same text: its spans locate the words."""
    words = split_words(text)
    stems = []
    content: dict[str, Word] = {}
    for word in words:
        if not word.text[0].isalpha() and word.text[0] != ".":
            continue
        stems.append(stem(word.text))
        if not is_function_word(word.text):
            content.setdefault(stems[-1], word)
    return Parse(
        stems=tuple(stems),
        content=tuple(content),
        vectors=_word_vectors(tuple(content.values()), encoding),
        quantities=quantities(words),
        dates=dates(words),
        roles=roles(words),
        negated=is_negated(words),
    )


def _word_vectors(words: Sequence[Word], encoding: Encoding) -> bytes:
    """Average the tokens of each word; words beyond the encoder's limit leave no vectors at all."""
    if not 0 < len(words) <= MOST_VECTORS or not encoding.complete:
        return b""
    share = np.zeros((len(words), len(encoding.spans)), np.float32)
    token = 0
    for row, word in enumerate(words):
        while token < len(encoding.spans) and encoding.spans[token][1] <= word.start:
            token += 1
        first = token
        while token < len(encoding.spans) and encoding.spans[token][0] < word.end:
            token += 1
        if token == first:
            return b""
        share[row, first:token] = 1.0
    rows = share @ encoding.tokens
    rows *= 127.0 / np.abs(rows).max(axis=1, keepdims=True)
    packed: bytes = np.rint(rows).astype(np.int8).tobytes()
    return packed

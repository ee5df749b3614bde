"""The parse of a prompt that all guards share: made once, stored with the entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.policies.guards.comparative import degrees, limits
from headstart.policies.guards.dates import dates
from headstart.policies.guards.names import names, symbols
from headstart.policies.guards.negation import negation
from headstart.policies.guards.numbers import quantities
from headstart.policies.guards.quantifiers import quantifiers
from headstart.policies.guards.roles import Role, roles
from headstart.policies.guards.vectors import from_nibbles, quantize_rows, to_nibbles
from headstart.policies.guards.words import Word, is_function_word, split_words, stem
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.decisions import Encoding

MOST_VECTORS = 64
"""Different words beyond which no vectors are kept: 12 KB an entry at 384 dimensions."""

PARSE_VERSION = 2
"""Raise it whenever a stored parse or a guard's verdict could change meaning. Stored prompts of
another version are not compared, and what was learned is forgotten: a new guard does not need that,
since it only takes candidates away, nor does a new field of the parse with a default."""

_SEPARATING = frozenset(",;/&")


class Parse(Frozen, frozen=True, kw_only=True, array_like=True):
    """What the guards compare. ``pack_parse`` makes 200 bytes of each word at 384 dimensions."""

    stems: tuple[str, ...]
    """Every word and number, in order."""
    content: frozenset[str]
    """Those stems that carry content; numbers have guards of their own."""
    vectors: bytes
    """One int8 row for each different stem in order of appearance, in steps of -7 to 7.
    Empty when there are too many words or the encoder did not see them all."""
    quantities: tuple[tuple[str, str], ...] = ()
    dates: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    negators: frozenset[str] = frozenset()
    """Stems of the words that negate."""
    negated: bool = False
    """Their number is odd."""
    tone: frozenset[str] = frozenset()
    """What may stand for a negation: trouble, complaints, endings."""
    quantifiers: frozenset[str] = frozenset()
    limits: frozenset[str] = frozenset()
    degrees: frozenset[tuple[str, str]] = frozenset()
    names: tuple[str, ...] = ()
    symbols: frozenset[str] = frozenset()
    commas: tuple[int, ...] = ()
    """Places of the stems that follow a comma, a semicolon, "/" or "&". Entries that were stored
    before there was this field have none: lists without "and" or "or" are then in one order."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Parse).decode


def parse_prompt(text: str, encoding: Encoding) -> Parse:
    """Parse a prompt. ``encoding`` must be of the same text: its spans locate the words."""
    words = split_words(text)
    negators, negated, tone = negation(words)
    stems: list[str] = []
    content = set()
    places: dict[str, Word] = {}
    commas = []
    end = 0
    for word in words:
        if word.kind == "sign":
            continue
        stemmed = stem(word.text)
        gap = text[end : word.start]
        if stems and gap != " " and not _SEPARATING.isdisjoint(gap):
            commas.append(len(stems))
        end = word.end
        stems.append(stemmed)
        places.setdefault(stemmed, word)
        if word.kind == "word" and not is_function_word(word.text):
            content.add(stemmed)
    return Parse(
        stems=tuple(stems),
        content=frozenset(content),
        vectors=_word_vectors(tuple(places.values()), encoding),
        quantities=quantities(words),
        dates=dates(words),
        roles=roles(words),
        negators=negators,
        negated=negated,
        tone=tone,
        quantifiers=quantifiers(words),
        limits=limits(words),
        degrees=degrees(words),
        names=names(text, words),
        symbols=symbols(text, words),
        commas=tuple(commas),
    )


def pack_parse(parse: Parse) -> bytes:
    """Serialise a parse for storage."""
    return _encode(msgspec.structs.replace(parse, vectors=to_nibbles(parse.vectors)))


def unpack_parse(packed: bytes) -> Parse:
    """Read what ``pack_parse`` wrote. Raises msgspec.DecodeError on anything else."""
    parse = _decode(packed)
    return msgspec.structs.replace(parse, vectors=from_nibbles(parse.vectors))


def _word_vectors(words: Sequence[Word], encoding: Encoding) -> bytes:
    """Average the tokens of each word. Empty unless every word has tokens."""
    if not 0 < len(words) <= MOST_VECTORS or not encoding.complete:
        return b""
    pieces = _token_ranges(words, encoding.spans)
    if any(first == last for first, last in pieces):
        return b""
    # Most words are one token. A matrix product would wake BLAS threads for microseconds of work.
    rows = encoding.tokens[[first for first, _ in pieces]]
    for row, (first, last) in enumerate(pieces):
        if last > first + 1:
            rows[row] = encoding.tokens[first:last].sum(axis=0)
    return quantize_rows(rows)


def _token_ranges(words: Sequence[Word], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the half-open range of tokens that overlap each word. Both come in text order."""
    ranges = []
    token = 0
    for word in words:
        while token < len(spans) and spans[token][1] <= word.start:
            token += 1
        first = token
        while token < len(spans) and spans[token][0] < word.end:
            token += 1
        ranges.append((first, token))
    return ranges

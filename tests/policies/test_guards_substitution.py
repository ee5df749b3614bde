"""MaxSim of exchanged words: the evidence behind the substitution guard."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.decisions import Encoding
from headstart.policies.guards.substitution import exchanged_maxsim, words_substituted
from headstart.policies.guards.table import parse_prompt
from headstart.policies.guards.words import (
    Parse,
    from_nibbles,
    pack_parse,
    quantize_rows,
    split_words,
    to_nibbles,
    unit_rows,
    unpack_parse,
)

AXES = {"capital": 0, "town": 0, "peru": 1, "chile": 2, "old": 3, "big": 4}
"""One direction a word; "capital" and "town" share theirs."""


def parse(text: str) -> Parse:
    words = split_words(text)
    tokens = np.eye(8, dtype=np.float32)[[AXES.get(word.text, 7) for word in words]]
    spans = tuple((word.start, word.end) for word in words)
    return parse_prompt(
        text, Encoding(sentence=np.ones(4, np.float32), tokens=tokens, spans=spans, complete=True)
    )


@pytest.mark.parametrize(
    ("one", "other", "maxsim"),
    [
        ("the capital", "the town", 1.0),
        ("capital of peru", "capital of chile", 0.0),
        ("capital of peru", "town of chile", 0.5),
        ("the old capital", "the capital", 0.0),
        ("old big peru", "capital chile", 0.0),
    ],
)
def test_maxsim_is_the_mean_over_exchanged_words(one: str, other: str, maxsim: float) -> None:
    a, b = parse(one), parse(other)
    assert exchanged_maxsim(a, b) == pytest.approx(maxsim)
    assert exchanged_maxsim(b, a) == pytest.approx(maxsim)


def test_maxsim_is_none_when_nothing_was_exchanged() -> None:
    assert exchanged_maxsim(parse("the capital"), parse("a capital")) is None


def test_maxsim_is_none_without_vectors() -> None:
    bare = Parse(stems=("peru",), content=frozenset({"peru"}), vectors=b"")
    assert exchanged_maxsim(bare, parse("chile")) is None
    assert words_substituted(bare, parse("chile"))


def test_quantized_rows_keep_their_directions() -> None:
    rows = np.random.default_rng(1).standard_normal((20, 384)).astype(np.float32)
    quantized = quantize_rows(rows * np.logspace(-3, 3, 20, dtype=np.float32)[:, None])
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.sum(unit_rows(quantized, 20) * unit, axis=1).min() > 0.98


@pytest.mark.parametrize("count", [0, 1, 2, 7, 384])
def test_nibbles_hold_every_step(count: int) -> None:
    steps = np.resize(np.arange(-7, 8, dtype=np.int8), count).tobytes()
    packed = to_nibbles(steps)
    assert len(packed) == (count + 1) // 2
    assert from_nibbles(packed) == steps


def test_stored_parse_takes_half_a_byte_a_number() -> None:
    prompt = parse("the old capital of peru")
    wide = Encoding(
        sentence=np.ones(4, np.float32),
        tokens=np.random.default_rng(2).standard_normal((5, 384)).astype(np.float32),
        spans=((0, 3), (4, 7), (8, 15), (16, 18), (19, 23)),
        complete=True,
    )
    stored = parse_prompt("the old capital of peru", wide)
    assert unpack_parse(pack_parse(stored)) == stored
    assert unpack_parse(pack_parse(prompt)) == prompt
    assert len(pack_parse(stored)) < 5 * 192 + 112

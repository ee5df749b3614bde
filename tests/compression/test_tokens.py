"""Token counts are exact without the network."""

from __future__ import annotations

import gzip
import hashlib
import socket
from typing import TYPE_CHECKING

import pytest
from tiktoken_ext import openai_public  # type: ignore[import-untyped]  # a plugin without types

from headstart.compression import tokens
from headstart.compression.tokens import TokenCount, count_tokens, is_loaded, load

if TYPE_CHECKING:
    from tiktoken import Encoding

PUBLISHED_SHA256 = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("token counting opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(
    ("text", "model", "expected"),
    [
        ("", "gpt-4o", 0),
        ("Hello world", "gpt-4o", 2),
        ("<|endoftext|>", "gpt-4o", 7),  # a user's text, never a special token
        ("The quick brown fox's 12345 jumps!\n\n  Über", "gpt-4o", 12),
        ("Hello world", "gpt-4", 2),
        ("The quick brown fox's 12345 jumps!\n\n  Über", "gpt-4", 12),
    ],
)
def test_known_models_are_counted_exactly(text: str, model: str, expected: int) -> None:
    assert count_tokens(text, model) == TokenCount(expected, estimated=False)


@pytest.mark.parametrize(
    ("text", "expected"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("<|endoftext|>", 4)]
)
@pytest.mark.parametrize("model", ["claude-sonnet-5", "text-davinci-003"])
def test_other_models_are_marked_estimates(text: str, model: str, expected: int) -> None:
    assert count_tokens(text, model) == TokenCount(expected, estimated=True)


def test_the_longest_texts_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "LONGEST_COUNTED", 12)
    assert not count_tokens("hello world!", "gpt-4o").estimated
    assert count_tokens("hello, world!", "gpt-4o") == TokenCount(4, estimated=True)


@pytest.mark.parametrize("name", PUBLISHED_SHA256)
def test_packaged_ranks_are_the_published_ones(name: str) -> None:
    ranks = gzip.decompress((tokens.RANKS / f"{name}.tiktoken.gz").read_bytes())
    assert hashlib.sha256(ranks).hexdigest() == PUBLISHED_SHA256[name]


@pytest.mark.parametrize("name", PUBLISHED_SHA256)
def test_texts_are_split_as_tiktoken_splits_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda address, expected_hash: {})
    assert tokens._SPLIT[name] == getattr(openai_public, name)()["pat_str"]


def test_an_encoding_is_loaded_once_and_for_all_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = tokens._read

    def noted(name: str) -> Encoding:
        read.append(name)
        return real(name)

    monkeypatch.setattr(tokens, "_read", noted)
    monkeypatch.setattr(tokens, "_encodings", {})
    assert not is_loaded("gpt-4o")
    load("gpt-4o")
    assert is_loaded("gpt-4o-mini")
    assert not is_loaded("gpt-4")
    count_tokens("Hello", "gpt-4o")
    assert read == ["o200k_base"]


def test_a_model_without_an_encoding_has_nothing_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_encodings", {})
    load("claude-sonnet-5")
    assert is_loaded("claude-sonnet-5")
    assert not tokens._encodings


def test_a_run_of_spaces_does_not_make_the_tokenizer_panic() -> None:
    """Its pattern has no stack left after a million of them."""
    found = count_tokens(" " * 1_000_000, "gpt-4o")
    assert not found.estimated
    assert 7_000 < found.tokens < 9_000

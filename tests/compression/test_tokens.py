"""Token counts never reach for the network."""

from __future__ import annotations

import base64
import hashlib
import socket
from typing import TYPE_CHECKING

import pytest
import tiktoken.registry
from tiktoken.load import load_tiktoken_bpe
from tiktoken_ext import openai_public  # type: ignore[import-untyped]  # a plugin without types

from headstart.compression import tokens
from headstart.compression.tokens import TokenCount, count_tokens, warm

if TYPE_CHECKING:
    from pathlib import Path

ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("token counting opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    tokens._encoding_of.cache_clear()
    tokens._load.cache_clear()


def cached_file(folder: Path) -> Path:
    return folder / hashlib.sha1(ADDRESS.encode(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    ("text", "expected"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("<|endoftext|>", 4)]
)
def test_without_a_file_the_count_is_a_marked_estimate(
    text: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert count_tokens(text, "gpt-4o") == TokenCount(expected, estimated=True)


def test_foreign_model_is_estimated() -> None:
    assert count_tokens("Hello there", "claude-sonnet-5").estimated


def test_switched_off_cache_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    assert count_tokens("Hello there", "gpt-4o").estimated


def test_file_with_a_wrong_hash_is_not_handed_to_tiktoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_file(tmp_path).write_bytes(b"not an encoding")
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setenv("DATA_GYM_CACHE_DIR", str(tmp_path))
    warm()
    assert count_tokens("Hello there", "gpt-4o").estimated
    assert cached_file(tmp_path).exists()


def test_counts_are_exact_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file of our own stands in for the official one: every byte is a token, and "he" is one too.
    ranks = [bytes([value]) for value in range(256)] + [b"he"]
    content = b"\n".join(base64.b64encode(r) + b" %d" % i for i, r in enumerate(ranks))
    path = cached_file(tmp_path)
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(tokens._SHA256, "o200k_base", digest)
    monkeypatch.setattr(
        openai_public,
        "load_tiktoken_bpe",
        lambda address, expected_hash: load_tiktoken_bpe(address, digest),
    )
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    assert count_tokens("hehe!", "gpt-4o") == TokenCount(3, estimated=False)
    assert count_tokens("<|endoftext|>", "gpt-4o") == TokenCount(13, estimated=False)

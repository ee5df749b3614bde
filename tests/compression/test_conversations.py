"""Properties of every conversation. ``benchmarks/compression.py`` tries ten thousand."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

from benchmarks.compression_conversations import Generator
from benchmarks.compression_fuzz import MODES, failures
from headstart import compress

if TYPE_CHECKING:
    from headstart.settings import CompressionMode


@pytest.mark.parametrize("mode", MODES)
def test_random_conversations_keep_every_promise(mode: CompressionMode) -> None:
    assert {seed: found for seed in range(30) if (found := list(failures(seed, mode)))} == {}


def test_nothing_is_done_where_the_first_glance_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    conversations = [Generator(seed).conversation() for seed in range(20)]
    prompts = [all[:length] for all in conversations for length in range(1, len(all) + 1)]
    glanced = [compress(each, mode="aggressive") for each in prompts]
    module = importlib.import_module("headstart.compression.compress")
    monkeypatch.setattr(module, "is_shortenable", lambda *_: True)
    assert [compress(each, mode="aggressive") for each in prompts] == glanced
    assert {bool(each.spans) for each in glanced} == {True, False}

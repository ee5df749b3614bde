"""What must hold of any conversation. ``benchmarks/compression.py`` tries ten thousand."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from benchmarks.compression_conversations import Generator
from benchmarks.compression_fuzz import MODES, failures

if TYPE_CHECKING:
    from headstart.compression.result import Mode


@pytest.mark.parametrize("mode", MODES)
def test_random_conversations_keep_every_promise(mode: Mode) -> None:
    for seed in range(60):
        messages = Generator(seed).conversation()
        cut = random.Random(seed).randint(0, len(messages))
        assert list(failures(messages, mode, cut)) == [], f"seed {seed}"

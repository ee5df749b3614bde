"""What must hold of any conversation. ``benchmarks/compression.py`` tries ten thousand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.compression_fuzz import MODES, failures

if TYPE_CHECKING:
    from headstart.compression.result import Mode


@pytest.mark.parametrize("mode", MODES)
def test_random_conversations_keep_every_promise(mode: Mode) -> None:
    assert {seed: found for seed in range(30) if (found := list(failures(seed, mode)))} == {}

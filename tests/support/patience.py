"""Waits of a test for something that should happen at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 100.0
"""A wait of this length means that something hangs, even on a busy machine. pytest ends a test
after 120 s."""


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until a condition holds."""
    with anyio.fail_after(PATIENCE_S):
        while not condition():
            await anyio.sleep(0.001)  # leave the processor to others


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for what other processes bring about."""
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)

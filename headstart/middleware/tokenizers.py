"""Loads tokenizers at times when no answer has to wait for it.

Many processes never need one: none is loaded for models of other families, or as long as no prompt
was shortened. Where a provider reports no tokens, an estimate by length is booked.
"""

from __future__ import annotations

import asyncio
import threading

from headstart.compression.tokens import is_loaded, load

LOAD_AFTER_S = 1.0
"""Time from an answer's end to the load of its tokenizer, which stops the loop for 0.1 s."""

_at_work = threading.Lock()


def load_soon(model: str) -> None:
    """Load the model's tokenizer in the background, after the present answer is delivered."""
    if not is_loaded(model):
        asyncio.get_running_loop().call_later(LOAD_AFTER_S, _start, model)


def _start(model: str) -> None:
    if not is_loaded(model) and _at_work.acquire(blocking=False):
        # A daemon thread, so that a process which stops does not wait for it.
        threading.Thread(target=_load, args=(model,), name="headstart-tokens", daemon=True).start()


def _load(model: str) -> None:
    try:
        load(model)
    finally:
        _at_work.release()

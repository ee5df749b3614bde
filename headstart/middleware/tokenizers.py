"""Tokenizers, loaded when it costs no answer its time.

Many a process never needs one: none is loaded for models of other families, or while no prompt can
be shortened and providers count for themselves.
"""

from __future__ import annotations

import asyncio
import threading

from headstart.compression.tokens import is_loaded, load

LOAD_AFTER_S = 1.0
"""From an answer's end until its model's tokenizer is loaded, which stops the loop for 0.1 s."""

_at_work = threading.Lock()


def load_soon(model: str) -> None:
    """Have the model's tokenizer loaded in the background, when the answer under way is delivered.

    Until then ``count_at_once`` estimates.
    """
    if not is_loaded(model):
        asyncio.get_running_loop().call_later(LOAD_AFTER_S, _start, model)


def _start(model: str) -> None:
    if not is_loaded(model) and _at_work.acquire(blocking=False):
        # A daemon: a process that is to stop does not wait for it.
        threading.Thread(target=_load, args=(model,), name="headstart-tokens", daemon=True).start()


def _load(model: str) -> None:
    try:
        load(model)
    finally:
        _at_work.release()

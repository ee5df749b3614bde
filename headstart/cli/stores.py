"""Reading a store from outside its server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.interfaces import Store


@contextlib.asynccontextmanager
async def existing_store(url: str) -> AsyncIterator[Store]:
    """Open a store that some server has filled. Raises ConfigError when there is none to read."""
    from headstart.embeddings.stores.opening import open_store

    await _refuse_what_is_empty(url)
    store = open_store(url)
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


async def _refuse_what_is_empty(url: str) -> None:
    """Opening a SQLite store would make one, and a store in memory is always new."""
    if url == "memory:":
        raise ConfigError(
            "cache.store: a store in memory ends with its server; keep it in sqlite:/// or redis://"
            " to read it from outside, or ask the running server: /_headstart/stats for the report,"
            " headstart audit --url for audits"
        )
    path = url.removeprefix("sqlite:///")
    if path != url and not await anyio.Path(path).is_file():
        raise ConfigError(f"cache.store: there is no store at {path} yet; name one with --store")

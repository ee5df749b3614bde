"""The three stores behind one door: real files and a real Redis."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from support.redis_server import redis_server
from support.stores import Stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from support.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    server: RedisServer = request.getfixturevalue("redis")
    server.flush()
    return server.url


@pytest.fixture
def durable_url(url: str) -> str:
    if url == "memory:":
        pytest.skip("a store in memory keeps nothing")
    return url


@pytest.fixture
async def stores(url: str) -> AsyncIterator[Stores]:
    async with AsyncExitStack() as exits:
        yield Stores(url, exits)

"""Opens every kind of store: real files, and real servers of Redis of each kind."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from headstart.embeddings.stores.encryption import Cipher
from support.patience import PATIENCE_S
from support.redis_server import behind_tls, redis_cluster, redis_failover, redis_server
from support.stores import Stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from support.redis_server import Cluster, Failover, RedisServer


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


ACL = (
    "on >secret ~{headstart}:* &{headstart}:* "
    "-@all +@read +@write +@scripting +@connection +@pubsub -@dangerous"
)
"""The rights that docs/nodes.md gives."""


@pytest.fixture(scope="session")
def redis_acl() -> Iterator[RedisServer]:
    with redis_server(user=f"headstart {ACL}") as server:
        yield server


@pytest.fixture(scope="session")
def redis_tls(redis: RedisServer) -> Iterator[RedisServer]:
    with behind_tls(redis) as front:
        yield front


@pytest.fixture(scope="session")
def redis_sentinel() -> Iterator[Failover]:
    with redis_failover() as failover:
        yield failover


@pytest.fixture(scope="session")
def redis_nodes() -> Iterator[Cluster]:
    with redis_cluster() as cluster:
        yield cluster


REDIS = "redis", "redis_acl", "redis_tls", "redis_sentinel", "redis_nodes"
"""The fixtures of servers."""


SEALED = "-sealed"
"""The end of the names of stores that encrypt."""


@pytest.fixture(params=["memory", "sqlite", f"sqlite{SEALED}", *REDIS, f"redis{SEALED}"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = request.param.removesuffix(SEALED)
    if name == "memory":
        return "memory:"
    if name == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return _url(request, name)


@pytest.fixture(params=REDIS)
def redis_url(request: pytest.FixtureRequest) -> str:
    return _url(request, request.param)


def _url(request: pytest.FixtureRequest, name: str) -> str:
    """Return the URL of a server, which is empty."""
    server: RedisServer | Failover | Cluster = request.getfixturevalue(name)
    server.flush()
    if name == "redis_acl":
        return server.url.replace("//", "//headstart:secret@")
    return server.url


@pytest.fixture
def durable_url(url: str) -> str:
    if url == "memory:":
        pytest.skip("a store in memory keeps nothing")
    return url


@pytest.fixture
async def stores(
    url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stores]:
    # However busy the machine is, a server that works answers.
    monkeypatch.setattr("headstart.embeddings.stores.redis_client.TIMEOUT_S", PATIENCE_S)
    async with AsyncExitStack() as exits:
        called = getattr(request.node, "callspec", None)
        seals = called is not None and str(called.params.get("url")).endswith(SEALED)
        yield Stores(url, exits, cipher=Cipher([bytes(32)]) if seals else None)

"""Each way in which a real Redis fails: every request is answered, and the log says what to do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio import to_thread

from headstart.embeddings.stores.redis import RedisStore
from headstart.errors import ConfigError, StoreError
from support.nodes import NUMBERS, ask_new, nodes, share, verdict
from support.patience import PATIENCE_S, until
from support.redis_server import certificates, redis_cluster, redis_failover, redis_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from support.redis_server import Cluster, Failover, RedisServer
    from support.sidecar import Sidecar

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a server that works more time than in production: the machine of tests is busy."""
    monkeypatch.setattr("headstart.embeddings.stores.redis_client.TIMEOUT_S", 2.0)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the log says about the store, without the general words at both ends."""
    messages = (record.getMessage() for record in caplog.records)
    said = (each for each in messages if each.startswith("store failed"))
    return [each.partition(": ")[2].rpartition("; headstart_stage")[0] for each in said]


async def delete(node: Sidecar, question: str) -> None:
    """Delete the entry of a question at one node."""
    cache = node.parts[0].cache
    assert cache is not None
    store = node.parts[0].store
    ids = [each.id async for page in store.entries() for each in page if each.key.query == question]
    await cache.invalidate(ids)


async def forgets(node: Sidecar, question: str) -> None:
    """Wait until a node serves a question no more. It does not ask the provider meanwhile."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            reply = await node.ask(question, headers={"cache-control": "only-if-cached"})
            if reply.status == 504:
                return
            await anyio.sleep(0.02)


# --- the store of one node ---------------------------------------------------------------------


async def test_a_redis_that_was_emptied_is_filled_again(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(server.url, server.url) as (one, two):
        await share(one, two)
        server.flush()
        await share(two, one)
    assert len(told(caplog)) <= 2  # the log's end is lost, once at each node


async def test_a_redis_that_hangs_costs_only_the_cache(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(server.url, server.url) as (one, two):
        await share(one, two)
        with server.hanging():
            for _ in range(5):
                await ask_new(one, two)
        await share(one, two)
    assert any("Redis does not answer" in each for each in told(caplog))
    assert len(told(caplog)) <= 6  # two nodes; no answer, answers that came late, and no connection


async def test_a_redis_that_died_and_came_back_empty_is_used_again(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(server.url, server.url) as (one, two):
        await share(one, two)
        server.kill()
        for _ in range(5):
            await ask_new(one, two)
        with redis_server(port=server.port):
            await share(two, one)
    assert len(told(caplog)) <= 4


async def test_a_full_redis_serves_and_deletes_and_the_log_names_the_fix(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(server.url, server.url) as (one, two):
        question = await share(one)
        server.command("CONFIG", "SET", "maxmemory", 1)
        for _ in range(5):
            await ask_new(one, two)
        assert (await verdict(two, question)).endswith("detail=exact")
        await delete(two, question)
        await forgets(one, question)
        await forgets(two, question)
        server.command("CONFIG", "SET", "maxmemory", 0)
        await share(one, two)
    full = [each for each in told(caplog) if "raise its maxmemory, or lower cache.max_by" in each]
    assert len(full) == 2, told(caplog)  # once at each node


async def test_a_read_only_replica_serves_and_the_log_names_the_fix(
    server: RedisServer, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(server.url, server.url) as (one, two):
        question = await share(one)
        server.command("REPLICAOF", "127.0.0.1", free_port)
        for _ in range(5):
            await ask_new(one, two)
        assert (await verdict(two, question)).endswith("detail=exact")
        with pytest.raises(StoreError, match="read-only replica"):
            await delete(two, question)
        async with nodes(server.url) as (new,):  # it can also start with one
            await ask_new(new)
        server.command("REPLICAOF", "NO", "ONE")
        await share(one, two)
    assert sum("read-only replica; name its master" in each for each in told(caplog)) == 3


async def test_a_password_that_was_changed_costs_only_the_cache(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(server.url, server.url) as (one, two):
        await share(one, two)
        with_password = server.client()
        with_password.config_set("requirepass", "changed")
        with_password.client_kill_filter(_type="normal", skipme=True)
        for _ in range(5):
            await ask_new(one, two)
        with_password.config_set("requirepass", "")
        with_password.close()
        await share(one, two)
    refused = [each for each in told(caplog) if "refuses the user or the password" in each]
    assert 1 <= len(refused) <= 2


async def test_a_permission_that_is_missing_is_named_at_the_start(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+@connection")
    store = RedisStore(server.url.replace("//", "//reader:secret@"))
    with pytest.raises(ConfigError, match="the user of the URL needs more permission"):
        await store.open()
    await store.aclose()


async def test_a_redis_that_is_too_old_is_refused() -> None:
    with redis_server(rename_command='HELLO ""') as old:  # Redis 5 does not know it
        store = RedisStore(old.url)
        with pytest.raises(ConfigError, match=r"cache\.store: this Redis is too old; use Redis 7"):
            await store.open()
        await store.aclose()


@pytest.mark.parametrize(
    "kind", [redis_failover, partial(redis_cluster, replicas=True)], ids=["sentinel", "cluster"]
)
async def test_a_failover_costs_only_the_cache(
    kind: Callable[[], AbstractContextManager[Failover | Cluster]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with kind() as failover:
        async with nodes(failover.url, failover.url) as (one, two):
            await share(one, two)
            over = anyio.Event()

            async def fail_over() -> None:
                await to_thread.run_sync(failover.fail_over)
                over.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fail_over)
                while not over.is_set():
                    await ask_new(one, two)
            await share(one, two)
            await join(one, two)
    assert len(told(caplog)) <= 8  # a few kinds of failure, once at each node


async def test_nodes_join_again_after_a_planned_failover_of_a_cluster() -> None:
    """The old master goes on as a replica, with the connections over which the nodes listen."""
    with redis_cluster(replicas=True) as cluster:
        async with nodes(cluster.url, cluster.url) as (one, two):
            await join(one, two)
            await to_thread.run_sync(cluster.hand_over)
            await share(one, two)
            await join(one, two)


@pytest.mark.parametrize("kind", [redis_failover, redis_cluster])
async def test_nodes_share_and_join_behind_a_sentinel_and_in_a_cluster(
    kind: Callable[[], AbstractContextManager[Failover | Cluster]],
) -> None:
    with kind() as running:
        async with nodes(running.url, running.url) as (one, two):
            await share(one, two)
            await join(one, two)


@pytest.mark.parametrize("kind", [redis_server, redis_failover, redis_cluster])
async def test_nodes_share_and_join_over_the_tls_of_redis(kind: Callable[..., Any]) -> None:
    with certificates() as tls, kind(tls=tls) as running:
        assert running.url.startswith("rediss")
        async with nodes(running.url, running.url) as (one, two):
            await share(one, two)
            await join(one, two)
        without = running.url.partition("&ssl_certfile")[0]
        store = RedisStore(without)
        with pytest.raises((ConfigError, StoreError), match=r"cache\.store"):
            await store.open()
        await store.aclose()


async def join(one: Sidecar, two: Sidecar) -> None:
    """Ask both nodes new questions until the provider gets one of them once."""
    provider = one.provider
    with anyio.fail_after(PATIENCE_S):
        for number in NUMBERS:
            provider.open.clear()
            began = provider.began
            async with anyio.create_task_group() as tasks:
                for node in (one, two) * 5:
                    tasks.start_soon(verdict, node, f"What is joined {number}?")
                # Either one node reads the flight of the other, or both ask the provider.
                await until(lambda: one.readers + two.readers == 11 or provider.began >= began + 2)  # noqa: B023 - in its round
                provider.open.set()
            if provider.began == began + 1:
                return
            await anyio.sleep(0.1)  # the nodes do not hear each other yet


# --- one node that is cut off ------------------------------------------------------------------


class Link:
    """A node's own user of Redis. Cut, the node cannot reach it while others can."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.url = server.url.replace("//", "//linked:secret@")
        server.command("ACL", "SETUSER", "linked", "on", ">secret", "~*", "&*", "+@all")

    def cut(self) -> None:
        self._server.command("ACL", "SETUSER", "linked", "off")
        self._server.command("CLIENT", "KILL", "USER", "linked")

    def mend(self) -> None:
        self._server.command("ACL", "SETUSER", "linked", "on")


async def test_a_deletion_during_an_outage_is_heard_of_afterwards(server: RedisServer) -> None:
    link = Link(server)
    async with nodes(link.url, server.url) as (cut_off, other):
        question = await share(cut_off, other)
        link.cut()
        await ask_new(cut_off)
        await delete(other, question)
        await forgets(other, question)
        assert (await verdict(cut_off, question)).endswith("detail=exact")  # for 30 s at most
        link.mend()
        await forgets(cut_off, question)


async def test_a_node_that_is_cut_off_serves_nothing_after_its_time(server: RedisServer) -> None:
    link = Link(server)
    async with nodes(link.url, server.url, outage_ttl_s=0.0) as (cut_off, other):
        question = await share(cut_off, other)
        link.cut()
        await forgets(cut_off, question)
        assert (await verdict(other, question)).endswith("detail=exact")
        link.mend()
        await share(other, cut_off)

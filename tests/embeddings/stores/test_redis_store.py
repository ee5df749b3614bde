"""Redis alone: a server that hangs, dies, loses data, evicts, or is shared with another program."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from contextlib import AsyncExitStack, closing
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from headstart.embeddings.stores.records import StoreLimits, encode
from headstart.embeddings.stores.redis import PREFIX, RedisStore
from headstart.embeddings.stores.redis_client import keeping_cancellations
from headstart.errors import ConfigError, StoreError
from headstart.types import Charge, RawResponse
from support.entries import entry, put, row
from support.labels import label, labelled, last_cursor
from support.patience import PATIENCE_S
from support.redis_server import RedisServer, redis_server
from support.stores import Clock, Stores, follow, scan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


pytestmark = pytest.mark.anyio

PASSWORD = "p4ss/word#1"
QUOTED = "p4ss%2Fword%231"


@pytest.fixture
def url(redis: RedisServer) -> str:
    redis.flush()
    return redis.url


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server of this test's own, to be hurt."""
    with redis_server() as server:
        yield server


@pytest.fixture
async def hurt(own_server: RedisServer) -> AsyncIterator[Stores]:
    async with AsyncExitStack() as exits:
        yield Stores(own_server.url, exits)


# --- cancellations ---------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(10))
async def test_a_cancelled_call_ends_its_task_in_every_step(hurt: Stores, steps: int) -> None:
    store = await hurt.open()
    ended = []

    async def ask() -> None:
        with contextlib.suppress(StoreError):
            await store.secret()
        ended.append("by itself")

    for _ in range(20):
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(ask())
            for _ in range(steps):
                await asyncio.sleep(0)
            was_running, before = task.cancel(), len(ended)
        assert task.cancelled() == was_running
        assert len(ended) == before


@pytest.mark.parametrize("steps", range(10))
async def test_a_scope_of_anyio_ends_the_calls_within_it(hurt: Stores, steps: int) -> None:
    store = await hurt.open()
    for _ in range(20):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.secret)
                for _ in range(steps):
                    await asyncio.sleep(0)
                scope.cancel()
        async with asyncio.timeout(PATIENCE_S):  # raises nothing that the scope should have caught
            assert len(await store.secret()) == 32


async def test_an_error_after_a_lost_cancellation_does_not_save_the_task() -> None:
    async def lose() -> None:
        with keeping_cancellations():
            running = asyncio.current_task()
            assert running is not None
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            raise RedisConnectionError

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(lose())
    assert task.cancelled()


async def test_an_inner_timeout_is_no_lost_cancellation() -> None:
    with keeping_cancellations(), contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(PATIENCE_S)


# --- a server that fails -----------------------------------------------------------------------


async def test_a_secret_that_can_be_guessed_is_refused_with_the_fix(
    hurt: Stores, own_server: RedisServer
) -> None:
    store = await hurt.open()
    with closing(own_server.client()) as client:
        client.set(f"{PREFIX}secret", b"abcd")
        with pytest.raises(StoreError, match=r"cache\.store: .* delete the key .*secret"):
            await store.secret()
        client.delete(f"{PREFIX}secret")
    assert len(await store.secret()) == 32


async def test_a_server_that_died_costs_a_store_error(
    hurt: Stores, own_server: RedisServer
) -> None:
    store = await hurt.open()
    cursor = await store.cursor()
    own_server.kill()
    for call in (
        store.find("key"), store.load(["a"]), store.append([put("a")]), store.stats(),
        store.add_labels([label("a")]), store.read_labels(), store.save_document("a", b"a"),
        store.load_document("a"),
    ):  # fmt: skip
        with pytest.raises(StoreError):
            await call
    with pytest.raises(StoreError):
        await follow(store, cursor, 1)


async def test_a_server_that_hangs_is_left_alone_for_a_moment(
    hurt: Stores, own_server: RedisServer
) -> None:
    store = await hurt.open()
    with own_server.hanging():
        with pytest.raises(StoreError, match="does not answer"):
            await store.find("key")
        with pytest.raises(StoreError, match="a moment ago"):
            await store.find("key")
    with anyio.fail_after(PATIENCE_S):
        while True:  # the pause passes
            try:
                await store.append([put("a")])
                break
            except StoreError:
                await anyio.sleep(0.05)
    assert await store.find("exact-a") == entry("a")


async def test_connections_that_the_server_closed_are_replaced(
    stores: Stores, redis: RedisServer
) -> None:
    store = await stores.open()
    await store.append([put("a")])
    with closing(redis.client()) as client:
        client.client_kill_filter(_type="normal")
    assert await store.find("exact-a") == entry("a")


async def test_a_follower_of_a_flushed_server_is_told_and_can_begin_anew(
    stores: Stores, redis: RedisServer
) -> None:
    store = await stores.open()
    cursor = await store.append([put("a")])
    redis.flush()
    with pytest.raises(StoreError, match="no longer reaches"):
        await follow(store, cursor, 1)
    cursor = await store.cursor()
    await store.append([put("b")])
    assert [logged.record for logged in await follow(store, cursor, 1)] == [row("b")]


# --- a server that is shared -------------------------------------------------------------------


async def test_the_server_itself_forgets_what_expired(url: str, redis: RedisServer) -> None:
    clock = time.time  # noqa: TID251 - the server's
    store = RedisStore(url, clock=clock)
    await store.open()
    ends = clock() + 0.05
    await store.append([put("brief", expires=ends), put("lasting")])
    with closing(redis.client()) as client, anyio.fail_after(PATIENCE_S):
        while client.exists(f"{PREFIX}entry:brief", f"{PREFIX}exact:exact-brief"):
            await anyio.sleep(0.01)
        assert client.exists(f"{PREFIX}entry:lasting", f"{PREFIX}exact:exact-lasting") == 2
    await store.append([])
    assert (await store.stats()).entries == 1
    await store.aclose()


async def test_nodes_that_write_at_once_keep_one_bound(stores: Stores) -> None:
    nodes = [await stores.open(max_entries=5) for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        for number, node in enumerate(nodes * 10):
            tasks.start_soon(node.append, [put(f"{number:02}", exact=f"key-{number % 8}")])
    kept = await scan(nodes[0])
    assert len(kept) == 5
    assert (await nodes[1].stats()).entries == 5
    assert None not in await nodes[2].load(kept)


async def test_an_entry_that_the_server_evicted_is_gone_without_harm(
    stores: Stores, redis: RedisServer
) -> None:
    store = await stores.open()
    cursor = await store.append([put("a"), put("b")])
    with closing(redis.client()) as client:
        client.delete(f"{PREFIX}entry:a")
    assert await store.find("exact-a") is None
    assert await store.load(["a", "b"]) == [None, entry("b")]
    assert await scan(store) == ["b"]
    await store.append([put("a2", exact="exact-a")])
    assert await store.find("exact-a") == entry("a2", exact="exact-a")
    assert (await store.stats()).entries == 2
    assert len(await follow(store, cursor, 2)) == 2


async def test_a_value_of_a_newer_version_is_skipped(stores: Stores, redis: RedisServer) -> None:
    store = await stores.open()
    await store.append([put("a")])
    with closing(redis.client()) as client:
        client.hset(f"{PREFIX}entry:a", "value", b"\x7f\xff")
    assert await store.find("exact-a") is None
    assert await store.load(["a"]) == [None]


@pytest.mark.parametrize("field", ["partition", "encoder", "sketcher", "expires"])
async def test_an_entry_that_cannot_be_read_hides_no_other_one(
    stores: Stores, redis: RedisServer, field: str
) -> None:
    store = await stores.open()
    cursor = await store.append([put("a"), put("b"), put("c")])
    with closing(redis.client()) as client:
        fields: dict[str, bytes] = {"sketcher": b"s", "sketch": b"s", field: b"\xff"}
        client.hset(f"{PREFIX}entry:a", mapping=fields)  # type: ignore[arg-type]
        client.xadd(f"{PREFIX}log", {"stored": b"\xff"})
        client.xadd(f"{PREFIX}log", {"stored": "c", "more": "d"})
    assert await scan(store) == ["b", "c"]
    assert [logged.record for logged in await follow(store, cursor, 1)] == [row("c")]


async def test_figures_that_are_no_numbers_are_errors_of_the_store(
    stores: Stores, redis: RedisServer
) -> None:
    store = await stores.open()
    with closing(redis.client()) as client:
        client.set(f"{PREFIX}bytes", "many")
        client.set(f"{PREFIX}counter:used", "many")
    with pytest.raises(StoreError, match="bytes"):
        await store.stats()
    with pytest.raises(StoreError, match="counter"):
        await store.charge([Charge("used", 0, time.time() + 9)])  # noqa: TID251 - the server's


async def test_entries_leave_when_a_bound_is_lowered(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put(f"{number:02}") for number in range(20)])
    bounded = await stores.open(max_entries=3)
    await bounded.append([put("new")])
    assert await scan(store) == ["18", "19", "new"]


async def test_a_domain_without_labels_leaves_no_key(
    stores: Stores, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.embeddings.stores.redis.LABEL_ROWS", 10)
    store = await stores.open()
    await store.add_labels([label("old", domain="old")])
    await store.add_labels([label(str(number), domain="new") for number in range(10)])
    with closing(redis.client()) as client:
        keys = set(client.scan_iter(f"{PREFIX}labels*"))
    assert keys == {f"{PREFIX}labels".encode(), f"{PREFIX}labels:new".encode()}


async def test_labels_go_on_after_the_server_was_flushed(
    stores: Stores, redis: RedisServer
) -> None:
    store = await stores.open()
    await store.add_labels([label("a")])
    cursor = await last_cursor(store)
    redis.flush()
    assert await last_cursor(store) == ""
    await store.add_labels([label("b")])
    assert await labelled(store, cursor) == ["b"]


# --- starting ----------------------------------------------------------------------------------


async def test_a_newer_schema_is_refused(stores: Stores, redis: RedisServer) -> None:
    with closing(redis.client()) as client:
        client.set(f"{PREFIX}schema", 99)
    store = RedisStore(stores.url, limits=StoreLimits(), clock=Clock())
    with pytest.raises(ConfigError, match=r"cache\.store: .* newer Headstart \(schema 99"):
        await store.open()
    await store.aclose()


async def test_a_server_that_is_not_there_is_refused(free_port: int) -> None:
    store = RedisStore(f"redis://user:{QUOTED}@127.0.0.1:{free_port}")
    with pytest.raises(StoreError, match=r"cache\.store: .* is Redis running there\?") as refused:
        await store.open()
    await store.aclose()
    assert PASSWORD not in str(refused.getrepr(chain=True))


async def test_a_slow_server_is_refused_with_the_option_that_gives_it_more_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        store = RedisStore(url)
        with pytest.raises(StoreError, match=r"fast enough\? .* \?socket_timeout=SECONDS in"):
            await store.open()
        await store.aclose()


async def test_more_time_for_answers_is_also_more_time_to_connect() -> None:
    store = RedisStore("redis://127.0.0.1/0?socket_timeout=7")
    options = store._client.connection_pool.connection_kwargs
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (7.0, 7.0)
    await store.aclose()


async def test_a_password_opens_and_a_wrong_one_is_refused_unquoted() -> None:
    with redis_server(password=PASSWORD) as server:
        store = RedisStore(server.url)
        await store.open()
        await store.aclose()
        store = RedisStore(server.url.replace(QUOTED, "mistaken"))
        with pytest.raises(ConfigError, match=r"cache\.store") as refused:
            await store.open()
        await store.aclose()
        assert "mistaken" not in f"{refused.value} {refused.value.__cause__}"


async def test_a_server_that_is_not_a_sentinel_is_refused(redis: RedisServer) -> None:
    store = RedisStore(f"redis+sentinel://127.0.0.1:{redis.port}/main")
    with pytest.raises(ConfigError, match="the hosts of the URL are not Sentinels"):
        await store.open()
    await store.aclose()


async def test_a_certificate_that_is_not_trusted_is_refused(redis_tls: RedisServer) -> None:
    store = RedisStore(redis_tls.url.partition("?")[0])
    with pytest.raises(ConfigError, match=r"add \?ssl_ca_certs=FILE"):
        await store.open()
    await store.aclose()


async def test_an_option_that_redis_py_does_not_know_is_refused(redis: RedisServer) -> None:
    store = RedisStore(f"{redis.url}?ssl_ca_cert=x")
    with pytest.raises(ConfigError, match=r"unknown option: .*ssl_ca_cert"):
        await store.open()
    await store.aclose()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{PASSWORD}@host:6379",
        "redis://:p4ss@host:p4ss",
        "redis+sentinel://:p4ss@host",
        "redis+sentinel://:p4ss@host/main/p4ss",
        "redis+sentinel://:p4ss@host,other:p4ss/main",
        "redis+cluster://:p4ss@host/1",
        "redis+cluster://:p4ss@host?db=p4ss",
    ],
)
async def test_a_url_that_cannot_be_read_is_refused_unquoted(url: str) -> None:
    with pytest.raises(ConfigError, match="percent-encoded") as refused:
        RedisStore(url)
    assert "p4ss" not in str(refused.getrepr(chain=True, showlocals=False, style="value"))


@pytest.mark.parametrize(
    "fields",
    [
        {"expires": float("inf")},
        {"expires": float("nan")},
        {"created": float("-inf")},
        {"answer": RawResponse(headers=(), body=b"", status=101)},
        {"answer": RawResponse(headers=(), body=b"x", status=204)},
        {"answer": RawResponse(headers=(), body=b"x", status=99999)},
        {"answer": RawResponse(headers=((b"x", b"1\r\ny: 2"),), body=b"x")},
        {"answer": RawResponse(headers=((b"x y", b"1"),), body=b"x")},
        {"answer": RawResponse(headers=((b"Content-Length", b"9"),), body=b"x")},
    ],
)
async def test_an_answer_that_cannot_be_sent_is_a_miss(
    stores: Stores, redis: RedisServer, fields: dict[str, Any]
) -> None:
    store = await stores.open()
    sound = RawResponse(headers=((b"content-type", b"text/x; \xe9"),), body=b"x", status=201)
    await store.append([put("good", answer=sound), put("bad")])
    with closing(redis.client()) as client:
        client.hset(f"{PREFIX}entry:bad", "value", encode(entry("bad", **fields)))
    assert await store.find("exact-bad") is None
    assert await store.load(["bad", "good"]) == [None, entry("good", answer=sound)]

"""Equal calls of several nodes that share a Redis: one asks the provider, the others follow."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from headstart import Endpoint, HeadstartMiddleware
from headstart.decisions import Outcome
from headstart.embeddings.stores.redis import (
    APPEND,
    FIND,
    FIND_OR_LEASE,
    RELEASE,
    RENEW,
    RedisExchange,
)
from headstart.lab.simulator.faults import Status
from headstart.middleware import shared_flights
from headstart.policies.routing.measures import UpstreamModel
from support.nodes import committed
from support.patience import PATIENCE_S, until, wait_for
from support.redis_server import RedisServer, redis_server
from support.serving import serving
from support.sidecar import Provider, Sidecar, headers_of, sidecar
from support.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from support.proxied import Reply

pytestmark = pytest.mark.anyio
SCRIPTS = {"find": FIND, "lease": FIND_OR_LEASE, "append": APPEND, "renew": RENEW, "end": RELEASE}


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def redis(shared_redis: RedisServer) -> RedisServer:
    shared_redis.flush()
    with contextlib.closing(shared_redis.client()) as client:
        wait_for(lambda: not client.pubsub_channels())  # the nodes of other tests have gone
    return shared_redis


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a server that works all the time that it needs: the machine of tests is busy."""
    monkeypatch.setattr("headstart.embeddings.stores.redis_client.TIMEOUT_S", PATIENCE_S)


@contextlib.asynccontextmanager
async def nodes(
    redis: RedisServer, provider: Provider, count: int = 3, **cache: Any
) -> AsyncIterator[list[Sidecar]]:
    """Run nodes in front of one provider, all of which hear each other."""
    async with contextlib.AsyncExitStack() as stack:
        base = await stack.enter_async_context(simulated(provider))
        own = {"store": redis.url, "mode": "exact-only", **cache}
        found = [
            await stack.enter_async_context(
                sidecar(provider, upstream={"base_url": base}, cache=own)
            )
            for _ in range(count)
        ]
        if own.get("join_processes", True):
            with contextlib.closing(redis.client()) as client:
                await until(lambda: len(client.pubsub_channels("*inbox:*")) >= count)
        yield found


def readers(found: list[Sidecar]) -> int:
    """Return the number of clients and followers of all flights."""
    return sum(node.readers for node in found)


class Asking:
    """Requests that wait for their answers."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.tasks = tasks
        self.asked: list[asyncio.Task[Reply]] = []

    def ask(self, node: Sidecar, *arguments: Any, **fields: Any) -> asyncio.Task[Reply]:
        task = self.tasks.create_task(node.ask(*arguments, **fields))
        self.asked.append(task)
        return task

    async def answers(self) -> list[Reply]:
        async with asyncio.timeout(PATIENCE_S):
            return [await task for task in self.asked]


@contextlib.asynccontextmanager
async def asking_nodes(
    redis: RedisServer, count: int = 3, **cache: Any
) -> AsyncIterator[tuple[list[Sidecar], Provider, Asking]]:
    """Run nodes in front of a provider, to be asked at the same time."""
    provider = Provider()
    async with nodes(redis, provider, count, **cache) as found, asyncio.TaskGroup() as tasks:
        yield found, provider, Asking(tasks)


async def check_joined(found: list[Sidecar], joined: int) -> None:
    """Wait for the books: of the requests, this number shared the answer of one call."""
    await until(lambda: sum(len(node.served) for node in found) == joined + 1)
    rows = [row for node in found for row in node.served]
    assert sorted(row.outcome for row in rows) == [Outcome.JOINED] * joined + [Outcome.MISS]
    assert sum(len(row.attempts) for row in rows) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_equal_calls_of_three_nodes_are_one_call(redis: RedisServer, stream: bool) -> None:
    async with asking_nodes(redis) as (found, provider, asking):
        provider.open.clear()
        for number in range(30):
            asking.ask(found[number % 3], stream=stream)
        await until(lambda: readers(found) == 32)  # two nodes follow the third
        provider.open.set()
        answers = await asking.answers()
        assert provider.calls == 1
        assert {answer.status for answer in answers} == {200}
        assert len({answer.body for answer in answers}) == 1
        await until(lambda: sum(len(node.served) for node in found) == 30)
        rows = [row for node in found for row in node.served]
        assert sorted(row.outcome for row in rows) == [Outcome.JOINED] * 29 + [Outcome.MISS]
        assert sum(len(row.attempts) for row in rows) == 1
        assert {(row.prompt_tokens, row.completion_tokens) for row in rows} == {
            (rows[0].prompt_tokens, rows[0].completion_tokens)
        }
        cached = {"cache-control": "only-if-cached"}
        async with asyncio.timeout(PATIENCE_S):
            for node in found:  # soon the entry is there for all
                while (await node.ask(stream=stream, headers=cached)).status != 200:
                    await asyncio.sleep(0.01)
        assert provider.calls == 1


@pytest.mark.parametrize("count", [1, 2])
async def test_a_whole_answer_waits_for_the_stream_of_the_same_answer(
    redis: RedisServer, count: int
) -> None:
    async with asking_nodes(redis, count) as (found, provider, asking):
        provider.open.clear()
        streamed = asking.tasks.create_task(found[0].ask(stream=True))
        await until(lambda: readers(found) == 1)
        for _ in range(3):
            asking.ask(found[-1])
        await until(lambda: readers(found) == 5)  # with one reader that waits for all three
        provider.open.set()
        answers = await asking.answers()
        assert provider.calls == 1
        assert len({answer.body for answer in answers}) == 1
        said = json.loads(answers[0].body)["choices"][0]["message"]["content"]
        assert said.encode().split()[-1] in (await streamed).body
        await check_joined(found, 3)


def said_in(body: bytes) -> str:
    """Return the text of an answer: a stream, which must be whole, or a document."""
    if not body.startswith(b"data: "):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    *events, last = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    assert last == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.parametrize("count", [1, 2])
async def test_streams_wait_for_a_whole_answer_if_they_always_shall(
    redis: RedisServer, count: int
) -> None:
    async with asking_nodes(redis, count, join_streams="always") as (found, provider, asking):
        provider.open.clear()
        asking.ask(found[0])
        await until(lambda: readers(found) == 1)
        for usage in (False, False, True):
            asking.ask(found[-1], stream=True, stream_options={"include_usage": usage})
        # The streams with and those without usage each have a reader that waits for them.
        await until(lambda: readers(found) == 6)
        provider.open.set()
        whole, *streams = await asking.answers()
        assert provider.calls == 1
        assert {said_in(stream.body) for stream in streams} == {said_in(whole.body)}
        for stream in streams:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert "collapsed; detail=joined" in stream.headers["cache-status"]
        assert [b'"total_tokens":' in stream.body for stream in streams] == [False, False, True]
        await check_joined(found, 3)


def teach(found: list[Sidecar], *, first_s: float, tokens: int, tokens_per_s: float) -> None:
    """Let nodes know how quick the provider is, and how long its answers are."""
    now = asyncio.get_running_loop().time()
    for node in found:
        assert node.parts[0].states is not None
        measures, key = node.parts[0].states.measures, UpstreamModel("sim", "m")
        for _ in range(20):
            measures.first(key, 10, first_s, now)
            measures.speed(key, 1000, 1000 / tokens_per_s, now)
            measures.length("", tokens, now)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("setting", ["sooner", "never"])
async def test_a_stream_waits_for_a_whole_answer_that_should_be_there_sooner(
    redis: RedisServer, count: int, setting: str
) -> None:
    async with asking_nodes(redis, count, join_streams=setting) as (found, provider, asking):
        teach(found, first_s=60.0, tokens=1, tokens_per_s=5000.0)
        provider.open.clear()
        asking.ask(found[0])
        await until(lambda: provider.began == 1)
        asking.ask(found[-1], stream=True)
        if setting == "never":
            await until(lambda: provider.began == 2)
        else:
            await until(lambda: readers(found) == 3)
        provider.open.set()
        whole, stream = await asking.answers()
        assert said_in(stream.body) == said_in(whole.body)
        assert provider.calls == (2 if setting == "never" else 1)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("known", [False, True])
async def test_a_stream_does_not_wait_for_a_whole_answer_that_takes_longer(
    redis: RedisServer, count: int, known: bool
) -> None:
    async with asking_nodes(redis, count) as (found, provider, asking):
        if known:
            teach(found, first_s=0.5, tokens=1000, tokens_per_s=10.0)
        provider.open.clear()
        asking.ask(found[0])
        await until(lambda: provider.began == 1)
        asking.ask(found[-1], stream=True)
        await until(lambda: provider.began == 2)
        provider.open.set()
        answers = await asking.answers()
        assert provider.calls == 2
        assert ["joined" in answer.headers["cache-status"] for answer in answers] == [False] * 2


@pytest.mark.parametrize("count", [1, 2])
async def test_a_stream_waits_no_longer_than_twice_the_time_to_its_own_first_token(
    redis: RedisServer, count: int
) -> None:
    async with asking_nodes(redis, count) as (found, provider, asking):
        teach(found, first_s=0.5, tokens=1, tokens_per_s=5000.0)
        provider.open.clear()
        asking.ask(found[0])
        await until(lambda: provider.began == 1)
        asking.ask(found[-1], stream=True)
        await until(lambda: provider.began > 1)
        await until(lambda: readers(found) == 2)  # nobody waits for the other any more
        provider.open.set()
        await asking.answers()
        assert provider.calls == 2


@pytest.mark.parametrize("count", [1, 2])
async def test_a_stream_makes_its_own_call_if_the_whole_answer_fails(
    redis: RedisServer, count: int
) -> None:
    async with asking_nodes(redis, count, join_streams="always") as (found, provider, asking):
        provider.open.clear()
        whole = asking.tasks.create_task(found[0].ask(fault=Status(status=400)))
        await until(lambda: readers(found) == 1)
        for _ in range(2):
            asking.ask(found[-1], stream=True)
        await until(lambda: readers(found) == 4)
        provider.open.set()
        streams = await asking.answers()
        assert ([stream.status for stream in streams], (await whole).status) == ([200, 200], 400)
        assert all(said_in(stream.body) for stream in streams)
        assert provider.calls == 2  # one for both


@pytest.mark.parametrize("count", [1, 2])
async def test_a_stream_gets_the_whole_answer_though_its_first_client_leaves(
    redis: RedisServer, count: int
) -> None:
    async with asking_nodes(redis, count, join_streams="always") as (found, provider, asking):
        provider.open.clear()
        whole = asking.tasks.create_task(found[0].ask())
        await until(lambda: readers(found) == 1)
        asking.ask(found[-1], stream=True)
        await until(lambda: readers(found) == 3)
        whole.cancel()
        await until(lambda: readers(found) == 2)
        provider.open.set()
        [stream] = await asking.answers()
        assert said_in(stream.body)
        assert provider.calls == 1
        await until(lambda: sum(len(node.served) for node in found) == 2)
        rows = [row for node in found for row in node.served]
        assert sum(len(row.attempts) for row in rows) == 1  # the stream's request pays


@pytest.mark.parametrize("count", [1, 2])
async def test_a_whole_answer_is_asked_for_if_the_stream_fails(
    redis: RedisServer, count: int
) -> None:
    async with asking_nodes(redis, count) as (found, provider, asking):
        provider.open.clear()
        streamed = asking.tasks.create_task(found[0].ask(stream=True, fault=Status(status=400)))
        await until(lambda: readers(found) == 1)
        asking.ask(found[-1])
        await until(lambda: readers(found) == 3)
        provider.open.set()
        [answer] = await asking.answers()
        assert (answer.status, (await streamed).status) == (200, 400)
        assert provider.calls == 2


def seen(monitor: Any) -> list[str]:
    """Return our scripts and messages that a server ran until now."""
    names = {hashlib.sha1(text.encode()).hexdigest(): name for name, text in SCRIPTS.items()}  # noqa: S324 - as Redis names them
    found: list[str] = []
    while True:
        line = monitor.next_command()
        words = line["command"].split()
        if words[:2] == ["SET", "end"]:
            return [each for each in found if each in SCRIPTS or each == "PUBLISH"]
        if line["client_type"] != "lua":
            found.append(names.get(words[1], "") if words[0] == "EVALSHA" else words[0])


async def load_scripts(node: Sidecar) -> None:
    """Let Redis load the scripts that a miss runs."""
    await node.ask("a first question")
    await until(lambda: committed(node) == 1)


async def test_a_lone_miss_pays_no_round_trip(redis: RedisServer) -> None:
    async with nodes(redis, Provider(), 1) as [node]:
        await load_scripts(node)
        with contextlib.closing(redis.client()) as client, client.monitor() as monitor:  # type: ignore[no-untyped-call]
            await node.ask("a lone miss")
            await node.ask("another one")
            client.set("end", "of the test")
            assert seen(monitor) == ["lease", "append"] * 2


async def test_equal_calls_of_a_node_ask_redis_once(redis: RedisServer) -> None:
    provider = Provider()
    async with nodes(redis, provider, 1) as [node]:
        await load_scripts(node)
        with contextlib.closing(redis.client()) as client, client.monitor() as monitor:  # type: ignore[no-untyped-call]
            async with asyncio.TaskGroup() as tasks:
                provider.open.clear()
                for _ in range(20):
                    tasks.create_task(node.ask())
                await until(lambda: readers([node]) == 20)
                tasks.create_task(node.ask())
                await until(lambda: readers([node]) == 21)
                provider.open.set()
            client.set("end", "of the test")
            assert [each for each in seen(monitor) if each != "renew"] == ["lease", "append"]


@pytest.mark.parametrize("fault", [None, Status(status=400)])
async def test_the_lease_of_a_call_ends_with_it(redis: RedisServer, fault: Status | None) -> None:
    async with nodes(redis, Provider(), 1) as [node]:
        await node.ask(fault=fault)
        with contextlib.closing(redis.client()) as client:
            await until(lambda: not client.keys("*lease:*"))
        assert not node.parts[0].flights


async def test_the_lease_of_a_call_ends_when_its_only_client_leaves(redis: RedisServer) -> None:
    async with asking_nodes(redis, 1) as (found, provider, asking):
        provider.open.clear()
        leaving = asking.tasks.create_task(found[0].ask())
        await until(lambda: readers(found) == 1)
        leaving.cancel()
        with contextlib.closing(redis.client()) as client:
            await until(lambda: not client.keys("*lease:*"))
        provider.open.set()


async def test_when_the_owner_fails_one_follower_asks_for_the_others(redis: RedisServer) -> None:
    async with asking_nodes(redis) as (found, provider, asking):
        first, *others = found
        provider.open.clear()
        failing = asking.tasks.create_task(first.ask(fault=Status(status=400)))
        await until(lambda: readers(found) == 1)
        for node in others:
            asking.ask(node)
            asking.ask(node)
        await until(lambda: readers(found) == 7)
        provider.open.set()
        answers = await asking.answers()
        assert (await failing).status == 400
        assert {answer.status for answer in answers} == {200}
        assert len({json.dumps(json.loads(answer.body)["choices"]) for answer in answers}) == 1
        assert provider.calls == 2


async def test_a_call_goes_on_for_a_follower_when_the_owners_client_leaves(
    redis: RedisServer,
) -> None:
    async with asking_nodes(redis, 2) as (found, provider, asking):
        owner, follower = found
        provider.open.clear()
        leaving = asking.tasks.create_task(owner.ask(stream=True))
        await until(lambda: readers(found) == 1)
        asking.ask(follower, stream=True)
        await until(lambda: readers(found) == 3)
        leaving.cancel()
        await until(lambda: readers(found) == 2)
        provider.open.set()
        [answer] = await asking.answers()
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert provider.calls == 1
        await follower.finished(1)
        [row] = follower.served
        assert (row.outcome, len(row.attempts)) == (Outcome.JOINED, 1)  # it pays for the call


async def test_a_call_ends_when_its_last_follower_leaves(redis: RedisServer) -> None:
    async with asking_nodes(redis, 2) as (found, provider, asking):
        owner, follower = found
        provider.open.clear()
        first = asking.tasks.create_task(owner.ask())
        await until(lambda: readers(found) == 1)
        second = asking.tasks.create_task(follower.ask())
        await until(lambda: readers(found) == 3)
        first.cancel()
        await until(lambda: readers(found) == 2)
        second.cancel()
        await until(lambda: readers(found) == 0)
        provider.open.set()
        assert (await owner.ask()).status == 200  # and the lease is free


async def test_a_follower_that_leaves_stops_nobody(redis: RedisServer) -> None:
    async with asking_nodes(redis, 2) as (found, provider, asking):
        owner, follower = found
        provider.open.clear()
        asking.ask(owner)
        await until(lambda: readers(found) == 1)
        leaving = asking.tasks.create_task(follower.ask())
        await until(lambda: readers(found) == 3)
        leaving.cancel()
        await until(lambda: readers(found) == 1)
        provider.open.set()
        [answer] = await asking.answers()
        assert (answer.status, provider.calls) == (200, 1)


async def test_a_follower_may_hear_of_a_lease_before_its_owner(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, heard = RedisExchange.find, asyncio.Event()
    delayed: list[str] = []

    async def slow(self: RedisExchange, exact: str, name: str, instead_of: int = 0) -> Any:
        found = await find(self, exact, name, instead_of)
        if not delayed:
            delayed.append(self.address)
            await heard.wait()
        return found

    monkeypatch.setattr(RedisExchange, "find", slow)
    async with asking_nodes(redis, 2) as (found, provider, asking):
        asking.ask(found[0])
        await until(lambda: bool(delayed))
        with contextlib.closing(redis.client()) as client, client.monitor() as monitor:  # type: ignore[no-untyped-call]
            asking.ask(found[1])
            while (
                f"inbox:{delayed[0]}"
                not in (await asyncio.to_thread(monitor.next_command))["command"]
            ):
                pass
        heard.set()
        answers = await asking.answers()
        assert {answer.status for answer in answers} == {200}
        assert provider.calls == 1


async def test_a_message_that_nobody_understands_stops_nothing(redis: RedisServer) -> None:
    async with asking_nodes(redis, 2) as (found, provider, asking):
        with contextlib.closing(redis.client()) as client:
            for inbox in client.pubsub_channels("*inbox:*"):
                for message in (b"\x93\xa2\xff\xfe\x01\x02", b"\xc1", b"\x91" * 5000, b"hello"):
                    assert client.publish(inbox, message) == 1
        provider.open.clear()
        for node in found:
            asking.ask(node)
        await until(lambda: readers(found) == 3)
        provider.open.set()
        answers = await asking.answers()
        assert [each.status for each in answers] == [200, 200]
        assert provider.calls == 1


async def test_callers_of_other_scopes_are_not_joined(redis: RedisServer) -> None:
    async with asking_nodes(redis, 2) as (found, provider, asking):
        provider.open.clear()
        asking.ask(found[0])
        other = {**headers_of(), "authorization": "Bearer sk-other"}
        asking.ask(found[1], headers=other)
        await until(lambda: readers(found) == 2)
        provider.open.set()
        await asking.answers()
        assert provider.calls == 2


async def test_joining_processes_can_be_switched_off(redis: RedisServer) -> None:
    provider = Provider()
    async with nodes(redis, provider, 2, join_processes=False) as found:
        provider.open.clear()
        async with asyncio.TaskGroup() as tasks:
            for node in found:
                tasks.create_task(node.ask())
            await until(lambda: readers(found) == 2)
            provider.open.set()
        assert provider.calls == 2


async def test_an_owner_that_cannot_share_its_answer_does_not_hold_others_up(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider()
    monkeypatch.setattr(shared_flights, "LOG_BYTES", 0)
    async with nodes(redis, provider, 2) as found, asyncio.TaskGroup() as tasks:
        provider.open.clear()
        asking = Asking(tasks)
        asking.ask(found[0], stream=True)
        await until(lambda: readers(found) == 1)
        asking.ask(found[1], stream=True)
        await until(lambda: readers(found) == 3)
        provider.open.set()
        answers = await asking.answers()
        assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)


async def test_a_redis_that_hangs_holds_no_follower_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.embeddings.stores.redis_client.TIMEOUT_S", 2.0)
    with redis_server() as own:
        async with asking_nodes(own, 2) as (found, provider, asking):
            provider.open.clear()
            asking.ask(found[0], stream=True)
            await until(lambda: readers(found) == 1)
            asking.ask(found[1], stream=True)
            await until(lambda: readers(found) == 3)
            with own.hanging():
                provider.open.set()
                answers = await asking.answers()
        assert {answer.status for answer in answers} == {200}
        assert provider.calls == 2


class App:
    """An app that answers when it is told to, and counts its calls."""

    def __init__(self, **headers: str) -> None:
        self.calls = 0
        self.open = asyncio.Event()
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        self.calls += 1
        await self.open.wait()
        body = b'{"answer": 42}'
        length = (b"content-length", b"%d" % len(body))
        headers = [(b"content-type", b"application/json"), length, *self._headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    ("control", "calls"), [("max-age=60", 1), ("private", 3)], ids=["shared", "private"]
)
async def test_requests_of_an_app_are_joined_if_they_may_share(
    redis: RedisServer, control: str, calls: int
) -> None:
    app = App(**{"cache-control": control})
    ask = Endpoint("/ask", prompt="question")
    async with asyncio.timeout(PATIENCE_S), contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        urls = [
            await stack.enter_async_context(
                serving(
                    HeadstartMiddleware(app, endpoints=[ask], store=redis.url, mode="exact-only")
                )
            )
            for _ in range(3)
        ]

        async def answer(url: str) -> tuple[int, bytes]:
            sent = {"authorization": "Bearer me", "host": "localhost"}
            async with session.post(f"{url}/ask", json={"question": "?"}, headers=sent) as reply:
                return reply.status, await reply.read()

        app.open.set()
        for url in urls:  # each engine starts with its first request
            async with session.get(f"{url}/health") as reply:
                assert reply.status == 200
        app.calls = 0
        with contextlib.closing(redis.client()) as client:
            await until(lambda: len(client.pubsub_channels("*inbox:*")) >= 3)
        app.open.clear()
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(answer(urls[0]))]
            await until(lambda: app.calls == 1)
            asked += [tasks.create_task(answer(url)) for url in urls[1:]]
            await asyncio.sleep(0.2)
            app.open.set()
        assert {task.result() for task in asked} == {(200, b'{"answer": 42}')}
        assert app.calls == calls


async def test_without_redis_each_node_asks_for_itself() -> None:
    with redis_server() as own:
        async with asking_nodes(own, 2) as (found, provider, asking):
            provider.open.clear()
            asking.ask(found[0])
            await until(lambda: readers(found) == 1)
            asking.ask(found[1])
            await until(lambda: readers(found) == 3)
            own.kill()
            await until(lambda: readers(found) == 2)
            asking.ask(found[1], "a new question")
            await until(lambda: readers(found) == 3)
            provider.open.set()
            answers = await asking.answers()
            assert {answer.status for answer in answers} == {200}
            assert provider.calls == 3

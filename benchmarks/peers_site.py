"""The processes of ``benchmarks.peers``: a provider on a known port, a relay and two sidecars.

A system prompt names the case for the provider, so that each case works through any gateway,
whatever headers and model names the gateway passes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import uvloop

from benchmarks.load import http_request
from benchmarks.overhead import noop_app, relay_to, start, unique
from benchmarks.safe_hits_programs import Program
from headstart.lab.simulator import EndedCall, Oracle, ProviderProfile, Simulator, serve
from headstart.lab.simulator.faults import Cut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from multiprocessing.connection import Connection

CHAT = "/v1/chat/completions"
TOKENS = 120
"""The tokens of every answer; a streamed one has a chunk for each."""
ORACLE = Oracle(answer_tokens=TOKENS)
BROKEN_AFTER = 40
"""Tokens that arrive before an upstream breaks off."""
SLOW_S = 6.0
"""The time of an answer whose client leaves early."""
WHOLE, STREAM, SLOW = "whole", "stream", "slow"
BREAKS = {
    "reset": "connection reset",
    "close": "connection closed inside the body",
    "end": "body ended properly, too short",
}
_FIRST_MS = 20.0
_QUESTION = re.compile(rb"(?:[a-z]{7} ){11}[a-z]{7}")
_QUICK = ProviderProfile(model="bench", ttft_ms=_FIRST_MS, tokens_per_s=(1000.0, 1000.0))


class Provider:
    """Simulated providers at one address.

    The case in the system prompt chooses the provider. An answer breaks off when its question is
    asked the first time; later calls get the whole answer.
    """

    def __init__(self) -> None:
        slow = ProviderProfile(
            model="bench", ttft_ms=_FIRST_MS, tokens_per_s=(TOKENS / SLOW_S,) * 2
        )
        whole = ProviderProfile(model="bench", ttft_ms=_FIRST_MS)
        self._cases = {
            WHOLE: Simulator(whole, oracle=ORACLE),
            STREAM: Simulator(_QUICK, oracle=ORACLE),
            SLOW: Simulator(slow, oracle=ORACLE),
        }
        for how in BREAKS:
            self._cases[how] = Simulator(_QUICK, oracle=ORACLE)
        self._broken: set[bytes] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Read the body and forward the request. ``?case=`` selects a provider's statistics."""
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        named = body + scope["query_string"]
        case = next((name for name in self._cases if f"case={name}".encode() in named), WHOLE)
        if case in BREAKS and (question := _QUESTION.search(body)):
            scope = self._breaking(scope, case, question[0])
        left = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return left.pop() if left else await receive()

        await self._cases[case](scope, replay, send)

    def _breaking(self, scope: Any, how: Any, question: bytes) -> Any:
        if question in self._broken:
            return scope
        self._broken.add(question)
        fault = Cut(after=BROKEN_AFTER, how=how).header().encode()
        return {**scope, "headers": [*scope["headers"], (b"x-sim-fault", fault)]}


def chat(case: str, number: int, *, stream: bool) -> dict[str, Any]:
    """Return the body of a call, with another question for each number.

    The case is in the system prompt, so that it does not make questions similar. Without a
    temperature of zero some peers cache nothing.
    """
    system = f"You are a helpful assistant of a large public library. case={case}"
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": unique(number)},
    ]
    body = {"model": "bench", "messages": messages, "temperature": 0}
    return {**body, "stream": True} if stream else body


@dataclass(frozen=True)
class Target:
    """A measured target. ``pid`` None: its CPU time is not known."""

    name: str
    url: str
    pid: int | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def request(self, case: str, number: int, *, stream: bool) -> bytes:
        """Return the bytes of a call."""
        body = json.dumps(chat(case, number, stream=stream), separators=(",", ":")).encode()
        return http_request(CHAT, body, headers=self.headers)

    def cpu_s(self) -> float:
        """User and system seconds of its processes' living threads so far."""
        return 0.0 if self.pid is None else _cpu_ns(self.pid) / 1e9


def _cpu_ns(pid: int) -> int:
    """Return the CPU time of a process and its children, which Linux counts to the nanosecond."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
            children = (thread / "children").read_text(encoding="ascii").split()
            total += sum(_cpu_ns(int(child)) for child in children)
    return total


def add_peer_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the peers, which are started by hand."""
    parser.add_argument("--peer", type=_pair, action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--pid", type=_pair, action="append", default=[], metavar="NAME=PID")
    parser.add_argument("--header", type=_pair, action="append", default=[], metavar="NAME=H: V")
    parser.add_argument("--provider-port", type=int, default=9190)
    parser.add_argument("--wait", type=float, default=120.0, help="seconds for peers to start")


def peers_of(arguments: argparse.Namespace) -> list[Target]:
    """Return the peers that the options name."""
    pids = dict(arguments.pid)
    return [
        Target(
            name,
            url.rstrip("/").removesuffix("/v1"),
            int(pids[name]) if name in pids else None,
            tuple(_header(text) for owner, text in arguments.header if owner == name),
        )
        for name, url in arguments.peer
    ]


async def wait_for(peers: Iterable[Target], patience_s: float) -> None:
    """Wait until every peer accepts connections, each so long. Raises TimeoutError."""
    for peer in peers:
        await _accepts(peer, patience_s)


async def _accepts(peer: Target, patience_s: float) -> None:
    async with asyncio.timeout(patience_s):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", peer.port)
            except OSError:
                await asyncio.sleep(0.2)
            else:
                writer.close()
                return


def _header(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    return name.strip(), value.strip()


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


@dataclass
class Site:
    """The processes beside the peers. ``provider`` is the address for direct calls."""

    provider: Target
    relay: Target
    noop: Target
    sidecars: tuple[Target, ...]
    session: aiohttp.ClientSession

    async def records(self, case: str) -> list[EndedCall]:
        """Return the ended calls of a case, as the provider recorded them."""
        url = f"{self.provider.url}/_sim/requests?case={case}"
        async with self.session.get(url) as response:
            return msgspec.json.decode(await response.read(), type=list[EndedCall])

    async def calls(self, case: str) -> int:
        """Return how many calls of a case reached the provider."""
        url = f"{self.provider.url}/_sim/stats?case={case}"
        async with self.session.get(url) as response:
            return int((await response.json())["calls"])


def _provide(port: int, pipe: Connection) -> None:
    async def run() -> None:
        provider: Any = Provider()
        async with serve(provider, port=port) as url:
            pipe.send(url)
            await asyncio.Event().wait()

    uvloop.run(run())


@contextlib.asynccontextmanager
async def site(port: int) -> AsyncIterator[Site]:
    """Run the provider at ``port`` (0: any), and before it a relay and the sidecars."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_provide, args=(port, theirs), daemon=True)
    process.start()
    theirs.close()  # So that a process that dies is an end of file, not a wait.
    url = ours.recv()
    provider = Target("direct", url, process.pid)
    relay, noop = start(relay_to, provider.port), start(noop_app)
    try:
        async with (
            _sidecar("Headstart, exact-only", url, "exact-only") as exact,
            _sidecar("Headstart", url, "serve") as semantic,
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True)
            ) as session,
        ):
            yield Site(
                provider,
                Target("relay", f"http://127.0.0.1:{relay.port}", relay.process.pid),
                Target("no-op app", f"http://127.0.0.1:{noop.port}", noop.process.pid),
                (exact, semantic),
                session,
            )
    finally:
        for each in (process, relay.process, noop.process):
            each.terminate()


@contextlib.asynccontextmanager
async def _sidecar(name: str, upstream: str, mode: str) -> AsyncIterator[Target]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "headstart.toml")
        settings = f'[cache]\nstore = "memory:"\nmode = "{mode}"\n'
        await asyncio.to_thread(path.write_text, settings, encoding="utf-8")
        program = Program(
            ["serve", "--config", str(path), "--upstream", f"{upstream}/v1", "--port", "0"]
        )
        try:
            url = await program.start()
            assert program.process is not None
            yield Target(name, url, program.process.pid)
        finally:
            await program.stop()

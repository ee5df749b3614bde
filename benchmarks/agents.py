"""The cost and the time to first token of agents, through the whole proxy.

    python -m benchmarks.agents [DATA] [--sessions N] [--transcripts FOLDER] [--headroom PYTHON]
                                [--json]

``DATA`` is the folder whose longctx/taubench holds tau-bench's transcripts; without it only coding
sessions are played (``benchmarks.agent_sessions`` describes them). ``--transcripts`` is a
folder with trajectory files of SWE-agent; then only these are played. ``--headroom`` is the
interpreter of an environment with headroom-ai.

Proxy and provider run on real sockets in one process. The provider caches prompts as Anthropic
documents it. Tokens are those of o200k; prices are those of Claude Opus 4.6. Nobody
waits for the time between two requests of a session: the clock skips it. It is some seconds within
a turn of the user and some minutes between two turns, in which the provider forgets one prefix in
nine. The time to the first token is the sum of 320 ms at the provider, 80 ms for each thousand
tokens that it has not cached, and the time that the request takes with a provider without delays.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import subprocess
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import msgspec
import uvicorn

from benchmarks.agent_sessions import airline, coding, shares, swe_agent, tools
from benchmarks.load import percentile
from benchmarks.overhead import gateway_of
from headstart.canonical_request import Quirks
from headstart.compression.tokens import count_tokens, load
from headstart.dialects.registry import DIALECTS
from headstart.dialects.request_form import mark_anthropic
from headstart.lab.simulator import PROFILES, ProviderProfile, Simulator, serve
from headstart.lab.simulator.app import serve_app
from headstart.observe import Served
from headstart.types import CacheMarks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Message = dict[str, Any]
    Session = list[Message]

MODEL = "claude-opus-4-6"
PRICE = {
    "input_per_million": 5.0,
    "cached_per_million": 0.5,
    "cache_write_per_million": 6.25,
    "output_per_million": 25.0,
}
COMPRESSION: dict[str, dict[str, str]] = {
    "off": {"mode": "off"},
    "safe": {"mode": "safe"},
    "safe, prompt cache": {"mode": "safe", "prompt_cache": "auto"},
    "recoverable, prompt cache": {"mode": "recoverable", "prompt_cache": "auto"},
    "headroom": {"mode": "off"},
}
STEP_S = (8.0, 0.8)
"""Median and sigma of the lognormal time between two requests of one turn."""
TURN_S = (60.0, 1.3)
"""The same between two turns: one in nine takes more than five minutes."""
ANSWER_TOKENS = 8
"""Answers are short, and cost the same in all modes."""


class ShiftedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can skip some time: the benchmark adds to ``ahead_s``."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def time(self) -> float:
        """Return the time, with the skipped seconds."""
        return super().time() + self.ahead_s


@lru_cache(maxsize=100_000)
def count(text: str) -> int:
    """Return the tokens of a text, with GPT-4o's tokenizer: Claude's is not published."""
    return count_tokens(text, "gpt-4o").tokens


class Row(NamedTuple):
    """One request."""

    session: int
    tokens: int
    cached: int
    usd: float
    own_s: float

    @property
    def ttft_s(self) -> float:
        """The time to the first token."""
        provider = PROFILES["anthropic"]
        fresh = self.tokens - self.cached
        return provider.ttft_ms / 1000 + provider.prefill_s(fresh) + self.own_s


class Recorder:
    """Keeps the rows of the books."""

    def __init__(self) -> None:
        self.rows: list[Served] = []

    def notify(self, observation: object) -> None:
        """Keep a row."""
        if isinstance(observation, Served):
            self.rows.append(observation)


class Kind(NamedTuple):
    """Sessions of one kind of agent."""

    sessions: list[Session]
    tools: list[Message]
    marked: bool
    """The client speaks Anthropic's dialect and sets marks, as Claude Code does."""


def requests(session: Session) -> Iterator[int]:
    """Yield the number of messages of each request of a session."""
    for number, message in enumerate(session):
        if message["role"] == "assistant":
            yield number


async def play(kind: Kind, mode: str, sent: Sequence[Sequence[Session]] | None) -> list[Row]:
    """Send all requests of all sessions through a proxy in a mode.

    ``sent`` has other messages to send, by session and request; None: the session's own.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ShiftedLoop)
    recorder, rows, gaps = Recorder(), list[Row](), random.Random("gaps")
    provider = Simulator(
        ProviderProfile(model=MODEL, prefix_cache=True),
        clock=loop.time,
        count=count,
    )
    # The clock skips minutes, in which an idle connection would time out.
    closing = aiohttp.TCPConnector(force_close=True)
    async with serve(provider) as address, aiohttp.ClientSession(connector=closing) as client:
        upstream = {
            "base_url": address,
            "dialect": "anthropic",
            "api_key_env": [],
            "price": {MODEL: PRICE},
        }
        compression = {f"compression.{name}": value for name, value in COMPRESSION[mode].items()}
        settings = {"cache.mode": "exact-only", **compression, "upstream": [upstream]}
        app = gateway_of(settings, recorder)
        config = uvicorn.Config(app, log_level="warning", lifespan="on")
        async with serve_app(config) as (_, url):
            for number, session in enumerate(kind.sessions):
                for turn, end in enumerate(requests(session)):
                    if end > 1:
                        new_turn = session[end - 1]["role"] == "user"
                        median_s, sigma = TURN_S if new_turn else STEP_S
                        loop.ahead_s += math.exp(gaps.gauss(math.log(median_s), sigma))
                        await asyncio.sleep(0.002)  # so that timers run that are due now
                    messages = session[:end] if sent is None else sent[number][turn]
                    rows.append(await ask(client, url, kind, messages, number, recorder))
    return rows


async def ask(
    client: aiohttp.ClientSession,
    url: str,
    kind: Kind,
    messages: Session,
    number: int,
    recorder: Recorder,
) -> Row:
    """Send one request, and return what the books say about it."""
    path, body = body_of(kind, messages)
    headers = {"authorization": "Bearer k", "x-api-key": "k", "anthropic-version": "2023-06-01"}
    began, before = time.perf_counter(), len(recorder.rows)
    async with client.post(url + path, data=body, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        await reply.read()
    own_s = time.perf_counter() - began
    while len(recorder.rows) == before:  # noqa: ASYNC110 - the books are a step behind
        await asyncio.sleep(0)
        # An earlier attempt may have failed, because its connection was closed.
    attempt = recorder.rows[-1].attempts[-1]
    return Row(number, attempt.prompt_tokens, attempt.cached_tokens, attempt.cost_usd or 0.0, own_s)


def body_of(kind: Kind, messages: Session) -> tuple[str, bytes]:
    """Return the path and the body of a request."""
    body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": ANSWER_TOKENS}
    if kind.tools:
        body["tools"] = kind.tools
    chat = DIALECTS["openai-chat"]
    if not kind.marked:
        return "/v1/chat/completions", msgspec.json.encode(body)
    request = chat.read_request(chat.parse_request(msgspec.json.encode(body)))
    written = DIALECTS["anthropic-messages"].write_request(request, Quirks()).body
    marks = CacheMarks(shared=True, previous=True, last=True)
    return "/v1/messages", mark_anthropic(written, marks) or written


HEADROOM = """
import json, sys
import headroom
out = []
for session in json.load(sys.stdin):
    ends = [n for n, message in enumerate(session) if message["role"] == "assistant"]
    out.append([headroom.compress(session[:end], model="gpt-4o").messages for end in ends])
json.dump(out, open(sys.argv[1], "w"))
"""


def headrooms(sessions: list[Session], python: Path) -> list[list[Session]]:
    """Return what headroom-ai makes of each request of each session."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "sent.json"
        subprocess.run(
            [str(python), "-c", HEADROOM, str(file)],
            input=json.dumps(sessions), text=True, check=True, capture_output=True,
        )  # fmt: skip
        return json.loads(file.read_text("utf-8"))  # type: ignore[no-any-return]


def summary(rows: Sequence[Row], off: Sequence[Row]) -> dict[str, float]:
    """Return the figures of a mode beside those of ``off``."""
    paid, without = dollars(rows), dollars(off)
    tokens = sum(row.tokens for row in rows)
    return {
        "tokens": tokens / sum(row.tokens for row in off) - 1,
        "cost": sum(paid.values()) / sum(without.values()) - 1,
        "cached": sum(row.cached for row in rows) / tokens,
        "ttft_p50_s": percentile([row.ttft_s for row in rows], 0.5),
        "ttft_p95_s": percentile([row.ttft_s for row in rows], 0.95),
        "own_p50_s": percentile([row.own_s for row in rows], 0.5),
        "dearer": sum(paid[each] > 1.01 * without[each] for each in paid),
        "dearest": max(paid[each] / without[each] for each in paid) - 1,
        "sessions": len(paid),
        "requests": len(rows),
    }


def dollars(rows: Sequence[Row]) -> dict[int, float]:
    """Return the cost of each session."""
    found: dict[int, float] = {}
    for row in rows:
        found[row.session] = found.get(row.session, 0.0) + row.usd
    return found


def measure(kind: Kind, modes: Sequence[str], headroom: Path | None) -> dict[str, dict[str, float]]:
    """Play a kind of sessions in each mode."""
    played = {}
    for mode in modes:
        sent = None
        if mode == "headroom":
            if headroom is None:
                continue
            sent = headrooms(kind.sessions, headroom)
        with asyncio.Runner(loop_factory=ShiftedLoop) as runner:
            played[mode] = runner.run(play(kind, mode, sent))
    return {mode: summary(rows, played["off"]) for mode, rows in played.items()}


def kinds(data: Path | None, transcripts: Path | None, count: int) -> dict[str, Kind]:
    """Return the sessions by kind."""
    if transcripts is not None:
        sessions = list(swe_agent(transcripts))[:count]
        return {"SWE-agent, OpenAI's dialect": Kind(sessions, tools(), marked=False)}
    found = {
        "coding, OpenAI's dialect": Kind(list(coding(count)), tools(), marked=False),
        "coding, own marks": Kind(list(coding(count)), tools(), marked=True),
    }
    if data is not None:
        found["tau-bench, OpenAI's dialect"] = Kind(list(airline(data, count)), [], marked=False)
    return found


def line(mode: str, row: dict[str, float]) -> str:
    """Return the figures of a mode as text."""
    return (
        f"  {mode:26}{row['tokens']:+7.1%} tokens {row['cost']:+7.1%} cost"
        f" {row['cached']:6.1%} cached, first token p50 {row['ttft_p50_s']:.2f} s,"
        f" p95 {row['ttft_p95_s']:.2f} s,"
        f" ours {1e3 * row['own_p50_s']:.1f} ms; {row['dearer']:.0f} of {row['sessions']:.0f}"
        f" sessions dearer by over 1 %, at most {row['dearest']:+.1%}"
    )


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description="measure what agents pay and wait for")
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--transcripts", type=Path)
    parser.add_argument("--headroom", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    load("gpt-4o")
    results: dict[str, Any] = {"shares of coding sessions": shares(args.sessions)}
    for name, kind in kinds(args.data, args.transcripts, args.sessions).items():
        results[name] = measure(kind, list(COMPRESSION), args.headroom)
        if args.json:
            continue
        print(name)
        for mode, row in results[name].items():
            print(
                line(mode, row),
                flush=True,
            )
    if args.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

"""``headstart demo``: simulated providers, a sidecar, scripted traffic and the savings."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
import click
import msgspec
import uvicorn
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headstart.cli.options import command, flag, option
from headstart.cli.report import print_report
from headstart.clients import LiveDraft
from headstart.config.checks import checked
from headstart.lab.commands.bench_calls import simulated_prices
from headstart.lab.simulator import Oracle, Simulator, TrafficPrompt, serve, traffic
from headstart.lab.simulator.app import serve_app
from headstart.lab.simulator.faults import Cut, Fault, Status
from headstart.lab.simulator.oracle import type_prompt
from headstart.lab.simulator.profiles import PROFILES
from headstart.middleware.reading import SSEDecoder
from headstart.observe import Served
from headstart.policies.live_drafts import PLACEHOLDER
from headstart.report.estimates import quantile
from headstart.settings import (
    CacheSettings,
    EncoderSettings,
    LiveSettings,
    RouteMatch,
    RouteSettings,
    Settings,
    UpstreamSettings,
)
from headstart.sidecar import build_sidecar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from headstart.attempts import Attempt
    from headstart.settings import PriceSettings

ROUTE = "x-headstart-route"


@dataclass(frozen=True)
class FaultScene:
    """A provider with one fault, and a strategy that overcomes it."""

    title: str
    prompt: str
    name: str
    strategy: Literal["race", "fallback"]
    fault: Fault


FAULT_SCENES = (
    FaultScene(
        title="two raced, and one answers 503",
        prompt="How do I boil an egg?",
        name="simulated-503",
        strategy="race",
        fault=Status(status=503),
    ),
    FaultScene(
        title="a stream that breaks off: another provider continues the answer",
        prompt="How do I get a wine stain out of a carpet?",
        name="simulated-cut",
        strategy="fallback",
        fault=Cut(after=8),
    ),
)


@contextlib.asynccontextmanager
async def failing_providers(
    profile: str, seed: int, speed: float, prices: Mapping[str, PriceSettings]
) -> AsyncIterator[tuple[UpstreamSettings, ...]]:
    """Run a provider for each scene for the length of the block."""
    async with contextlib.AsyncExitStack() as stack:
        upstreams = []
        for scene in FAULT_SCENES:
            refuses = isinstance(scene.fault, Status)
            simulator = Simulator(
                "instant" if refuses else profile, seed=seed, speed=speed, fault=scene.fault
            )
            url = await stack.enter_async_context(serve(simulator))
            upstreams.append(
                UpstreamSettings(name=scene.name, base_url=f"{url}/v1", price=dict(prices))
            )
        yield tuple(upstreams)


def routes(healthy: str) -> tuple[RouteSettings, ...]:
    """Return a route for each scene. A request takes it by its name in the header ``ROUTE``."""
    return tuple(
        RouteSettings(
            name=scene.name,
            match=RouteMatch(header={ROUTE: scene.name}),
            strategy=scene.strategy,
            upstreams=(scene.name, healthy),
            retries=0,
        )
        for scene in FAULT_SCENES
    )


async def attempts_of(running: Demo, answer: DemoAnswer) -> Sequence[Attempt]:
    """Return the upstream calls that a request caused."""
    async with running.session.get(f"{running.admin_url}/explain/{answer.request_id}") as response:
        response.raise_for_status()
        return msgspec.json.decode(await response.read(), type=Served).attempts


# --- one answer -----------------------------------------------------------------------------------

_KEY = {"authorization": "Bearer demo", "content-type": "application/json"}


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _DemoChoice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_DemoChoice] = []


@dataclass(frozen=True)
class DemoAnswer:
    """One streamed answer as the client saw it. Times in seconds from sending the request."""

    prompt: str
    text: str
    kind: str
    """``exact``, ``semantic``, ``joined`` or ``miss``."""
    ttft_s: float
    total_s: float
    similarity: float | None = None
    veto: str | None = None
    request_id: str = ""
    wrong: bool = False
    """A hit whose answer is not the right one, which the simulator knows."""

    @property
    def is_hit(self) -> bool:
        return self.kind in ("exact", "semantic")

    @property
    def is_refused(self) -> bool:
        """A guard refused a cached answer."""
        return self.veto not in (None, "threshold")


@dataclass(frozen=True)
class Demo:
    """A running demo: its URLs, and the oracle that knows the right answers."""

    url: str
    admin_url: str
    session: aiohttp.ClientSession
    oracle: Oracle
    model: str

    def body(self, prompt: str, context: str = "") -> dict[str, Any]:
        """Return a request. ``context`` is a text that the question is about."""
        system = [{"role": "system", "content": context}] if context else []
        asked = {"role": "user", "content": prompt}
        return {"model": self.model, "stream": True, "messages": [*system, asked]}

    async def ask(
        self,
        prompt: str,
        route: str | None = None,
        *,
        context: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> DemoAnswer:
        """Stream one answer and judge it."""
        body = self.body(prompt, context)
        sent = time.perf_counter()
        first: float | None = None
        parts: list[str] = []
        frames = SSEDecoder()
        named = {} if route is None else {ROUTE: route}
        async with self.session.post(
            self.url,
            data=msgspec.json.encode(body),
            headers={**_KEY, **named, **(headers or {})},
        ) as response:
            response.raise_for_status()
            async for data in response.content.iter_any():
                for frame in frames.feed(data):
                    text = _text(frame.data)
                    if text and first is None:
                        first = time.perf_counter()
                    parts.append(text)
            reported = response.headers
        ended = time.perf_counter()
        text = "".join(parts)
        kind = _kind(reported.get("cache-status", ""))
        similarity = reported.get("x-headstart-similarity")
        return DemoAnswer(
            prompt=prompt,
            text=text,
            kind=kind,
            ttft_s=(first or ended) - sent,
            total_s=ended - sent,
            similarity=float(similarity) if similarity else None,
            veto=reported.get("x-headstart-veto"),
            request_id=reported.get("x-headstart-request-id", ""),
            wrong=kind in ("exact", "semantic") and not self.oracle.judge(prompt, text),
        )


def _text(data: bytes | None) -> str:
    if not data or data == b"[DONE]":
        return ""
    chunk = msgspec.json.decode(data, type=_Chunk)
    return "".join(choice.delta.content or choice.delta.refusal or "" for choice in chunk.choices)


def _kind(cache_status: str) -> str:
    kind = cache_status.rpartition("detail=")[2]
    return kind if kind in ("exact", "semantic", "joined") else "miss"


@contextlib.asynccontextmanager
async def running_demo(profile: str, seed: int, speed: float, store: str) -> AsyncIterator[Demo]:
    """Run providers and the sidecar on free loopback ports for the length of the block."""
    simulator = Simulator(profile, seed=seed, speed=speed)
    async with contextlib.AsyncExitStack() as stack:
        provider = await stack.enter_async_context(serve(simulator))
        prices = simulated_prices(simulator.profile)
        upstream = UpstreamSettings(
            name=f"simulated-{profile}", base_url=f"{provider}/v1", price=prices
        )
        failing = await stack.enter_async_context(failing_providers(profile, seed, speed, prices))
        settings = checked(
            Settings(
                # With so few requests there is no time to watch near misses first.
                cache=CacheSettings(store=store, cold_start="optimistic"),
                encoder=EncoderSettings(max_wait_ms=PATIENCE_S * 1e3),
                upstream=(upstream, *failing),
                route=routes(upstream.name),
                live=LiveSettings(enabled=True, stages=("lookup", "warm", "answer")),
            )
        )
        app = build_sidecar(settings)
        config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="on")
        _, sidecar = await stack.enter_async_context(serve_app(config))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Demo(
            url=f"{sidecar}/v1/chat/completions",
            admin_url=f"{sidecar}/_headstart",
            session=session,
            oracle=simulator.oracle,
            model=simulator.profile.model,
        )


# --- the command ----------------------------------------------------------------------------------

NOTE = "simulated providers, scripted traffic: times and prices are modelled, hits are real"
NEW = (
    "How can I sign up for ChatGPT?",
    "What is the difference between TCP and UDP?",
    "Cancel my subscription",
)
SCRIPT = (
    ("the same words again", "How can I sign up for ChatGPT?"),
    ("other words, same meaning", "I want to sign up for ChatGPT"),
    ("other words, same meaning", "What's the difference between UDP and TCP?"),
    ("a trap: close in words, opposite in meaning", "Don't cancel my subscription"),
)
CONCURRENCY = 8
PATIENCE_S = 10.0
"""Seconds after which the demo goes on, even if not all answers are stored."""


@dataclass(frozen=True)
class DemoOptions:
    """The options of ``headstart demo``."""

    requests: int = option(300, "Requests of the load.", click.IntRange(0))
    profile: str = option(
        "openai",
        "Provider to imitate; headstart simulate --list shows the names.",
        click.Choice(list(PROFILES)),
        metavar="NAME",
    )
    seed: int = option(1, "The same seed gives the same delays and prompts.")
    speed: float = option(1.0, "Run simulated time this many times faster.", click.FloatRange(0.1))
    interactive: bool = flag("Type your own prompts instead of the load.")
    live: bool = flag("Type questions at human speed, with and without live drafts.")


@command(DemoOptions)
def demo(options: DemoOptions) -> None:
    """Run the sidecar with simulated providers and realistic traffic. No key, no network.

    It shows hits, a similar question that gets no hit, a race in which one provider fails, and a
    broken stream that another provider completes. Then it plays a load and prints the report.

    Examples:
      headstart demo
      headstart demo --requests 1000 --profile groq
      headstart demo --interactive
      headstart demo --live
    """
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="headstart-demo-") as folder:
            store = f"sqlite:///{Path(folder) / 'demo.db'}"
            asyncio.run(_run(console, options, store))
    except KeyboardInterrupt:
        console.print("stopped")
        raise SystemExit(130) from None


async def _run(console: Console, options: DemoOptions, store: str) -> None:
    console.print(f"[bold]Headstart demo[/]  [dim]{NOTE}[/]\n")
    async with running_demo(options.profile, options.seed, options.speed, store) as running:
        if options.live:
            return await _type_live(console, running, options)
        await _show_hits(console, running)
        await _show_faults(console, running)
        if options.interactive:
            await _converse(console, running)
        elif options.requests:
            await _load(console, running, options.requests, options.seed)
        await asyncio.sleep(0.5)  # The books are written within a quarter of a second.
        await print_report(console, store)
    console.print(f"[dim]{NOTE}; this environment takes {_install_mb():.0f} MB on disk[/]")


async def _show_hits(console: Console, running: Demo) -> None:
    """Show misses, an exact hit, semantic hits and a refused trap, in a few seconds."""
    console.print("[bold]First asked[/] (three misses, streamed from the provider)")
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(running.ask(prompt)) for prompt in NEW]
    for task in asked:
        console.print(_line(task.result()))
    await _wait_until_stored(running, len(NEW))
    for title, prompt in SCRIPT:
        console.print(f"[bold]{title.capitalize()}[/]")
        console.print(_line(await running.ask(prompt)))
    console.print()


async def _wait_until_stored(running: Demo, entries: int) -> None:
    """Wait until this number of answers is encoded and stored, which happens in the background."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with running.session.get(f"{running.admin_url}/stats") as response:
                    if (await response.json())["now"]["entries"] >= entries:
                        return
                await asyncio.sleep(0.05)


async def _show_faults(console: Console, running: Demo) -> None:
    """Show a race with one failing provider, and a broken stream that another one completes."""
    for scene in FAULT_SCENES:
        console.print(f"[bold]{scene.title.capitalize()}[/]")
        answer = await running.ask(scene.prompt, scene.name)
        console.print(_line(answer))
        await asyncio.sleep(0.1)  # The request is explained once its last byte is out.
        for each in await attempts_of(running, answer):
            console.print(f"    {each.upstream}: {each.role}, {each.outcome}", style="dim")
    console.print()


def _line(answer: DemoAnswer) -> Text:
    colours = {"exact": "green", "semantic": "green", "joined": "cyan", "miss": "yellow"}
    line = Text("  ")
    line.append(f"{answer.kind:9}", style=f"bold {colours[answer.kind]}")
    line.append(f"first token {answer.ttft_s * 1e3:7.1f} ms  total {answer.total_s * 1e3:7.1f} ms")
    line.append(f"  {answer.prompt}", style="italic")
    if answer.similarity is not None:
        line.append(f"  similarity {answer.similarity:.2f}", style="dim")
    if answer.is_refused:
        line.append(f"  refused: {answer.veto}", style="bold magenta")
    if answer.wrong:
        line.append("  WRONG", style="bold red")
    return line


async def _load(console: Console, running: Demo, requests: int, seed: int) -> None:
    answers: list[DemoAnswer] = []
    prompts: Iterator[TrafficPrompt] = traffic(
        seed, requests, repeat_share=0.3, reword_share=0.25, trap_share=0.1
    )

    async def work() -> None:
        for prompt in prompts:
            answers.append(await running.ask(prompt.text))  # noqa: PERF401 - shown one by one

    with Live(console=console, refresh_per_second=8, transient=not console.is_terminal) as live:
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(work()) for _ in range(CONCURRENCY)]
            while not all(worker.done() for worker in workers):
                live.update(_screen(answers, requests))
                await asyncio.sleep(0.1)
        live.update(_screen(answers, requests))
    if not console.is_terminal:
        console.print(_screen(answers, requests))


def _screen(answers: Sequence[DemoAnswer], requests: int) -> Group:
    """Return the counts so far. The report below has money and tokens from the sidecar."""
    title = (
        f"{len(answers)} of {requests} scripted requests, {CONCURRENCY} at a time: their client's "
        "view (the report below has the sidecar's)"
    )
    table = Table(title=title, title_justify="left")
    for column in ("", "requests", "share", "first token p50", "p95"):
        table.add_column(column, justify="left" if not column else "right")
    for name, is_hit in (("hits", True), ("misses", False)):
        times = [answer.ttft_s for answer in answers if answer.is_hit is is_hit]
        share = f"{len(times) / len(answers):.0%}" if answers else ""
        table.add_row(name, str(len(times)), share, _ms(times, 0.5), _ms(times, 0.95))
    kinds = Counter(answer.kind for answer in answers)
    wrong = sum(answer.wrong for answer in answers)
    refused = Counter(answer.veto for answer in answers if answer.is_refused)
    vetoes = ", ".join(f"{name} {count}" for name, count in refused.most_common()) or "none"
    return Group(
        table,
        Text(
            f"exact {kinds['exact']}, semantic {kinds['semantic']}, joined {kinds['joined']}, "
            f"upstream {kinds['miss']}"
        ),
        Text(
            f"{wrong} wrong of {kinds['exact'] + kinds['semantic']} hits",
            style="bold red" if wrong else "bold green",
        ),
        Text(f"near misses refused by a guard: {vetoes}"),
    )


def _ms(times: list[float], share: float) -> str:
    return f"{quantile(sorted(times), share) * 1e3:.1f} ms" if times else "-"


# --- live drafts ----------------------------------------------------------------------------------

TYPED = (
    "What does the report say about the harbour?",
    "Which part should be read first, and why?",
    "How many people work at the quarry?",
)
REPORT_WORDS = ("harbour", "lantern", "quarry", "meadow", "compass", "granite", "orchard", "signal")


async def _type_live(console: Console, running: Demo, options: DemoOptions) -> None:
    """Type questions about a long text, and show when their answers begin."""
    console.print(
        "[bold]Live drafts[/]: questions about a text of 2,000 tokens, typed at 240 characters a "
        "minute\n"
    )
    for number, question in enumerate(TYPED):
        plain = await running.ask(question, context=_report(f"{options.seed} plain {number}"))
        answer = await _typed(console, running, question, f"{options.seed} live {number}", options)
        console.print(f"[italic]{question}[/]")
        for name, each in (("sent whole", plain), ("live draft", answer)):
            console.print(
                f"  {name}  first token {each.ttft_s * 1e3:7.1f} ms  total "
                f"{each.total_s * 1e3:7.1f} ms after Enter"
            )


async def _typed(
    console: Console, running: Demo, question: str, seed: str, options: DemoOptions
) -> DemoAnswer:
    """Type a question and send it. ``options.speed`` also makes the typing faster."""
    context, typed = _report(seed), type_prompt(question, seed)
    url = running.url.removesuffix("/chat/completions")
    request = running.body(PLACEHOLDER, context)
    began = time.perf_counter()
    with Live(console=console, refresh_per_second=12, transient=True) as screen:
        async with LiveDraft(url, request, headers=_KEY) as draft:
            for at, text in (*typed.states, (typed.submitted_s, question)):
                await asyncio.sleep(max(0.0, began + at / options.speed - time.perf_counter()))
                draft.write(text)
                state = draft.state
                said = ", ".join(f"{name} {state[name]}" for name in ("cache", "warm", "answer"))
                screen.update(Group(Text(f"> {text}"), Text(f"  {said}", style="dim")))
            return await running.ask(question, context=context, headers=draft.call_headers)


def _report(seed: str) -> str:
    draw = random.Random(seed)  # noqa: S311 - simulated
    return f"Report {seed}. " + " ".join(draw.choices(REPORT_WORDS, k=1200))


# --- prompts of the user --------------------------------------------------------------------------


async def _converse(console: Console, running: Demo) -> None:
    console.print("Ask anything; an empty line ends. Try a question again in other words.")
    while True:
        prompt = (await asyncio.to_thread(console.input, "[bold]> [/]")).strip()
        if not prompt:
            return
        answer = await running.ask(prompt)
        console.print(answer.text)
        console.print(_line(answer))


def _install_mb() -> float:
    """Return the size of the packages in this environment."""
    folder = Path(sysconfig.get_paths()["purelib"])
    if sys.prefix == sys.base_prefix:
        folder = Path(__file__).parents[2]
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20

"""The providers and models that ``headstart bench`` measures, and the calls that it makes.

A call goes straight to the provider, in its own dialect, without cache, retry or strategy. A cold
call has a connection of its own.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import anyio
import msgspec
from msgspec.structs import replace

from headstart.attempts import Tokens
from headstart.cli.config import chat_call, failure_in, model_for
from headstart.cli.serve import add_discovered
from headstart.config.checks import checked
from headstart.config.loading import load_settings
from headstart.config.providers import aliases, model_at, model_table, preset
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.registry import BY_SETTING
from headstart.errors import ConfigError, InvalidRequest, UpstreamError
from headstart.factory.context import clock
from headstart.factory.upstreams import open_upstreams, price_of
from headstart.lab.bench import CALLS_PER_SLOT, BenchPrompt, Sample, Subject
from headstart.lab.quality import contains
from headstart.lab.simulator import ProviderProfile, Simulator, find_profile, serve
from headstart.middleware.upstreams.accounting import UpstreamStates
from headstart.policies.agreement.judge import judge_request, read_verdict
from headstart.policies.routing.failures import FailureKind, failure_of
from headstart.settings import DialectName, PriceSettings, Settings, UpstreamSettings
from headstart.types import (
    Call,
    ErrorReported,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from headstart.interfaces import Upstream
    from headstart.reply import Reply
    from headstart.types import StreamEvent

_CHARACTERS = 4
"""Characters of a token, for providers that report no token counts."""
_VERDICT_TOKENS = 64
_LEAST_DECODING_S = 0.001
"""The speed of a shorter stream is not measured."""
Content: TypeAlias = TextDelta | ReasoningDelta | RefusalDelta | ToolCallDelta


class BenchTarget(NamedTuple):
    """A subject and the upstream that serves it."""

    subject: Subject
    upstream: UpstreamSettings
    sent_model: str
    """The model's name at this upstream."""


class BenchPlan(NamedTuple):
    """The calls that each subject gets."""

    prompts: tuple[BenchPrompt, ...]
    calls: int
    """Warm calls of each subject."""
    cold: int
    concurrency: tuple[int, ...]
    """For each step, in order: how many warm calls of a subject are made at a time."""
    max_tokens: int
    """The longest answer; a prompt may ask for a shorter one."""
    timeout_s: float
    speed: float = 1.0
    """Simulated time runs faster by this factor. Samples are in simulated seconds."""
    judge: BenchTarget | None = None
    """The model that compares answers with the expected ones; None: the words alone decide."""

    def calls_at(self, concurrency: int) -> int:
        """Return the number of warm calls of a step; enough of them end while all are under way."""
        alone = len(self.concurrency) == 1
        return self.calls if alone else max(self.calls, CALLS_PER_SLOT * concurrency)

    @property
    def total(self) -> int:
        """All calls of one subject, without those to the judge."""
        return self.cold + sum(map(self.calls_at, self.concurrency))


async def measure(
    settings: Settings,
    targets: Sequence[BenchTarget],
    plan: BenchPlan,
    record: Callable[[Sample], None],
) -> None:
    """Call all targets at the same time; ``record`` gets each sample.

    Raises ConfigError for an upstream without its key.
    """
    async with AsyncExitStack() as stack:
        opened = await open_upstreams(settings, UpstreamStates(), stack)
        by_name = {each.settings.name: each.http for each in opened}
        judge = None
        if plan.judge is not None:
            judge = _Judge(by_name[plan.judge.upstream.name], plan.judge, plan.timeout_s)
        async with anyio.create_task_group() as group:
            for target in targets:
                one = _Measurement(by_name[target.upstream.name], target, plan, record, judge)
                group.start_soon(one.run, settings)


class _Judge(NamedTuple):
    """A model that tells whether an answer agrees with a right one."""

    upstream: Upstream
    target: BenchTarget
    timeout_s: float

    async def agrees(self, prompt: BenchPrompt, answer: str) -> bool | None:
        """Return the judgement; None: the model is not sure, or did not answer."""
        question = "\n".join(str(each.get("content", "")) for each in prompt.messages)
        asked = judge_request(question, " / ".join(prompt.expect), answer, self.target.sent_model)
        reading = _Reading()
        call = chat_call("bench", self.target.sent_model, asked["messages"], _VERDICT_TOKENS)
        with anyio.move_on_after(self.timeout_s), suppress(UpstreamError):
            async with await self.upstream.send(call) as reply:
                if await _read(reply, reading) is None:
                    return read_verdict(reading.text)
        return None


class _Measurement(NamedTuple):
    """The calls to one subject."""

    upstream: Upstream
    target: BenchTarget
    plan: BenchPlan
    record: Callable[[Sample], None]
    judge: _Judge | None

    async def run(self, settings: Settings) -> None:
        """Make all calls: the cold ones, then each step."""
        plan = self.plan
        for number in range(plan.cold):
            alone = msgspec.structs.replace(settings, upstream=(self.target.upstream,), route=())
            async with AsyncExitStack() as stack:
                (fresh,) = await open_upstreams(checked(alone), UpstreamStates(), stack)
                self.record((await self._ask(fresh.http, number, cold=True))[0])
        for concurrency in plan.concurrency:
            await self._step(concurrency)

    async def _step(self, concurrency: int) -> None:
        plan, began = self.plan, time.perf_counter()
        numbers = iter(range(plan.cold, plan.cold + plan.calls_at(concurrency)))

        async def work() -> None:
            for number in numbers:
                sample, answer = await self._ask(self.upstream, number, cold=False)
                ended_s = (sample.ended_s - began) * plan.speed
                sample = replace(sample, concurrency=concurrency, ended_s=ended_s)
                group.start_soon(self._judge, sample, answer)

        async with anyio.create_task_group() as group:
            for _ in range(concurrency):
                group.start_soon(work)

    async def _judge(self, sample: Sample, answer: str) -> None:
        """Record a sample. A model is asked only where the words do not show a right answer."""
        prompt = self.plan.prompts[sample.prompt]
        if prompt.expect and sample.error is None:
            right: bool | None = any(contains(answer, each) for each in prompt.expect)
            if not right and self.judge is not None:
                right = await self.judge.agrees(prompt, answer)
            sample = replace(sample, right=right)
        self.record(sample)

    async def _ask(self, upstream: Upstream, number: int, *, cold: bool) -> tuple[Sample, str]:
        """Make one call; return its sample and the text. An UpstreamError becomes its error.

        ``ended_s`` of the sample is still a time of the clock, not since the step began.
        """
        plan, target = self.plan, self.target
        place = number % len(plan.prompts)
        prompt = plan.prompts[place]
        reading, call = _Reading(), _call(target, prompt, plan)
        error: str | None = FailureKind.TIMEOUT
        with anyio.move_on_after(plan.timeout_s):
            error = await _send(upstream, call, reading)
            if error == FailureKind.IDLE_CLOSED:  # a gateway asks again, too
                error = await _send(upstream, call, reading)
        sample = reading.sample(target, prompt, plan.speed, error, cold=cold)
        return replace(sample, ended_s=reading.ended_at, prompt=place), reading.text


async def _send(upstream: Upstream, call: Call, reading: _Reading) -> str | None:
    """Make a call; return the kind of its failure, or None."""
    try:
        async with await upstream.send(call) as reply:
            return await _read(reply, reading)
    except UpstreamError as failed:
        return failure_of(failed, clock()).kind
    except InvalidRequest:  # its dialect cannot express this prompt
        return FailureKind.BAD_REQUEST


def _call(target: BenchTarget, prompt: BenchPrompt, plan: BenchPlan) -> Call:
    return chat_call(
        "bench",
        target.sent_model,
        prompt.messages,
        min(prompt.max_tokens or plan.max_tokens, plan.max_tokens),
        stream_options={"include_usage": True},
    )


async def _read(reply: Reply, reading: _Reading) -> str | None:
    """Read an answer to its end; return the kind of its failure, or None."""
    async for chunk in reply.pieces:
        for event in chunk.events:
            if isinstance(event, ErrorReported):
                return failure_in(event, reply).kind
            reading.take(event)
    if reply.status >= 400:
        return FailureKind.SERVER
    return None if reading.first_s is not None else FailureKind.EMPTY


# --- the measurements of one answer ---------------------------------------------------------------


class _Reading:
    """The measurements of one answer while it arrives."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.first_s: float | None = None
        self._last_s = 0.0
        self._pieces: list[str] = []
        self._characters = 0
        self.ended_at = 0.0
        self._thought = False
        self._tokens: Tokens | None = None

    def take(self, event: StreamEvent) -> None:
        """Measure an event."""
        if isinstance(event, UsageReported):
            self._tokens = OPENAI_CHAT.tokens(event.usage)
        elif isinstance(event, Content) and (text := _text_of(event)):
            self._last_s = time.perf_counter() - self._began
            if self.first_s is None:
                self.first_s = self._last_s
            self._characters += len(text)
            if isinstance(event, TextDelta):
                self._pieces.append(text)
            self._thought = self._thought or isinstance(event, ReasoningDelta)

    @property
    def text(self) -> str:
        """The text of the answer."""
        return "".join(self._pieces)

    def sample(
        self,
        target: BenchTarget,
        prompt: BenchPrompt,
        speed: float,
        error: str | None,
        *,
        cold: bool,
    ) -> Sample:
        """Return the measurements, in simulated seconds for simulated providers."""
        self.ended_at = time.perf_counter()
        total_s = self.ended_at - self._began
        tokens = self._tokens or self._estimate(prompt)
        by_the_hour = target.upstream.price_per_hour is not None
        price = None if by_the_hour else price_of(target.upstream, target.sent_model)
        return Sample(
            subject=target.subject,
            cold=cold,
            ttft_s=None if self.first_s is None else self.first_s * speed,
            total_s=total_s * speed,
            tokens_per_s=self._tokens_per_s(tokens, speed),
            prompt_tokens=tokens.prompt,
            cached_tokens=tokens.cached,
            completion_tokens=tokens.completion,
            estimated=self._tokens is None and error is None,
            cost_usd=None if price is None or error else price.cost_usd(tokens),
            error=error,
        )

    def _tokens_per_s(self, tokens: Tokens, speed: float) -> float | None:
        """Return the speed without the first token and without hidden reasoning tokens."""
        shown = tokens.completion if self._thought else tokens.completion - tokens.reasoning
        decoding_s = self._last_s - (self.first_s or 0.0)
        if shown < 2 or decoding_s < _LEAST_DECODING_S:
            return None
        return (shown - 1) / decoding_s / speed

    def _estimate(self, prompt: BenchPrompt) -> Tokens:
        asked = sum(len(str(message.get("content", ""))) for message in prompt.messages)
        return Tokens(prompt=asked // _CHARACTERS, completion=self._characters // _CHARACTERS)


def _text_of(event: Content) -> str:
    return event.arguments or event.name or "" if isinstance(event, ToolCallDelta) else event.text


# --- the providers --------------------------------------------------------------------------------

_DIALECTS: dict[str, DialectName] = {
    "anthropic": "anthropic",
    "google": "gemini",
    "cohere": "cohere",
}
"""The dialects of simulated providers that do not speak OpenAI's."""

_PRESETS = {"google": "gemini"}
"""The presets of providers whose profile has another name."""


class Measured(NamedTuple):
    """The targets of a run, the settings that open their upstreams, and notes for the user."""

    settings: Settings
    targets: tuple[BenchTarget, ...]
    notes: Sequence[str] = ()


Source: TypeAlias = "AbstractAsyncContextManager[Measured]"


@asynccontextmanager
async def open_configured(
    path: Path | None, names: tuple[str, ...], models: tuple[str, ...]
) -> AsyncIterator[Measured]:
    """Yield the upstreams of a file, or those whose keys are found.

    ``names`` and ``models`` choose among them. A model is asked for wherever it is known, under the
    name that it has there, or everywhere if it is known nowhere. Without a model, each upstream is
    asked for a route's model, its first alias or its cheapest. Raises ConfigError.
    """
    yield await anyio.to_thread.run_sync(_configured, path, names, models)


def _configured(path: Path | None, names: tuple[str, ...], models: tuple[str, ...]) -> Measured:
    settings, notes = _settings(path)
    known = [upstream.name for upstream in settings.upstream]
    for name in names:
        if name not in known:
            raise ConfigError(f"no upstream is named {name!r}; known: {', '.join(known)}")
    targets: list[BenchTarget] = []
    for upstream in settings.upstream:
        if names and upstream.name not in names:
            continue
        wanted: tuple[str | None, ...] = models or (model_for(upstream, settings),)
        served = [model for model in wanted if model and _serves(upstream, model, settings)]
        targets += [_target(upstream, model) for model in served]
        if not served:
            notes.append(f"{upstream.name} is not asked: it knows none of these models")
    if not targets:
        raise ConfigError("nothing to measure: no upstream knows a model; pass --model")
    return Measured(settings, tuple(targets), notes)


def _settings(path: Path | None) -> tuple[Settings, list[str]]:
    settings = load_settings(path, os.environ)
    if settings.upstream:
        return settings, []
    settings, notes = add_discovered(settings)
    if not settings.upstream:
        raise ConfigError(
            "no provider: add an [[upstream]], or set a key such as OPENAI_API_KEY; without a key, "
            "try headstart bench --simulate groq,together"
        )
    return settings, notes


def _serves(upstream: UpstreamSettings, model: str, settings: Settings) -> bool:
    knows = model in aliases(upstream)
    return knows or not any(model in aliases(each) for each in settings.upstream)


def _target(upstream: UpstreamSettings, model: str) -> BenchTarget:
    real = model_at(upstream, model)
    weights = model_table().weights(real, upstream.preset or "")
    subject = Subject(
        upstream=upstream.name,
        model=model,
        weights=real if weights is None else weights.name,
        cancels_billing=upstream.cancels_billing is True,
        region=upstream.region or "",
    )
    return BenchTarget(subject, upstream, real)


def judge_target(settings: Settings, model: str) -> BenchTarget:
    """Return the first upstream that knows a model. Raises ConfigError."""
    for upstream in settings.upstream:
        if _serves(upstream, model, settings):
            return _target(upstream, model)
    raise ConfigError(f"--judge: no upstream knows {model!r}")


@asynccontextmanager
async def open_simulated(
    names: tuple[str, ...], seed: int, speed: float
) -> AsyncIterator[Measured]:
    """Serve simulated providers on loopback, by the names of their profiles. Raises ConfigError."""
    if not names:
        raise ConfigError("--simulate: name one profile or more; headstart simulate --list")
    await anyio.to_thread.run_sync(model_table)  # it reads files, once
    async with AsyncExitStack() as stack:
        upstreams = []
        for number, profile in enumerate(names):
            simulator = Simulator(profile, seed=seed + number, speed=speed)
            url = await stack.enter_async_context(serve(simulator))
            again = names[:number].count(profile)
            name = f"{profile}-{again + 1}" if again else profile
            upstreams.append(_simulated(name, profile, url))
        settings = checked(Settings(upstream=tuple(upstreams)))
        pairs = zip(settings.upstream, names, strict=True)
        yield Measured(settings, tuple(_simulated_target(*pair) for pair in pairs))


def simulated_prices(profile: ProviderProfile) -> dict[str, PriceSettings]:
    """Return the prices of a simulated provider, for all its models."""
    price = profile.usd_per_million
    if price is None:
        return {}
    each = PriceSettings(input_per_million=price.input, output_per_million=price.output)
    return {"default": each}


def _simulated(name: str, profile: str, url: str) -> UpstreamSettings:
    dialect = _DIALECTS.get(profile, "openai")
    known = preset(_PRESETS.get(profile, profile))
    return UpstreamSettings(
        name=name,
        base_url=url,
        dialect=dialect,
        headers=dict(BY_SETTING[dialect].required_headers),
        price=simulated_prices(find_profile(profile)),
        api_key_env=(),
        cancels_billing=None if known is None else known.cancels_billing,
    )


def _simulated_target(upstream: UpstreamSettings, profile: str) -> BenchTarget:
    """Return a target with the model names of the provider that the profile simulates."""
    real = find_profile(profile).model
    weights = model_table().weights(real, profile)
    name = real if weights is None else weights.name
    subject = Subject(upstream.name, name, name, upstream.cancels_billing is True)
    return BenchTarget(subject, upstream, real)

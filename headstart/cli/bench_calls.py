"""The calls of a bench: straight to each provider, in its own dialect, as the sidecar would call.

There is no cache, no retry and no strategy in between. Cold calls have a connection of their own.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import anyio
import msgspec

from headstart.attempts import Tokens
from headstart.bench.figures import Sample, Subject
from headstart.cli.asking import chat_call
from headstart.config import checked
from headstart.errors import InvalidRequest, UpstreamError
from headstart.factory.clock import clock
from headstart.factory.upstreams import open_upstreams, price_of
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.middleware.upstreams.conditions import Conditions
from headstart.middleware.upstreams.ledger import Ledger
from headstart.policies.routing.failures import FailureKind, classify, failure_of
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
    from collections.abc import Callable, Sequence

    from headstart.bench.prompts import BenchPrompt
    from headstart.config import Settings, UpstreamSettings
    from headstart.interfaces import Upstream, UpstreamReply
    from headstart.types import StreamEvent

_CHARACTERS = 4
"""Of a token, where a provider does not report any."""
_LEAST_DECODING_S = 0.001
"""A stream that comes in one piece has no speed to measure."""
Content: TypeAlias = TextDelta | ReasoningDelta | RefusalDelta | ToolCallDelta


class Plan(NamedTuple):
    """What to ask of each subject."""

    prompts: tuple[BenchPrompt, ...]
    calls: int
    """Warm calls of each subject."""
    cold: int
    concurrency: int
    """Of each subject's warm calls."""
    max_tokens: int
    """Of an answer; a prompt may ask for less."""
    timeout_s: float
    speed: float = 1.0
    """By how much simulated time is compressed; the samples say simulated seconds."""

    @property
    def calls_each(self) -> int:
        return self.calls + self.cold


class Target(NamedTuple):
    """A subject and where to find it."""

    subject: Subject
    upstream: UpstreamSettings
    sent_model: str
    """The model's name there."""


async def measure(
    settings: Settings, targets: Sequence[Target], plan: Plan, tell: Callable[[Sample], None]
) -> None:
    """Call every target side by side; ``tell`` gets each sample as it is made.

    Raises ConfigError for an upstream without its key.
    """
    async with AsyncExitStack() as stack:
        opened = await open_upstreams(settings, Conditions(), Ledger(), stack)
        by_name = {each.settings.name: each.http for each in opened}
        async with anyio.create_task_group() as group:
            for target in targets:
                upstream = by_name[target.upstream.name]
                group.start_soon(_measure_one, upstream, target, plan, tell, settings)


async def _measure_one(
    upstream: Upstream,
    target: Target,
    plan: Plan,
    tell: Callable[[Sample], None],
    settings: Settings,
) -> None:
    for number in range(plan.cold):
        alone = msgspec.structs.replace(settings, upstream=(target.upstream,), route=())
        async with AsyncExitStack() as stack:
            (fresh,) = await open_upstreams(checked(alone), Conditions(), Ledger(), stack)
            tell(await _ask(fresh.http, target, plan, number, cold=True))
    numbers = iter(range(plan.cold, plan.calls_each))

    async def work() -> None:
        for number in numbers:
            tell(await _ask(upstream, target, plan, number, cold=False))

    async with anyio.create_task_group() as group:
        for _ in range(plan.concurrency):
            group.start_soon(work)


async def _ask(
    upstream: Upstream, target: Target, plan: Plan, number: int, *, cold: bool
) -> Sample:
    """Make one call. Raises no UpstreamError: it is what the sample says."""
    prompt = plan.prompts[number % len(plan.prompts)]
    reading = _Reading()
    error: str | None = FailureKind.TIMEOUT
    with anyio.move_on_after(plan.timeout_s):
        try:
            async with upstream.stream(_call(target, prompt, plan)) as reply:
                error = await _read(reply, reading)
        except UpstreamError as failed:
            error = failure_of(failed, clock()).kind
        except InvalidRequest:  # its dialect cannot say this prompt
            error = FailureKind.BAD_REQUEST
    return reading.sample(target, prompt, plan.speed, error, cold=cold)


def _call(target: Target, prompt: BenchPrompt, plan: Plan) -> Call:
    return chat_call(
        "bench",
        target.sent_model,
        prompt.messages,
        min(prompt.max_tokens or plan.max_tokens, plan.max_tokens),
        stream_options={"include_usage": True},
    )


async def _read(reply: UpstreamReply, reading: _Reading) -> str | None:
    """Read an answer to its end; return the kind of its failure, or None."""
    async for chunk in reply.chunks():
        for event in chunk.events:
            if isinstance(event, ErrorReported):
                return classify(
                    event.status or reply.status,
                    code=event.code,
                    message=event.message,
                    headers=reply.headers,
                    now=clock(),
                ).kind
            reading.take(event)
    if reply.status >= 400:
        return FailureKind.SERVER
    return None if reading.first_s is not None else FailureKind.EMPTY


class _Reading:
    """What is seen of one answer as it comes."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.first_s: float | None = None
        self._last_s = 0.0
        self._characters = 0
        self._thought = False
        self._tokens: Tokens | None = None

    def take(self, event: StreamEvent) -> None:
        """Note an event."""
        if isinstance(event, UsageReported):
            self._tokens = OpenAIChat().tokens(event.usage)
        elif isinstance(event, Content) and (said := _said(event)):
            self._last_s = time.perf_counter() - self._began
            if self.first_s is None:
                self.first_s = self._last_s
            self._characters += len(said)
            self._thought = self._thought or isinstance(event, ReasoningDelta)

    def sample(
        self, target: Target, prompt: BenchPrompt, speed: float, error: str | None, *, cold: bool
    ) -> Sample:
        """Return what was measured, in simulated seconds where time is compressed."""
        total_s = time.perf_counter() - self._began
        tokens = self._tokens or self._estimate(prompt)
        price = price_of(target.upstream, target.sent_model)
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
        """Leave out the first token, and what was thought without being shown."""
        shown = tokens.completion if self._thought else tokens.completion - tokens.reasoning
        decoding_s = self._last_s - (self.first_s or 0.0)
        if shown < 2 or decoding_s < _LEAST_DECODING_S:
            return None
        return (shown - 1) / decoding_s / speed

    def _estimate(self, prompt: BenchPrompt) -> Tokens:
        asked = sum(len(str(message.get("content", ""))) for message in prompt.messages)
        return Tokens(prompt=asked // _CHARACTERS, completion=self._characters // _CHARACTERS)


def _said(event: Content) -> str:
    return event.arguments or event.name or "" if isinstance(event, ToolCallDelta) else event.text

"""Scripted upstreams, for tests of the decisions of strategies."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from headstart.attempts import Attempt, AttemptLog, RoutingEstimate, ShapingEffect
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.middleware.observers import Observers
from headstart.middleware.shaping.steps import ShapedCandidate, StepContext
from headstart.middleware.shaping.steps import Step as ShapingStep
from headstart.middleware.upstreams.accounting import UpstreamStates
from headstart.middleware.upstreams.attempt_group import AttemptGroup
from headstart.middleware.upstreams.target import Target
from headstart.policies.cost import Price
from headstart.policies.routing.failures import RetryBudget
from headstart.policies.routing.schedule import ExtraBudget
from headstart.reply import Reply, Transcript
from headstart.settings import Strategy, UpstreamSettings
from headstart.types import (
    Call,
    Ended,
    Finished,
    Piece,
    ReasoningDelta,
    Started,
    StreamEvent,
    TextDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from headstart.dialects.dialect import Dialect
    from headstart.interfaces import Candidate
    from headstart.observe import Observer
    from headstart.reply import Closing
    from headstart.types import Headers

CHAT = OPENAI_CHAT
SSE: Headers = ((b"content-type", b"text/event-stream"),)
JSON: Headers = ((b"content-type", b"application/json"),)
UNIX = 1_700_000_000.0
PRICE = Price(input_per_million=1.0, output_per_million=4.0)

Step: TypeAlias = "Piece | Exception | int | float | asyncio.Event"
"""A piece to yield, an error to raise, a number of turns of the loop (int) or of seconds (float) to
wait, or an event to wait for."""


def say(*events: StreamEvent) -> Piece:
    """Return a piece whose bytes name its events, so that tests see which events were sent."""
    return Piece(repr(events).encode() + b"\n", events)


def text(words: str) -> Piece:
    return say(TextDelta(text=words))


def whole(*words: str, usage: bool = True) -> list[Step]:
    """Return the pieces of a whole streamed answer."""
    used = (UsageReported(usage={"prompt_tokens": 30, "completion_tokens": 20}),) if usage else ()
    return [
        say(Started(id="up-1", model="m", created=1), TextDelta(text="")),
        *(text(each) for each in words),
        say(Finished(reason="stop"), *used, Ended()),
    ]


def thought(words: str) -> Piece:
    return say(ReasoningDelta(text=words))


LOGS: dict[str, AttemptLog] = {}
"""The logs of the calls of a test, by the id of the call."""


class Books:
    """Reads the logs of a test's calls. A new instance clears the logs."""

    def __init__(self) -> None:
        LOGS.clear()

    def attempts(self, id: str) -> tuple[Attempt, ...]:
        return tuple([row.attempt for row in log_of(id).rows])

    def take(self, id: str) -> tuple[Attempt, ...]:
        return log_of(id).take()

    def shaped(self, id: str) -> tuple[ShapingEffect, ...]:
        return log_of(id).take_shaped()


def log_of(id: str) -> AttemptLog:
    return LOGS.setdefault(id, AttemptLog())


def make_call(body: bytes = b"", dialect: Dialect | None = None, **fields: Any) -> Call:
    """Return a call with a chat of this dialect; without a dialect, a call that is relayed."""
    kind: dict[str, Any] = {"dialect": "", "endpoint": "relay", "editable": False}
    if dialect is not None:
        request = fields.pop("request", None) or dialect.parse_request(body)
        kind = {"dialect": dialect.name, "endpoint": "chat", "request": request}
    usual = {"id": "call", "method": "POST", "path": b"/v1/chat/completions", "query_string": b""}
    return Call(**{**usual, "headers": (), "body": body, **kind, **fields})


def chat_call(id: str = "call", *, stream: bool = True, **fields: Any) -> Call:
    flag = "true" if stream else "false"
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":%s}' % flag.encode()
    return make_call(body, CHAT, id=id, prompt_tokens=10, log=log_of(id), **fields)


def reply_of(
    name: str,
    steps: Sequence[Step],
    status: int = 200,
    headers: Headers = SSE,
    closing: Closing | None = None,
) -> Reply:
    """Return the reply of a script."""
    transcript = Transcript()
    return Reply(
        name, status, headers, act(steps, transcript), closing=closing, transcript=transcript
    )


async def act(steps: Sequence[Step], transcript: Transcript | None = None) -> AsyncGenerator[Piece]:
    for step in steps:
        match step:
            case Piece():
                if transcript is not None:
                    transcript.add(step)
                yield step
            case int():
                for _ in range(step):
                    await asyncio.sleep(0)
            case float():
                await asyncio.sleep(step)
            case asyncio.Event():
                await step.wait()
            case Exception():
                raise step


@dataclass
class Actor:
    """An Upstream that answers each call with the next of ``scripts``. The last one repeats."""

    name: str
    scripts: list[Sequence[Step]]
    status: int = 200
    headers: Headers = SSE
    before: Sequence[Step] = ()
    """Steps until status and headers are there."""
    calls: list[Call] = field(default_factory=list)
    open: int = 0
    closed: list[BaseException | None] = field(default_factory=list)

    async def send(self, call: Call) -> Reply:
        steps = self.scripts[min(len(self.calls), len(self.scripts) - 1)]
        self.calls.append(call)
        self.open += 1
        try:
            async for _ in act(self.before):
                pass
        except BaseException as error:
            await self.close(error)
            raise
        return reply_of(self.name, steps, self.status, self.headers, self.close)

    async def close(self, error: BaseException | None) -> None:
        self.open -= 1
        self.closed.append(error)


@dataclass
class Targets:
    """Targets that share books and figures."""

    states: UpstreamStates = field(default_factory=UpstreamStates)
    ledger: Books = field(default_factory=Books)

    def target(self, actor: Actor, price: Price | None = PRICE, **options: Any) -> Target:
        chosen = {"cancels_billing": True, **options}
        key = {name: chosen.pop(name) for name in ("key", "context_tokens") if name in chosen}
        return Target(
            actor,
            UpstreamSettings(name=actor.name, **chosen),
            self.states,
            lambda: UNIX,
            price=lambda model: price,
            **key,
        )

    def shaped(
        self,
        actor: Actor,
        step: ShapingStep,
        *,
        observers: Sequence[Observer] = (),
        now: float = UNIX,
    ) -> ShapedCandidate:
        """Return a target behind one step."""
        context = StepContext(Observers(observers), lambda: now)
        return ShapedCandidate(self.target(actor), [step], context)

    def outcomes(self, id: str = "call") -> list[tuple[str, str]]:
        return [(each.upstream, each.outcome.value) for each in self.ledger.attempts(id)]

    def roles(self, id: str = "call") -> list[tuple[str, str]]:
        return [(each.upstream, each.role.value) for each in self.ledger.attempts(id)]


@dataclass
class Candid:
    """A Candidate with an estimate that the test chose, in front of a real one."""

    inner: Target
    expects: Callable[[Call], RoutingEstimate]

    def __post_init__(self) -> None:
        self.name = self.inner.name
        self.identity = self.inner.identity
        self.names = self.inner.names
        self.send = self.inner.send

    def estimate(self, call: Call) -> RoutingEstimate:
        return self.expects(call)


def attempt_group(
    strategy: Any, *members: Candidate, draw: float = 0.0, **options: Any
) -> AttemptGroup:
    return AttemptGroup(
        strategy,
        members,
        Strategy(strategy=strategy, **{"retries": 0, **options}),
        extra=ExtraBudget(1.0, 1.0),
        retrying=RetryBudget(),
        draw=lambda: draw,
        clock=lambda: UNIX,
    )


async def read(reply: Reply) -> str:
    """Return the text of an answer, read to its end."""
    words = [
        event.text
        async for piece in reply.pieces
        for event in piece.events
        if isinstance(event, TextDelta)
    ]
    return "".join(words)

"""Upstreams that act out a script, for what strategies decide and end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.middleware.reading import Piece
from headstart.middleware.upstreams.conditions import Conditions
from headstart.middleware.upstreams.ledger import Ledger
from headstart.middleware.upstreams.target import Target, TargetOptions
from headstart.policies.cost import Price
from headstart.types import (
    Call,
    Ended,
    Finished,
    ReasoningDelta,
    Started,
    StreamEvent,
    TextDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from headstart.attempts import Outlook
    from headstart.interfaces import UpstreamReply
    from headstart.types import Headers

CHAT = OpenAIChat()
DIALECTS = {CHAT.name: CHAT}
SSE: Headers = ((b"content-type", b"text/event-stream"),)
JSON: Headers = ((b"content-type", b"application/json"),)
UNIX = 1_700_000_000.0
PRICE = Price(input_per_million=1.0, output_per_million=4.0)

Step: TypeAlias = "Piece | Exception | int | asyncio.Event"
"""A piece; an error to raise; turns of the loop to wait; or what to wait for."""


def say(*events: StreamEvent) -> Piece:
    """Return a piece whose bytes name its events, so that tests see what passed."""
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


def chat_call(id: str = "call", *, stream: bool = True, **fields: object) -> Call:
    flag = "true" if stream else "false"
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":%s}' % flag.encode()
    return Call(
        id=id,
        method="POST",
        path=b"/v1/chat/completions",
        query_string=b"",
        headers=(),
        body=body,
        dialect=CHAT.name,
        endpoint="chat",
        request=CHAT.parse_request(body),
        prompt_tokens=10,
        **fields,  # type: ignore[arg-type]
    )


@dataclass
class Acted:
    """The reply of a script."""

    upstream: str
    steps: Sequence[Step]
    status: int = 200
    headers: Headers = SSE
    transforms: tuple[str, ...] = ()
    storable: bool = True

    def chunks(self) -> AsyncIterator[Piece]:
        return act(self.steps)


async def act(steps: Sequence[Step]) -> AsyncIterator[Piece]:
    for step in steps:
        match step:
            case Piece():
                yield step
            case int():
                for _ in range(step):
                    await asyncio.sleep(0)
            case asyncio.Event():
                await step.wait()
            case Exception():
                raise step


@dataclass
class Actor:
    """An Upstream that answers each call with the next of ``scripts``, the last for ever after."""

    name: str
    scripts: list[Sequence[Step]]
    status: int = 200
    headers: Headers = SSE
    before: Sequence[Step] = ()
    """Steps until status and headers are there."""
    calls: list[Call] = field(default_factory=list)
    open: int = 0
    closed: list[BaseException | None] = field(default_factory=list)

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[Acted]:
        steps = self.scripts[min(len(self.calls), len(self.scripts) - 1)]
        self.calls.append(call)
        self.open += 1
        error: BaseException | None = None
        try:
            async for _ in act(self.before):
                pass
            yield Acted(self.name, steps, self.status, self.headers)
        except BaseException as caught:
            error = caught
            raise
        finally:
            self.open -= 1
            self.closed.append(error)


@dataclass
class House:
    """Targets that share books and figures."""

    conditions: Conditions = field(default_factory=Conditions)
    ledger: Ledger = field(default_factory=Ledger)

    def target(self, actor: Actor, price: Price | None = PRICE, **options: object) -> Target:
        chosen = TargetOptions(actor.name, price=lambda model: price, **options)  # type: ignore[arg-type]
        return Target(actor, chosen, self.conditions, self.ledger, DIALECTS, lambda: UNIX)

    def outcomes(self, id: str = "call") -> list[tuple[str, str]]:
        return [(each.upstream, each.outcome.value) for each in self.ledger.attempts(id)]

    def roles(self, id: str = "call") -> list[tuple[str, str]]:
        return [(each.upstream, each.role.value) for each in self.ledger.attempts(id)]


@dataclass
class Candid:
    """A Candidate with an outlook of the test's choosing, in front of a real one."""

    inner: Target
    expects: Callable[[Call], Outlook]

    def __post_init__(self) -> None:
        self.name = self.inner.name
        self.identity = self.inner.identity
        self.names = self.inner.names
        self.stream = self.inner.stream

    def outlook(self, call: Call) -> Outlook:
        return self.expects(call)


async def read(reply: UpstreamReply) -> str:
    """Return the text of an answer, read to its end."""
    words = [
        event.text
        async for piece in reply.chunks()
        for event in piece.events
        if isinstance(event, TextDelta)
    ]
    return "".join(words)

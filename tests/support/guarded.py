"""A guard in front of one target, and the answers that its clients read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.middleware.reading import FrameReader
from headstart.middleware.shaping.answer_length import LimitAnswers
from headstart.policies.output.answer_limits import ENOUGH, LengthKey, Lengths
from headstart.settings import OutputSettings
from headstart.types import (
    Call,
    Ended,
    Finished,
    Piece,
    Started,
    StreamEvent,
    TextDelta,
    UsageReported,
)
from support.candidates import JSON, SSE, Actor, Step, Targets, log_of, make_call
from support.events import folded

if TYPE_CHECKING:
    from headstart.dialects.dialect import Dialect
    from headstart.observe import Observation
    from headstart.types import Completion

DIALECTS: dict[str, Dialect] = {
    each.name: each for each in (OPENAI_CHAT, ANTHROPIC_MESSAGES, GEMINI_GENERATE)
}
CHAT = DIALECTS[OPENAI_CHAT.name]
BEGINNING = "Tides follow the moon. Twice a day the sea rises along the shore and the wa"
REST = "ter falls again some six hours later."
KEY = LengthKey("route", "m")


def a_call(*, stream: bool = True, dialect: str = OPENAI_CHAT.name, **fields: Any) -> Call:
    asked = [{"role": "user", "content": "Tides?"}]
    document = {"model": "m", "messages": asked, "stream": stream, **fields}
    path = b"/v1/chat/completions"
    if dialect == GEMINI_GENERATE.name:
        document = {"contents": [{"role": "user", "parts": [{"text": "Tides?"}]}], **fields}
        path = b"/v1beta/models/m:" + (b"streamGenerateContent" if stream else b"generateContent")
    body = msgspec.json.encode(document)
    reader = DIALECTS[dialect]
    request = None
    if reader.operations is not None:
        request = reader.operations.parse(path, b"alt=sse" if stream else b"", body)
    log = log_of("call")
    return make_call(body, reader, path=path, request=request, prompt_tokens=10, log=log)


def events(*texts: str, reason: str = "stop", tokens: int | None = 40) -> list[StreamEvent]:
    used = CHAT.usage(CHAT.tokens({"prompt_tokens": 10, "completion_tokens": tokens or 0}))
    return [
        Started(id="up-1", model="m", created=7),
        *(TextDelta(text=each) for each in texts),
        Finished(reason=reason),
        *(() if tokens is None else (UsageReported(usage=used),)),
        Ended(),
    ]


def frames(said: list[StreamEvent], dialect: Dialect = CHAT) -> list[Step]:
    """Return the pieces of a stream, one for each event."""
    encoder = dialect.encoder("up-1", 7, include_usage=True)
    return [Piece(encoder.feed([event]), (event,)) for event in said]


def body(said: list[StreamEvent], dialect: Dialect = CHAT) -> list[Step]:
    """Return the pieces of an answer that is not streamed: its bytes, then its events."""
    data = dialect.render(folded(said, 7.0)).json("up-1", 7)
    return [Piece(data), Piece(b"", tuple(said))]


@dataclass
class Site:
    """A guard in front of one target."""

    scripts: list[list[Step]]
    options: dict[str, Any] = field(default_factory=dict)
    lengths: Lengths = field(default_factory=Lengths)
    headers: Any = SSE
    seen: list[Observation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.targets = Targets()
        self.actor = Actor("a", list(self.scripts), headers=self.headers)
        options = {"max_tokens": 40, **self.options}
        prefill = options.pop("prefill", {})
        step = LimitAnswers("route", self.lengths, OutputSettings(**options), prefill)
        self.guard = self.targets.shaped(self.actor, step, observers=[self], now=7.0)

    def notify(self, observation: Observation) -> None:
        self.seen.append(observation)

    async def ask(self, call: Call) -> Answer:
        async with await self.guard.send(call) as reply:
            pieces = [piece async for piece in reply.pieces]
            return Answer(call, pieces, reply.transforms, reply.storable)

    def asked(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(call.body) for call in self.actor.calls]


@dataclass
class Answer:
    call: Call
    pieces: list[Piece]
    transforms: tuple[str, ...]
    storable: bool

    @property
    def data(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    @property
    def completion(self) -> Completion:
        """The answer that the client reads, which is also the stored one."""
        dialect = DIALECTS[self.call.dialect]
        assert self.call.request is not None
        if self.call.request.stream:
            reader = FrameReader(dialect, "call")
            said = reader.feed(self.data).events + reader.end().events
        else:
            said = dialect.decode_body(200, self.data)
        read = _completion(said)
        kept = _completion([event for piece in self.pieces for event in piece.events])
        assert (read.choices[0].parts, read.choices[0].finish) == (
            kept.choices[0].parts,
            kept.choices[0].finish,
        )
        return read

    @property
    def text(self) -> str:
        return "".join(getattr(part, "text", "") for part in self.completion.choices[0].parts)


def _completion(said: Any) -> Completion:
    return folded(said if Ended() in said else (*said, Ended()), 7.0)


def site(*answers: list[StreamEvent], stream: bool = True, **options: Any) -> Site:
    pieces = [frames(each) if stream else body(each) for each in answers]
    return Site(pieces, options, headers=SSE if stream else JSON)


def learned() -> Lengths:
    lengths = Lengths()
    for _ in range(ENOUGH):
        lengths.add(KEY, 100)
    return lengths

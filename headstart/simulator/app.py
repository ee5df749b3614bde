"""The simulated provider: a raw ASGI app that speaks every dialect."""

from __future__ import annotations

import random
import time
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs

import msgspec
from msgspec.structs import replace

from headstart.simulator.chat_request import BadRequest
from headstart.simulator.endpoints import OPENAI, answer_other, chat_wire
from headstart.simulator.faults import HEADER, Fault, decode_fault
from headstart.simulator.generation import generate
from headstart.simulator.incoming import Incoming
from headstart.simulator.limit_headers import limit_headers
from headstart.simulator.oracle import Oracle
from headstart.simulator.player import Message, Outcome, Performance, Receive, Send
from headstart.simulator.prefix_cache import PrefixCache
from headstart.simulator.profiles import Profile, find_profile
from headstart.simulator.rate_limit import RateLimit
from headstart.simulator.reply import Reply
from headstart.simulator.short_replies import error_reply, json_reply, unknown_url
from headstart.simulator.stats import Stats, Told
from headstart.simulator.weather import Conditions, conditions
from headstart.simulator.wire import Answer, Pace

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Sequence

    from headstart.simulator.chat_request import ChatBody
    from headstart.simulator.weather import Spell
    from headstart.simulator.wire import Wire
    from headstart.types import Headers

TRANSPORT = "headstart.simulator.transport"
"""Scope extension that holds the connection's transport; ``server`` provides it."""

_STREAM: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class _Answered(NamedTuple):
    told: Told
    reply: Reply


class Simulator:
    """An ASGI app that answers like a provider of the given profile, in the caller's dialect.

    Delays and failures are a pure function of ``seed`` and the request's number since the start or
    the last reset; so are the words of an answer where the ``oracle`` varies them, and otherwise
    answers are one of the request. ``speed`` divides all simulated times, those of faults and
    ``weather`` included. With ``api_keys`` only these keys are served. ``fault`` strikes every
    request that does not name its own, and before the ``weather`` does. ``clock`` gives Unix
    seconds. Raises ConfigError for an unknown profile.
    """

    def __init__(
        self,
        profile: str | Profile = "instant",
        *,
        seed: int = 0,
        speed: float = 1.0,
        api_keys: Collection[str] = (),
        fault: Fault | None = None,
        weather: Sequence[Spell] = (),
        oracle: Oracle | None = None,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the default of the injected clock
    ) -> None:
        self.profile = find_profile(profile) if isinstance(profile, str) else profile
        self.oracle = oracle or Oracle()
        self.stats = Stats(clock)
        self._seed = seed
        self._speed = speed
        self._credentials = {key.encode() for key in api_keys}
        self._fault = fault
        self._weather = tuple(weather)
        self._clock = clock
        self._limit = RateLimit(
            self.profile.requests_per_minute,
            self.profile.tokens_per_minute,
            lambda: clock() * speed,
        )
        self._prefixes = PrefixCache()
        self.reset()

    def reset(self) -> None:
        """Start over: counts, draws, weather, limits, prefixes and faults that strike at times."""
        self._requests = 0
        self._started = self._clock()
        self._struck: Counter[str] = Counter()
        self._limit.reset()
        self._prefixes.clear()
        self.stats.reset()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one HTTP request; other scopes are refused."""
        if scope["type"] != "http":
            raise NotImplementedError(f"the simulator does not serve {scope['type']!r}")
        body = await _read_body(receive)
        if body is None:
            return
        path: bytes = scope["raw_path"]
        if path.startswith(b"/_sim/"):
            reply = self._control(scope["method"], path, scope["query_string"])
            await Performance(reply, receive, send, None).play()
            return
        incoming = self._admit(scope, path, body)
        told, reply = self._answer(incoming)
        transport: asyncio.Transport | None = scope.get("extensions", {}).get(TRANSPORT)
        performance = Performance(reply, receive, send, transport, speed=self._speed)
        seen = self.stats.begin(incoming, told)
        outcome = Outcome.CANCELLED
        try:
            outcome = await performance.play()
        finally:
            self.stats.finish(seen, outcome, performance)

    def _control(self, method: str, path: bytes, query: bytes) -> Reply:
        match method, path:
            case "GET", b"/_sim/stats":
                return json_reply(200, msgspec.json.encode(self.stats.snapshot()))
            case "GET", b"/_sim/requests":
                since = parse_qs(query).get(b"since", [b"0"])[0]
                if not since.isdigit():
                    return error_reply(OPENAI, 400, "since: give the number of a request")
                return json_reply(200, msgspec.json.encode(self.stats.records(int(since))))
            case "POST", b"/_sim/reset":
                self.reset()
                return json_reply(200, b"{}")
        return unknown_url(OPENAI, method, path)

    def _admit(self, scope: Message, path: bytes, body: bytes) -> Incoming:
        number = self._requests
        self._requests += 1
        mark = blake2b(b"%d/%d" % (self._seed, number), digest_size=16).hexdigest()
        return Incoming(
            id=mark,
            number=number,
            at_s=(self._clock() - self._started) * self._speed,
            method=scope["method"],
            path=path,
            query=scope["query_string"],
            headers=tuple(scope["headers"]),
            body=body,
            draw=self.profile.draw(self._seed, number),
        )

    def _answer(self, incoming: Incoming) -> _Answered:
        """Return what the books say of a call and the reply, limits and faults included."""
        wire = chat_wire(incoming)
        speaks = wire or OPENAI
        try:
            around = self._conditions(incoming)
        except msgspec.DecodeError as error:
            return _refused(speaks, 400, f"x-sim-fault: {error}")
        try:
            told, reply = self._serve(incoming, wire, around)
        except (BadRequest, msgspec.DecodeError) as error:
            told, reply = _refused(speaks, 400, str(error))
        reply = reply.with_headers(speaks.headers(incoming.id, incoming.draw.ttft_s))
        if around.fault is not None:
            reply = around.fault.strike(reply, speaks)
            told = replace(told, status=reply.status, fault=type(around.fault).__name__)
        return _Answered(told, reply)

    def _serve(self, incoming: Incoming, wire: Wire | None, around: Conditions) -> _Answered:
        """Check the key and the limits, and answer. Raises BadRequest and msgspec.DecodeError."""
        speaks = wire or OPENAI
        if self._credentials and incoming.credential not in self._credentials:
            status, message, code = speaks.refused_key
            return _refused(speaks, status, message, code=code)
        chat = None if wire is None else wire.read(incoming)
        tokens = 0 if chat is None else chat.prompt_tokens + (chat.limit or 0)
        allowance = self._limit.take(incoming.credential, tokens)
        if allowance.retry_after_s is not None:
            told, reply = _refused(
                speaks,
                429,
                "Rate limit reached for requests.",
                code="rate_limit_exceeded",
                retry_after_s=allowance.retry_after_s,
            )
        elif incoming.draw.fails:
            told, reply = _refused(speaks, 503, "That model is currently overloaded.")
        elif wire is None or chat is None:
            endpoint, reply = answer_other(incoming, self.profile.model)
            told = Told(endpoint=endpoint, status=reply.status)
        else:
            told, reply = self._chat(incoming, wire, chat, around)
        form = self.profile.limit_headers or speaks.limit_headers
        return _Answered(told, reply.with_headers(limit_headers(form, allowance, self._clock())))

    def _chat(
        self, incoming: Incoming, wire: Wire, chat: ChatBody, around: Conditions
    ) -> _Answered:
        if chat.prefill is not None and self.profile.prefill == "refused":
            raise BadRequest("This model does not support assistant message prefill.")
        generation = generate(
            chat, self.oracle, incoming.id, continues=self.profile.prefill == "continued"
        )
        if around.fault is not None:
            generation = around.fault.censor(generation)
        cached, written = self._read_prefix(incoming, wire, chat)
        answer = Answer(
            id=incoming.id,
            created=int(self._clock()),
            chat=chat,
            generation=generation,
            cached_tokens=cached,
            written_tokens=written,
        )
        draw = incoming.draw
        prefill_s = self.profile.prefill_s(chat.prompt_tokens - cached)
        pace = Pace(
            ttft_s=(draw.ttft_s + prefill_s) * around.slower,
            tokens_per_s=draw.tokens_per_s / around.slower,
        )
        told = Told(
            endpoint=wire.endpoint,
            status=200,
            model=chat.model,
            stream=bool(chat.stream),
            prompt_tokens=chat.prompt_tokens,
            cached_tokens=cached,
            answer_tokens=answer.completion_tokens,
        )
        return _Answered(told, _word(answer, wire, pace, incoming))

    def _read_prefix(self, incoming: Incoming, wire: Wire, chat: ChatBody) -> tuple[int, int]:
        if not (self.profile.prefix_cache and wire.caches_prefix(incoming.body)):
            return 0, 0
        return self._prefixes.read(incoming.credential, chat, incoming.at_s)

    def _conditions(self, incoming: Incoming) -> Conditions:
        """Return what befalls a request. Raises msgspec.DecodeError for a fault without sense."""
        named = incoming.header(HEADER)
        fault = self._fault if named is None else decode_fault(named)
        around = Conditions()
        if self._weather:
            draw = random.Random(f"weather/{self._seed}/{incoming.number}").random()
            around = conditions(self._weather, incoming.at_s, draw)
        fault = fault or around.fault
        if fault is not None and not self._strikes(fault):
            fault = None
        return Conditions(fault=fault, slower=around.slower)

    def _strikes(self, fault: Fault) -> bool:
        if fault.times is None:
            return True
        name = fault.header()
        self._struck[name] += 1
        return self._struck[name] <= fault.times


def _word(answer: Answer, wire: Wire, pace: Pace, incoming: Incoming) -> Reply:
    marks: Headers = ((b"x-sim-class", answer.generation.class_id.encode()),)
    if answer.chat.stream:
        return Reply(
            status=200,
            headers=_STREAM + marks,
            pieces=tuple(wire.events(answer, pace, incoming)),
            stream=True,
            head_at_s=pace.ttft_s,
        )
    at_s = pace.at_s(answer.completion_tokens)
    return json_reply(200, wire.whole(answer), marks, at_s=at_s)


def _refused(
    wire: Wire,
    status: int,
    message: str,
    *,
    code: str | None = None,
    retry_after_s: float | None = None,
) -> _Answered:
    reply = error_reply(wire, status, message, code=code, retry_after_s=retry_after_s)
    return _Answered(Told(endpoint=wire.endpoint, status=status), reply)


async def _read_body(receive: Receive) -> bytes | None:
    """Return the whole body, or None when the client leaves first."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message["body"])
        if not message["more_body"]:
            return b"".join(parts)

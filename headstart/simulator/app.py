"""The simulated provider: a raw ASGI app that speaks the OpenAI dialect."""

from __future__ import annotations

import time
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from headstart.simulator.chat_request import BadRequest, decode_chat
from headstart.simulator.dialect import (
    Envelope,
    render_chunks,
    render_completion,
    render_model,
    render_models,
)
from headstart.simulator.faults import HEADER, Fault, decode_fault
from headstart.simulator.generation import generate
from headstart.simulator.oracle import Oracle
from headstart.simulator.player import Message, Outcome, Performance, Receive, Send
from headstart.simulator.profiles import Draw, Profile, find_profile
from headstart.simulator.rate_limit import RateLimit
from headstart.simulator.reply import Reply
from headstart.simulator.short_replies import (
    error_reply,
    json_reply,
    too_many_requests,
    unknown_url,
)
from headstart.simulator.stats import Stats
from headstart.simulator.vectors import decode_embeddings, render_embeddings
from headstart.types import Frozen, Headers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

TRANSPORT = "headstart.simulator.transport"
"""Scope extension that holds the connection's transport; ``server`` provides it."""

_STREAM: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_MODELS_CREATED = 1_700_000_000


class _Request(Frozen):
    """One request, read whole."""

    id: str
    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes
    draw: Draw

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


class Simulator:
    """An ASGI app that answers like a provider of the given profile.

    Delays and failures are a pure function of ``seed`` and the request's number since the start or
    the last reset; so are the words of an answer where the ``oracle`` varies them, and otherwise
    answers are one of the request. ``speed`` divides all simulated times, those of
    faults included. With ``api_keys`` only these bearer tokens are served. ``fault`` strikes every
    request that does not name its own. ``clock`` gives Unix seconds. Raises ConfigError for an
    unknown profile.
    """

    def __init__(
        self,
        profile: str | Profile = "instant",
        *,
        seed: int = 0,
        speed: float = 1.0,
        api_keys: Collection[str] = (),
        fault: Fault | None = None,
        oracle: Oracle | None = None,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the default of the injected clock
    ) -> None:
        self.profile = find_profile(profile) if isinstance(profile, str) else profile
        self.oracle = oracle or Oracle()
        self.stats = Stats(clock)
        self._seed = seed
        self._speed = speed
        self._credentials = {b"Bearer " + key.encode() for key in api_keys}
        self._fault = fault
        self._clock = clock
        self._limit = RateLimit(self.profile.requests_per_minute, lambda: clock() * speed)
        self.reset()

    def reset(self) -> None:
        """Start over: counts, draws, rate limits and the faults that strike a number of times."""
        self._requests = 0
        self._struck: Counter[str] = Counter()
        self._limit.reset()
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
            reply = self._control(scope["method"], path)
            await Performance(reply, receive, send, None).play()
            return
        request = self._admit(scope, path, body)
        endpoint, reply = self._answer(request)
        transport: asyncio.Transport | None = scope.get("extensions", {}).get(TRANSPORT)
        await self._perform(
            request,
            endpoint,
            Performance(reply, receive, send, transport, speed=self._speed),
            reply.status,
        )

    def _admit(self, scope: Message, path: bytes, body: bytes) -> _Request:
        number = self._requests
        self._requests += 1
        mark = blake2b(b"%d/%d" % (self._seed, number), digest_size=16).hexdigest()
        return _Request(
            id=mark,
            method=scope["method"],
            path=path,
            query=scope["query_string"],
            headers=tuple(scope["headers"]),
            body=body,
            draw=self.profile.draw(self._seed, number),
        )

    async def _perform(
        self, request: _Request, endpoint: str, performance: Performance, status: int
    ) -> None:
        seen = self.stats.begin(request.id, endpoint, len(request.body))
        outcome = Outcome.CANCELLED
        try:
            outcome = await performance.play()
        finally:
            self.stats.finish(
                seen, outcome, status=status, sent=performance.sent, deltas=performance.deltas
            )

    def _control(self, method: str, path: bytes) -> Reply:
        match method, path:
            case "GET", b"/_sim/stats":
                return json_reply(200, msgspec.json.encode(self.stats.snapshot()))
            case "POST", b"/_sim/reset":
                self.reset()
                return json_reply(200, b"{}")
        return unknown_url(method, path)

    def _answer(self, request: _Request) -> tuple[str, Reply]:
        """Return the endpoint's name for the books and the reply, faults included."""
        endpoint, respond = self._route(request)
        allowance = self._limit.take(request.header(b"authorization") or b"")
        if self._credentials and request.header(b"authorization") not in self._credentials:
            reply = error_reply(401, "Incorrect API key provided.", code="invalid_api_key")
        elif allowance.retry_after_s is not None:
            reply = too_many_requests(allowance.retry_after_s)
        elif request.draw.fails:
            reply = error_reply(503, "That model is currently overloaded.", type="server_error")
        else:
            try:
                reply = respond(request)
            except (BadRequest, msgspec.DecodeError) as error:
                reply = error_reply(400, str(error))
        reply = msgspec.structs.replace(
            reply,
            headers=(
                *reply.headers,
                *allowance.headers,
                (b"x-request-id", b"req_" + request.id.encode()),
                (b"openai-version", b"2020-10-01"),
                (b"openai-processing-ms", b"%d" % (request.draw.ttft_s * 1000)),
            ),
        )
        return endpoint, self._strike(request, reply)

    def _route(self, request: _Request) -> tuple[str, Callable[[_Request], Reply]]:
        if request.path.startswith(b"/v1/echo"):
            return "echo", _echo
        match request.method, request.path:
            case "POST", b"/v1/chat/completions":
                return "chat", self._chat
            case "POST", b"/v1/embeddings":
                return "embeddings", lambda request: json_reply(
                    200, render_embeddings(decode_embeddings(request.body))
                )
            case "GET", b"/v1/models":
                return "models", lambda _: json_reply(
                    200, render_models([self.profile.model], _MODELS_CREATED)
                )
            case "GET", path if path == b"/v1/models/" + self.profile.model.encode():
                return "models", lambda _: json_reply(
                    200, render_model(self.profile.model, _MODELS_CREATED)
                )
        return "unknown", lambda request: unknown_url(request.method, request.path)

    def _chat(self, request: _Request) -> Reply:
        chat = decode_chat(request.body)
        generation = generate(chat, self.oracle, request.id)
        envelope = Envelope(
            id=f"chatcmpl-{request.id}", created=int(self._clock()), model=chat.model
        )
        draw = request.draw
        marks: Headers = ((b"x-sim-class", generation.class_id.encode()),)
        if chat.stream:
            pieces = render_chunks(
                envelope,
                chat,
                generation,
                ttft_s=draw.ttft_s,
                tokens_per_s=draw.tokens_per_s,
            )
            return Reply(
                status=200,
                headers=_STREAM + marks,
                pieces=tuple(pieces),
                stream=True,
                head_at_s=draw.ttft_s,
            )
        tokens = sum(said.completion_tokens for said in generation.alternatives)
        total_s = draw.ttft_s + tokens / draw.tokens_per_s
        return json_reply(200, render_completion(envelope, chat, generation), marks, at_s=total_s)

    def _strike(self, request: _Request, reply: Reply) -> Reply:
        named = request.header(HEADER)
        try:
            fault = self._fault if named is None else decode_fault(named)
        except msgspec.DecodeError as error:
            return error_reply(400, f"x-sim-fault: {error}")
        if fault is None:
            return reply
        if fault.times is not None:
            name = fault.header()
            if self._struck[name] >= fault.times:
                return reply
            self._struck[name] += 1
        return fault.strike(reply)


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


def _echo(request: _Request) -> Reply:
    """Return the request as JSON; bytes are written as Latin-1, so nothing is lost."""
    echoed = {
        "method": request.method,
        "path": request.path.decode("latin-1"),
        "query": request.query.decode("latin-1"),
        "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in request.headers],
        "body": request.body.decode("latin-1"),
    }
    return json_reply(200, msgspec.json.encode(echoed))

"""The simulated provider: an ASGI app that answers in every dialect, and its server.

It also counts the tokens of a prompt, as Anthropic, Gemini and Bedrock do before a call.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections import Counter
from contextlib import asynccontextmanager, nullcontext, suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

import msgspec
import uvicorn
from msgspec.structs import replace
from uvicorn.lifespan.on import LifespanOn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headstart.lab.simulator.anthropic_messages import AnthropicWire
from headstart.lab.simulator.batches import SimulatedBatches
from headstart.lab.simulator.bedrock import CONVERSES, BedrockWire
from headstart.lab.simulator.chat_request import CHARACTERS, BadRequest, ChatBody
from headstart.lab.simulator.cohere import CohereWire
from headstart.lab.simulator.faults import (
    HEADER,
    Fault,
    WeatherEffect,
    decode_fault,
    weather_effect,
)
from headstart.lab.simulator.gemini import GENERATES, GeminiWire
from headstart.lab.simulator.openai_chat import (
    CompletionsWire,
    OpenAIWire,
    answer_document,
    listed_model,
)
from headstart.lab.simulator.openai_responses import ResponsesWire, serve_responses
from headstart.lab.simulator.oracle import Oracle, generate
from headstart.lab.simulator.profiles import ProviderProfile, RateLimit, find_profile, limit_headers
from headstart.lab.simulator.simulated_calls import (
    AnsweredCall,
    CallFacts,
    CallOutcome,
    Message,
    Pace,
    Receive,
    ReplySender,
    ScriptedError,
    ScriptedReply,
    Send,
    SimulatedAnswer,
    SimulatedRequest,
    SimulatorStats,
    answered_call,
    error_reply,
    json_reply,
)
from headstart.sockets import BACKLOG, bind, url_of
from headstart.types import UNDECODABLE, Headers, Latest

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence

    from headstart.lab.simulator.faults import Spell
    from headstart.lab.simulator.simulated_calls import PromptBlock, Wire


OPENAI: Wire = OpenAIWire()
GEMINI: Wire = GeminiWire()
BEDROCK: Wire = BedrockWire()
CHATS: dict[bytes, Wire] = {
    b"/v1/chat/completions": OPENAI,
    b"/v1/completions": CompletionsWire(),
    b"/v1/responses": ResponsesWire(),
    b"/v1/messages": AnthropicWire(),
    b"/v2/chat": CohereWire(),
}
"""Dialects by path; the paths of Gemini and Bedrock have the model in them."""
_PATHS: tuple[tuple[re.Pattern[bytes], Wire], ...] = (
    (re.compile(rb"/v1/messages/count_tokens"), CHATS[b"/v1/messages"]),
    (re.compile(rb"/(?:v1|v1beta)/models/[^/:]+:countTokens"), GEMINI),
    (re.compile(rb"/model/[^/]+/count-tokens"), BEDROCK),
)


# --- counts of tokens -----------------------------------------------------------------------------


def counting_wire(incoming: SimulatedRequest) -> Wire | None:
    """Return the dialect of a request for a count, or None."""
    if incoming.method != "POST":
        return None
    return next((wire for path, wire in _PATHS if path.fullmatch(incoming.path)), None)


def count_tokens(incoming: SimulatedRequest) -> AnsweredCall | None:
    """Count a prompt; None for other requests. Raises BadRequest or one of ``UNDECODABLE``."""
    wire = counting_wire(incoming)
    if wire is None:
        return None
    document = msgspec.json.decode(incoming.body, type=dict[str, Any])
    path = incoming.path
    if wire is GEMINI:
        path = path.replace(b":countTokens", b":generateContent")
        document = document.get("generateContentRequest", document)
    elif wire is BEDROCK:
        path = path.replace(b"/count-tokens", b"/converse")
        document = (document.get("input") or {}).get("converse", {})
    else:
        document = {"max_tokens": 1, **document}
    chat = wire.read(replace(incoming, path=path, body=msgspec.json.encode(document)))
    return answered_call("count_tokens", chat.model, _answer(wire, chat.prompt_tokens))


def _answer(wire: Wire, tokens: int) -> dict[str, Any]:
    if wire is GEMINI:
        details = [{"modality": "TEXT", "tokenCount": tokens}]
        return {"totalTokens": tokens, "promptTokensDetails": details}
    return {"inputTokens" if wire is BEDROCK else "input_tokens": tokens}


# --- the prompt cache -----------------------------------------------------------------------------

BLOCK_TOKENS = 128
MINIMUM_TOKENS = 1024
"""A shorter prefix is never cached, as with OpenAI and Anthropic."""
LIFETIME_S = 300.0
"""Simulated seconds after its last use at which a prefix is forgotten."""
_MOST_BLOCKS = 100_000
LOOKBACK = 20
"""Number of blocks before a mark in which a cached prefix is looked for."""


class CachedPrompt(NamedTuple):
    """The tokens of a prompt that were read from the prefix cache, and those written to it."""

    read: int = 0
    written: int = 0


class PrefixCache:
    """Remembers the beginnings of recent prompts, separately for each key and model.

    ``count`` counts the tokens of a block; None: a quarter of its characters.
    """

    def __init__(self, count: Callable[[str], int] | None = None) -> None:
        self._count = count
        self._blocks: Latest[bytes, float] = Latest(_MOST_BLOCKS)
        self._marked: Latest[bytes, tuple[float, float]] = Latest(_MOST_BLOCKS)
        """For the hash of each marked prefix: its lifetime, and the time of its end."""

    def clear(self) -> None:
        """Forget every prompt."""
        self._blocks.clear()
        self._marked.clear()

    def read_marked(
        self, credential: bytes, model: str, blocks: Sequence[PromptBlock], at_s: float
    ) -> CachedPrompt:
        """Cache the marked prefixes of a prompt, as Anthropic documents it.

        The longest known prefix that ends at a mark, or at one of the 20 blocks before it, is read,
        and its lifetime starts again. From its end to the last mark the prompt is written. Prefixes
        under 1,024 tokens are not cached.
        """
        prefixes = list(self._prefixes(credential, model, blocks))
        marked = [place for place, block in enumerate(blocks) if block.lifetime_s is not None]
        read = written = 0
        for mark in reversed(marked):
            for place in range(mark, max(-1, mark - LOOKBACK), -1):
                digest, tokens = prefixes[place]
                lifetime_s, until_s = self._marked.get(digest, (0.0, -math.inf))
                if tokens > read and at_s < until_s:
                    self._marked[digest] = lifetime_s, at_s + lifetime_s
                    read = tokens
                    break
        for mark in marked:
            digest, tokens = prefixes[mark]
            if tokens >= MINIMUM_TOKENS:
                lifetime_s = blocks[mark].lifetime_s or LIFETIME_S
                self._marked[digest] = lifetime_s, at_s + lifetime_s
                written = max(written, tokens - read)
        return CachedPrompt(read, written)

    def _prefixes(
        self, credential: bytes, model: str, blocks: Sequence[PromptBlock]
    ) -> Iterator[tuple[bytes, int]]:
        """Yield a hash and the tokens of the prompt up to the end of each block."""
        running = blake2b(credential + b"\0" + model.encode(), digest_size=16)
        counted = 0
        for block in blocks:
            running.update(b"\0" + block.text.encode("utf-8", "surrogatepass"))
            counted += len(block.text) if self._count is None else self._count(block.text)
            yield running.digest(), counted // CHARACTERS if self._count is None else counted

    def read(self, credential: bytes, chat: ChatBody, at_s: float) -> CachedPrompt:
        """Remember a prompt, and read the beginning that was cached."""
        digests = list(_block_digests(credential, chat))
        known = 0
        for digest in digests:
            if at_s - self._blocks.get(digest, -LIFETIME_S) >= LIFETIME_S:
                break
            known += 1
        for digest in digests:
            self._blocks[digest] = at_s
        cached = known * BLOCK_TOKENS
        if cached < MINIMUM_TOKENS:
            cached = 0
        whole = len(digests) * BLOCK_TOKENS
        return CachedPrompt(cached, whole - cached if whole >= MINIMUM_TOKENS else 0)


def _block_digests(credential: bytes, chat: ChatBody) -> list[bytes]:
    """Return a hash for each whole block, which also depends on all blocks before it."""
    text = chat.prompt_text
    size = BLOCK_TOKENS * CHARACTERS
    running = blake2b(credential + b"\0" + chat.model.encode(), digest_size=16)
    digests = []
    for start in range(0, len(text) - size + 1, size):
        running.update(text[start : start + size].encode("utf-8", "surrogatepass"))
        digests.append(running.digest())
    return digests


# --- the app --------------------------------------------------------------------------------------


def chat_wire(incoming: SimulatedRequest) -> Wire | None:
    """Return the dialect in which a request asks for a chat, or None when it does not."""
    if incoming.method != "POST":
        return None
    if GENERATES.fullmatch(incoming.path):
        return GEMINI
    if CONVERSES.fullmatch(incoming.path):
        return BEDROCK
    return CHATS.get(incoming.path)


def answer_other(incoming: SimulatedRequest, model: str) -> AnsweredCall:
    """Return the reply to a request that is not a chat.

    Raises BadRequest or one of ``UNDECODABLE``.
    """
    if incoming.method == "POST":
        answered = count_tokens(incoming)
        answered = answered or answer_document(incoming.path, incoming.body, incoming.id)
        if answered is not None:
            return answered
    endpoint, reply = _answer_get(incoming, model)
    return AnsweredCall(CallFacts(endpoint=endpoint, status=reply.status), reply)


def _answer_get(incoming: SimulatedRequest, model: str) -> tuple[str, ScriptedReply]:
    """Return the endpoint's name for the statistics, and the reply."""
    if incoming.path.startswith(b"/v1/echo"):
        return "echo", _echo(incoming)
    match incoming.method, incoming.path:
        case "GET", b"/v1/models":
            listed = {"object": "list", "data": [listed_model(model)]}
            return "models", json_reply(200, msgspec.json.encode(listed))
        case "GET", path if path == b"/v1/models/" + model.encode():
            return "models", json_reply(200, msgspec.json.encode(listed_model(model)))
    return "unknown", _unknown_url(incoming.method, incoming.path)


def _unknown_url(method: str, path: bytes) -> ScriptedReply:
    """Return the 404 for a path or method that is not served."""
    message = f"Unknown request URL: {method} {path.decode('latin-1')}."
    return error_reply(OPENAI, ScriptedError(404, message, "unknown_url"))


def _echo(incoming: SimulatedRequest) -> ScriptedReply:
    """Return the request as JSON. Its bytes are written as Latin-1, so that none is lost."""
    echoed = {
        "method": incoming.method,
        "path": incoming.path.decode("latin-1"),
        "query": incoming.query.decode("latin-1"),
        "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in incoming.headers],
        "body": incoming.body.decode("latin-1"),
    }
    return json_reply(200, msgspec.json.encode(echoed))


BATCH_S = 60.0
"""The simulated seconds that a batch takes."""
TRANSPORT = "headstart.lab.simulator.transport"
"""The scope extension with the connection's transport, which ``serve`` provides."""
_STREAM: Headers = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_LIMITED = ScriptedError(429, "Rate limit reached for requests.", "rate_limit_exceeded")
_OVERLOADED = ScriptedError(503, "That model is currently overloaded.")


class Simulator:
    """An ASGI app that answers like a provider of the given profile, in the caller's dialect.

    Delays and failures depend on ``seed`` and on the request's number since the start or the last
    reset. The words of an answer depend on them only where the ``oracle`` varies its words;
    otherwise equal requests get equal answers. ``speed`` divides all simulated times, also those of
    faults and ``weather``. With ``api_keys`` only these keys are served. ``fault`` applies to every
    request that names no fault of its own, and takes precedence over the ``weather``. ``clock``
    gives Unix seconds. ``count`` counts the tokens of a text in prompts of Anthropic and Bedrock;
    without it, and in other dialects, a token is four characters. A batch takes ``batch_s``. Raises
    ConfigError for an unknown profile.
    """

    def __init__(
        self,
        profile: str | ProviderProfile = "instant",
        *,
        seed: int = 0,
        speed: float = 1.0,
        api_keys: Collection[str] = (),
        fault: Fault | None = None,
        weather: Sequence[Spell] = (),
        oracle: Oracle | None = None,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the default of the injected clock
        count: Callable[[str], int] | None = None,
        batch_s: float = BATCH_S,
    ) -> None:
        self.profile = find_profile(profile) if isinstance(profile, str) else profile
        self.oracle = oracle or Oracle()
        self.stats = SimulatorStats(clock)
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
        self._count = count
        self._prefixes = PrefixCache(count)
        self.batches = SimulatedBatches(self._answer_batched, clock, batch_s / speed)
        parallel = self.profile.parallel
        self._slots = nullcontext() if parallel is None else asyncio.Semaphore(parallel)
        self.reset()

    def reset(self) -> None:
        """Reset counts, random draws, weather, rate limits, prefixes and the counts of faults."""
        self._requests = 0
        self._started = self._clock()
        self._fault_uses: Counter[str] = Counter()
        self._limit.reset()
        self._prefixes.clear()
        self.batches.reset()
        self.stats.reset()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one HTTP request, or one WebSocket of Responses; other scopes are refused."""
        if scope["type"] == "websocket":
            return await serve_responses(self, scope, receive, send)
        if scope["type"] != "http":
            raise NotImplementedError(f"the simulator does not serve {scope['type']!r}")
        body = await _read_body(receive)
        if body is None:
            return None
        path: bytes = scope["raw_path"]
        if path.startswith(b"/_sim/"):
            reply = self._control(scope["method"], path, scope["query_string"])
            await ReplySender(reply, receive, send, None).run()
            return None
        incoming = self._admit(scope, path, body)
        facts, reply = self._answer(incoming)
        transport: asyncio.Transport | None = scope.get("extensions", {}).get(TRANSPORT)
        sender = ReplySender(reply, receive, send, transport, speed=self._speed)
        seen = self.stats.begin(incoming, facts)
        outcome = CallOutcome.CANCELLED
        try:
            async with self._slots if facts.answer_tokens else nullcontext():
                outcome = await sender.run()
        finally:
            self.stats.finish(seen, outcome, sender)
        return None

    def _control(self, method: str, path: bytes, query: bytes) -> ScriptedReply:
        match method, path:
            case "GET", b"/_sim/stats":
                return json_reply(200, msgspec.json.encode(self.stats.snapshot()))
            case "GET", b"/_sim/requests":
                since = parse_qs(query).get(b"since", [b"0"])[0]
                if not since.isdigit():
                    return error_reply(
                        OPENAI, ScriptedError(400, "since: give the number of a request")
                    )
                return json_reply(200, msgspec.json.encode(self.stats.ended_calls(int(since))))
            case "POST", b"/_sim/reset":
                self.reset()
                return json_reply(200, b"{}")
        return _unknown_url(method, path)

    def _admit(self, scope: Message, path: bytes, body: bytes) -> SimulatedRequest:
        number = self._requests
        self._requests += 1
        id = blake2b(b"%d/%d" % (self._seed, number), digest_size=16).hexdigest()
        return SimulatedRequest(
            id=id,
            number=number,
            at_s=(self._clock() - self._started) * self._speed,
            method=scope["method"],
            path=path,
            query=scope["query_string"],
            headers=tuple(scope["headers"]),
            body=body,
            draw=self.profile.draw(self._seed, number),
        )

    def _answer(self, incoming: SimulatedRequest) -> AnsweredCall:
        """Return a call's facts for the statistics, and its reply after limits and faults."""
        wire = chat_wire(incoming)
        dialect = wire or counting_wire(incoming) or OPENAI
        try:
            effect = self._conditions(incoming)
        except UNDECODABLE as error:
            return _refused(dialect, ScriptedError(400, f"x-sim-fault: {error}"))
        try:
            facts, reply = self._serve(incoming, wire, dialect, effect)
        except (BadRequest, *UNDECODABLE) as error:
            facts, reply = _refused(dialect, ScriptedError(400, str(error)))
        reply = reply.with_headers(dialect.headers(incoming.id, incoming.draw.ttft_s))
        if effect.fault is not None:
            reply = effect.fault.change_reply(reply, dialect)
            facts = replace(facts, status=reply.status, fault=type(effect.fault).__name__)
        return AnsweredCall(facts, reply)

    def _serve(
        self, incoming: SimulatedRequest, wire: Wire | None, dialect: Wire, effect: WeatherEffect
    ) -> AnsweredCall:
        """Check the key and the limits, and answer. Raises BadRequest or one of ``UNDECODABLE``.

        ``wire`` is None for a request that asks for no chat; ``dialect`` writes its errors.
        """
        if self._credentials and incoming.credential not in self._credentials:
            return _refused(dialect, dialect.refused_key)
        chat = None if wire is None else wire.read(incoming)
        tokens = 0 if chat is None else chat.prompt_tokens + (chat.limit or 0)
        allowance = self._limit.take(incoming.credential, tokens)
        if allowance.retry_after_s is not None:
            facts, reply = _refused(
                dialect, _LIMITED._replace(retry_after_s=allowance.retry_after_s)
            )
        elif incoming.draw.fails:
            facts, reply = _refused(dialect, _OVERLOADED)
        elif (batched := self.batches.reply(incoming)) is not None:
            facts, reply = CallFacts(endpoint="batches", status=batched.status), batched
        elif wire is None or chat is None:
            facts, reply = answer_other(incoming, self.profile.model)
        else:
            facts, reply = self._chat(incoming, wire, chat, effect)
        form = self.profile.limit_headers or dialect.limit_headers
        return AnsweredCall(
            facts, reply.with_headers(limit_headers(form, allowance, self._clock()))
        )

    def _answer_batched(
        self, incoming: SimulatedRequest, path: bytes, body: bytes
    ) -> tuple[int, bytes]:
        """Answer one request of a batch. The limits of single calls do not count it."""
        scope = {"method": "POST", "query_string": b"", "headers": incoming.headers}
        asked = self._admit(scope, path, body)
        wire = chat_wire(asked)
        try:
            if wire is None:
                reply = answer_other(asked, self.profile.model).reply
            else:
                reply = self._chat(asked, wire, wire.read(asked), WeatherEffect()).reply
        except (BadRequest, *UNDECODABLE) as error:
            reply = _refused(wire or OPENAI, ScriptedError(400, str(error))).reply
        return reply.status, b"".join(piece.data for piece in reply.pieces)

    def _chat(
        self, incoming: SimulatedRequest, wire: Wire, chat: ChatBody, effect: WeatherEffect
    ) -> AnsweredCall:
        if chat.prefill is not None and self.profile.prefill == "refused":
            raise BadRequest("This model does not support assistant message prefill.")
        generation = generate(
            chat, self.oracle, incoming.id, continues=self.profile.prefill == "continued"
        )
        if effect.fault is not None:
            generation = effect.fault.change_answer(generation)
        blocks = wire.blocks(incoming.body) if self.profile.prefix_cache else None
        prefix = self._read_prefix(incoming, chat, blocks)
        tokens = chat.prompt_tokens
        if self._count is not None and blocks is not None:
            tokens = sum(self._count(block.text) for block in blocks)
        answer = SimulatedAnswer(
            id=incoming.id,
            created=int(self._clock()),
            chat=chat,
            generation=generation,
            cached_tokens=prefix.read,
            written_tokens=prefix.written,
            counted=tokens,
            query=incoming.query,
        )
        draw = incoming.draw
        prefill_s = self.profile.prefill_s(tokens - prefix.read)
        pace = Pace(
            ttft_s=(draw.ttft_s + prefill_s) * effect.slower,
            tokens_per_s=draw.tokens_per_s / effect.slower,
        )
        facts = CallFacts(
            endpoint=wire.endpoint,
            status=200,
            model=chat.model,
            stream=bool(chat.stream),
            prompt_tokens=tokens,
            cached_tokens=prefix.read,
            answer_tokens=answer.completion_tokens,
        )
        return AnsweredCall(facts, _write_reply(answer, wire, pace))

    def _read_prefix(
        self, incoming: SimulatedRequest, chat: ChatBody, blocks: Sequence[PromptBlock] | None
    ) -> CachedPrompt:
        if not self.profile.prefix_cache:
            return CachedPrompt()
        if blocks is None:
            return self._prefixes.read(incoming.credential, chat, incoming.at_s)
        return self._prefixes.read_marked(incoming.credential, chat.model, blocks, incoming.at_s)

    def _conditions(self, incoming: SimulatedRequest) -> WeatherEffect:
        """Return a request's fault and slowness. Raises msgspec.DecodeError for a bad header."""
        named = incoming.header(HEADER)
        fault = self._fault if named is None else decode_fault(named)
        effect = WeatherEffect()
        if self._weather:
            draw = random.Random(f"weather/{self._seed}/{incoming.number}").random()
            effect = weather_effect(self._weather, incoming.at_s, draw)
        fault = fault or effect.fault
        if fault is not None and not self._applies(fault):
            fault = None
        return WeatherEffect(fault=fault, slower=effect.slower)

    def _applies(self, fault: Fault) -> bool:
        if fault.times is None:
            return True
        name = fault.header()
        self._fault_uses[name] += 1
        return self._fault_uses[name] <= fault.times


def _write_reply(answer: SimulatedAnswer, wire: Wire, pace: Pace) -> ScriptedReply:
    marks: Headers = ((b"x-sim-class", answer.generation.class_id.encode()),)
    if answer.chat.stream:
        return ScriptedReply(
            status=200,
            headers=((b"content-type", wire.stream_type), *_STREAM, *marks),
            pieces=tuple(wire.events(answer, pace)),
            stream=True,
            head_at_s=pace.ttft_s,
        )
    at_s = pace.at_s(answer.completion_tokens)
    return json_reply(200, wire.whole(answer), marks, at_s=at_s)


def _refused(wire: Wire, error: ScriptedError) -> AnsweredCall:
    facts = CallFacts(endpoint=wire.endpoint, status=error.status)
    return AnsweredCall(facts, error_reply(wire, error))


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


# --- its server -----------------------------------------------------------------------------------


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol. It gives the app its transport, so that faults can break it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, Any] = {TRANSPORT: self.transport}
        self.scope["extensions"] = extensions


def _configure(simulator: Simulator) -> uvicorn.Config:
    return uvicorn.Config(
        simulator,
        http=_Protocol,
        lifespan="off",
        log_level="critical",
        access_log=False,
        server_header=False,
        ws="websockets-sansio",
        backlog=BACKLOG,
        timeout_graceful_shutdown=1,
    )


@asynccontextmanager
async def serve(simulator: Simulator, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve in the running event loop for the length of the block; yields the base URL.

    Append ``/v1`` for an OpenAI client. Leaving the block aborts the calls in flight.
    """
    async with serve_app(_configure(simulator), host, port) as (server, url):
        try:
            yield url
        finally:
            for connection in list(server.server_state.connections):
                connection.transport.abort()


@asynccontextmanager
async def serve_app(
    config: uvicorn.Config, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[tuple[uvicorn.Server, str]]:
    """Serve an app in the running event loop; yields the server and its base URL."""
    sock = bind(host, port)
    config.load()
    server = FastStopServer(config)
    # ``serve`` does no more than startup and shutdown, apart from signal handlers and a timer.
    server.lifespan = config.lifespan_class(config)
    try:
        await server.startup([sock])
    except asyncio.CancelledError:
        if isinstance(server.lifespan, LifespanOn):
            # Else uvicorn would log the app's cancellation, which follows a Ctrl-C, as an error.
            server.lifespan.startup_failed = True
        sock.close()
        raise
    try:
        yield server, url_of(sock)
    finally:
        await server.shutdown([sock])


class FastStopServer(uvicorn.Server):
    """A uvicorn server that stops as soon as its connections have ended."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop as uvicorn does, but without its pause of 0.1 s, which each test would wait."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn has no event
                    await asyncio.sleep(0.001)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


class _Program(uvicorn.Server):
    """A server that announces when it serves; by then it handles the signals."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()


def run(simulator: Simulator, sock: socket.socket, announce: Callable[[], None]) -> None:
    """Serve, and call ``announce`` when ready. SIGINT raises KeyboardInterrupt, SIGTERM ends it."""
    _Program(_configure(simulator), announce).run([sock])

"""Lets the model read texts that were cut from its prompt, through a tool that Headstart answers.

The client never sees the tool. If the model calls it, Headstart sends the result in a further call,
and the client gets the texts of all calls as one answer. In later requests of the conversation, the
hidden calls and results are put back into their places, so that the provider's prompt cache and
signatures stay valid. ``docs/compression.md`` describes the rules.

The first part decides whether a request may get the tool, and whether that pays.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from headstart.attempts import CHARS_PER_TOKEN, AttemptRole, ShapingEffect, Tokens
from headstart.canonical_request import (
    CanonicalRequest,
    ForeignTool,
    Message,
    Quirks,
    ResultPart,
    TextPart,
    Tool,
)
from headstart.compression import result
from headstart.compression.compress import CompressOptions, compress
from headstart.compression.result import RETRIEVE, Compression, calls_in, texts
from headstart.dialects.registry import DIALECTS
from headstart.errors import HeadstartError, UpstreamProtocolError
from headstart.middleware.reading import SSEDecoder
from headstart.middleware.router import conversation
from headstart.middleware.shaping.steps import (
    answer_writer,
    ending_of,
    with_document,
)
from headstart.policies.freshness import compressed_transform
from headstart.reply import Reply, Transcript
from headstart.types import (
    CONTENT_BLOCKS,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    Latest,
    Piece,
    ReasoningDelta,
    Started,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence

    from headstart.dialects.dialect import Dialect
    from headstart.dialects.request_form import PromptMessage, RequestForm
    from headstart.middleware.shaping.steps import RestOfSteps, StepContext
    from headstart.settings import CompressionSettings
    from headstart.types import Call, ChatRequest, Completion, Memo, StreamEvent


READ_AGAIN_CHARS = 8_000
"""The most characters before the cut if the tool is added in the middle of a conversation. The
provider has to read them again; they are about 2,000 tokens."""
_OTHER_FORMS = frozenset({"functions", "context_management"})
"""Fields with which tools have another form, or with which the provider itself removes messages."""
_LEAST_REQUESTS = 20
"""The mode may pause after this many requests with cuts."""
_PAUSE = 200
"""The mode pauses for this many requests."""
_OUTPUT_PRICE = 4.0
"""The usual price of an output token, in input tokens."""


def may_recover(asked: CanonicalRequest) -> bool:
    """Tell whether a request may get our tool.

    The model must be allowed to call it, and the client's own tools must allow a further one. A
    model that has to call some tool may call ours first, because the further call asks again for
    a call.
    """
    choice = asked.tool_choice
    if choice is not None and (choice.mode not in {"auto", "required"} or choice.names):
        return False
    if asked.choices != 1 or asked.logprobs or not _OTHER_FORMS.isdisjoint(asked.extra):
        return False
    if not asked.tools:
        # Some providers take no tools beside a response format.
        return asked.wants_text
    return not any(isinstance(each, ForeignTool) or each.name == RETRIEVE for each in asked.tools)


def offers_tool(*, has_tools: bool, opening: int, before_cut: int | None) -> bool:
    """Tell whether a request gets the tool.

    Once a conversation has the tool, all its later requests must have it: tools come before all
    messages, so a change would lose the provider's prompt cache. A conversation with tools of its
    own and a long beginning has our tool from its first request on. Any other gets it with its
    first cut, if there is little text before the cut.

    ``opening`` is the number of characters up to the first message of the user. ``before_cut`` is
    the number of characters before the cut, or None if nothing was cut.
    """
    if has_tools and opening >= READ_AGAIN_CHARS:
        return True
    return before_cut is not None and before_cut <= READ_AGAIN_CHARS


@dataclass(slots=True)
class RecoveryBalance:
    """The savings of cuts on a route and model, and the cost of retrievals, in input tokens."""

    saved: float = 0.0
    spent: float = 0.0
    requests: int = 0
    paused: int = 0
    """The number of requests for which the mode stays off; 0 while it is in use."""

    def add(self, saved: float, rounds: Sequence[Tokens], cached_share: float) -> None:
        """Add a request: the tokens that were cut from it, and the calls for its retrievals."""
        self.requests += 1
        self.saved += saved
        for used in rounds:
            fresh = max(0, used.prompt - used.cached)
            self.spent += fresh + cached_share * used.cached + _OUTPUT_PRICE * used.completion
        if self.requests >= _LEAST_REQUESTS and self.spent > self.saved:
            self.paused = _PAUSE

    def is_paused(self) -> bool:
        """Tell whether a new conversation is sent without cuts, and count its request."""
        if not self.paused:
            return False
        self.paused -= 1
        if not self.paused:
            self.saved = self.spent = 0.0
            self.requests = 0
        return True


# --- the steps ------------------------------------------------------------------------------------

MODE: Literal["recoverable"] = "recoverable"
TOOL = Tool(name=RETRIEVE, description=result.DESCRIPTION, parameters=result.PARAMETERS)
KEPT_S = 3600.0
"""Seconds for which the hidden calls of an answer are kept after their last use."""
KEPT_BYTES = 32 * 2**20
"""Memory for the hidden calls of all conversations."""
_CONVERSATIONS = 10_000
"""The most conversations that keep their cuts while the mode pauses for new ones."""
_MODELS = 256
"""The most models for which something is learned. Clients name models, so there must be a bound."""
REFUSED = (400, 404, 405, 422, 501)
"""Statuses with which a provider may refuse tools."""
_ENDINGS = (Finished, UsageReported, Ended)
_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})


class HiddenTurn(NamedTuple):
    """The messages that replace an answer in later requests, in the answer's dialect."""

    messages: list[PromptMessage]
    results: list[PromptMessage]
    """Our results, which are put beside the results that the client sends."""
    size: int
    until: float


class HiddenTurns:
    """The hidden calls of answers, under digests of the conversation up to the answer.

    A digest contains the caller's credentials, so no caller gets the turns of another. The memory
    is bounded, and the least recently used turns are dropped. After that, the provider may have to
    read the prompt again, and the model may call the tool again, but no answer fails.
    """

    def __init__(self) -> None:
        self._size = 0
        self._turns: OrderedDict[bytes, HiddenTurn] = OrderedDict()
        self._lock = Lock()
        """Long prompts are prepared on a thread."""

    def keep(
        self,
        key: bytes,
        messages: list[PromptMessage],
        results: list[PromptMessage],
        now: float,
    ) -> None:
        """Keep the messages of an answer."""
        size = len(msgspec.json.encode([messages, results]))
        with self._lock:
            self._drop(key)
            self._turns[key] = HiddenTurn(messages, results, size, now + KEPT_S)
            self._size += size
            while self._turns:
                oldest, turn = next(iter(self._turns.items()))
                if self._size <= KEPT_BYTES and turn.until >= now:
                    break
                self._drop(oldest)

    def find(self, key: bytes, now: float) -> HiddenTurn | None:
        """Return the hidden turn of an answer, if there is one."""
        with self._lock:
            turn = self._turns.get(key)
            if turn is None or turn.until < now:
                return None
            self._turns[key] = turn._replace(until=now + KEPT_S)
            self._turns.move_to_end(key)
            return turn

    def _drop(self, key: bytes) -> None:
        turn = self._turns.pop(key, None)
        if turn is not None:
            self._size -= turn.size


class _ConversationDigest:
    """The digest of a conversation as the client sees it, made message by message."""

    def __init__(self, caller: bytes) -> None:
        self._digest = blake2b(caller, digest_size=16)

    def add(self, messages: Iterable[PromptMessage]) -> bytes:
        """Add the messages of OpenAI's form that make up one message; return the digest so far."""
        for each in messages:
            calls = [id for id, _ in calls_in(each)]
            self._digest.update(_line(str(each.get("role")), *_text_and_others(each), calls))
        return self._digest.digest()

    def answered(self, answer: Completion) -> bytes:
        """Return the digest after an answer that the client got."""
        parts = answer.choices[0].parts
        said = "".join(part.text for part in parts if isinstance(part, Text)).strip()
        calls = [part.id for part in parts if isinstance(part, ToolCall)]
        digest = self._digest.copy()
        digest.update(_line("assistant", said, [], calls))
        return digest.digest()


def _text_and_others(message: PromptMessage) -> tuple[str, list[Any]]:
    """Return the text of a message, and other content of a user or a tool, such as images."""
    content = message.get("content")
    said = "".join(texts({"content": content})).strip()
    if not isinstance(content, list) or message.get("role") == "assistant":
        return said, []
    return said, [each for each in content if not (isinstance(each, dict) and "text" in each)]


def _line(role: str, said: str, beside: Sequence[Any], calls: Sequence[str]) -> bytes:
    return msgspec.json.encode([role, said, beside, calls])


class PromptWithTool(NamedTuple):
    """A request with cuts and with our tool."""

    call: Call
    compression: Compression
    conversation: _ConversationDigest
    """The digest up to the last message of the client."""


@dataclass
class RecoverableCalls:
    """Sends prompts with cuts and with the tool. Each route has its own instance."""

    settings: CompressionSettings
    turns: HiddenTurns = field(default_factory=HiddenTurns)
    _balances: dict[str, RecoveryBalance] = field(default_factory=dict)
    _no_tools: set[str] = field(default_factory=set)
    """Models that refused a request with our tool."""
    _begun: Latest[str, None] = field(default_factory=lambda: Latest(_CONVERSATIONS))
    """Conversations with cuts, by their digests."""

    def may_send(self, call: Call, request: ChatRequest, context: StepContext) -> bool:
        """Tell whether a request may have cuts that the model can recover."""
        form = DIALECTS[call.dialect].form
        if not form.hides_rounds or request.model in self._no_tools or not self.settings.retrievals:
            return False
        asked = context.read(call, request)
        if asked is None or not may_recover(asked) or form.continues_answer(request.document):
            return False
        balance = self._balances.get(request.model)
        if conversation(call.caller, request) in self._begun:
            return True
        return balance is None or not balance.is_paused()

    def prepare(
        self, call: Call, request: ChatRequest, options: CompressOptions, memo: Memo
    ) -> PromptWithTool | None:
        """Return the request with hidden calls, cuts and the tool; None without a cut or the tool.

        ``options`` are the other arguments of ``compress``.
        """
        form = DIALECTS[call.dialect].form
        digest = _ConversationDigest(_caller(call))
        document = self._with_hidden(request.document, form, digest)
        prompt = None if document is None else form.read(document)
        if document is None or prompt is None:
            return None
        compression = compress(prompt.messages, mode=MODE, memo=memo, **options)
        if not offers_tool(
            has_tools=form.has_tools(document),
            opening=_opening_chars(prompt.messages),
            before_cut=_chars_before_cut(compression),
        ):
            return None
        # The changes are made one after the other, so that unchanged parts keep their bytes.
        if document is not request.document:
            call = with_document(call, document)
        if compression.spans:
            document = prompt.with_messages(compression.messages)
            call = with_document(call, document)
        tools = _written(call, tools=(TOOL,))["tools"]
        return PromptWithTool(
            with_document(call, form.with_tool(document, tools[0])), compression, digest
        )

    def _with_hidden(
        self, document: dict[str, Any], form: RequestForm, digest: _ConversationDigest
    ) -> dict[str, Any] | None:
        """Return the document with the hidden calls of earlier answers; None if it is malformed."""
        now = time.monotonic()
        messages: list[PromptMessage] = []
        results: list[PromptMessage] = []
        previous: PromptMessage = {}
        changed = False
        try:
            digest.add(form.system(document))
            for own in document[form.field]:
                key = digest.add(form.split(own, previous))
                previous = own
                turn = self.turns.find(key, now) if own.get("role") == form.assistant else None
                if turn is not None:
                    changed = True
                    messages += turn.messages
                    results = turn.results
                    continue
                messages += form.before(results, own) if results else [own]
                results = []
        except (AttributeError, KeyError, TypeError):
            return None
        return {**document, form.field: messages} if changed else document

    async def send(
        self, prompt: PromptWithTool, rest: RestOfSteps, context: StepContext, plain: Call
    ) -> Reply:
        """Send a request with cuts. Raises UpstreamError. ``plain`` is the client's own request."""
        assert plain.request is not None
        reply = await rest.send(prompt.call, compressed_transform(MODE))
        if not reply.is_plain:
            await rest.leave()
            return await rest.send(plain)
        self._begun[conversation(plain.caller, plain.request)] = None
        answer = _RecoveredAnswer(self, prompt, rest, context, plain, reply, reply.pieces)
        answer.parts.append(reply.transcript)
        reply.rewrite(answer.pieces())
        return reply

    def may_refuse_tools(self, request: ChatRequest, call: Call, status: int) -> bool:
        """Tell whether a refusal may be due to our tool: the request has no other tools."""
        own = DIALECTS[call.dialect].form.has_tools(request.document)
        return status in REFUSED and not own

    def note_refusal(self, model: str) -> None:
        """Note that a model accepts no tools. Its requests get no cuts from now on."""
        if len(self._no_tools) < _MODELS:
            self._no_tools.add(model)

    def book(self, model: str, saved: float, rounds: Sequence[Tokens]) -> None:
        """Add the savings of a request and the cost of its retrievals."""
        if model in self._balances or len(self._balances) < _MODELS:
            balance = self._balances.setdefault(model, RecoveryBalance())
            balance.add(saved, rounds, self.settings.cached_share)


@dataclass
class _RecoveredAnswer:
    """The answer to a request with cuts: one call, and one more for each round of retrievals."""

    calls: RecoverableCalls
    prompt: PromptWithTool
    rest: RestOfSteps
    context: StepContext
    plain: Call
    reply: Reply
    source: AsyncIterator[Piece]
    parts: list[Transcript] = field(default_factory=list)
    """The calls of the model, each with its answer."""
    hidden: list[PromptMessage] = field(default_factory=list)
    """Messages since the client's last one."""

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.plain.dialect]

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Yield the answer: unchanged up to the first call of our tool, and rewritten after it."""
        request = self.plain.request
        assert request is not None
        shown, late = Transcript(), None
        held: list[Piece] = []
        source = _with_ends_apart(self.source, self.dialect) if request.stream else self.source
        async for piece in source:
            if held or not request.stream or _calls_our_tool(piece.events):
                held.append(piece)
                continue
            if late is not None:
                yield late
                late = None
            if piece.events or not shown.content:
                shown.add(piece)
                yield piece
            else:
                # The end of a block is held back: if our call follows, the writer below writes it.
                late = piece
        first = self.parts[0]
        if late is not None and not held:
            yield late
        if not any(_calls_our_tool(piece.events) for piece in held):
            for piece in held:
                yield piece
            self._finish(first)
            return
        now, transforms = self.context.clock(), self.reply.transforms
        write = answer_writer(self.plain, transforms, now, first.start, shown.events)
        filtered = _VisibleEvents(shown.events)
        if news := filtered.take(event for piece in held for event in piece.events):
            yield write(news)
        async with aclosing(self._rounds(filtered)) as rounds:
            async for events in rounds:
                yield write(events)

    async def _rounds(self, visible: _VisibleEvents) -> AsyncGenerator[list[StreamEvent]]:
        """Yield the events of the further calls. Raises HeadstartError."""
        call = self.prompt.call
        for number in range(self.calls.settings.retrievals + 1):
            completion = self._completion()
            own, others = _split_calls(completion)
            if not own or others:
                break
            if number == self.calls.settings.retrievals:
                call = self._as_round(self.plain)
            else:
                call = self._next_call(call, completion, own)
            async with await self._send(call) as reply:
                self.parts.append(reply.transcript)
                visible.begin()
                async for piece in reply.pieces:
                    if news := visible.take(piece.events):
                        yield news
        ending = ending_of(self.parts, self.dialect)
        visible.transcript.feed(ending)
        self._finish(visible.transcript)
        yield ending

    async def _send(self, call: Call) -> Reply:
        """Ask the upstream of the first call, which has read the prompt; if it fails, others."""
        others = self.rest.names - {self.reply.upstream}
        if others:
            try:
                return await self.rest.send(
                    msgspec.structs.replace(call, avoid=call.avoid | others)
                )
            except HeadstartError:
                pass
        return await self.rest.send(call)

    def _as_round(self, call: Call) -> Call:
        log = self.plain.log.branch()
        return msgspec.structs.replace(call, role=AttemptRole.RETRIEVE, log=log)

    def _next_call(self, call: Call, completion: Completion, own: Sequence[ToolCall]) -> Call:
        """Return the next call: this one, with the model's tool calls and their results added."""
        assert call.request is not None
        news = [self._message(completion), *self._results(own)]
        self.hidden += news
        document = self.dialect.form.with_turns(call.request.document, news)
        return self._as_round(with_document(call, document))

    def _completion(self) -> Completion:
        part = self.parts[-1]
        if part.finished and not part.ended:
            part.feed((Ended(),))  # some dialects have no terminal event
        completion = part.completion(self.context.clock())
        if completion is None:
            raise UpstreamProtocolError("the answer to a request with cuts is not whole")
        return completion

    def _message(self, completion: Completion) -> PromptMessage:
        body = self.dialect.write_body(completion, self.dialect.new_id(), completion.created)
        return self.dialect.form.answer_message(msgspec.json.decode(body))

    def _results(self, own: Sequence[ToolCall]) -> list[PromptMessage]:
        cut = self.prompt.compression.cut_texts
        parts = [
            ResultPart(
                id=each.id,
                name=each.name,
                content=(TextPart(text=result.retrieve(cut, each.arguments)),),
            )
            for each in own
        ]
        messages = tuple(Message(role="tool", parts=(part,)) for part in parts)
        written: list[PromptMessage] = _written(self.plain, messages=messages)[
            self.dialect.form.field
        ]
        return written

    def _finish(self, visible: Transcript) -> None:
        """Keep the hidden calls for later requests, and book the rounds. Never raises."""
        try:
            self._book()
            self._keep(visible)
        except Exception as error:  # noqa: BLE001 - the answer is good nevertheless
            self.context.note_failure("compression", error)

    def _book(self) -> None:
        compression, request = self.prompt.compression, self.plain.request
        rounds = [self.dialect.tokens(part.usage or {}) for part in self.parts[1:]]
        if compression.spans and request is not None:
            saved = _tokens_saved(compression, self.calls.settings.cached_share)
            self.calls.book(request.model, saved, rounds)
        if rounds:
            spent = sum(each.prompt + each.completion for each in rounds)
            row = ShapingEffect(
                kind="retrieve", tokens_before=0, tokens_after=spent, estimated=False
            )
            self.plain.log.shaped.append(row)

    def _keep(self, visible: Transcript) -> None:
        now = self.context.clock()
        answer, last = visible.completion(now), self.parts[-1].completion(now)
        if answer is None or last is None:
            return
        own, _ = _split_calls(last)
        if self.hidden or own:
            messages = [*self.hidden, self._message(last)]
            results = self._results(own) if own else []
            self.calls.turns.keep(
                self.prompt.conversation.answered(answer), messages, results, time.monotonic()
            )


class _VisibleEvents:
    """Joins the events of all calls, without those of our tool, into the events of one answer."""

    def __init__(self, shown: Sequence[StreamEvent]) -> None:
        self.transcript = Transcript()
        """The answer that the client gets."""
        self.transcript.feed(shown)
        self._base = 0
        """The number that the client sees for the first content block of this round."""
        self._calls = 0
        """The number of calls of the client's tools so far."""
        self._first = True
        """Whether this is the first round."""
        self._numbers: dict[int, int] = {}
        """The number that the client sees for each tool call of this round; -1 for our tool."""
        for event in shown:
            if isinstance(event, ToolCallDelta):
                self._number(event)

    def begin(self) -> None:
        """Begin the next call of the model."""
        blocks = [_block_of(event) for event in self.transcript.events]
        self._base = max(blocks, default=-1) + 1
        self._numbers = {}
        self._first = False

    def take(self, events: Iterable[StreamEvent]) -> list[StreamEvent]:
        """Return the events for the client. Raises UpstreamProtocolError."""
        news = list(self._visible(events))
        self.transcript.feed(news)
        return news

    def _visible(self, events: Iterable[StreamEvent]) -> Iterator[StreamEvent]:
        for event in events:
            match event:
                case ErrorReported():
                    raise UpstreamProtocolError(event.message)
                case ToolCallDelta():
                    number = self._number(event)
                    if number >= 0:
                        yield msgspec.structs.replace(event, index=number)
                case Started() if not self._first:
                    continue
                case ExtraDelta(choice=None) if not self._first:
                    continue
                case ExtraDelta():
                    yield self._moved(event)
                case TextDelta() | ReasoningDelta() if event.block is not None:
                    yield msgspec.structs.replace(event, block=event.block + self._base)
                case _ if not isinstance(event, _ENDINGS):
                    yield event

    def _number(self, event: ToolCallDelta) -> int:
        known = self._numbers.get(event.index)
        if known is None:
            known = -1 if event.name == RETRIEVE else self._calls
            self._calls += known >= 0
            self._numbers[event.index] = known
        return known

    def _moved(self, event: ExtraDelta) -> ExtraDelta:
        details = event.fields.get(CONTENT_BLOCKS)
        if not self._base or not isinstance(details, list):
            return event
        moved = [
            {**each, "index": each["index"] + self._base} if "index" in each else each
            for each in details
        ]
        return msgspec.structs.replace(event, fields={**event.fields, CONTENT_BLOCKS: moved})


async def _with_ends_apart(pieces: AsyncIterator[Piece], dialect: Dialect) -> AsyncGenerator[Piece]:
    """Yield the pieces of a stream, with frames without events at the end of a piece split off.

    So the end of a content block never is in the piece of its last text, however the bytes arrive.
    """
    decoder = dialect.decoder()
    async for piece in pieces:
        at = end = 0
        for frame in SSEDecoder().feed(piece.data):
            at += len(frame.raw)
            end = at if decoder.feed(frame) else end
        if piece.events and 0 < end < len(piece.data):
            yield Piece(piece.data[:end], piece.events)
            yield Piece(piece.data[end:])
        else:
            yield piece


def _calls_our_tool(events: Iterable[StreamEvent]) -> bool:
    return any(type(event) is ToolCallDelta and event.name == RETRIEVE for event in events)


def _split_calls(answer: Completion) -> tuple[list[ToolCall], list[ToolCall]]:
    """Return the calls of our tool, and the calls of the client's tools."""
    calls = [part for part in answer.choices[0].parts if isinstance(part, ToolCall)]
    own = [call for call in calls if call.name == RETRIEVE]
    return own, [call for call in calls if call.name != RETRIEVE]


def _block_of(event: StreamEvent) -> int:
    if isinstance(event, TextDelta | ReasoningDelta):
        return -1 if event.block is None else event.block
    if isinstance(event, ExtraDelta) and isinstance(event.fields.get(CONTENT_BLOCKS), list):
        return max((each.get("index", -1) for each in event.fields[CONTENT_BLOCKS]), default=-1)
    return -1


def _written(call: Call, **fields: Any) -> dict[str, Any]:
    """Return a body of the call's dialect with these fields of a canonical request."""
    request = CanonicalRequest(**{"model": "m", "messages": (), **fields})
    written = DIALECTS[call.dialect].write_request(request, Quirks(default_max_tokens=1))
    body: dict[str, Any] = msgspec.json.decode(written.body)
    return body


def _caller(call: Call) -> bytes:
    held = [value for name, value in call.headers if name in _CREDENTIALS]
    return msgspec.json.encode([call.caller, call.route, [v.decode("latin-1") for v in held]])


def _opening_chars(messages: Sequence[PromptMessage]) -> int:
    total = 0
    for message in messages:
        total += sum(map(len, texts(message)))
        if message.get("role") == "user":
            break
    return total


def _chars_before_cut(compression: Compression) -> int | None:
    """Return the number of characters before the first message with a cut; None without a cut."""
    cut = [span.message for span in compression.spans if not span.lossless]
    if not cut:
        return None
    return sum(len(text) for message in compression.source[: min(cut)] for text in texts(message))


def _tokens_saved(compression: Compression, cached_share: float) -> float:
    """Return the estimated saving in tokens at full price.

    The messages before the last answer were also cut in earlier requests. Without cuts the provider
    would have most of them in its prompt cache, at a lower price.
    """
    answered = [n for n, each in enumerate(compression.source) if each.get("role") == "assistant"]
    last = max(answered, default=-1)
    saved = 0.0
    for span in compression.spans:
        removed = (span.source_end - span.source_start) - (span.end - span.start)
        saved += removed * (1.0 if span.message > last else cached_share)
    return saved / CHARS_PER_TOKEN

"""Lets the model read texts that were cut from its prompt, through a tool that Headstart answers.

The client never sees the tool. In this example it sends a long log, and asks why a job failed:

- First call: the log with a cut, ``[… all 22,450 characters: headstart_retrieve("199403d8") …]``,
  the question, and our tool ``headstart_retrieve``.
- The model says "Let me look." and calls ``headstart_retrieve`` with ``{"id": "199403d8"}``.
- Second call: the same prompt, the model's message, and the text of the log as the tool's result.
- The model says "The disk was full." The client gets one answer: "Let me look. The disk was full."

The steps of a request:

1. ``RecoverableCalls.may_send`` decides whether the request may have cuts and the tool.
2. ``RecoverableCalls.prepare`` puts the hidden calls of earlier answers back into their places, so
   that the provider's prompt cache and signatures stay valid. Then it cuts texts and adds the tool.
3. ``RecoverableCalls.send`` makes the first call. ``_RecoveredAnswer`` passes the answer on up to a
   call of our tool, and then makes a further call for each round of retrievals.
4. ``_VisibleEvents`` joins the events of all calls to the events of one answer.
5. At the end, the hidden calls are kept for later requests (``HiddenTurns``), and their cost is
   weighed against the saving (``RecoveryBalance``).

``docs/compression.md`` describes the rules.
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
from headstart.middleware.shaping.steps import answer_writer, ending_of, with_document
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


MODE: Literal["recoverable"] = "recoverable"
TOOL = Tool(name=RETRIEVE, description=result.DESCRIPTION, parameters=result.PARAMETERS)

# Which requests get the tool
READ_AGAIN_CHARS = 8_000
"""The most characters before the cut if the tool is added in the middle of a conversation. The
provider has to read them again; they are about 2,000 tokens."""
_OTHER_FORMS = frozenset({"functions", "context_management"})
"""Fields with which tools have another form, or with which the provider itself removes messages."""
REFUSED = (400, 404, 405, 422, 501)
"""Statuses with which a provider may refuse tools."""

# Whether the mode pays
_LEAST_REQUESTS = 20
"""The mode may pause after this many requests with cuts."""
_PAUSE = 200
"""The mode pauses for this many requests."""
_OUTPUT_PRICE = 4.0
"""The usual price of an output token, in input tokens."""

# Memory between requests
KEPT_S = 3600.0
"""Seconds for which the hidden calls of an answer are kept after their last use."""
KEPT_BYTES = 32 * 2**20
"""Memory for the hidden calls of all conversations."""
_CONVERSATIONS = 10_000
"""The most conversations that keep their cuts while the mode pauses for new ones."""
_MODELS = 256
"""The most models for which something is learned. Clients name models, so there must be a bound."""

_ENDINGS = (Finished, UsageReported, Ended)
"""The last events of a call. The answer of several calls has its own."""
_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})


# --- which requests get the tool, and whether that pays -------------------------------------------


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
    """The savings of cuts on a route and model, and the cost of retrievals, in input tokens.

    If the cost is higher, the mode pauses for new conversations, and then starts anew.
    """

    saved: float = 0.0
    spent: float = 0.0
    requests: int = 0
    """Requests with cuts since the last pause."""
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


# --- what is kept between requests ----------------------------------------------------------------


class HiddenTurn(NamedTuple):
    """The messages that replace an answer in later requests, in the answer's dialect."""

    messages: list[PromptMessage]
    results: list[PromptMessage]
    """Our results, which are put beside the results that the client sends."""
    size: int
    """Bytes of the messages and results in JSON."""
    until: float
    """When it is dropped if it is not used again, in seconds of ``time.monotonic``."""


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
    """Return a message in the form in which a request and our own answer are equal."""
    return msgspec.json.encode([role, said, beside, calls])


# --- the prompt -----------------------------------------------------------------------------------


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
    """Models that have refused a request with our tool."""
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
        if conversation(call.caller, request) in self._begun:
            return True  # its next request must have the same tools, or the prompt cache is lost
        balance = self._balances.get(request.model)
        return balance is None or not balance.is_paused()

    def prepare(
        self, call: Call, request: ChatRequest, options: CompressOptions, memo: Memo
    ) -> PromptWithTool | None:
        """Return the request with hidden calls, cuts and the tool; None if it gets no tool.

        ``options`` are the other arguments of ``compress``.
        """
        form = DIALECTS[call.dialect].form
        digest = _ConversationDigest(_caller(call))
        document = self._with_hidden_turns(request.document, form, digest)
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

    def _with_hidden_turns(
        self, document: dict[str, Any], form: RequestForm, digest: _ConversationDigest
    ) -> dict[str, Any] | None:
        """Return the document with the hidden calls of earlier answers; None if it is malformed.

        ``digest`` gets all messages of the client.
        """
        now = time.monotonic()
        messages: list[PromptMessage] = []
        # Our results of the turn before, which go before the client's next message.
        results: list[PromptMessage] = []
        previous: PromptMessage = {}
        changed = False
        try:
            digest.add(form.system(document))
            for message in document[form.field]:
                key = digest.add(form.split(message, previous))
                previous = message
                is_answer = message.get("role") == form.assistant
                turn = self.turns.find(key, now) if is_answer else None
                if turn is not None:
                    changed = True
                    messages += turn.messages
                    results = turn.results
                else:
                    messages += form.before(results, message) if results else [message]
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
        if not reply.is_plain:  # its pieces cannot be read, so a call of our tool would pass
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


# --- the answer -----------------------------------------------------------------------------------


@dataclass
class _RecoveredAnswer:
    """The answer to a request with cuts: one call, and one more for each round of retrievals."""

    calls: RecoverableCalls
    prompt: PromptWithTool
    rest: RestOfSteps
    context: StepContext
    plain: Call
    """The client's own request, without cuts and without the tool."""
    reply: Reply
    """The answer to the first call."""
    source: AsyncIterator[Piece]
    """The pieces of that answer."""
    parts: list[Transcript] = field(default_factory=list)
    """The answers of the model, one for each call."""
    hidden: list[PromptMessage] = field(default_factory=list)
    """The messages that the further calls have added to the prompt."""

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.plain.dialect]

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Yield the answer: unchanged up to the first call of our tool, and rewritten after it."""
        shown, held = Transcript(), list[Piece]()
        async with aclosing(self._unchanged(shown, held)) as unchanged:
            async for piece in unchanged:
                yield piece
        first = self.parts[0]
        if not any(_calls_our_tool(piece.events) for piece in held):
            for piece in held:
                yield piece
            self._finish(first)
            return
        now, transforms = self.context.clock(), self.reply.transforms
        write = answer_writer(self.plain, transforms, now, first.start, shown.events)
        visible = _VisibleEvents(shown.events)
        if news := visible.take(event for piece in held for event in piece.events):
            yield write(news)
        async with aclosing(self._rounds(visible)) as rounds:
            async for events in rounds:
                yield write(events)

    async def _unchanged(self, shown: Transcript, held: list[Piece]) -> AsyncGenerator[Piece]:
        """Yield the pieces of the first answer before a call of our tool.

        ``shown`` gets the events of these pieces, ``held`` all other pieces. An answer that is no
        stream is held as a whole.
        """
        assert self.plain.request is not None
        is_stream = self.plain.request.stream
        source = _with_ends_apart(self.source, self.dialect) if is_stream else self.source
        end_of_block: Piece | None = None
        async for piece in source:
            if held or not is_stream or _calls_our_tool(piece.events):
                held.append(piece)
                continue
            if end_of_block is not None:
                yield end_of_block
                end_of_block = None
            if piece.events or not shown.content:
                shown.add(piece)
                yield piece
            else:
                # If a call of our tool follows, ``answer_writer`` writes the end of the block.
                end_of_block = piece
        if end_of_block is not None and not held:
            yield end_of_block

    async def _rounds(self, visible: _VisibleEvents) -> AsyncGenerator[list[StreamEvent]]:
        """Make the further calls, and yield their events. Raises HeadstartError."""
        call = self.prompt.call
        most = self.calls.settings.retrievals
        for number in range(most + 1):
            completion = self._completion()
            ours, others = _split_calls(completion)
            if not ours or others:
                break  # the answer is complete, or the client has to run its own tools first
            if number < most:
                call = self._next_call(call, completion, ours)
            else:
                call = self._as_round(self.plain)  # the model must answer now, without the tool
            async with await self._send(call) as reply:
                self.parts.append(reply.transcript)
                visible.begin_round()
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
        """Return a call that is booked as one for a retrieval."""
        log = self.plain.log.branch()
        return msgspec.structs.replace(call, role=AttemptRole.RETRIEVE, log=log)

    def _next_call(self, call: Call, completion: Completion, ours: Sequence[ToolCall]) -> Call:
        """Return the next call: this one, with the model's tool calls and their results added."""
        assert call.request is not None
        news = [self._message(completion), *self._results(ours)]
        self.hidden += news
        document = self.dialect.form.with_turns(call.request.document, news)
        return self._as_round(with_document(call, document))

    def _completion(self) -> Completion:
        """Return the last answer of the model. Raises UpstreamProtocolError if it is not whole."""
        part = self.parts[-1]
        if part.finished and not part.ended:
            part.feed((Ended(),))  # some dialects have no terminal event
        completion = part.completion(self.context.clock())
        if completion is None:
            raise UpstreamProtocolError("the answer to a request with cuts is not whole")
        return completion

    def _message(self, completion: Completion) -> PromptMessage:
        """Return an answer as a message of a prompt."""
        body = self.dialect.write_body(completion, self.dialect.new_id(), completion.created)
        return self.dialect.form.answer_message(msgspec.json.decode(body))

    def _results(self, ours: Sequence[ToolCall]) -> list[PromptMessage]:
        """Return the results of calls of our tool as messages of a prompt."""
        cut = self.prompt.compression.cut_texts
        messages = []
        for each in ours:
            text = TextPart(text=result.retrieve(cut, each.arguments))
            part = ResultPart(id=each.id, name=each.name, content=(text,))
            messages.append(Message(role="tool", parts=(part,)))
        body = _written(self.plain, messages=tuple(messages))
        results: list[PromptMessage] = body[self.dialect.form.field]
        return results

    def _finish(self, visible: Transcript) -> None:
        """Keep the hidden calls for later requests, and book the rounds. Never raises."""
        try:
            self._book()
            self._keep(visible)
        except Exception as error:  # noqa: BLE001 - the answer is good nevertheless
            self.context.note_failure("compression", error)

    def _book(self) -> None:
        """Book the saving of the cuts, and the cost of the further calls."""
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
        """Keep the hidden calls of this answer, and the results that its next request must have."""
        now = self.context.clock()
        answer, last = visible.completion(now), self.parts[-1].completion(now)
        if answer is None or last is None:
            return
        ours, _ = _split_calls(last)
        if self.hidden or ours:
            messages = [*self.hidden, self._message(last)]
            results = self._results(ours) if ours else []
            key = self.prompt.conversation.answered(answer)
            self.calls.turns.keep(key, messages, results, time.monotonic())


class _VisibleEvents:
    """Joins the events of all calls, without those of our tool, into the events of one answer.

    Each call numbers its content blocks and tool calls from 0. The client sees one sequence: if it
    got the blocks 0 and 1 of the first call, block 0 of the second call is block 2.
    """

    def __init__(self, shown: Sequence[StreamEvent]) -> None:
        """``shown``: the events of the first call that the client has got already."""
        self.transcript = Transcript()
        """The answer that the client gets."""
        self.transcript.feed(shown)
        self._is_first_round = True
        self._first_block = 0
        """The number that the client sees for the first content block of this round."""
        self._visible_calls = 0
        """The number of calls of the client's tools so far."""
        self._call_numbers: dict[int, int | None] = {}
        """The number that the client sees for each tool call of this round; None for our tool."""
        for event in shown:
            if isinstance(event, ToolCallDelta):
                self._call_number(event)

    def begin_round(self) -> None:
        """Begin the next call of the model."""
        blocks = [_block_of(event) for event in self.transcript.events]
        self._first_block = max(blocks, default=-1) + 1
        self._call_numbers = {}
        self._is_first_round = False

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
                    number = self._call_number(event)
                    if number is not None:
                        yield msgspec.structs.replace(event, index=number)
                case Started() | ExtraDelta(choice=None) if not self._is_first_round:
                    continue  # the client has the head of the answer
                case ExtraDelta():
                    yield self._renumbered(event)
                case TextDelta() | ReasoningDelta() if event.block is not None:
                    yield msgspec.structs.replace(event, block=event.block + self._first_block)
                case _ if not isinstance(event, _ENDINGS):
                    yield event

    def _call_number(self, event: ToolCallDelta) -> int | None:
        """Return the number that the client sees for a tool call; None for our tool."""
        if event.index not in self._call_numbers:  # only the first event of a call has its name
            if event.name == RETRIEVE:
                self._call_numbers[event.index] = None
            else:
                self._call_numbers[event.index] = self._visible_calls
                self._visible_calls += 1
        return self._call_numbers[event.index]

    def _renumbered(self, event: ExtraDelta) -> ExtraDelta:
        """Return an event with the client's numbers of the content blocks that it describes."""
        details = event.fields.get(CONTENT_BLOCKS)
        if not self._first_block or not isinstance(details, list):
            return event
        renumbered = [
            {**each, "index": each["index"] + self._first_block} if "index" in each else each
            for each in details
        ]
        return msgspec.structs.replace(event, fields={**event.fields, CONTENT_BLOCKS: renumbered})


# --- small functions ------------------------------------------------------------------------------


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
    """Return the highest number of a content block in an event; -1: it has none."""
    if isinstance(event, TextDelta | ReasoningDelta):
        return -1 if event.block is None else event.block
    if isinstance(event, ExtraDelta) and isinstance(event.fields.get(CONTENT_BLOCKS), list):
        return max((each.get("index", -1) for each in event.fields[CONTENT_BLOCKS]), default=-1)
    return -1


def _written(call: Call, **fields: Any) -> dict[str, Any]:
    """Return a body of the call's dialect with these fields of a canonical request.

    The model's name and the limit of tokens in it have no meaning.
    """
    request = CanonicalRequest(**{"model": "m", "messages": (), **fields})
    written = DIALECTS[call.dialect].write_request(request, Quirks(default_max_tokens=1))
    body: dict[str, Any] = msgspec.json.decode(written.body)
    return body


def _caller(call: Call) -> bytes:
    """Return what tells this caller from others: its name, its route and its credentials."""
    held = [value for name, value in call.headers if name in _CREDENTIALS]
    return msgspec.json.encode([call.caller, call.route, [v.decode("latin-1") for v in held]])


def _opening_chars(messages: Sequence[PromptMessage]) -> int:
    """Return the number of characters up to the end of the first message of the user."""
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

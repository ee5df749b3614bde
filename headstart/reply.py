"""The ``Reply``: one upstream's answer on its way from the provider to the client.

The ``Transcript`` of a reply collects the answer while it passes: its events, the facts that
decisions need, and in the end the Completion. The code that makes the pieces of the answer adds
them to the transcript.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias

import msgspec

from headstart.attempts import CHARS_PER_TOKEN, Tokens
from headstart.errors import UpstreamError
from headstart.types import (
    Choice,
    Completion,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    LogprobsDelta,
    Piece,
    Reasoning,
    ReasoningDelta,
    Refusal,
    RefusalDelta,
    Started,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from headstart.types import Headers, Origin, Part, StreamEvent

    Closing: TypeAlias = Callable[[BaseException | None], Awaitable[None]]
    CountTokens: TypeAlias = Callable[[dict[str, Any]], Tokens]


# --- the transcript -------------------------------------------------------------------------------

MOST_CONTINUED_BYTES = 2 * 2**20
"""The longest answer, in bytes, that the answer of another upstream may continue."""
NUMBER_FIELD = b'"sequence_number"'
"""Events with this field are numbered, and no two of them may have the same number. Comments, and
the events of most dialects, do not have it."""
FILTER_REASON = "content_filter"
LIMIT_REASON = "length"
_TextEvent: TypeAlias = TextDelta | ReasoningDelta | RefusalDelta

_UNNAMED, _UNFINISHED = Started(), Finished(reason="")
_LEAST, _MOST = -(2**63), 2**63 - 1
_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True, eq=False, repr=False)
class Transcript:
    """Collects the part of an answer that has passed. It never raises.

    An answer is whole when its terminal event came (``ended``). Some providers close the body
    without a terminal event. Such an answer is whole for the client too. It may be stored only if
    every choice that began has a finish reason (``finished``) and the body itself ended as
    announced. The code that knows this then feeds an ``Ended``.

    A transcript may be ahead of the pieces that a reader has received, because the beginning of an
    answer is held until its first content.
    """

    room: int = 8 * 2**20
    """The bytes of content that may still be kept."""
    size: int = 0
    """The bytes of all pieces, as the client gets them."""
    numbered: bytes = b""
    """The last piece for the client, before an error, that has the number of an event."""
    characters: int = 0
    """The length of all text, reasoning, refusals and arguments of tool calls."""
    content: bool = False
    """Whether text, reasoning, a tool call or a refusal came. A role or an empty text is none."""
    extras: bool = False
    """Whether content of another kind came, such as sound."""
    content_started: bool = False
    """Whether content came that a reader would see: ``content``, ``extras``, or the signature of a
    reasoning, even without text."""
    ended: bool = False
    """Whether the terminal event came."""
    filtered: bool = False
    """Whether the provider's filter ended a choice."""
    cut: bool = False
    """Whether a limit on the answer's length ended a choice."""
    finish: Finished | None = None
    """The last finish reason."""
    error: ErrorReported | None = None
    """The first error that the answer reported."""
    usage: dict[str, Any] | None = None
    overflowed: bool = False
    """Whether the content exceeded ``room``. Then no content is kept."""
    failure: Exception | None = None
    """The error of reading an event. An answer with an error cannot be stored."""
    _entries: list[Any] = field(default_factory=list)
    """The events in their order. A run of events that only add text to the same part is one item: a
    list of the first event and the texts of the further events."""
    _run: list[Any] = field(default_factory=list)
    """The last run. It ends when another part begins."""
    _first: TextDelta | None = None
    """The first event of the last run, if the run is text."""
    _usage_at: int | None = None
    _counted: tuple[dict[str, Any], CountTokens, Tokens] | None = None
    """The usage that was counted last, the function that counted it, and the result."""
    _begun: set[int] = field(default_factory=set)
    _finished: set[int] = field(default_factory=set)

    def feed(self, events: Sequence[StreamEvent]) -> None:
        """Add events, in order."""
        self.add(Piece(b"", tuple(events)))

    def add(self, piece: Piece) -> None:
        """Add a piece that goes to the client, and its events, in order."""
        self.size += len(piece.data)
        adding = self._adding
        for event in piece.events:
            first = self._first
            if (
                first is not None
                and type(event) is TextDelta
                and first.choice == event.choice
                and first.block == event.block
            ):
                text = event.text
                self._run.append(text)
                self.characters += len(text)
                self.room -= len(text) if text.isascii() else len(text.encode())
                if self.room < 0:
                    self._overflow()
                continue
            # No ``match``: a class pattern that does not match takes four times as long.
            add = adding.get(type(event))
            try:
                if add is not None:
                    add(self, event)
                elif not self.overflowed:
                    self._entries.append(event)
            except Exception as error:  # noqa: BLE001 - the answer passes all the same
                self.failure = error
        if NUMBER_FIELD in piece.data and self.error is None:
            self.numbered = piece.data

    @property
    def is_empty(self) -> bool:
        """No byte went to the client, so another answer can take the place of this one."""
        return self.size == 0

    @property
    def is_continuable(self) -> bool:
        """The transcript has everything that the client has, and this is not too long."""
        return self.size <= MOST_CONTINUED_BYTES and not self.overflowed

    @property
    def finished(self) -> bool:
        """At least one choice began, and each choice that began has a finish reason."""
        return bool(self._finished) and self._begun <= self._finished

    @property
    def whole(self) -> bool:
        """The answer has ended, or each choice has a finish reason."""
        return self.ended or self.finished

    def has_finished(self, choices: int) -> bool:
        """Tell whether exactly this number of choices have their finish reasons."""
        return len(self._begun) >= choices and self.finished

    @property
    def events(self) -> list[StreamEvent]:
        """All events so far without errors. Consecutive texts are one event."""
        return [_joined(entry) if type(entry) is list else entry for entry in self._entries]

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join([event.text for event in self.events if type(event) is TextDelta])

    def tokens(self, count: CountTokens) -> Tokens | None:
        """Return the tokens that the answer reported; None: it has reported none so far, or zeros.

        ``count`` reads a usage object of the answer's dialect.
        """
        usage, counted = self.usage, self._counted
        if usage is None:
            return None
        if counted is None or counted[0] is not usage or counted[1] is not count:
            counted = self._counted = (usage, count, count(usage))
        tokens = counted[2]
        return tokens if tokens.prompt or tokens.completion else None

    @property
    def estimated_tokens(self) -> int:
        """The estimated length of the answer in tokens."""
        return round(self.characters / CHARS_PER_TOKEN)

    @property
    def start(self) -> Started:
        """The id, the model and the other values of the answer's ``Started`` events, merged."""
        start = _UNNAMED
        for entry in self._entries:
            if type(entry) is Started:
                start = _merge_starts(start, entry)
        return start

    def completion(self, now: float) -> Completion | None:
        """Return the answer; None if it is not whole, reported an error, or was too long to keep.

        ``now`` (Unix seconds) replaces a creation time that the upstream did not give.
        """
        unfinished = not (self.ended and self.finished)
        if unfinished or self.error or self.overflowed or self.failure:
            return None
        try:
            return _fold(self.events, self.usage, now)
        except Exception as error:  # noqa: BLE001 - the answer passes all the same
            self.failure = error
            return None

    def _add_error(self, event: ErrorReported) -> None:
        self.error = self.error or event

    def _add_finish(self, event: Finished) -> None:
        self._begun.add(event.choice)
        self._finished.add(event.choice)
        self.finish = event
        self.filtered |= FILTER_REASON in (event.reason, event.native)
        self.cut |= event.reason == LIMIT_REASON
        if not self.overflowed:
            self._entries.append(event)

    def _add_end(self, event: Ended) -> None:
        if not self.ended and not self.overflowed:
            self._entries.append(event)
        self.ended = True

    def _add_logprobs(self, event: LogprobsDelta) -> None:
        self._begun.add(event.choice)
        self._account("", event.value)
        if not self.overflowed:
            self._entries.append(event)

    def _add_extra(self, event: ExtraDelta) -> None:
        self._account("", event.fields)
        if event.choice is not None:
            self._begun.add(event.choice)
            if not event.beside and any(event.fields.values()):
                self.extras = self.content_started = True
        if not self.overflowed:
            self._entries.append(event)

    def _add_text(self, event: _TextEvent) -> None:
        self._begun.add(event.choice)
        text = event.text
        if text:
            self.content = self.content_started = True
            self.characters += len(text)
            self._account(text)
        if type(event) is ReasoningDelta and event.signature:
            self.content_started = True
        if self._run and _goes_on(self._run[0], event):
            self._run.append(text)
        else:
            self._begin_run(event)
        # From now on, texts that continue the run need no check.
        if text and self._run and type(event) is TextDelta:
            self._first = self._run[0]

    def _add_call(self, event: ToolCallDelta) -> None:
        self._begun.add(event.choice)
        self.content = self.content_started = True
        self.characters += len(event.arguments)
        self._account(event.arguments, event.extra)
        if self._run and _goes_on(self._run[0], event):
            self._run.append(event.arguments)
        else:
            self._begin_run(event)

    def _add_usage(self, event: UsageReported) -> None:
        """Keep only the last report, because some providers send one with every chunk."""
        self.usage = event.usage
        if self._usage_at is not None:
            self._entries[self._usage_at] = event
        elif not self.overflowed:
            self._usage_at = len(self._entries)
            self._entries.append(event)

    def _begin_run(self, event: StreamEvent) -> None:
        """Keep an event that begins a part; the texts that follow are added to it."""
        if not self.overflowed:
            self._run = [event]
            self._first = None
            self._entries.append(self._run)

    def _account(self, text: str, fields: dict[str, Any] | None = None) -> None:
        """Account for content that is about to be kept."""
        self.room -= len(text) if text.isascii() else len(text.encode())
        if fields:
            self.room -= len(msgspec.json.encode(fields))
        if self.room < 0:
            self._overflow()

    def _overflow(self) -> None:
        self.overflowed = True
        self._run, self._entries = [], []
        self._first = self._usage_at = None

    _adding: ClassVar[dict[type, Callable[[Transcript, Any], None]]] = {
        TextDelta: _add_text,
        ReasoningDelta: _add_text,
        RefusalDelta: _add_text,
        ToolCallDelta: _add_call,
        UsageReported: _add_usage,
        ErrorReported: _add_error,
        Finished: _add_finish,
        Ended: _add_end,
        LogprobsDelta: _add_logprobs,
        ExtraDelta: _add_extra,
    }
    """Functions for the events that change more than the list of events, by their types."""


# --- the completion of a transcript ---------------------------------------------------------------


def _goes_on(first: StreamEvent, event: StreamEvent) -> bool:
    """Tell whether an event only adds text to the last run of events."""
    if type(first) is TextDelta and type(event) is TextDelta:
        return (first.choice, first.block) == (event.choice, event.block)
    if type(first) is ReasoningDelta and type(event) is ReasoningDelta:
        if first.signature is not None or event.signature is not None:
            return False
        return (first.choice, first.block, first.field) == (event.choice, event.block, event.field)
    if type(first) is ToolCallDelta and type(event) is ToolCallDelta:
        adds = event.id is None and event.name is None and not event.extra
        return adds and (first.choice, first.index) == (event.choice, event.index)
    return False


def _joined(run: list[Any]) -> StreamEvent:
    first: StreamEvent = run[0]
    further: list[str] = run[1:]
    if not further:
        return first
    if type(first) is ToolCallDelta:
        return msgspec.structs.replace(first, arguments="".join([first.arguments, *further]))
    if type(first) is TextDelta or type(first) is ReasoningDelta:
        return msgspec.structs.replace(first, text="".join([first.text, *further]))
    return first


def _fold(events: Sequence[Any], usage: dict[str, Any] | None, now: float) -> Completion:
    """Return the answer from these events, in which each choice has finished."""
    start = _UNNAMED
    extra: dict[str, Any] = {}
    choices: dict[int, list[Any]] = {}
    usage_beside = False
    for event in events:
        kind = type(event)
        if kind is Started:
            start = _merge_starts(start, event)
        elif kind is ExtraDelta and event.choice is None:
            _fill_in(extra, event.fields)
        elif kind is UsageReported:
            usage_beside = event.beside
        elif kind is not Ended:
            choices.setdefault(event.choice or 0, []).append(event)
    return Completion(
        model=start.model or "",
        choices=tuple([_fold_choice(index, choices[index]) for index in sorted(choices)]),
        created=start.created or int(now),
        usage=usage,
        fingerprint=start.fingerprint,
        tier=start.tier,
        extra=extra,
        usage_beside=usage_beside,
    )


def _fold_choice(index: int, events: Sequence[Any]) -> Choice:
    """Return the choice from these events. Its parts keep the order of their arrival."""
    parts: list[list[Any]] = []
    calls: dict[int, list[Any]] = {}
    extra: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    logprobs: dict[str, Any] | None = None
    finish = _UNFINISHED
    for event in events:
        kind = type(event)
        if kind is Finished:
            finish = event
        elif kind is ToolCallDelta:
            if event.index not in calls:
                calls[event.index] = []
                parts.append(calls[event.index])
            calls[event.index].append(event)
        elif kind is LogprobsDelta:
            logprobs = logprobs or {}
            _merge_fields(logprobs, event.value)
        elif kind is ExtraDelta:
            _merge_fields(beside if event.beside else extra, event.fields)
        elif event.text or (kind is ReasoningDelta and event.signature):
            _add_to_part(parts, event)
    return Choice(
        index=index,
        parts=tuple([_part(part) for part in parts]),
        finish=finish.reason,
        native_finish=finish.native,
        logprobs=logprobs,
        extra=extra,
        beside=beside,
    )


def _add_to_part(parts: list[list[Any]], event: _TextEvent) -> None:
    """Add a text to the part that it continues, or begin a part.

    Some providers send reasoning under two names at once, so those parts may interleave.
    """
    if not parts:
        parts.append([event])
        return
    reasoning = type(event) is ReasoningDelta
    place = _place(event)
    for part in reversed(parts):
        if _place(part[0]) == place:
            part.append(event)
            return
        if not (reasoning and type(part[0]) is ReasoningDelta):
            break
    parts.append([event])


def _place(event: StreamEvent) -> tuple[object, ...]:
    """Return a value that all events of one part have in common."""
    if type(event) is ReasoningDelta:
        return ReasoningDelta, event.field, event.block
    if type(event) is TextDelta:
        return TextDelta, event.block
    return (type(event),)


def _part(events: Sequence[Any]) -> Part:
    """Return the part from these events, which are of one kind."""
    first = events[0]
    if type(first) is ToolCallDelta:
        return whole_call(events)
    text = "".join([event.text for event in events])
    if type(first) is ReasoningDelta:
        signatures = [event.signature for event in events if event.signature]
        signature = signatures[-1] if signatures else None
        return Reasoning(text=text, field=first.field, signature=signature)
    return Refusal(text=text) if type(first) is RefusalDelta else Text(text=text)


def whole_call(events: Sequence[ToolCallDelta]) -> ToolCall:
    """Return the tool call whose pieces these events are."""
    extra: dict[str, Any] = {}
    for event in events:
        extra.update(event.extra)
    return ToolCall(
        id=next((event.id for event in events if event.id), ""),
        name=next((event.name for event in events if event.name), ""),
        arguments="".join([event.arguments for event in events]),
        kind=events[0].kind,
        extra=extra,
    )


def storable(completion: Completion) -> Completion | None:
    """Return the answer with all its integers within 64 bits; None if no store could keep it.

    A provider may send any number, in its usage or in unknown fields.
    """
    try:
        _encode(completion)
    except OverflowError:
        return msgspec.convert(_bounded(msgspec.to_builtins(completion)), Completion)
    except RecursionError:
        return None
    return completion


def _bounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _bounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(each) for each in value]
    if type(value) is int:
        return max(_LEAST, min(value, _MOST))
    return value


def _merge_starts(known: Started, news: Started) -> Started:
    """Merge two starts. Later chunks may add names; values that they leave out stay."""
    if known is _UNNAMED:
        return news
    return Started(
        id=known.id or news.id,
        model=news.model or known.model,
        created=known.created or news.created,
        fingerprint=news.fingerprint or known.fingerprint,
        tier=news.tier or known.tier,
    )


def _fill_in(into: dict[str, Any], fields: dict[str, Any]) -> None:
    """Add a chunk's own fields: the latest value counts, and objects are merged."""
    for name, value in fields.items():
        known = into.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            into[name] = {**known, **value}
        else:
            into[name] = value


_FRAGMENTS = frozenset({"text", "summary"})
"""The text fields of an indexed item that arrive in pieces. Other text fields come once, or again
with the same text."""


def _merge_fields(into: dict[str, Any], fields: dict[str, Any]) -> None:
    """Add a delta's fields: lists grow, objects are merged, null is ignored, other values replace.

    ``into`` owns its lists, so growing them is linear.
    """
    for name, value in fields.items():
        known = into.get(name)
        if value is None:
            into.setdefault(name, None)
        elif isinstance(value, list):
            if not isinstance(known, list):
                known = into[name] = []
            for item in value:
                _merge_item(known, item)
        elif isinstance(value, dict) and isinstance(known, dict):
            into[name] = {**known, **value}
        else:
            into[name] = value


def _merge_item(known: list[Any], item: Any) -> None:
    """Append an item, unless it continues an existing one.

    Fragments carry the index of their item, as in OpenRouter's ``reasoning_details``.
    """
    if not isinstance(item, dict) or "index" not in item:
        if not _adds_to_thought(known, item):
            known.append(item)
        return
    identity = (item["index"], item.get("type"))
    for whole in known:
        if isinstance(whole, dict) and (whole.get("index"), whole.get("type")) == identity:
            break
    else:
        known.append(
            {n: [*value] if isinstance(value, list) else value for n, value in item.items()}
        )
        return
    for name, value in item.items():
        held = whole.get(name)
        if name in _FRAGMENTS and isinstance(value, str) and isinstance(held, str):
            whole[name] = held + value
        elif isinstance(value, list) and isinstance(held, list):
            held.extend(value)
        elif value is not None:
            whole[name] = value


def _adds_to_thought(known: list[Any], item: Any) -> bool:
    """Add a text to the thought before it: Mistral streams a thought in many parts of its content.

    Return whether this was done.
    """
    match known[-1:], item:
        case (
            [{"type": "thinking", "thinking": [{"text": str(held), **rest}]}],
            {"type": "thinking", "thinking": [{"text": str(text)}]},
        ):
            known[-1] = {**known[-1], **item, "thinking": [{**rest, "text": held + text}]}
            return True
    return False


# --- the reply ------------------------------------------------------------------------------------

HELD_BYTES = 8 * 2**20
"""The most bytes of an answer that are held back until its first content comes."""


class FollowedAnswer(Protocol):
    """The answer to a call that another process makes."""

    @property
    def origin(self) -> Origin | None:
        """The cost of the call, known once its answer is whole."""


class Reply:
    """An upstream's answer: status and headers at once, its body as it arrives.

    A reply has one owner: first the code that sent the call, then the code that gets the reply from
    it. The owner may read ``pieces`` once, change the other attributes, and put a filter around the
    pieces (``filter``). It has to close the reply (``aclose``, or ``async with``). The
    owner may be another task than the one that sent the call: when ``send`` returns, no task group,
    timeout or cancel scope of the call is open.

    ``transforms`` names the edits of the request and of the answer; it is empty if both pass byte
    for byte. ``storable`` is False for an answer that must not be served to others, such as a
    rescued one. Both are final only when the body was read to its end.
    """

    __slots__ = (
        "_generators", "closing", "followed", "headers", "is_plain", "is_stream", "not_stored",
        "pieces", "status", "storable", "transcript", "transforms", "upstream", "usual_speed",
    )  # fmt: skip

    def __init__(
        self,
        upstream: str,
        status: int,
        headers: Headers,
        pieces: AsyncGenerator[Piece],
        *,
        transforms: tuple[str, ...] = (),
        closing: Closing | None = None,
        transcript: Transcript | None = None,
        form: tuple[bool, bool] | None = None,
    ) -> None:
        """``form`` is what ``form_of_body`` would return."""
        self.upstream = upstream
        self.status = status
        self.headers = headers
        self.pieces: AsyncIterator[Piece] = pieces
        """The body, once. Reading raises UpstreamError when the answer breaks off."""
        self.transforms = transforms
        self.storable = True
        self.not_stored: str | None = None
        """The reason why the answer cannot be stored, if status or headers say so."""
        self.followed: FollowedAnswer | None = None
        """Set if another process made the call. That process stores the answer and books it."""
        self.usual_speed: Callable[[], float | None] | None = None
        """Returns the usual tokens per second of this upstream with this model, if known."""
        self.is_stream, self.is_plain = form or form_of_body(headers)
        """Whether the body is a stream of events, and whether it is not compressed: then it can be
        read as it is."""
        self.transcript = Transcript() if transcript is None else transcript
        """Collects all pieces. The code that makes a piece adds it before it yields it."""
        self.closing = closing
        """Closes the connection and books the call. An owner may wrap it."""
        self._generators: tuple[AsyncGenerator[Piece], ...] = (pieces,)

    def filter(self, pieces: AsyncGenerator[Piece]) -> None:
        """Replace the pieces by a generator that reads them. Closing the reply closes it first."""
        self.pieces = pieces
        self._generators = (pieces, *self._generators)

    def rewrite(self, pieces: AsyncGenerator[Piece]) -> None:
        """Replace the pieces by others, of another length, with a transcript of their own."""
        self.headers = tuple(pair for pair in self.headers if pair[0] != b"content-length")
        self.transcript = transcript = Transcript()
        self.filter(pieces)
        self.filter(_recorded(pieces, transcript))

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call a function after the reply was closed, even if closing failed."""
        closing = self.closing

        async def close(error: BaseException | None) -> None:
            try:
                if closing is not None:
                    await closing(error)
            finally:
                callback()

        self.closing = close

    async def aclose(self, error: BaseException | None = None) -> None:
        """Close the connection if the answer was not read to its end. A second call does nothing.

        ``error`` is the reason why the reader stops.
        """
        closing, self.closing = self.closing, None
        generators, self._generators = self._generators, ()
        try:
            for pieces in generators:
                await pieces.aclose()
        finally:
            if closing is not None:
                await closing(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.aclose(error)


async def _recorded(pieces: AsyncGenerator[Piece], transcript: Transcript) -> AsyncGenerator[Piece]:
    async for piece in pieces:
        transcript.add(piece)
        yield piece


async def read_whole(reply: Reply) -> Reply:
    """Read an answer to its end, or as much as may be kept; then it can be read again.

    Raises the errors of reading its pieces.
    """
    held, _ = await read_up_to(reply, HELD_BYTES)
    reply.pieces = replayed(held, reply.pieces)
    return reply


async def read_up_to(reply: Reply, most_bytes: int) -> tuple[list[Piece], bool]:
    """Read an answer until it ends or has more bytes; return its pieces, and whether it ended.

    Raises the errors of reading its pieces.
    """
    held: list[Piece] = []
    size = 0
    async for piece in reply.pieces:
        held.append(piece)
        size += len(piece.data)
        if size > most_bytes:
            return held, False
    return held, True


async def replayed(
    held: Sequence[Piece], rest: AsyncIterator[Piece] | None = None
) -> AsyncGenerator[Piece]:
    """Yield the kept pieces, and the rest of an answer that was too long to be kept."""
    for piece in held:
        yield piece
    if rest is not None:
        async for piece in rest:
            yield piece


class AnswerWithheld(UpstreamError):
    """The provider gave a whole answer without content: its filter refused, or it was empty.

    Another upstream may give content. ``reply`` is the empty answer, which the caller gets if no
    other upstream does.
    """

    code = "upstream_withheld"

    def __init__(self, message: str, *, kind: str, reply: Reply, finished: bool = False) -> None:
        super().__init__(message, kind=kind)
        self.reply = reply
        self.finished = finished
        """Whether the answer has a finish reason, as after a stop sequence of the caller."""


EVENT_STREAMS = (b"text/event-stream", b"application/vnd.amazon.eventstream")
"""The beginnings of the media types of streams of events."""


def form_of_body(headers: Sequence[tuple[bytes, bytes]]) -> tuple[bool, bool]:
    """Return two properties of an answer.

    They are whether it is a stream of events, in any framing that a dialect knows, and whether it
    can be read as it is, because it is not compressed.
    """
    found = dict(headers[::-1])  # of several headers with a name the first one counts
    kind, encoding = found.get(b"content-type"), found.get(b"content-encoding")
    return (
        kind is not None and kind.lower().startswith(EVENT_STREAMS),
        encoding is None or encoding.strip().lower() == b"identity",
    )

"""Answers that the client gets in another form: in its own dialect, as one body, or in sentences.

**Translation.** For example, Anthropic's ``content_block_delta`` with the text "Hi" becomes the
event ``TextDelta(text="Hi")``, and then a chunk of Chat Completions:

1. ``EventStream`` (``reading.py``) reads the events of the provider's dialect.
2. ``_EventTranslator`` gives them the client's names: of the answer, its tools and their calls.
3. A reader writes the client's bytes: ``Reencoder`` a stream from a stream, ``StreamAssembler`` one
   body from a stream, ``DocumentTranslator`` a body or a stream from one body.

The names and facts that the answer needs from its request are in ``AnswerNames``.

**Answers in whole sentences** (``SentencePace``, for ``x-headstart-pace: sentences``) are for
clients that speak them. Each event of the stream then has one or more whole sentences. A sentence
is sent as soon as it is known to be complete. Only the text of events is rewritten: the text of
several events goes into the last of them. Other events pass unchanged, after the text before them.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.attempts import CHARS_PER_TOKEN, Tokens
from headstart.dialects.dialect import (
    Dialect,
    EventEncoder,
    Frame,
    UpstreamDialect,
    is_json,
    translate_events,
)
from headstart.dialects.openai_requests import CUSTOM_INPUT
from headstart.dialects.registry import TEXT_FIELDS
from headstart.errors import UpstreamProtocolError
from headstart.middleware.reading import (
    MAX_DOCUMENT_BYTES,
    DocumentCollector,
    EventReader,
    EventStream,
    SSEDecoder,
    error_in,
)
from headstart.policies.output.sentences import SentenceCutter
from headstart.reply import NUMBER_FIELD, Transcript, form_of_body
from headstart.types import (
    NAMESPACE,
    UNDECODABLE,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    Piece,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    UsageReported,
    json_or_none,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headstart.types import Completion, Message, Send, StreamEvent


_CONTENT = (TextDelta, ReasoningDelta, RefusalDelta, ToolCallDelta)


@dataclass(frozen=True, slots=True)
class AnswerNames:
    """The names and facts for an answer that we write. ``request_id`` appears in its errors."""

    request_id: str
    answer_id: str
    """An id in the client's dialect, if the provider's own id is in another one or missing."""
    created: int
    """Unix seconds."""
    functions: bool = False
    """Tool calls take OpenAI's deprecated form, which has room for one call."""
    prompt_tokens: int = 0
    """The estimated tokens of the prompt, for an answer whose provider reports none."""
    shows_reasoning: bool = True
    """The client asked to see it."""
    choices: int = 1
    """The number of choices in the request."""
    model: str = ""
    """The model of the request, for an answer that names no model."""
    echo: dict[str, Any] | None = None
    """Fields with which the answer repeats its request."""
    asked: dict[str, Any] | None = None
    """The document of the request, which holds the ids of earlier tool calls."""
    tool_names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The namespace (or "") and the own name of tools, by the names that the provider got."""
    call_kinds: Mapping[str, str] = field(default_factory=dict)
    """The kinds of calls that are no function calls, by the same names."""

    def call_id(self, prefix: str, choice: int, number: int) -> str:
        """Return an id for a tool call that no other call of any answer has."""
        place = f"{self.answer_id} {choice} {number}"
        return prefix + sha256(place.encode()).hexdigest()[:24]


class _CallPlace(NamedTuple):
    """What tells a tool call from the others of an answer."""

    choice: int
    number: int


class _EventTranslator:
    """Turns the events of one answer into the client's canonical form, with the client's names."""

    def __init__(self, source: UpstreamDialect, target: Dialect, naming: AnswerNames) -> None:
        self._source = source
        self._target = target
        self._naming = naming
        self._called: dict[int, int] = {}
        """The number of the first tool call, by choice."""
        self._keeps_id: dict[_CallPlace, bool] = {}
        """Whether a tool call keeps the id that the provider gave it, which must tell it from all
        others."""
        self._ids: set[str] | None = None
        """The ids of earlier calls, with those of the request. None: there was no call yet."""
        self._model = naming.model
        self._inputs: dict[_CallPlace, _FreeText | _WholeCall] = {}
        """The inputs of calls that are no function calls."""

    def read(self, events: tuple[StreamEvent, ...]) -> tuple[StreamEvent, ...]:
        if self._source.name == self._target.name:
            return events
        translated = translate_events(
            events,
            self._source,
            self._target,
            shows_reasoning=self._naming.shows_reasoning,
        )
        own: list[StreamEvent] = []
        for event in translated:
            if self._inputs:
                own += filter(None, self._ended_before(event))
            if (found := self._own(event)) is not None:
                own.append(found)
        return tuple(own)

    def _ended_before(self, event: StreamEvent) -> Iterator[ToolCallDelta | None]:
        """Yield what is left of the calls that end before an event.

        The end of a choice ends its calls. Other content of a choice ends those that are whole.
        """
        match event:
            case Finished():
                ended = [place for place in self._inputs if place.choice == event.choice]
                yield from [self._inputs.pop(place).end() for place in ended]
            case Ended():  # some servers end a stream without a finish reason
                yield from [call.end() for call in self._inputs.values()]
                self._inputs.clear()
            case _ if isinstance(event, _CONTENT):
                own = event.index if isinstance(event, ToolCallDelta) else None
                for place, call in self._inputs.items():
                    if place.choice == event.choice and place.number != own and call.is_whole():
                        yield call.end()

    def _own(self, event: StreamEvent) -> StreamEvent | None:
        """Return an event with the client's names; None if the client gets nothing for it now."""
        naming = self._naming
        match event:
            case Started():
                self._model = event.model or self._model
                return msgspec.structs.replace(
                    event,
                    id=naming.answer_id,
                    created=naming.created,
                    model=self._model or None,
                )
            case ToolCallDelta():
                return self._call(event)
            case Finished(reason="stop" | "tool_calls") if event.choice in self._called:
                # Some providers say "stop". Agents go on only if the reason says that tools were
                # called.
                reason = "function_call" if naming.functions else "tool_calls"
                return msgspec.structs.replace(event, reason=reason)
        return event

    def _call(self, event: ToolCallDelta) -> ToolCallDelta | None:
        """Return a piece of a tool call in the form that the client asked for, or None.

        None: the piece is held until more of it comes, or the client takes only one call.
        """
        first = self._called.setdefault(event.choice, event.index)
        kind = self._naming.call_kinds.get(event.name or "") if event.kind == "function" else None
        event = self._renamed(event)
        if self._naming.functions:
            legacy = msgspec.structs.replace(event, id=None, kind="function_call")
            return legacy if event.index == first else None
        event, place = self._identified(event), _CallPlace(event.choice, event.index)
        if kind is not None and place not in self._inputs:
            self._inputs[place] = _FreeText() if kind == "custom" else _WholeCall(event, kind)
        input = self._inputs.get(place)
        return event if input is None else input.take(event)

    def _renamed(self, event: ToolCallDelta) -> ToolCallDelta:
        """Return a piece of a tool call with the names that the request gave to the tool."""
        named = self._naming.tool_names.get(event.name or "")
        if named is None:
            return event
        extra = {NAMESPACE: named[0]} if named[0] else {}
        return msgspec.structs.replace(event, name=named[1], extra=extra)

    def _identified(self, event: ToolCallDelta) -> ToolCallDelta:
        """Return a piece of a tool call with an id of ours if the provider's cannot be used.

        Some servers send no id, or the same one with each call. Clients find the call of a result
        by its id.
        """
        place, given = _CallPlace(event.choice, event.index), event.id
        if self._ids is None:
            self._ids = _ids_in(self._naming.asked)
        if place not in self._keeps_id:
            self._keeps_id[place] = bool(given) and given not in self._ids
            self._ids.add(given or "")
        elif given is None:
            return event
        if self._keeps_id[place]:
            return event
        id = self._naming.call_id(self._target.call_prefix, *place)
        return msgspec.structs.replace(event, id=id)


class _HeldArguments:
    """The arguments of a call that wait for its end, up to a bound."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._room = MAX_DOCUMENT_BYTES

    def add(self, piece: str) -> None:
        """Keep a piece, unless there are too many."""
        self._room -= len(piece)
        if self._room >= 0:
            self._pieces.append(piece)

    def join(self) -> str:
        return "".join(self._pieces)


_MOST_CHECKS = 100
"""How often the end of a call is looked for. Each look reads all of its arguments."""


class _WholeCall:
    """A call whose client takes it as a whole."""

    def __init__(self, begun: ToolCallDelta, kind: str) -> None:
        self._begun = msgspec.structs.replace(begun, kind=kind)
        self._arguments = _HeldArguments()
        self._may_be_whole = self._is_sent = False
        self._checks_left = _MOST_CHECKS

    def take(self, event: ToolCallDelta) -> None:
        """Keep a piece of the call."""
        self._arguments.add(event.arguments)
        if said := event.arguments.rstrip():
            self._may_be_whole = said.endswith("}")

    def is_whole(self) -> bool:
        """Tell whether the arguments are an object, so that the call can be sent before others."""
        if self._is_sent or not (self._may_be_whole and self._checks_left):
            return False
        self._may_be_whole = False  # before the next piece
        self._checks_left -= 1
        arguments = self._arguments.join()
        return arguments.lstrip().startswith("{") and is_json(arguments)

    def end(self) -> ToolCallDelta | None:
        """Return the call, if it was not sent before."""
        if self._is_sent:
            return None
        self._is_sent = True
        return msgspec.structs.replace(self._begun, arguments=self._arguments.join())


_HEX, _HIGH = "[0-9a-fA-F]", "[dD][89abAB][0-9a-fA-F]{2}"
_INPUT_BEGINS = re.compile(rf'\s*\{{\s*"{CUSTOM_INPUT}"\s*:\s*"')
_INPUT = re.compile(
    rf"""(?: [^"\\]+                            # characters
    | \\ [^u]                                  # an escape of one character
    | \\u (?! {_HIGH} (?: \\ (?: u {_HEX}{{0,3}} )? )? \Z) {_HEX}{{4}}  # a half waits for its pair
    | \\u (?! {_HEX}{{0,3}} \Z | {_HEX}{{4}} )  # no escape of JSON
    ){{1,4096}}""",
    re.VERBOSE,
)
"""Matches the beginning of a JSON string: up to its end, or to an escape whose rest is missing.

A longer one takes several matches, because ``re`` keeps about 120 bytes for each repetition.
A possessive repetition keeps none, but Python 3.11.2 matches this one wrongly.
"""
_ESCAPE = re.compile(rf"\\(?:u({_HEX}{{4}})|([\"\\/bfnrt]))")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_BEGINNING = 256


class _FreeText:
    """The input of a custom tool's call, as it is taken out of the arguments of a function's.

    For example, the arguments ``{"input": "two words"}`` come as ``{"inp``, ``ut": "two`` and
    `` words"}``. The client gets the call with no text, then ``two``, then `` words``. Arguments in
    another form are handed on at the end: the text that they hold, or all of them.
    """

    def __init__(self) -> None:
        self._begun: ToolCallDelta | None = None
        """The first piece of the call."""
        self._held = ""
        """The arguments that came and were not handed on."""
        self._other: _HeldArguments | None = None
        """The arguments, if they do not begin as they should."""
        self._is_inside = self._is_over = False
        """Whether the text has begun, and whether it has ended."""

    def take(self, event: ToolCallDelta) -> ToolCallDelta | None:
        """Return the call with the text that came, or None if there is none."""
        text = "" if self._is_over else self._read(event.arguments)
        if self._begun is not None:
            return _more_text(self._begun, text)
        self._begun = event
        return msgspec.structs.replace(event, kind="custom", arguments=text)

    def _read(self, piece: str) -> str:
        if self._other is not None:
            self._other.add(piece)
            return ""
        self._held += piece
        if not self._is_inside:
            begins = _INPUT_BEGINS.match(self._held)
            if begins is None:
                if len(self._held) > _LONGEST_BEGINNING:
                    self._other = _HeldArguments()
                    self._other.add(self._held)
                return ""
            self._is_inside, self._held = True, self._held[begins.end() :]
        end = 0
        while found := _INPUT.match(self._held, end):
            end = found.end()
        text, self._held = self._held[:end], self._held[end:]
        self._is_over = self._held.startswith('"')
        return _unescaped(text)

    def is_whole(self) -> bool:
        """A text may always go on, and is sent as it comes."""
        return False

    def end(self) -> ToolCallDelta | None:
        """Return the text in arguments of another form."""
        held = self._held if self._other is None else self._other.join()
        if self._is_inside or self._begun is None:
            return None
        return _more_text(self._begun, _input_in(held))


def _more_text(begun: ToolCallDelta, text: str) -> ToolCallDelta | None:
    """Return a later piece of a custom tool's call; None if there is no text."""
    if not text:
        return None
    return ToolCallDelta(index=begun.index, choice=begun.choice, kind="custom", arguments=text)


def _unescaped(string: str) -> str:
    """Return the text of a JSON string. Escapes that JSON does not have stay as they are."""
    if "\\" not in string:
        return string
    text = _ESCAPE.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2]),
        string,
    )
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _input_in(arguments: str) -> str:
    """Return the input in arguments of any form."""
    value = json_or_none(arguments, object)
    if isinstance(value, dict):
        only = next(iter(value.values())) if len(value) == 1 else None
        value = value.get(CUSTOM_INPUT, only if value else "")
    return value if isinstance(value, str) else arguments


_ID_FIELDS = frozenset(("id", "call_id", "tool_call_id", "tool_use_id"))


def _ids_in(document: Any) -> set[str]:
    """Return the ids in a request. Long texts cost nothing."""
    ids, left = set[str](), [document]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            ids.update(each for name in _ID_FIELDS if isinstance(each := value.get(name), str))
            left += value.values()
        elif isinstance(value, list):
            left += value
    return ids


class _TranslatingReader(EventReader):
    """The common part of the readers of a translated stream."""

    def __init__(self, source: UpstreamDialect, target: Dialect, naming: AnswerNames) -> None:
        self._translator = _EventTranslator(source, target, naming)
        # It is kept apart, because the client's bytes must not depend on how the upstream's bytes
        # arrive.
        self._stream = EventStream(source, join_texts=False, choices=naming.choices)
        self._error: tuple[StreamEvent, ...] = ()
        """The events of the frame that reported an error."""

    def _read(self, data: bytes) -> tuple[StreamEvent, ...]:
        """Return the events of the whole frames in the client's canonical form, up to an error."""
        events = self._events_of(self._stream.feed(data))
        self.failed = bool(self._error)
        self.closing = self._stream.closing
        return events

    def _read_end(self) -> tuple[StreamEvent, ...]:
        """Return the events that only the stream's end completes."""
        return () if self._error else self._events_of(self._stream.finish()[1])

    def _events_of(
        self, frames: Iterable[tuple[bytes, tuple[StreamEvent, ...]]]
    ) -> tuple[StreamEvent, ...]:
        events: list[StreamEvent] = []
        for _, read in frames:
            found = self._translator.read(read)
            if error_in(found) is not None:
                self._error = found
                break
            events += found
        return tuple(events)


def estimated_usage(target: Dialect, prompt_tokens: int, characters: int) -> dict[str, Any]:
    """Return the usage of an answer of this length whose provider reports none."""
    return target.usage(Tokens(prompt_tokens, round(characters / CHARS_PER_TOKEN)))


def with_usage(
    answer: Completion, transcript: Transcript, dialect: Dialect, prompt_tokens: int
) -> Completion:
    """Return the whole answer of a transcript, with an estimated usage as ``StreamWriter`` does."""
    if transcript.tokens(dialect.tokens) is not None:
        return answer
    usage = estimated_usage(dialect, prompt_tokens, transcript.characters)
    return msgspec.structs.replace(answer, usage=usage)


class StreamWriter:
    """Writes a stream of ours, and the estimated usage if its provider reports none, or zeros.

    Clients sum up the usage, and a hit has an estimate, too. No event has this estimate, because
    the books mark estimates. ``prompt_tokens`` is the estimated length of the prompt.
    """

    def __init__(self, encoder: EventEncoder, target: Dialect, prompt_tokens: int) -> None:
        self._encoder = encoder
        self._target = target
        self._prompt_tokens = prompt_tokens
        self._characters = 0
        self._reported = False

    def feed(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the bytes for these events."""
        for event in events:
            match event:
                case TextDelta(text=said) | ReasoningDelta(text=said) | RefusalDelta(text=said):
                    self._characters += len(said)
                case ToolCallDelta(arguments=said):
                    self._characters += len(said)
                case UsageReported(usage=usage):
                    tokens = self._target.tokens(usage)
                    self._reported = bool(tokens.prompt or tokens.completion)
                case Ended() if not self._reported:
                    usage = estimated_usage(self._target, self._prompt_tokens, self._characters)
                    before = [each for each in events if each is not event]
                    return self._encoder.feed((*before, UsageReported(usage=usage), event))
        return self._encoder.feed(events)


_NUMBER = re.compile(rb'(?m)^(data: ?\{"type":"[\w.]+","sequence_number":)\d+')
"""The number of an event that we write. In a text of the answer it would not begin the line."""


class _Numbered(msgspec.Struct):
    sequence_number: int


_decode_numbered = msgspec.json.Decoder(_Numbered).decode


class EventNumbers:
    """Numbers the events of a stream that goes on after those that the client has.

    A writer that has only read these does not know how many there were. Most dialects have no
    numbers.
    """

    def __init__(self, last: bytes) -> None:
        """``last``: the last bytes with a number that the client has got."""
        self._next: int | None = None
        for line in last.splitlines():
            with contextlib.suppress(*UNDECODABLE):
                self._next = _decode_numbered(line.removeprefix(b"data:")).sequence_number + 1

    def feed(self, data: bytes) -> bytes:
        """Return the events with their numbers."""
        return data if self._next is None else _NUMBER.sub(self._numbered, data)

    def _numbered(self, found: re.Match[bytes]) -> bytes:
        assert self._next is not None
        number, self._next = self._next, self._next + 1
        return b"%b%d" % (found[1], number)


class Reencoder(_TranslatingReader):
    """An event stream of another dialect, written in the client's.

    If the answer ends without a terminal event, although every choice that began has finished, the
    client's terminal event is added.
    """

    def __init__(
        self, source: UpstreamDialect, target: Dialect, naming: AnswerNames, encoder: EventEncoder
    ) -> None:
        super().__init__(source, target, naming)
        self._encoder = StreamWriter(encoder, target, naming.prompt_tokens)
        self._finished: dict[int, bool] = {}
        self._said_end = False

    def feed(self, data: bytes) -> Piece:
        """Return the pieces for the whole frames, up to an error."""
        events = self._read(data)
        for event in events:
            self._follow(event)
        return Piece(self._encoder.feed(events), events)

    def end(self) -> Piece:
        """Return the error, or the terminal event if it has not come."""
        last = self._read_end()
        for event in last:
            self._follow(event)
        events = (*last, *self._error)
        whole = bool(self._finished) and all(self._finished.values())
        if not self._error and whole and not self._said_end:
            events = (*events, Ended())
        return Piece(self._encoder.feed(events), events)

    def _follow(self, event: StreamEvent) -> None:
        if type(event) is Ended:
            self._said_end = True
        elif type(event) is Finished:
            self._finished[event.choice] = True
        elif (choice := getattr(event, "choice", None)) is not None:
            self._finished.setdefault(choice, False)


class StreamAssembler(_TranslatingReader):
    """An event stream of any dialect, joined to one JSON answer in the client's dialect.

    Its pieces have only events; the last one has the body. An error in the stream becomes an error
    body, with an event that reports the error, because the status was 200.
    """

    def __init__(
        self, source: UpstreamDialect, target: Dialect, naming: AnswerNames, transcript: Transcript
    ) -> None:
        """Write the body from ``transcript``, to which the pieces of this reader are added."""
        super().__init__(source, target, naming)
        self._answer = _WholeAnswer(target, naming, transcript)

    def feed(self, data: bytes) -> Piece:
        """Return the events of the whole frames, up to an error."""
        return Piece(b"", self._read(data))

    def end(self) -> Piece:
        """Return the body. Raises UpstreamProtocolError for a stream that was cut or too long."""
        last = self._read_end()
        if self._error:
            return Piece(self._answer.write_error(self._error), self._error)
        missing = self._answer.finish(last)
        return Piece(self._answer.write(), missing)


class DocumentTranslator(DocumentCollector):
    """A whole JSON answer, or error, of another dialect, written in the client's at its end.

    ``encoder`` writes it as a stream for a client that asked for one.
    """

    def __init__(
        self,
        source: UpstreamDialect,
        target: Dialect,
        status: int,
        naming: AnswerNames,
        encoder: EventEncoder | None = None,
    ) -> None:
        super().__init__(source, status)
        self._translator = _EventTranslator(source, target, naming)
        self._transcript = Transcript()
        self._answer = _WholeAnswer(target, naming, self._transcript)
        self._encoder = (
            None if encoder is None else StreamWriter(encoder, target, naming.prompt_tokens)
        )

    def feed(self, data: bytes) -> Piece:
        """Keep the bytes. Raises UpstreamProtocolError beyond the bound."""
        self.collect(data)
        if self.too_long:
            raise UpstreamProtocolError("the upstream's answer is too long to be translated")
        return Piece(b"")

    def end(self) -> Piece:
        """Return the translated body. Raises UpstreamProtocolError for an unfinished answer."""
        events = self._translator.read(self.events())
        if error_in(events) is not None:
            return Piece(self._answer.write_error(events), events)
        if self._encoder is not None:
            return Piece(self._encoder.feed(events), events)
        self._transcript.feed(events)
        return Piece(self._answer.write(), events)


class _WholeAnswer:
    """Writes the answer of a transcript as one JSON body."""

    def __init__(self, target: Dialect, naming: AnswerNames, transcript: Transcript) -> None:
        self._target = target
        self._naming = naming
        self._transcript = transcript

    def finish(self, last: tuple[StreamEvent, ...]) -> tuple[StreamEvent, ...]:
        """Add and return the last events, and the terminal event if it has not come.

        Raises UpstreamProtocolError.
        """
        self._transcript.feed(last)
        if self._transcript.ended:
            return ()
        if not self._transcript.finished:
            raise UpstreamProtocolError("the upstream's stream ended before its answer did")
        self._transcript.feed((Ended(),))
        return (Ended(),)

    def write(self) -> bytes:
        completion = self._transcript.completion(self._naming.created)
        if completion is None:
            raise UpstreamProtocolError("the upstream's answer is unfinished or too long to fold")
        naming = self._naming
        completion = with_usage(completion, self._transcript, self._target, naming.prompt_tokens)
        if naming.echo is not None:
            extra = {**naming.echo, **completion.extra}
            completion = msgspec.structs.replace(completion, extra=extra)
        id = self._transcript.start.id or naming.answer_id
        return self._target.write_body(completion, id, completion.created)

    def write_error(self, events: tuple[StreamEvent, ...]) -> bytes:
        error = error_in(events) or ErrorReported(message="the provider reported an error")
        return self._target.error_body(error, self._naming.request_id)


# --- answers in whole sentences -------------------------------------------------------------------

_FIELD = re.compile(rb'"(?:%b)" ?: ?(?=")' % "|".join(sorted(TEXT_FIELDS)).encode())
_JSON_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_BESIDE_TEXT = (TextDelta, ExtraDelta, Started, UsageReported)
"""Events that may be sent before the text of their frame. Gemini reports usage with each text."""


class _TextPlace(NamedTuple):
    """The text for one place of the answer: a choice and a block."""

    choice: int
    block: int | None


class _TakenText(NamedTuple):
    """A frame without the text that was taken out of it."""

    frame: bytes
    text: str


class SentencePace:
    """The ``send`` of a request whose answer is to come in sentences.

    For example, after events with the texts "Hello wor" and "ld. How", the client has got one event
    with "Hello world.", and " How" waits for its end.
    """

    def __init__(self, send: Send, dialect: Dialect) -> None:
        self._send = send
        self._frames: SSEDecoder | None = None
        """None: the answer passes unchanged."""
        self._decoder = dialect.decoder()
        self._cutters: dict[_TextPlace, SentenceCutter] = {}
        self._last: dict[_TextPlace, _TakenText] = {}
        """The last frame of each place, which gets the rest of the text."""

    async def __call__(self, message: Message) -> None:
        """Send a message of the answer."""
        if message["type"] == "http.response.start":
            message = self._begin(message)
        elif message["type"] == "http.response.body" and self._frames is not None:
            more = message.get("more_body", False)
            data = self._paced(self._frames, message.get("body", b""), ends=not more)
            if not data and more:
                return
            message = {**message, "body": data}
        await self._send(message)

    def _begin(self, message: Message) -> Message:
        headers = message["headers"]
        is_stream, is_plain = form_of_body(tuple(headers))
        if not (is_stream and is_plain):
            return message
        self._frames = SSEDecoder()
        kept = [pair for pair in headers if pair[0].lower() != b"content-length"]
        return {**message, "headers": kept}

    def _paced(self, decoder: SSEDecoder, data: bytes, *, ends: bool) -> bytes:
        """Return the bytes that go out now."""
        out, block, at, rest = [], b"", 0, b""
        try:
            block = decoder.receive(data)
            while frame := decoder.cut(block, at):
                out.append(self._frame(frame))
                at += len(frame.raw)
        except UpstreamProtocolError:  # a frame that is too long passes, and all after it
            self._frames, ends, rest = None, True, block[at:]
        if ends:
            out += [self._flush(), decoder.rest() or rest]
        return b"".join(out)

    def _frame(self, frame: Frame) -> bytes:
        events = self._decoder.feed(frame)
        texts = [event for event in events if isinstance(event, TextDelta) and event.text]
        if len(texts) != 1:
            # The first half of a character is no event: the decoder keeps it.
            follows = _says_more(events) or b"\\ud" in frame.raw.lower()
            return (self._flush() if follows else b"") + frame.raw
        [text] = texts
        place = _TextPlace(text.choice, text.block)
        written = _write(frame.raw, text.text, text.text)
        if written is None:  # the text has half a character, or is in an unknown field
            return self._flush() + frame.raw
        cutter = self._cutters.setdefault(place, SentenceCutter())
        sentences = cutter.feed(text.text)
        self._last[place] = _TakenText(frame.raw, text.text)
        if _says_more(events):  # the frame also has, for example, the finish reason
            others = self._flush(but=place)
            rest = "".join(sentences) + cutter.rest()
            self._last.pop(place)
            return others + (_write(frame.raw, text.text, rest) or b"")
        if NUMBER_FIELD in frame.raw and sentences:
            sentences = ["".join(sentences)]
        return b"".join(_write(frame.raw, text.text, each) or b"" for each in sentences)

    def _flush(self, but: _TextPlace | None = None) -> bytes:
        """Return frames with all text that is held."""
        out = []
        for place in [place for place in self._last if place != but]:
            held = self._last.pop(place)
            if rest := self._cutters[place].rest():
                out.append(_write(held.frame, held.text, rest) or b"")
        return b"".join(out)


def _says_more(events: tuple[StreamEvent, ...]) -> bool:
    """Tell whether events have content beside text that must follow the text before it."""
    return any(not isinstance(event, _BESIDE_TEXT) for event in events)


def _write(frame: bytes, old: str, new: str) -> bytes | None:
    """Return a frame with another text; None if its text is in no known field."""
    for found in _FIELD.finditer(frame):
        string = _JSON_STRING.match(frame, found.end())
        with contextlib.suppress(*UNDECODABLE):  # only JSON can hold half a character
            if string is not None and msgspec.json.decode(string[0]) == old:
                text = msgspec.json.encode(new)
                return frame[: string.start()] + text + frame[string.end() :]
    return None

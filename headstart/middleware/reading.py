"""Reads the bytes of an answer while they pass: returns events, and the bytes for the client.

For example, the bytes ``data: {"choices":[{"delta":{"content":"Hi"}}]}`` and a blank line become
one ``Piece``: these bytes, and the event ``TextDelta(text="Hi")``. From the bytes to the piece:

1. ``SSEDecoder`` cuts the bytes of a stream into frames, one for each server-sent event.
2. ``TextShape`` reads frames that differ from an earlier one only in their text, without JSON.
3. ``EventStream`` reads these frames and all others, up to the terminal event of the answer.
4. A ``BodyReader`` says what the client gets of them, and when: ``FrameReader`` for a stream of the
   client's dialect, ``DocumentReader`` for a JSON body, ``WholeReader`` for what is no chat.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from headstart.dialects.dialect import Dialect, Frame, FrameCutter, JSONDecoder, UpstreamDialect
from headstart.dialects.registry import TEXT_FIELDS, read_usage
from headstart.errors import UpstreamProtocolError
from headstart.reply import form_of_body
from headstart.types import (
    UNDECODABLE,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    Piece,
    ReasoningDelta,
    Started,
    TextDelta,
    UsageReported,
    json_or_none,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Sequence

    from headstart.types import Headers, StreamEvent

    Events: TypeAlias = tuple[StreamEvent, ...]
    TextsRead: TypeAlias = tuple[Events, int]
    """The events of some texts, and the offset in the data at which they end."""
    FrameRead: TypeAlias = tuple[bytes, Events]

_BOM = b"\xef\xbb\xbf"
_LF = 10
_INTO_DATA = len("data: ")
# A carriage return ends a line only if the next byte has arrived and is no line feed. Otherwise the
# frames would depend on how the stream is split.
_LINE_END = rb"(?:\r\n|\n|\r(?=[^\n]))"
_BLANK_LINE = re.compile(_LINE_END)
_LINE_FEEDS = re.compile(rb"\n\n+")
_FRAME_END = re.compile(_LINE_END + _LINE_END)
_SEAM = 3  # a frame end has four bytes at most, so three of them may be in the kept bytes


class SSEDecoder:
    """Splits a byte stream into the frames of server-sent events (the HTML standard, 9.2).

    The ``raw`` of all frames and ``rest()`` are together the input, byte for byte. The frames do
    not depend on the pieces in which the input comes, and the time is linear in the input. A frame
    longer than ``max_frame_bytes`` raises UpstreamProtocolError.
    """

    def __init__(self, max_frame_bytes: int = 8 * 2**20) -> None:
        self._max = max_frame_bytes
        self.held: list[bytes] = []
        """The bytes of the frame that is not complete yet."""
        self._size = 0
        self._seam = b""
        self._at_start = True
        self._only_lf = True

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes, oldest first. Raises UpstreamProtocolError."""
        block = self.receive(data)
        frames, at = list[Frame](), 0
        while frame := self.cut(block, at):
            frames.append(frame)
            at += len(frame.raw)
        return frames

    def receive(self, data: bytes) -> bytes:
        """Take new bytes; return the bytes from which ``cut`` takes the frames, until it is None.

        They are empty while no frame is complete. Raises UpstreamProtocolError.
        """
        if self.held:
            if not self._completes_frame(data):
                self._hold(data)
                return b""
            data = b"".join((*self.held, data))
            self.held.clear()
            self._size = 0
            self._seam = b""
        self._only_lf = b"\r" not in data
        return data

    def cut(self, block: bytes, start: int) -> Frame | None:
        """Return the frame at ``start``. If it is not complete, keep its bytes and return None.

        Raises UpstreamProtocolError.
        """
        if end := self.usual_end(block, start):
            return Frame(block[start : end + 2], block[start + _INTO_DATA : end], None)
        if self._only_lf and block.startswith(b"event: ", start):  # then one line of data
            line = block.find(b"\ndata: ", start)
            named = block.find(b"\n", start) == line >= 0
            end = block.find(b"\n", line + 1) if named else -1
            if end >= 0 and block.startswith(b"\n\n", end) and end - start < self._max:
                self._at_start = False
                return Frame(block[start : end + 2], block[line + 7 : end], block[start + 7 : line])
        end = _frame_end(block, start, only_lf=self._only_lf)
        if end == 0:
            if start < len(block):
                self._hold(block[start:])
            return None
        if end - start > self._max:
            raise self._too_long()
        raw = block[start:end]
        if self._at_start:
            self._at_start = False
            if raw.startswith(_BOM):
                return replace(_parse(raw.removeprefix(_BOM)), raw=raw)
        return _parse(raw)

    def usual_end(self, block: bytes, start: int) -> int:
        """Return the end of the data of a usual frame, which has one line; 0 for another frame.

        The frame begins with ``data: ``, and ends with two line feeds.
        """
        if self._only_lf and block.startswith(b"data: ", start):
            end = block.find(b"\n", start)
            if block.startswith(b"\n\n", end) and end - start < self._max:
                self._at_start = False
                return end
        return 0

    def rest(self) -> bytes:
        """Return the bytes after the last complete frame. The standard discards them at the end."""
        return b"".join(self.held)

    def _completes_frame(self, data: bytes) -> bool:
        """Tell whether a frame may end in ``data``, or across the kept bytes and ``data``."""
        if self._size <= _SEAM:
            return True
        seam = self._seam + data
        return (b"\n" in seam or b"\r" in seam) and _FRAME_END.search(seam) is not None

    def _hold(self, data: bytes) -> None:
        self.held.append(data)
        self._size += len(data)
        self._seam = (self._seam + data[-_SEAM:])[-_SEAM:]
        if self._size > self._max:
            raise self._too_long()

    def _too_long(self) -> UpstreamProtocolError:
        return UpstreamProtocolError(f"an event of the stream exceeds {self._max} bytes")


def _frame_end(data: bytes, start: int, *, only_lf: bool) -> int:
    """Return the offset after the frame at ``start``, or 0 if the frame is not complete yet."""
    if only_lf:
        if start < len(data) and data[start] == _LF:
            return start + 1
        end = data.find(b"\n\n", start)
        return end + 2 if end >= 0 else 0
    match = _BLANK_LINE.match(data, start) or _FRAME_END.search(data, start)
    return match.end() if match else 0


def _parse(raw: bytes) -> Frame:
    data: list[bytes] = []
    event: bytes | None = None
    for line in raw.splitlines():
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            event = value.removeprefix(b" ")
    if not data and _is_bare_error(raw):
        data.append(raw.strip())
    return Frame(raw, b"\n".join(data) if data else None, event)


class _BareError(msgspec.Struct):
    error: Any = None
    error_code: Any = None


def _is_bare_error(raw: bytes) -> bool:
    """Tell whether a frame is a JSON error without ``data:``.

    Google and LMDeploy's proxy end a stream with one.
    """
    if b'"error' not in raw:
        return False
    found = json_or_none(raw, _BareError)
    return found is not None and bool(found.error or found.error_code)


_FIELD_BEFORE = re.compile(rb'"(?:%b)" ?: ?"\Z' % "|".join(sorted(TEXT_FIELDS)).encode())
"""Matches the field of a text, with its name in any dialect, up to the quote before the text."""
_LONGEST_FIELD = max(map(len, TEXT_FIELDS)) + len('"" : "')
_PADDING = re.compile(rb'"(?:obfuscation|p)" ?: ?"')
"""Matches the padding: random letters with which OpenAI and Mistral hide the length of a text."""
_NUMBER = re.compile(rb'"sequence_number" ?: ?(\d+)(?=,)')
"""The number of an event in its stream. No client reads it."""
_STRING = re.compile(rb'[^"\\\x00-\x1f]*(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*)*')
"""Matches the inside of a JSON string, which may be empty."""
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]+')
"""Matches the inside of a JSON string without escapes."""
_decode_string = msgspec.json.Decoder(str).decode

_TEXTS = (TextDelta, ReasoningDelta)
_TEXT = TextDelta(text="")


class TextShape(msgspec.Struct, frozen=True):
    """The bytes around the text in a frame that has only text, or only reasoning.

    A frame with the same bytes around its text is the same JSON with another string. So its text
    can be cut out, which takes a fraction of the time of decoding JSON. The parts of two frames,
    the second with a number (``_NUMBER``) and padding (``_PADDING``), which differ in each frame::

        before                     number  middle      text  after              padding  tail
        data: {"delta":"                               Hi    "}
        data: {"sequence_number":  7       ,"delta":"  Hi    ","obfuscation":"  x8Ka     "}
    """

    before: bytes
    after: bytes
    tail: bytes
    delta: TextDelta | ReasoningDelta
    """The event of the first such frame. The events of the others differ only in their text."""
    middle: bytes = b""

    def read_one(self, data: bytes) -> TextDelta | ReasoningDelta | None:
        """Return the event of ``data`` if ``data`` is one frame of this shape, as usual.

        None if it is not, or if only ``read`` can decide.
        """
        before, after = self.before, self.after
        if self.tail or self.middle or not (data.startswith(before) and data.endswith(after)):
            return None
        text = data[len(before) : -len(after)]
        if _PLAIN.fullmatch(text) is None:
            return None
        try:
            return replace(self.delta, text=text.decode())
        except UnicodeDecodeError:
            return None

    def read(self, data: bytes, start: int, *, join_texts: bool) -> TextsRead:
        """Return the events of the frames of this shape from ``start`` on, and the end of these.

        ``join_texts``: return one event with the text of all these frames.
        """
        if not data.startswith(self.before, start):
            return (), start
        if join_texts and not (self.tail or self.middle):
            text, end = self._read_run(data, start)
            if text:
                return (replace(self.delta, text=text),), end
        return self._read_each(data, start, join_texts=join_texts)

    def _read_run(self, data: bytes, start: int) -> tuple[str, int]:
        """Return the text of all frames of this shape from ``start`` on, and the end of these.

        The text is "" if there are no such frames, or if the texts have escapes. Then
        ``_read_each`` has to read them.
        """
        before, after = self.before, self.after
        into, past = len(before), len(after)
        texts: list[bytes] = []
        end = start
        # This loop takes a sixth of the time of a split at the long bytes between two texts.
        while data.startswith(before, end):
            begin = end + into
            quote = data.find(b'"', begin)
            if not data.startswith(after, quote):
                if data.endswith(b"\\", begin, quote):
                    return "", start
                break
            texts.append(data[begin:quote])
            end = quote + past
        joined = b"".join(texts)
        if b"" in texts or _PLAIN.fullmatch(joined) is None:
            return "", start
        if joined.isascii():
            return joined.decode(), end
        try:
            # A character whose bytes are in two frames cannot be decoded, but the frames can pass.
            text_of_all = "".join([each.decode() for each in texts])
        except UnicodeDecodeError:
            return "", start
        return text_of_all, end

    def _read_each(self, data: bytes, start: int, *, join_texts: bool) -> TextsRead:
        before, after, tail, middle = self.before, self.after, self.tail, self.middle
        into, past = len(before), len(after)
        texts: list[str] = []
        while data.startswith(before, start):
            begin = start + into
            if middle:
                begin = _end_of_number(data, begin, middle)
            found = _STRING.match(data, begin)
            assert found is not None  # the pattern also matches an empty text
            text, end = found[0], found.end()
            if not (text and data.startswith(after, end)):
                break
            end += past
            if tail:
                begin, end = end, data.find(b'"', end)
                if not (data[begin:end].isalnum() and data.startswith(tail, end)):
                    break
                end += len(tail)
            try:
                texts.append(_decode_string(b'"%b"' % text) if b"\\" in text else text.decode())
            except UNDECODABLE:
                break
            start = end
        if not texts:
            return (), start
        if join_texts:
            return (replace(self.delta, text="".join(texts)),), start
        return tuple([replace(self.delta, text=text) for text in texts]), start


def _end_of_number(data: bytes, start: int, middle: bytes) -> int:
    """Return the end of ``middle`` after the number at ``start``, or of ``data`` without them."""
    end = data.find(b",", start)
    number = data[start:end]
    is_number = number.isdigit() and (number[:1] != b"0" or len(number) == 1)
    return end + len(middle) if is_number and data.startswith(middle, end) else len(data)


def learn_shape(raw: bytes, events: Sequence[StreamEvent]) -> TextShape | None:
    """Return the shape of a frame whose only event is text without escapes."""
    # A carriage return may end a frame or not, depending on the next byte.
    if len(events) != 1 or not raw.endswith(b"\n"):
        return None
    event = events[0]
    # A signature ends its block.
    signed = type(event) is ReasoningDelta and event.signature is not None
    if signed or not (type(event) is TextDelta or type(event) is ReasoningDelta):
        return None
    text = b'"%b"' % event.text.encode("utf-8", "surrogatepass")
    # Without a backslash, each string is in the frame as it is. So if the text occurs only once,
    # this is its place.
    if not event.text or b"\\" in raw or raw.count(text) != 1:
        return None
    start = raw.find(text) + 1
    end = start + len(text) - 2
    if _FIELD_BEFORE.search(raw, max(0, start - _LONGEST_FIELD), start) is None:
        return None
    before, middle = raw[:start], b""
    number = _NUMBER.search(before)
    if number is not None:
        before, middle = raw[: number.start(1)], raw[number.end() : start]
    padding = _PADDING.search(raw, end)
    if padding is None:
        return TextShape(before, raw[end:], b"", event, middle)
    tail = raw.find(b'"', padding.end())
    return TextShape(before, raw[end : padding.end()], raw[tail:], event, middle)


def _is_beside_answer(event: StreamEvent) -> bool:
    """Tell whether an event is no part of a choice, nor an end: names, usage, or other fields."""
    is_field = type(event) is ExtraDelta and event.choice is None
    return is_field or type(event) is Started or type(event) is UsageReported


class EventStream:
    """Splits a stream into frames and decodes them, up to the terminal event.

    ``join_texts``: adjacent texts become one event. ``choices`` is the number of choices that was
    asked for.
    """

    def __init__(self, dialect: UpstreamDialect, *, join_texts: bool, choices: int = 1) -> None:
        self.ended = False
        """Whether the terminal event has come. Later bytes are not part of the answer."""
        self.closing = False
        """Whether the answer has ended, or one of its choices has its finish reason."""
        self.error: ErrorReported | None = None
        """The first error that the answer reported."""
        self.usage_alone = False
        """Whether the last frame is the extra one with only the usage."""
        self._choices = choices
        self._ends_at_finish = dialect.ends_at_finish
        self._finished: set[int] = set()
        self._is_sse = dialect.cutter is None
        self._cutter: FrameCutter = SSEDecoder() if dialect.cutter is None else dialect.cutter()
        self._decoder = decoder = dialect.decoder()
        self._usual: tuple[SSEDecoder, JSONDecoder] | None = None
        """The parts that read a usual frame in one step."""
        if isinstance(decoder, JSONDecoder) and isinstance(self._cutter, SSEDecoder):
            self._usual = self._cutter, decoder
        self._join_texts = join_texts
        self._shape: TextShape | None = None

    @property
    def finished(self) -> bool:
        """Whether each choice that was asked for has its finish reason."""
        return len(self._finished) >= self._choices

    def feed_texts(self, data: bytes) -> TextsRead:
        """Return the events of the text frames that ``data`` begins with. ``feed`` reads others."""
        shape = self._shape
        if shape is None or self._cutter.held:
            return (), 0
        event = shape.read_one(data)
        if event is not None:
            return (event,), len(data)
        return shape.read(data, 0, join_texts=self._join_texts)

    def feed(self, data: bytes) -> Iterator[FrameRead]:
        """Yield each complete frame, or adjacent texts together, with its events.

        There are four ways to read on, the fastest first: the texts of the known shape together,
        blank lines, a usual frame, any frame. The two last ones learn the shape of the next texts.
        Iterate to the end, or bytes are lost; only after the terminal event this is not needed.
        Raises UpstreamProtocolError.
        """
        cutter, is_sse = self._cutter, self._is_sse
        block = b"" if self.ended else cutter.receive(data)
        at, size = 0, len(block)
        while at < size and not self.ended:
            if self._shape is not None:
                texts, end = self._shape.read(block, at, join_texts=self._join_texts)
                if texts:
                    yield block[at:end], texts
                    at = end
                    if at == size:
                        return
            if is_sse and block[at] == _LF and (blank := _LINE_FEEDS.match(block, at)):
                at, self.usage_alone = blank.end(), False
                yield blank[0], ()  # each is an empty frame
                continue
            raw, events = self._read_usual(block, at)
            is_usual = has_data = raw != b""
            if not is_usual:
                frame = cutter.cut(block, at)
                if frame is None:
                    return
                raw, events, has_data = frame.raw, self._decoder.feed(frame), bool(frame.data)
            at += len(raw)
            if self._ends_with(events):
                return
            if len(events) == 1 and type(events[0]) in _TEXTS:
                self._shape = learn_shape(raw, events)
            elif is_usual and events and type(events[0]) is Started:
                self._shape = self._known_shape()  # the next frame may have text
            elif has_data:  # a frame without data, such as a comment, changes no shape
                self._shape = None
            yield raw, events

    def _known_shape(self) -> TextShape | None:
        """Return the shape of the texts, if earlier streams of the same form have shown it."""
        decoder = None if self._usual is None else self._usual[1]
        if decoder is None or decoder.form is None or decoder.form.around_text is None:
            return None
        before, after = decoder.form.around_text
        return TextShape(b"data: " + decoder.head + before, after + b"\n\n", b"", _TEXT)

    def _read_usual(self, block: bytes, at: int) -> FrameRead:
        """Return the frame and its events if it is a usual one, else no bytes."""
        if self._usual is not None and self._usual[1].is_usual:
            frames, decoder = self._usual
            end = frames.usual_end(block, at)
            events = decoder.read_usual(block[at + _INTO_DATA : end]) if end else None
            if events is not None:
                return block[at : end + 2], events
        return b"", ()

    def _ends_with(self, events: Events) -> bool:
        """Note what the events mean; return whether the answer ended before them."""
        whole = self._ends_at_finish and self.finished
        usage = False
        for event in events:
            if type(event) is TextDelta:
                continue
            if type(event) is Finished:
                self._finished.add(event.choice)
                self.closing = True
            elif type(event) is Ended:
                self.ended = self.closing = True
            elif type(event) is ErrorReported:
                if whole:
                    self.ended = True
                    return True
                self.error = self.error or event
            elif type(event) is UsageReported:
                usage = True
        self.usage_alone = usage and all(map(_is_beside_answer, events))
        return False

    def finish(self) -> tuple[bytes, list[FrameRead]]:
        """Return the bytes after the last complete frame, and the frames that the end completes.

        A carriage return at the end may complete a frame: until now a line feed could follow. The
        standard discards a last frame without a blank line. But some servers send an error or
        ``[DONE]`` in this way, so such a frame counts if it can be read, and gets a blank line.
        Raises UpstreamProtocolError.
        """
        rest = self._cutter.rest()
        if self.ended or not self._is_sse or not rest:
            return rest, []
        if rest.endswith(b"\r"):
            return rest, [*self.feed(b":")]  # ":" begins a comment: no line feed follows
        events = self._decoder.feed(_parse(rest))
        if not events or any(type(each) is ErrorReported and each.is_ours for each in events):
            return rest, []
        if self._ends_with(events):
            return b"", []
        whole = rest.rstrip(b"\n") + b"\n\n"
        return whole, [(whole, events)]


MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
"""The longest JSON answer that is read and stored. A longer one is only passed on."""
MOST_TRIES = 8
"""The limit on decoding a JSON body that is not whole yet, in multiples of its length."""

_NULL_USAGE = re.compile(rb',\s?"usage"\s?:\s?(?:null|\{(?:\s?"\w+"\s?:\s?0,?)+\})(?=[,}\s])')
"""Matches the usage that a provider which was asked for it sends with each text, as null or as
zeros (Ollama). It matches no part of a JSON string, in which each quote has a backslash before
it."""


class BodyReader:
    """Turns the bytes of an answer into pieces, without I/O. ``end`` returns the last piece."""

    failed = False
    """Whether the answer reported an error. ``end`` returns the error as the last piece."""
    closing = False
    """Whether the answer may be whole. ``ended`` and ``finished`` are exact, but take longer."""

    @property
    def ended(self) -> bool:
        """Whether the answer is whole: its terminal event, or all of its JSON, has come.

        Then call ``end`` next.
        """
        return False

    @property
    def finished(self) -> bool:
        """Whether each choice has its finish reason. Then hardly anything may follow."""
        return False

    def feed(self, data: bytes) -> Piece:
        """Return the piece for bytes that just arrived."""
        return Piece(data)

    def end(self) -> Piece:
        """Return the last piece, often without data. Raises UpstreamProtocolError."""
        return Piece(b"")


class StreamReader(BodyReader):
    """An event stream that is passed on unchanged to the last byte, whatever it contains."""

    def __init__(self, dialect: Dialect) -> None:
        self._stream = EventStream(dialect, join_texts=True)

    def feed(self, data: bytes) -> Piece:
        """Decode the frames that are whole."""
        return Piece(data, _events_of(self._stream.feed(data)))

    def end(self) -> Piece:
        """Return the events of the frames that the end completes."""
        return Piece(b"", _events_of(self._stream.finish()[1]))


def _events_of(frames: Iterable[FrameRead]) -> Events:
    return tuple([event for _, found in frames for event in found])


class EventReader(BodyReader):
    """The reader of an event stream, ``_stream``, that ends with the terminal event."""

    _stream: EventStream

    @property
    def ended(self) -> bool:
        return self._stream.ended

    @property
    def finished(self) -> bool:
        return self._stream.finished


class FrameReader(EventReader):
    """An event stream whose frames are passed on unchanged, each when it is complete.

    So an answer that breaks off ends between two frames, where another answer can continue. An
    error is held back until ``end``, apart from the frames before it. A frame that cannot be read
    becomes an error in the client's dialect. ``strip_usage`` removes the usage that we asked for:
    its chunk, and the nulls before it. Nothing is passed on after the terminal event.
    """

    def __init__(
        self, dialect: Dialect, request_id: str, *, strip_usage: bool = False, choices: int = 1
    ) -> None:
        self._dialect = dialect
        self._request_id = request_id
        self._stream = EventStream(dialect, join_texts=True, choices=choices)
        self._strip_usage = strip_usage
        self._error = Piece(b"")

    def feed(self, data: bytes) -> Piece:
        """Return the complete frames, up to an error."""
        texts, end = self._stream.feed_texts(data)
        passed, strip_usage = data, self._strip_usage
        if end < len(data):
            kept, events, stream = [data[:end]], [*texts], self._stream
            for raw, found in stream.feed(data[end:]):
                if stream.error is not None:
                    self._fail(raw, found, stream.error)
                    break
                events += found
                if not (strip_usage and stream.usage_alone):
                    kept.append(raw)
            self.closing = stream.closing
            passed, texts = b"".join(kept), tuple(events)
        # ``find`` is faster than ``in``, which first tries to read the name as a number.
        if strip_usage and passed.find(b'"usage"') >= 0:
            passed = b"".join(passed.split(b',"usage":null'))  # ``replace`` searches twice
            name = passed.find(b'"usage"')
            # The null has other blanks than usual. The expression tests each comma, which is slow,
            # so the search begins here.
            if name >= 0:
                comma = max(0, name - 2)
                passed = passed[:comma] + _NULL_USAGE.sub(b"", passed[comma:])
        return Piece(passed, texts)

    def end(self) -> Piece:
        """Return the error, or the rest: a last frame without an end."""
        if self.failed:
            return self._error
        rest, found = self._stream.finish()
        error = self._stream.error
        if error is not None:
            self._fail(rest, _events_of(found), error)
            return self._error
        return Piece(rest, _events_of(found))

    def _fail(self, raw: bytes, found: Events, error: ErrorReported) -> None:
        self.failed = True
        is_bare = not self._dialect.bare_errors and raw.lstrip().startswith(b"{")
        if error.code == UpstreamProtocolError.code or error.is_foreign or is_bare:
            raw = self._dialect.error_frame(error, self._request_id)
        self._error = Piece(raw, found)


class DocumentCollector(BodyReader):
    """Collects a JSON answer, up to ``MAX_DOCUMENT_BYTES``. Subclasses decode it at its end."""

    def __init__(self, dialect: UpstreamDialect, status: int) -> None:
        self._dialect = dialect
        self._status = status
        self._parts: list[bytes] = []
        self._size = 0
        self._tried = 0

    @property
    def too_long(self) -> bool:
        return self._size > MAX_DOCUMENT_BYTES

    @property
    def ended(self) -> bool:
        if self.too_long:
            return False
        self._tried += self._size
        if self._tried > MOST_TRIES * self._size:
            return False
        events = self.events()
        return bool(events) and type(events[-1]) is Ended

    def collect(self, data: bytes) -> None:
        """Keep the bytes, unless they are too many."""
        self._size += len(data)
        if self.too_long:
            self._parts.clear()
        else:
            self._parts.append(data)
        self.closing = data[-8:].rstrip().endswith(b"}")

    def events(self) -> Events:
        """Decode the answer."""
        body = b"".join(self._parts).removeprefix(_BOM)  # the providers' clients skip it, too
        return self._dialect.decode_body(self._status, body)


class DocumentReader(DocumentCollector):
    """A JSON answer that is passed on unchanged, and decoded at its end.

    ``usage_beside``: the provider's streams report usage without being asked, so hits that are
    streamed have to report it, too.
    """

    def __init__(self, dialect: Dialect, status: int, *, usage_beside: bool = False) -> None:
        super().__init__(dialect, status)
        self._usage_beside = usage_beside

    def feed(self, data: bytes) -> Piece:
        """Keep a copy of the bytes."""
        self.collect(data)
        return Piece(data)

    def end(self) -> Piece:
        """Decode the document, unless it was too long."""
        if self.too_long:
            return Piece(b"")
        events = self.events()
        if self._usage_beside:
            told = [replace(e, beside=True) if type(e) is UsageReported else e for e in events]
            events = tuple(told)
        return Piece(b"", events)


HELD_DOCUMENT_BYTES = 64 * 1024 * 1024
"""The longest answer that is held until its end, to a call that is not a chat. 2,048 embeddings of
3,072 numbers take 33 MB in base64."""


class WholeReader(BodyReader):
    """An answer that is held until its end, so that a client never gets only a part of it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Piece:
        """Keep the bytes, unless they are too many."""
        self._size += len(data)
        self._parts.append(data)
        return Piece(b"" if self._size <= HELD_DOCUMENT_BYTES else self._take())

    def end(self) -> Piece:
        """Return the answer, and the usage that it reports."""
        body = self._take()
        usage = read_usage(body) if len(body) == self._size else None
        return Piece(body, () if usage is None else (UsageReported(usage=usage),))

    def _take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


_LINES = (b"data:", b"event:", b"id:", b"retry:", b":")
"""The beginnings of the lines of an event stream. No JSON begins like this."""


def begins_events(data: bytes) -> bool:
    """Tell whether the first bytes of a body, however few, begin an event stream."""
    line = data.removeprefix(_BOM).lstrip()[:6]
    return line != b"" and any(line.startswith(each) or each.startswith(line) for each in _LINES)


def error_in(events: Sequence[StreamEvent]) -> ErrorReported | None:
    """Return the error among the events of a frame."""
    return next((event for event in events if type(event) is ErrorReported), None)


def error_event(frames: bytes) -> bytes:
    """Return the last frame with a field ``error``, or b"" if there is none."""
    found = [each for each in _FRAME_END.split(frames) if b'"error"' in each]
    return found[-1] + b"\n\n" if found else b""


def body_reader(status: int, headers: Headers, dialect: Dialect | None) -> BodyReader:
    """Return the reader for an answer that is passed on unchanged. A compressed one is not read."""
    is_stream, is_plain = form_of_body(headers)
    if dialect is None or not is_plain:
        return BodyReader()
    if is_stream:
        return StreamReader(dialect)
    return DocumentReader(dialect, status)


async def in_time(reading: Awaitable[bytes], until: float | None) -> bytes:
    """Return the bytes after the finish reasons, if they come in time."""
    try:
        async with asyncio.timeout_at(until):
            return await reading
    except TimeoutError:
        return b""

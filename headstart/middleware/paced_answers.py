"""Answers in whole sentences (``x-headstart-pace: sentences``), for clients that speak them.

Each event of the stream then holds one sentence or more, and none holds a part of one. A sentence
is sent as soon as it is known to be complete. Only the text of events is written anew: the text of
several events goes into the last of them. Other events pass as they come, after the text before
them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.dialects.registry import TEXT_FIELDS
from headstart.errors import UpstreamProtocolError
from headstart.middleware.reading import SSEDecoder
from headstart.policies.output.sentences import SentenceCutter
from headstart.reply import form_of_body
from headstart.types import ExtraDelta, Started, TextDelta, UsageReported

if TYPE_CHECKING:
    from headstart.dialects.dialect import Dialect, Frame
    from headstart.types import Message, Send, StreamEvent

_FIELD = re.compile(rb'"(?:%b)" ?: ?(?=")' % "|".join(sorted(TEXT_FIELDS)).encode())
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_BESIDE_TEXT = (TextDelta, ExtraDelta, Started, UsageReported)
"""Events that may come before the text of their frame. Gemini reports usage with each text."""
_NUMBERED = b'"sequence_number"'
"""The sign of events with numbers, which none may share."""


class _TextPlace(NamedTuple):
    """The text that is written into one place of the answer: a choice, and a block of it."""

    choice: int
    block: int | None


class _TakenText(NamedTuple):
    """A frame whose text, in a place, was taken out of it."""

    frame: bytes
    text: str


class SentencePace:
    """The ``send`` of a request whose answer is to come in sentences."""

    def __init__(self, send: Send, dialect: Dialect) -> None:
        self._send = send
        self._dialect = dialect
        self._frames: SSEDecoder | None = None
        """None: the answer passes as it is."""
        self._decoder = dialect.decoder()
        self._cutters: dict[_TextPlace, SentenceCutter] = {}
        self._last: dict[_TextPlace, _TakenText] = {}
        """The last frame of each place: it carries what is left."""

    async def __call__(self, message: Message) -> None:
        """Send a message of the answer."""
        if message["type"] == "http.response.start":
            message = self._begin(message)
        elif message["type"] == "http.response.body" and self._frames is not None:
            more = message.get("more_body", False)
            data = self._paced(message.get("body", b""), ends=not more)
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

    def _paced(self, data: bytes, *, ends: bool) -> bytes:
        """Return the bytes that go out now."""
        decoder = self._frames
        assert decoder is not None
        try:
            out = [self._frame(frame) for frame in decoder.feed(data)]
        except (UpstreamProtocolError, msgspec.DecodeError, ValueError):
            self._frames = None  # what cannot be read passes as it comes
            return self._flush() + decoder.rest() + data
        if ends:
            out += [self._flush(), decoder.rest()]
        return b"".join(out)

    def _frame(self, frame: Frame) -> bytes:
        events = self._decoder.feed(frame)
        texts = [event for event in events if isinstance(event, TextDelta) and event.text]
        if len(texts) != 1:
            return (self._flush() if _says_more(events) else b"") + frame.raw
        [text] = texts
        place = _TextPlace(text.choice, text.block)
        written = _write(frame.raw, text.text, text.text)
        if written is None:  # its text stands elsewhere
            return self._flush() + frame.raw
        cutter = self._cutters.setdefault(place, SentenceCutter())
        sentences = cutter.feed(text.text)
        self._last[place] = _TakenText(frame.raw, text.text)
        if _says_more(events):  # such as the reason why it ended
            others = self._flush(but=place)
            rest = "".join(sentences) + cutter.rest()
            self._last.pop(place)
            return others + (_write(frame.raw, text.text, rest) or b"")
        if _NUMBERED in frame.raw and sentences:
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
    """Tell whether events say something beside text that must come after the text before it."""
    return any(not isinstance(event, _BESIDE_TEXT) for event in events)


def _write(frame: bytes, old: str, new: str) -> bytes | None:
    """Return a frame with another text; None if its text stands in no field that is known."""
    for field in _FIELD.finditer(frame):
        string = _STRING.match(frame, field.end())
        if string is not None and msgspec.json.decode(string[0]) == old:
            text = msgspec.json.encode(new)
            return frame[: string.start()] + text + frame[string.end() :]
    return None

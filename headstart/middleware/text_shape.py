"""Reading a stream's text frames without decoding each: they differ in their text alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from headstart.middleware.dialects.answer_json import UNDECODABLE
from headstart.types import ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.types import StreamEvent

_TEXT = re.compile(rb'"(?:content|text|reasoning|reasoning_content|thinking)" ?: ?"(?!")')
"""Where texts begin, by the names of all dialects. An empty one says nothing."""
_PADDING = re.compile(rb'"(?:obfuscation|p)" ?: ?"')
"""Random letters of OpenAI's and Mistral's, which hide a text's length on the wire."""
_STRING = re.compile(rb'[^"\\\x00-\x1f]*(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*)*')
_CONTROL = re.compile(rb"[\x00-\x1f]")
"""No JSON has these within a string."""
_decode_string = msgspec.json.Decoder(str).decode


class TextShape(NamedTuple):
    """The bytes around the text of a frame that said nothing but text, or reasoning.

    A frame with the same bytes around it is the same JSON with another string in its place, so
    its text can be cut out: a fraction of the time that decoding takes.
    """

    before: bytes
    after: bytes
    """From the quote that ends the text; the frame's end, or all up to its padding."""
    tail: bytes
    """From the quote that ends the padding; empty without one."""
    delta: TextDelta | ReasoningDelta
    """What the frame said."""

    def read(self, data: bytes, start: int, *, join: bool) -> tuple[tuple[StreamEvent, ...], int]:
        """Return what the frames of this shape say from ``start`` on, and where they end.

        ``join``: that is one event, whose text is that of all.
        """
        before, after, tail = self.before, self.after, self.tail
        into, past = len(before), len(after)
        texts: list[str] = []
        while data.startswith(before, start):
            begin = start + into
            end = data.find(b'"', begin)
            text = data[begin:end]
            if b"\\" in text:
                end = _end_of_string(data, begin)
                text = data[begin:end]
            if not (text and data.startswith(after, end)) or _CONTROL.search(text):
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
        if join:
            return (replace(self.delta, text="".join(texts)),), start
        return tuple([replace(self.delta, text=text) for text in texts]), start


def _end_of_string(data: bytes, start: int) -> int:
    match = _STRING.match(data, start)
    return match.end() if match else start


def learn_shape(raw: bytes, events: Sequence[StreamEvent]) -> TextShape | None:
    """Return the shape of a frame whose only event is text that stands in it unescaped."""
    # A carriage return may end a frame or not: that depends on what follows.
    if len(events) != 1 or not raw.endswith(b"\n"):
        return None
    event = events[0]
    signed = isinstance(event, ReasoningDelta) and event.signature is not None  # its block ends
    if signed or not isinstance(event, TextDelta | ReasoningDelta):
        return None
    fields = [*_TEXT.finditer(raw)]
    if len(fields) != 1:
        return None
    start = fields[0].end()
    end = raw.find(b'"', start)
    if not event.text or raw[start:end] != event.text.encode("utf-8", "surrogatepass"):
        return None
    padding = _PADDING.search(raw, end)
    if padding is None:
        return TextShape(raw[:start], raw[end:], b"", event)
    tail = raw.find(b'"', padding.end())
    return TextShape(raw[:start], raw[end : padding.end()], raw[tail:], event)

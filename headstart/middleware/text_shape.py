"""Reading a stream's text frames without decoding each: they differ in their text alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.middleware.dialects.answer_json import UNDECODABLE
from headstart.types import TextDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.types import StreamEvent

_TEXT = re.compile(rb'"(?:content|text)" ?: ?"')
_PADDING = re.compile(rb'"(?:obfuscation|p)" ?: ?"')
"""Random letters of OpenAI's and Mistral's, which hide a text's length on the wire."""
_STRING = re.compile(rb'[^"\\\x00-\x1f]*(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*)*')
_decode_string = msgspec.json.Decoder(str).decode


class TextShape(NamedTuple):
    """The bytes around the text of a frame that said nothing but text.

    A frame with the same bytes around it is the same JSON with another string in its place, so
    its text can be cut out: a fraction of the time that decoding takes.
    """

    before: bytes
    after: bytes
    """From the quote that ends the text; the frame's end, or all up to its padding."""
    tail: bytes
    """From the quote that ends the padding; empty without one."""
    choice: int
    block: int | None

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
            if not (text and data.startswith(after, end)) or b"\n" in text or b"\r" in text:
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
            said = TextDelta(text="".join(texts), choice=self.choice, block=self.block)
            return (said,), start
        return tuple(
            [TextDelta(text=text, choice=self.choice, block=self.block) for text in texts]
        ), start


def _end_of_string(data: bytes, start: int) -> int:
    match = _STRING.match(data, start)
    return match.end() if match else start


def learn_shape(raw: bytes, events: Sequence[StreamEvent]) -> TextShape | None:
    """Return the shape of a frame whose only event is text that stands in it unescaped."""
    if len(events) != 1:
        return None
    event = events[0]
    # A carriage return may end a frame or not: that depends on what follows.
    if type(event) is not TextDelta or not event.text or not raw.endswith(b"\n"):
        return None
    fields = _TEXT.findall(raw)
    if len(fields) != 1:
        return None
    start = raw.index(fields[0]) + len(fields[0])
    end = raw.find(b'"', start)
    if raw[start:end] != event.text.encode("utf-8", "surrogatepass"):
        return None
    padding = _PADDING.search(raw, end)
    if padding is None:
        return TextShape(raw[:start], raw[end:], b"", event.choice, event.block)
    tail = raw.find(b'"', padding.end())
    return TextShape(raw[:start], raw[end : padding.end()], raw[tail:], event.choice, event.block)

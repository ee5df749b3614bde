"""Reading a stream's text chunks without decoding each: they differ in their text alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headstart.types import TextDelta

if TYPE_CHECKING:
    from headstart.types import StreamEvent

_CONTENT = b'"content":"'


class TextShape(NamedTuple):
    """The bytes around the text of a chunk that said nothing but text.

    A chunk with the same bytes around it is the same JSON with another string in its place, so
    its text can be cut out: a fraction of the time that decoding takes.
    """

    before: bytes
    after: bytes
    choice: int

    def text_of(self, data: bytes) -> str | None:
        """Return the text of a chunk of this shape, or None if it must be decoded."""
        before, after = self.before, self.after
        if not (data.startswith(before) and data.endswith(after)):
            return None
        text = data[len(before) : -len(after)]
        if not text or b'"' in text or b"\\" in text:
            return None
        try:
            return text.decode()
        except UnicodeDecodeError:
            return None


def learn_shape(data: bytes, events: tuple[StreamEvent, ...]) -> TextShape | None:
    """Return the shape of a chunk whose only event is text that stands in it unescaped."""
    if len(events) != 1:
        return None
    event = events[0]
    if not isinstance(event, TextDelta) or not event.text or data.count(b"content") != 1:
        return None
    start = data.find(_CONTENT) + len(_CONTENT)
    end = data.find(b'"', start)
    if data[start:end] != event.text.encode("utf-8", "surrogatepass"):
        return None
    return TextShape(data[:start], data[end:], event.choice)

"""An answer on its way to the client: what is sent, and how many seconds after the request."""

from __future__ import annotations

from typing import Literal

import msgspec

from headstart.types import Frozen, Headers

Ending = Literal["end", "close", "reset"]
"""``end``: the HTTP body ends properly; ``close``: FIN in the middle of it; ``reset``: RST."""


class Piece(msgspec.Struct, frozen=True):
    """Bytes that are due ``at_s`` seconds after the request; ``delta`` marks generated tokens.

    ``terminal``: without these bytes the stream has no proper end.
    """

    at_s: float
    data: bytes
    delta: bool = False
    terminal: bool = False


class Reply(Frozen):
    """A scripted HTTP answer. Times are simulated seconds since the request was read."""

    status: int
    headers: Headers
    pieces: tuple[Piece, ...]
    stream: bool = False
    head_at_s: float | None = 0.0
    """When the status and headers are sent; None: never."""
    head_takes_s: float = 0.0
    """Above zero the head trickles out over this time, and the connection closes after the body."""
    ending: Ending = "end"
    ending_at_s: float = 0.0

    @property
    def at_once(self) -> bool:
        """True when nothing waits, so that the client has no time to leave in between."""
        return (
            self.ending == "end"
            and self.head_takes_s == self.head_at_s == self.ending_at_s == 0.0
            and (not self.pieces or self.pieces[-1].at_s == 0.0)
        )

    @property
    def needs_transport(self) -> bool:
        """True when ASGI cannot express it: a broken connection or a trickling head."""
        return self.ending != "end" or self.head_takes_s > 0

    def split(self, tokens: int) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
        """Cut the pieces after so many generated tokens, or an unstreamed body in its middle."""
        if not self.stream:
            (whole,) = self.pieces
            middle = len(whole.data) // 2
            first, second = whole.data[:middle], whole.data[middle:]
            return (Piece(whole.at_s, first),), (Piece(whole.at_s, second),)
        ends = [0, *(place for place, piece in enumerate(self.pieces, 1) if piece.delta)]
        end = ends[min(tokens, len(ends) - 1)]
        return self.pieces[:end], self.pieces[end:]

    def last_sent_s(self, sent: tuple[Piece, ...]) -> float:
        """Return when the last of these pieces is due, or the head if there is none."""
        return sent[-1].at_s if sent else self.head_at_s or 0.0

    def with_body(self, body: bytes) -> Reply:
        """Return the reply with another unstreamed body, due when the old one was."""
        piece = Piece(self.last_sent_s(self.pieces), body)
        sized = self.with_header(b"content-length", b"%d" % len(body))
        return msgspec.structs.replace(sized, pieces=(piece,))

    def with_header(self, name: bytes, value: bytes) -> Reply:
        """Return the reply with a header set, in place of any of that name."""
        kept = tuple(pair for pair in self.headers if pair[0] != name)
        return msgspec.structs.replace(self, headers=(*kept, (name, value)))

    def with_headers(self, more: Headers) -> Reply:
        """Return the reply with further headers."""
        return msgspec.structs.replace(self, headers=(*self.headers, *more))

    def without_length(self) -> Reply:
        """Return the reply without ``content-length``, so that its body is sent in chunks."""
        kept = tuple(pair for pair in self.headers if pair[0] != b"content-length")
        return msgspec.structs.replace(self, headers=kept)

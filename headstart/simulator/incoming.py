"""One request as the simulator read it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from headstart.types import Frozen, Headers

if TYPE_CHECKING:
    from headstart.simulator.profiles import Draw

CREDENTIALS = (b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key")
"""The headers that may carry a key."""


class Incoming(Frozen):
    """One request, read whole. ``at_s``: simulated seconds since the start or the last reset."""

    id: str
    number: int
    at_s: float
    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes
    draw: Draw

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header, or None."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def credential(self) -> bytes:
        """The key that came along, without ``Bearer``; empty when there is none."""
        for name in CREDENTIALS:
            if (value := self.header(name)) is not None:
                return value.removeprefix(b"Bearer ")
        return parse_qs(self.query).get(b"key", [b""])[0]

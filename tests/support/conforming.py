"""ASGI as strict as the strictest host: what an app sends is checked, message by message.

Servers differ in what they forgive. uvicorn takes headers in any iterable, Starlette's middleware
only in a list; h11 refuses what httptools writes. So this holds an app to all of it: the message
types and their order, headers in a list of its own, names in lower case, no byte that could end a
header, bodies as long as they said, and an answer that ends.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Any

from headstart.middleware.respond import CUT_OFF

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+\Z")
_FORBIDDEN = re.compile(rb"[\r\n\0]")
_BODILESS = frozenset((204, 304))
_OTHERS = {
    "lifespan": re.compile(r"lifespan\.(startup|shutdown)\.(complete|failed)\Z"),
    "websocket": re.compile(r"websocket\.(accept|send|close|http\.response\.(start|body))\Z"),
}


class Conforming:
    """Wraps an app and holds it to the rules; ``violations`` lists what it broke.

    A violation is raised from ``send`` as well, so that an answer that breaks a rule fails.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.violations: list[str] = []
        self.lists: deque[list[Any]] = deque(maxlen=1000)
        """The headers of earlier answers: a host may append to them, so each is used once."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        answer = _Answer(self, scope)

        async def received() -> Any:
            message = await receive()
            answer.left = answer.left or message["type"] == "http.disconnect"
            return message

        def when_gone(on_gone: Callable[[], object]) -> Any:
            def gone() -> None:
                answer.left = True
                on_gone()

            return receive.when_gone(gone)

        async def sent(message: Any) -> None:
            answer.check(message)
            await send(message)

        if hasattr(receive, "when_gone"):  # the sidecar's server also tells it without a message
            vars(received)["when_gone"] = when_gone
        await self.app(scope, received, sent)
        if not answer.ended and not answer.left and not answer.cut_off:
            self.fail(scope, "returned before its answer ended")

    async def _other(self, scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if not _OTHERS[scope["type"]].match(message["type"]):
                self.fail(scope, f"sent {message['type']!r} in a {scope['type']} scope")
            await send(message)

        await self.app(scope, receive, sent)

    def fail(self, scope: Any, what: str) -> None:
        text = f"{scope.get('method', '')} {scope.get('path', '')}: {what}"
        self.violations.append(text)
        raise AssertionError(text)


class _Answer:
    """One answer, as far as it was sent."""

    def __init__(self, owner: Conforming, scope: Any) -> None:
        self._owner = owner
        self._scope = scope
        self._begun = self.ended = self.left = False
        self.cut_off = False
        """It broke off on purpose, where the host is known to end the connection."""
        self._length: int | None = None
        self._size = 0

    def check(self, message: Any) -> None:
        kind = message["type"]
        if self.ended:
            self._fail(f"sent {kind!r} after the end of its answer")
        elif kind == "http.response.start":
            self._start(message)
        elif kind == "http.response.body":
            self._body(message)
        elif kind not in (self._scope.get("extensions") or {}):
            self._fail(f"sent {kind!r}, which this server does not offer")

    def _start(self, message: Any) -> None:
        if self._begun:
            self._fail("began its answer twice")
        self._begun = True
        status, headers = message.get("status"), message.get("headers", [])
        if not isinstance(status, int) or not 100 <= status <= 999:
            self._fail(f"status is {status!r}")
        if not isinstance(headers, list):
            self._fail(f"headers are a {type(headers).__name__}, not a list")
        ours = any(name == b"x-headstart-request-id" for name, _ in headers)
        for pair in headers:
            name, value = pair
            if not isinstance(pair, tuple | list) or type(name) is not bytes:
                self._fail(f"a header is {pair!r}")
            if type(value) is not bytes or _FORBIDDEN.search(value):
                self._fail(f"the value of {name!r} is {value!r}")
            # Django writes its own names with capitals; what we had in hand has none.
            if not _NAME.match(name if ours else name.lower()):
                self._fail(f"a header is called {name!r}")
        lengths = {value for name, value in headers if name == b"content-length"}
        if len(lengths) > 1:
            self._fail("has two lengths")
        bodiless = status in _BODILESS or self._scope["method"] == "HEAD"
        if lengths and not bodiless:
            self._length = int(lengths.pop())
        if any(headers is earlier for earlier in self._owner.lists):
            self._fail("its headers are the very list that an earlier answer had")
        self._owner.lists.append(headers)

    def _body(self, message: Any) -> None:
        if not self._begun:
            self._fail("sent a body before its status")
        body, more = message.get("body", b""), message.get("more_body", False)
        if not isinstance(body, bytes | bytearray | memoryview):
            self._fail(f"a body is a {type(body).__name__}")
        if type(more) is not bool:
            self._fail(f"more_body is {more!r}")
        self._size += len(body)
        self.ended = not more
        self.cut_off = CUT_OFF in message
        if self._length is None:
            return
        if self._size > self._length or (self.ended and self._size != self._length):
            self._fail(f"sent {self._size} bytes of {self._length}")

    def _fail(self, what: str) -> None:
        self._owner.fail(self._scope, what)

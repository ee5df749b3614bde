"""Shapers that may fail: a call that they cannot shape is made as it came."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from headstart.errors import HeadstartError
from headstart.middleware.shaping.shaper import Shaper
from headstart.observe import StageFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.interfaces import Candidate, Observer, UpstreamReply
    from headstart.types import Call


class FailOpen(Shaper):
    """Makes calls through ``shaper``, or to ``inner`` where the shaper fails before an answer."""

    def __init__(self, shaper: Candidate, inner: Candidate, observer: Observer) -> None:
        super().__init__(inner)
        self._shaper = shaper
        self._observer = observer

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[UpstreamReply]:
        """Send the call. Raises HeadstartError."""
        async with AsyncExitStack() as stack:
            try:
                reply = await stack.enter_async_context(self._shaper.stream(call))
            except HeadstartError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the call is made all the same
                self._observer.notify(StageFailed(stage="output", error=type(error).__name__))
                reply = await stack.enter_async_context(self._inner.stream(call))
            yield reply

"""Rescue of an answer that broke off: restart and match, so that the caller sees one answer.

``docs/strategies.md`` tells when an answer can be rescued and what the caller sees if it cannot.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from headstart.attempts import AttemptRole
from headstart.errors import HeadstartError, UpstreamError
from headstart.middleware.reading import Piece
from headstart.middleware.upstreams.holding import Held
from headstart.middleware.upstreams.opening import AnswerWithheld
from headstart.middleware.upstreams.shown import Shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from headstart.attempts import Outlook
    from headstart.interfaces import Candidate, Chunk, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.types import Call

Mode: TypeAlias = Literal["restart", "prefill", "off"]
"""``prefill`` restarts, too: matching is right on every provider, continuing on few."""


class Rescued:
    """Stands around a route's strategy. Once a call, an answer that broke off is begun anew.

    It also delivers an answer that was withheld, since nobody gave a better one.
    """

    def __init__(
        self, inner: Candidate, dialects: Mapping[str, Dialect], *, mode: Mode = "restart"
    ) -> None:
        self.name = inner.name
        self.identity = inner.identity
        self.names = inner.names
        self._inner = inner
        self._dialects = dialects
        self._mode = mode

    def outlook(self, call: Call) -> Outlook:
        """Return the outlook of what is inside."""
        return self._inner.outlook(call)

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[UpstreamReply]:
        """Send the call; entering waits for first content. Leaving ends a rescue, too."""
        dialect = self._dialects.get(call.dialect) if call.request is not None else None
        async with AsyncExitStack() as stack:
            try:
                reply = await stack.enter_async_context(self._inner.stream(call))
            except AnswerWithheld as error:
                yield error.reply
                return
            if self._mode == "off" or dialect is None or not call.editable:
                yield reply
                return
            failure: Exception | None = None
            async with asyncio.TaskGroup() as group:
                rescuer = _Rescuer(self._inner, call, group)
                try:
                    yield RescuedReply(reply, call, dialect, rescuer)
                except Exception as error:  # noqa: BLE001 - the group would wrap it
                    failure = error
                rescuer.end(in_order=failure is None)
            if failure is not None:
                raise failure


class _Rescuer:
    """Makes the second call, in a task of its own: its context outlives a step of the reader."""

    def __init__(self, inner: Candidate, call: Call, group: asyncio.TaskGroup) -> None:
        self._inner = inner
        self._call = call
        self._group = group
        self._held: Held | None = None

    async def restart(self, failed: str) -> UpstreamReply | None:
        """Call anew, elsewhere if there is anybody else; None: nobody answers."""
        avoid = self._call.avoid | {failed}
        if self._inner.names <= avoid:
            avoid = self._call.avoid
        # A branch of its own: the first call's losers are still ruled out by theirs.
        branch = f"{self._call.branch}.rescue"
        call = msgspec.structs.replace(
            self._call, role=AttemptRole.RESCUE, avoid=avoid, branch=branch
        )
        known = asyncio.Event()
        self._held = Held(self._group, self._inner, call, lambda _: known.set())
        await known.wait()
        if self._held.error is not None and not isinstance(self._held.error, HeadstartError):
            raise self._held.error
        return self._held.reply

    def end(self, *, in_order: bool) -> None:
        """The answer was read, or else was given up."""
        if self._held is not None:
            self._held.release() if in_order else self._held.cancel()


class RescuedReply:
    """An answer that goes on in another one where it breaks off. ``chunks`` may be called once.

    Raises what broke it off where it cannot go on: never a silent truncation.
    """

    def __init__(
        self, reply: UpstreamReply, call: Call, dialect: Dialect, rescuer: _Rescuer
    ) -> None:
        self.upstream = reply.upstream
        self.status = reply.status
        self.headers = reply.headers
        self._reply = reply
        self._call = call
        self._dialect = dialect
        self._rescuer = rescuer
        self._rescued = False

    @property
    def transforms(self) -> tuple[str, ...]:
        """What the first answer's were, and ``rescued`` once there is a seam in it."""
        transforms = self._reply.transforms
        return (*transforms, "rescued") if self._rescued else transforms

    @property
    def storable(self) -> bool:
        return self._reply.storable and not self._rescued

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the answer, with a seam or without."""
        shown = Shown()
        try:
            async for piece in self._reply.chunks():
                shown.add(piece)
                yield piece
        except UpstreamError as error:
            broken = error
        else:
            return
        second = await self._second(shown, broken)
        self._rescued = True
        try:
            async for piece in second.chunks() if shown.nothing else self._matched(second, shown):
                yield piece
        except UpstreamError as error:
            raise broken from error

    async def _second(self, shown: Shown, broken: UpstreamError) -> UpstreamReply:
        """Begin anew. Raises ``broken`` where that cannot help."""
        request, deadline = self._call.request, self._call.deadline
        assert request is not None
        plain = request.choices == 1 and not request.logprobs
        if not (shown.nothing or (request.stream and plain and shown.joinable)):
            raise broken
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            raise broken
        second = await self._rescuer.restart(self.upstream)
        if second is None:
            raise broken
        return second

    async def _matched(self, second: UpstreamReply, shown: Shown) -> AsyncIterator[Chunk]:
        """Yield what is new in the second answer. Raises UpstreamError where it diverges."""
        request = self._call.request
        assert request is not None
        encoder = self._dialect.encoder(
            shown.id or self._dialect.new_id(), shown.created, include_usage=request.include_usage
        )
        # What the client has already puts the writer in the place where it goes on.
        encoder.feed(shown.events)
        joint = shown.joint()
        async for piece in second.chunks():
            events = tuple(joint.feed(piece.events))
            data = encoder.feed(events)
            if data or events:
                yield Piece(data, events)

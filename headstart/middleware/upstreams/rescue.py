"""Rescue of an answer that broke off: go on with it or begin anew, so that the caller sees one.

``docs/strategies.md`` tells when an answer can be rescued and what the caller sees if it cannot.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from headstart.attempts import AttemptRole, Tokens
from headstart.errors import HeadstartError, UpstreamError
from headstart.middleware.reading import Piece
from headstart.middleware.shaping.shaper import with_document
from headstart.middleware.upstreams.holding import Held, tended
from headstart.middleware.upstreams.opening import AnswerWithheld
from headstart.middleware.upstreams.shown import Joint, Shown
from headstart.policies.output.continuation import continuing
from headstart.policies.routing.seam import OVERLAP, Continuation, Seam
from headstart.types import Ended, UsageReported

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from headstart.attempts import Outlook
    from headstart.interfaces import Candidate, Chunk, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.policies.output.continuation import Prefill
    from headstart.types import Call, StreamEvent

Mode: TypeAlias = Literal["restart", "prefill", "off"]
"""Begin anew and match what was shown, or have the rest of it said where that can be asked for;
``"off"``: only begin anew where nothing was shown."""
_NOBODY: Mapping[str, Prefill] = {}


class Rescued:
    """Stands around a route's strategy. Once a call, an answer that broke off is begun anew.

    It also delivers an answer that was withheld, since nobody gave a better one. ``prefill`` tells
    by name which upstreams go on from a last assistant message; the others do not.
    """

    def __init__(
        self,
        inner: Candidate,
        dialects: Mapping[str, Dialect],
        *,
        mode: Mode = "restart",
        prefill: Mapping[str, Prefill] = _NOBODY,
    ) -> None:
        self.name = inner.name
        self.identity = inner.identity
        self.names = inner.names
        self._inner = inner
        self._dialects = dialects
        self._mode = mode
        self._prefill = prefill if mode == "prefill" else _NOBODY

    def outlook(self, call: Call) -> Outlook:
        """Return the outlook of what is inside."""
        return self._inner.outlook(call)

    def stream(self, call: Call) -> _Sending:
        """Send the call; entering waits for first content. Leaving ends a rescue, too."""
        dialect, request = None, call.request
        # A whole answer is shown at its end: until then another one is no rescue, but failover.
        if call.editable and request is not None and not (self._mode == "off" and request.stream):
            dialect = self._dialects.get(call.dialect)
        return _Sending(call, dialect, self._inner, self._prefill)


class _Sending:
    """A call and the rescue of its answer. ``dialect`` None: it cannot be rescued."""

    def __init__(
        self,
        call: Call,
        dialect: Dialect | None,
        inner: Candidate,
        prefill: Mapping[str, Prefill],
    ) -> None:
        self._call = call
        self._dialect = dialect
        self._inner = inner
        self._first: AbstractAsyncContextManager[UpstreamReply] | None = None
        self._rescuer = _Rescuer(inner, call, prefill)

    async def __aenter__(self) -> UpstreamReply:
        sending = self._inner.stream(self._call)
        try:
            reply = await sending.__aenter__()
        except AnswerWithheld as error:
            return error.reply
        self._first = sending
        if self._dialect is None:
            return reply
        return RescuedReply(reply, self._call, self._dialect, self._rescuer)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._first is None:
            return None
        rescue = self._rescuer.context
        if rescue is None:
            return await self._first.__aexit__(kind, error, trace)
        stack = AsyncExitStack()
        stack.push_async_exit(self._first)
        stack.push_async_exit(rescue)
        return await stack.__aexit__(kind, error, trace)


class _Rescuer:
    """Makes the second call, in a task of its own: its context outlives a step of the reader."""

    def __init__(self, inner: Candidate, call: Call, prefill: Mapping[str, Prefill]) -> None:
        self._inner = inner
        self._call = call
        self._prefill = prefill
        self._group: asyncio.TaskGroup
        self._held: list[Held] = []
        self.context: AbstractAsyncContextManager[_Rescuer] | None = None
        """That of the calls made, entered; None: none was made."""

    def _tend(self, group: asyncio.TaskGroup) -> _Rescuer:
        self._group = group
        return self

    async def restart(self, failed: str) -> UpstreamReply | None:
        """Call anew, elsewhere if there is anybody else; None: nobody answers."""
        elsewhere = self._inner.names - self._call.avoid - {failed}
        avoid = self._call.avoid | ({failed} if elsewhere else set())
        return (await self._begin(self._call, "rescue", avoid)).reply

    async def go_on(self, failed: str, said: str) -> UpstreamReply | None:
        """Have the rest said by one who can; None: nobody does.

        Who has nothing to add has said enough.
        """
        request, reachable = self._call.request, self._inner.names - self._call.avoid
        able = {name: how for name, how in self._prefill.items() if how != "no"}
        able = {name: how for name, how in able.items() if name in reachable}
        if request is None or not able or _is_begun(request.document):
            return None
        others = sorted(able.keys() - {failed}) or [failed]
        how = able[others[0]]
        asked = {name for name in others if able[name] == how}
        document = continuing(request.document, said, how)
        avoid = self._call.avoid | (self._inner.names - asked)
        held = await self._begin(with_document(self._call, document), "prefill", avoid)
        reply = held.error.reply if isinstance(held.error, AnswerWithheld) else held.reply
        if reply is None or reply.upstream in asked:
            return reply
        # A strategy may ask somebody else in spite of all.
        held.cancel()
        return None

    async def _begin(self, call: Call, branch: str, avoid: frozenset[str]) -> Held:
        call = msgspec.structs.replace(
            call,
            role=AttemptRole.RESCUE,
            avoid=avoid,
            # Of its own: the first call's losers are still ruled out by theirs.
            branch=f"{call.branch}.{branch}",
        )
        if self.context is None:
            self.context = tended(self._tend)
            await self.context.__aenter__()
        known = asyncio.Event()
        held = Held(self._group, self._inner, call, lambda _: known.set())
        self._held.append(held)
        await known.wait()
        if held.error is not None and not isinstance(held.error, HeadstartError):
            raise held.error
        return held

    def end(self, *, in_order: bool) -> None:
        """The answer was read, or else was given up."""
        for held in self._held:
            held.release() if in_order else held.cancel()

    def settle(self) -> None:
        """All calls have ended: nothing was ruled on them."""


def _is_begun(document: Mapping[str, Any]) -> bool:
    """Has the caller begun the answer itself?"""
    turns: Any = document.get("messages") or document.get("contents") or ({},)
    return turns[-1].get("role") in ("assistant", "model")


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
        try:
            async with aclosing(self._second(shown, broken)) as pieces:
                async for piece in pieces:
                    yield piece
        except UpstreamError as error:
            raise broken from (None if error is broken else error)

    async def _second(self, shown: Shown, broken: UpstreamError) -> AsyncGenerator[Chunk]:
        """Yield what follows. Raises ``broken`` where nobody can help, others where it diverges."""
        request, dialect = self._call.request, self._dialect
        assert request is not None
        second, seam = await self._begin(shown) if self._is_rescuable(shown) else (None, None)
        if second is None:
            raise broken
        self._rescued = True
        if seam is None:
            async for piece in second.chunks():
                yield piece
            return
        encoder = dialect.encoder(
            shown.id or dialect.new_id(), shown.created, include_usage=request.include_usage
        )
        # What the client has already puts the writer in the place where it goes on.
        encoder.feed(shown.events)
        joint = Joint(seam, shown.block)
        begun = shown.tokens(dialect, self._call.prompt_tokens)
        async for piece in second.chunks():
            events = tuple(joint.feed(piece.events))
            if isinstance(seam, Continuation):
                events = tuple(_add_usage(event, begun, dialect) for event in events)
            data = encoder.feed(events)
            if data or events:
                yield Piece(data, events)
        # Some providers leave out the last event, and Gemini has none; the client gets its own.
        if last := encoder.feed((Ended(),)):
            yield Piece(last, (Ended(),))

    def _is_rescuable(self, shown: Shown) -> bool:
        request, deadline = self._call.request, self._call.deadline
        assert request is not None
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            return False
        plain = request.choices == 1 and not request.logprobs
        return shown.nothing or (request.stream and plain and shown.joinable)

    async def _begin(self, shown: Shown) -> tuple[UpstreamReply | None, Seam | Continuation | None]:
        """Return what follows, if anybody answers, and how it joins; None: it stands alone."""
        failed, said = self.upstream, shown.text
        if shown.nothing:
            return await self._rescuer.restart(failed), None
        if shown.is_text and len(said.rstrip()) >= OVERLAP:
            rest = await self._rescuer.go_on(failed, said)
            if rest is not None:
                return rest, Continuation(said)
        return await self._rescuer.restart(failed), Seam(said)


def _add_usage(event: StreamEvent, begun: Tokens, dialect: Dialect) -> StreamEvent:
    """Add what the first part took to what the rest reports."""
    if not isinstance(event, UsageReported):
        return event
    rest = dialect.tokens(event.usage)
    return UsageReported(usage=dialect.usage(Tokens(*map(sum, zip(begun, rest, strict=True)))))

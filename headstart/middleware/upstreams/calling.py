"""One call of a target, from the leave to make it to its first content, its end and its books."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from headstart.errors import HeadstartError, RequestError, UpstreamTimeout
from headstart.middleware.upstreams.opening import Progress, is_readable, judge, open_answer
from headstart.middleware.upstreams.patience import Patience
from headstart.middleware.upstreams.watched import WatchedReply
from headstart.policies.routing.failures import FailureKind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from headstart.interfaces import Chunk, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.recording import Recording
    from headstart.middleware.upstreams.target import Target
    from headstart.types import Call


class Calling:
    """A call under way. Entering waits for first content; leaving closes its socket and books it.

    Raises HeadstartError, UpstreamUnavailable where ``target`` gives no leave.
    """

    def __init__(self, target: Target, call: Call) -> None:
        self._target = target
        self._call = call
        self._time = asyncio.get_running_loop().time
        self._patience = Patience()
        self._progress = Progress()
        self._dialect: Dialect | None = None
        self._recording: Recording
        self._sending: AbstractAsyncContextManager[UpstreamReply] | None = None
        self._source: AsyncGenerator[Chunk] | None = None

    async def __aenter__(self) -> WatchedReply:
        self._recording = self._target.begin(self._call, self._time())
        try:
            return await self._open()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._close(kind, error, trace)
        finally:
            progress, dialect, now = self._progress, self._dialect, self._time()
            at_finish = dialect is not None and dialect.ends_at_finish and progress.finished
            if progress.error is None and (progress.ended or at_finish):
                self._recording.learn(progress, dialect)
                self._recording.ended(now)
            else:
                self._recording.left(now)

    async def _close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """Close the socket, once: an answer that breaks off does not wait for its reader."""
        self._patience.stop()
        sending, self._sending = self._sending, None
        if sending is None:
            return
        try:
            if self._source is not None:
                await self._source.aclose()
        except BaseException as failure:
            await sending.__aexit__(type(failure), failure, failure.__traceback__)
            raise
        await sending.__aexit__(kind, error, trace)

    async def _open(self) -> WatchedReply:
        target, call, recording = self._target, self._call, self._recording
        if call.request is not None:
            self._dialect = target.dialects.get(call.dialect)
        until = self._first_content_until()
        try:
            opening = self._first_content()
            if until is not None:
                opening = self._patience.within(opening, until)
            reply, held = await opening
        except TimeoutError as error:
            late = UpstreamTimeout(
                f"upstream {target.name} sent no content in time", kind=FailureKind.SILENT
            )
            self._failed(late)
            raise late from error
        except HeadstartError as error:
            self._failed(error)
            raise
        recording.first(self._time())
        assert self._source is not None
        return WatchedReply(
            reply,
            self._source,
            held,
            self._progress,
            recording,
            self._dialect,
            stall_s=target.stall_limit_s(recording.key, call),
            clock=target.clock,
            patience=self._patience,
            close=self._close,
        )

    async def _first_content(self) -> tuple[UpstreamReply, list[Chunk]]:
        """Send the call and read up to the first content; return what was held until then."""
        target, call, recording = self._target, self._call, self._recording
        sending = target.upstream.stream(call)
        reply = await sending.__aenter__()
        self._sending = sending
        recording.answered(reply, self._time(), target.clock())
        self._source = source = cast("AsyncGenerator[Chunk]", reply.chunks())
        if reply.status == 200 and not is_readable(call, reply.headers):
            self._dialect = None
        return reply, await open_answer(reply, source, self._progress, self._dialect, call.id)

    def _failed(self, error: HeadstartError) -> None:
        now = self._time()
        if isinstance(error, RequestError):
            self._recording.dropped(now)
            return
        self._recording.learn(self._progress, self._dialect)
        self._recording.failed(judge(error, self._target.clock()), now)

    def _first_content_until(self) -> float | None:
        """Return the last moment for the first content. A whole answer comes when it is done."""
        call, recording = self._call, self._recording
        if not recording.streams:
            return call.deadline
        limit_s = self._target.first_token_limit_s(recording.key, call, recording.began)
        if limit_s is None:
            return call.deadline  # nobody else would answer: a model may think for minutes
        until = recording.began + limit_s
        return until if call.deadline is None else min(until, call.deadline)

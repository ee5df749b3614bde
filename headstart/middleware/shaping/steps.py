"""Steps that change a prompt or its answer, and the candidate that runs them.

A step gets a call. It returns None where it has nothing to change; otherwise it returns a function
that sends the changed call to the rest of the steps, and returns the answer for the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from headstart.dialects.registry import DIALECTS
from headstart.errors import HeadstartError, InvalidRequest
from headstart.observe import StageFailed
from headstart.reply import AnswerWithheld

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from headstart.attempts import RoutingEstimate
    from headstart.canonical_request import CanonicalRequest
    from headstart.interfaces import Candidate
    from headstart.observe import Observer
    from headstart.reply import Reply
    from headstart.types import Call, ChatRequest, Headers


@dataclass(frozen=True)
class StepContext:
    """The services that steps use."""

    observer: Observer
    clock: Callable[[], float]

    def read(self, call: Call, request: ChatRequest) -> CanonicalRequest | None:
        """Return the request in no dialect; None if it cannot be read."""
        try:
            return DIALECTS[call.dialect].read_request(request)
        except InvalidRequest:
            return None

    def note_failure(self, stage: str, error: Exception) -> None:
        """Count a failure by the type of its error, because its text may contain the prompt."""
        self.observer.notify(StageFailed(stage=stage, error=type(error).__name__))


class Step(Protocol):
    """A change of a prompt or of its answer."""

    @property
    def stage(self) -> str:
        """The name under which failures of the step are counted."""

    def __call__(self, call: Call, request: ChatRequest, context: StepContext) -> Send | None:
        """Return how to send the call; None if the step does not apply to it."""


class ShapedCandidate:
    """Sends calls to ``inner`` through steps, the first of which sees the call first.

    A call that must pass as it came goes straight to ``inner``. Where a step itself fails, the
    call is sent without this step.
    """

    def __init__(self, inner: Candidate, steps: Sequence[Step], context: StepContext) -> None:
        self.name = inner.name
        self.names = inner.names
        self.identity = inner.identity
        self._inner = inner
        self._steps = steps
        self._context = context

    def estimate(self, call: Call) -> RoutingEstimate:
        """Return what to expect of this call, now."""
        return self._inner.estimate(call)

    async def send(self, call: Call, first: int = 0) -> Reply:
        """Send the call through the steps from number ``first`` on. Raises UpstreamError."""
        request = call.request
        if request is None or not is_editable(call):
            return await self._inner.send(call)
        for number in range(first, len(self._steps)):
            step = self._steps[number]
            try:
                send = step(call, request, self._context)
            except HeadstartError:
                raise
            except Exception as error:  # noqa: BLE001 - the call is sent without this step
                self._context.note_failure(step.stage, error)
                continue
            if send is not None:
                return await self._through(call, send, number)
        return await self._inner.send(call)

    async def _through(self, call: Call, send: Send, number: int) -> Reply:
        rest = RestOfSteps(self, number + 1)
        try:
            return await send(rest)
        except Exception as error:
            await rest.leave(error)
            if isinstance(error, HeadstartError) or error is rest.error:
                raise
            self._context.note_failure(self._steps[number].stage, error)
        except BaseException as error:
            await rest.leave(error)
            raise
        return await self.send(call, number + 1)


class RestOfSteps:
    """The steps that follow one step, and the candidate. They answer the calls of that step."""

    def __init__(self, candidate: ShapedCandidate, first: int) -> None:
        self.names = candidate.names
        self._candidate = candidate
        self._first = first
        self._reply: Reply | None = None
        """The answer that the step got last."""
        self.error: Exception | None = None
        """An error that a call raised."""

    async def send(self, call: Call, *transforms: str) -> Reply:
        """Return the answer to a call. It bears these transforms, also one that is withheld.

        Raises UpstreamError.
        """
        try:
            reply = await self._candidate.send(call, self._first)
        except Exception as error:
            self.error = error
            if isinstance(error, AnswerWithheld):
                error.reply.transforms = (*transforms, *error.reply.transforms)
            raise
        self._reply = reply
        reply.transforms = (*transforms, *reply.transforms)
        return reply

    async def leave(self, error: BaseException | None = None) -> None:
        """Close the last answer, for another one."""
        reply, self._reply = self._reply, None
        if reply is not None:
            await reply.aclose(error)


Send: TypeAlias = "Callable[[RestOfSteps], Awaitable[Reply]]"
"""Sends a call through the rest of the steps, as often as it takes."""


def is_editable(call: Call) -> bool:
    """Tell whether a call may be changed: it was read, has one meaning, and passes the cache."""
    request = call.request
    return (
        request is not None
        and call.editable
        and call.dialect in DIALECTS
        and DIALECTS[call.dialect].is_chat
        and not request.duplicate_keys
    )


def without_length(headers: Headers) -> Headers:
    """Return the headers for a body whose length is not known yet."""
    return tuple(pair for pair in headers if pair[0] != b"content-length")

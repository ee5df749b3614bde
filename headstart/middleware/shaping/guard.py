"""Limits on answers to requests that name none: against runaways, or to keep all of them short.

What a limit of ours cut is continued, so it costs the client time, never text. ``docs/output.md``
tells which requests are limited, and why.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headstart.errors import InvalidRequest, UpstreamRefused
from headstart.middleware.dialects.gemini_generate import GeminiGenerate
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.middleware.reading import is_plain
from headstart.middleware.router import conversation
from headstart.middleware.shaping.continuing import ContinuedReply, Continuing
from headstart.middleware.shaping.further import further_calls
from headstart.middleware.shaping.measured import Length, MeasuredReply
from headstart.middleware.shaping.shaper import Shaper, plain, with_document
from headstart.middleware.upstreams.opening import AnswerWithheld
from headstart.observe import HELD_OUT, Shaped, StageFailed
from headstart.policies.output.experiment import arm
from headstart.policies.output.guard import refuse_limit, refuses_limits, speaks_of_context
from headstart.policies.output.lengths import Key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from headstart.interfaces import Candidate, Observer, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.policies.output.continuation import Prefill
    from headstart.policies.output.lengths import Budget, Lengths
    from headstart.types import Call

TIGHT = "tight"
GUARD = "guard"


@dataclass(frozen=True)
class GuardOptions:
    """Limits of one route's answers."""

    place: str
    """The route's name, under which lengths are learned."""
    budget: Budget = "guard"
    holdout: float = 0.1
    """``tight``: share of the conversations without a limit, to measure what it saves."""
    prefill: Mapping[str, Prefill] = field(default_factory=dict)
    """How upstreams, by name, go on from a last assistant message."""


class Guard(Shaper):
    """Sends calls on with a limit. Their answers bear the transform ``guard`` or ``tight``.

    Lengths are learned from the answers that pass. Where an upstream refuses a limit, the call is
    made without, and none of its kind is limited any more.
    """

    def __init__(
        self,
        inner: Candidate,
        options: GuardOptions,
        lengths: Lengths,
        *,
        dialects: Mapping[str, Dialect],
        ledger: Ledger,
        observer: Observer,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(inner)
        self._options = options
        self._lengths = lengths
        self._dialects = dialects
        self._ledger = ledger
        self._observer = observer
        self._clock = clock

    def stream(self, call: Call) -> AbstractAsyncContextManager[UpstreamReply]:
        """Send the call. Raises UpstreamError."""
        dialect = self._dialects.get(call.dialect)
        if dialect is None or not _may_limit(call, dialect):
            return self._inner.stream(call)
        plan = self._plan(call, dialect)
        return self._measure(call, plan) if plan.limit is None else self._limit(call, plan)

    def _plan(self, call: Call, dialect: Dialect) -> _Plan:
        assert call.request is not None
        options, kind = self._options, GUARD
        key = Key(options.place, call.request.model)
        limit = self._lengths.limit(key, options.budget)
        if options.budget == TIGHT and limit is not None:
            kind = arm(TIGHT, conversation("", call.request), options.holdout)
            limit = None if kind.endswith(HELD_OUT) else limit
        return _Plan(key, kind, limit, dialect)

    @asynccontextmanager
    async def _measure(self, call: Call, plan: _Plan) -> AsyncIterator[UpstreamReply]:
        async with self._inner.stream(call) as reply:
            yield self._measured(call, plan, reply)

    def _measured(self, call: Call, plan: _Plan, reply: UpstreamReply) -> UpstreamReply:
        def ended(length: Length) -> None:
            self._learn(call, plan, length)

        return MeasuredReply(reply, plan.dialect, ended)

    @asynccontextmanager
    async def _limit(self, call: Call, plan: _Plan) -> AsyncIterator[UpstreamReply]:
        assert plan.limit is not None
        async with further_calls(self._inner) as calls, AsyncExitStack() as stack:
            limited = self.pass_on(_limited(call, plan.limit), plan.kind)
            reply: UpstreamReply | None = None
            gives_up = True
            try:
                reply = await stack.enter_async_context(limited)
            except AnswerWithheld as withheld:
                # A model that thinks unseen says nothing until the limit cuts it.
                reply = withheld.reply
            except UpstreamRefused as error:
                if not refuses_limits(error.status, error.body):
                    raise
                gives_up = not speaks_of_context(error.body)
            if reply is None or not is_plain(reply.headers):
                await stack.aclose()
                reply = await stack.enter_async_context(self._inner.stream(call))
                # Only now: a request that is refused either way says nothing about limits.
                if gives_up:
                    self._give_up(plan.key)
                yield self._measured(call, plan._replace(kind=GUARD), reply)
                return
            how = Continuing(
                call,
                plan.limit,
                _limited,
                calls,
                plan.dialect,
                self._options.prefill,
                self.names,
                self._clock,
            )

            def ended(length: Length) -> None:
                self._learn(call, plan, length)

            yield ContinuedReply(reply, how, ended)

    def _learn(self, call: Call, plan: _Plan, length: Length) -> None:
        if not length.cut:
            self._lengths.add(plan.key, length.tokens)
        if length.parts > 1 or plan.kind != GUARD:
            row = Shaped(
                kind=plan.kind,
                tokens_before=length.tokens,
                tokens_after=length.tokens,
                estimated=length.estimated,
            )
            self._ledger.shape(call.id, row)

    def _give_up(self, key: Key) -> None:
        self._lengths.refuse(key)
        self._observer.notify(StageFailed(stage="output", error="LimitRefused"))


class _Plan(NamedTuple):
    key: Key
    kind: str
    limit: int | None
    dialect: Dialect


def _may_limit(call: Call, dialect: Dialect) -> bool:
    """Tell whether an answer could be limited, and continued.

    Anthropic's callers always name a limit.
    """
    request = call.request
    if request is None or request.max_tokens is not None or not plain(call):
        return False
    if call.dialect not in (OpenAIChat.name, GeminiGenerate.name):
        return False
    try:
        return refuse_limit(dialect.read_request(request)) is None
    except InvalidRequest:
        return False


def _limited(call: Call, limit: int) -> Call:
    """Return the call with a limit; providers that know it by another name have their quirks."""
    assert call.request is not None
    document: dict[str, Any] = call.request.document
    if call.dialect == GeminiGenerate.name:
        config = {**document["generationConfig"], "maxOutputTokens": limit}
        return with_document(call, {**document, "generationConfig": config}, max_tokens=limit)
    return with_document(call, {**document, "max_completion_tokens": limit}, max_tokens=limit)

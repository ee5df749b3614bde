"""One provider, one key: the only candidate that calls; health, limits, figures and books."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

from headstart.errors import (
    HeadstartError,
    RequestError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from headstart.middleware.identity import credential_of
from headstart.middleware.upstreams.opening import Progress, is_readable, judge, open_answer
from headstart.middleware.upstreams.patience import Patience
from headstart.middleware.upstreams.recording import Recording, Terms
from headstart.middleware.upstreams.watched import WatchedReply
from headstart.policies.routing.failures import FailureKind
from headstart.policies.routing.health import UNASKED
from headstart.policies.routing.measures import Key
from headstart.policies.routing.outlooks import Ask, Standing, outlook

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

    from headstart.attempts import Outlook
    from headstart.interfaces import Chunk, Upstream
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.conditions import Condition, Conditions
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.policies.cost import Price
    from headstart.types import Call, ChatRequest

MOST_TOKENS = 10_000_000
"""Longer than any answer."""


def _unknown(model: str) -> None:  # noqa: ARG001 - nothing is known of any model
    return None


@dataclass(frozen=True)
class TargetOptions:
    """One provider under one key. Limits left None are learned."""

    name: str
    key: str = field(default="", repr=False)
    """Tells keys apart; need not be one. Empty: callers send their own."""
    first_token_s: float | None = None
    stall_s: float | None = None
    cancels_billing: bool = True
    context_tokens: Callable[[str], int | None] = _unknown
    """By real model name."""
    price: Callable[[str], Price | None] = _unknown
    models: Mapping[str, str] = field(default_factory=dict)
    """Real names by the caller's."""


class Target:
    """Makes calls to ``upstream``. Entering ``stream`` waits for the answer's first content.

    Each call is booked once, whatever ends it: an answer as soon as it was read to its end. What
    the provider's dialect cannot express (InvalidRequest) is not sent, so it is not booked. Raises
    UpstreamUnavailable without a call while the breaker is open or a rate limit is used up.
    """

    def __init__(
        self,
        upstream: Upstream,
        options: TargetOptions,
        conditions: Conditions,
        ledger: Ledger,
        dialects: Mapping[str, Dialect],
        clock: Callable[[], float],
    ) -> None:
        self.name = options.name
        self.identity = options.name
        self.names = frozenset((options.name,))
        self._upstream = upstream
        self._options = options
        self._conditions = conditions
        self._ledger = ledger
        self._dialects = dialects
        self._clock = clock

    def outlook(self, call: Call) -> Outlook:
        """Return what to expect of this call, now."""
        options, now = self._options, _now()
        key = self._key(call)
        condition = self._condition(call, key)
        ask = self._ask(call, now)
        reserved = self._reserved(ask)
        standing = Standing(
            ready_in_s=max(
                condition.breaker.avoided_for_s(now), condition.limits.ready_in_s(reserved, now)
            ),
            degraded=condition.breaker.degraded,
            weight=condition.breaker.weight(now),
            context_tokens=options.context_tokens(key.model),
            bills_cancelled=not options.cancels_billing,
            allowance=condition.limits.allowance(now),
        )
        measures, price = self._conditions.measures, options.price(key.model)
        return outlook(self.name, key, ask, standing, measures, now, price=price)

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[WatchedReply]:
        """Send the call; entering waits for first content. Raises HeadstartError."""
        recording, condition = self._begin(call)
        try:
            async with AsyncExitStack() as stack:
                yield await self._open(call, recording, condition, stack)
        finally:
            recording.left(_now())

    def _begin(self, call: Call) -> tuple[Recording, Condition]:
        """Take leave to make the call. Raises UpstreamUnavailable."""
        now, key, ask = _now(), self._key(call), self._ask(call, _now())
        condition = self._condition(call, key)
        reserved = self._reserved(ask)
        limit_s = condition.limits.ready_in_s(reserved, now)
        permit = condition.breaker.admit(now) if limit_s <= 0.0 else None
        if permit is None:
            wait_s = condition.breaker.ready_in_s(now)
            limited = limit_s > wait_s or condition.breaker.limited(now)
            if call.anyway and not limited:
                permit = UNASKED
        if permit is None:
            why = "has used up its rate limit" if limited else "is not asked while it fails"
            raise UpstreamUnavailable(
                f"upstream {self.name} {why}", retry_after_s=max(limit_s, wait_s), limited=limited
            )
        condition.limits.take(reserved, now)
        expected = ask.output_tokens
        if expected is None:
            expected = self._conditions.measures.expected_length(ask.place)
        terms = Terms(
            self._options.price(key.model),
            expected if ask.max_tokens is None else min(expected, ask.max_tokens),
            self._options.cancels_billing,
        )
        recording = Recording(
            call,
            key,
            permit=permit,
            condition=condition,
            conditions=self._conditions,
            ledger=self._ledger,
            terms=terms,
            now=now,
            at=self._clock(),
            reserved=reserved,
        )
        return recording, condition

    async def _open(
        self, call: Call, recording: Recording, condition: Condition, stack: AsyncExitStack
    ) -> WatchedReply:
        dialect = self._dialects.get(call.dialect) if call.request is not None else None
        progress = Progress()
        try:
            async with asyncio.timeout_at(self._first_content_until(call, recording)):
                reply = await stack.enter_async_context(self._upstream.stream(call))
                recording.status = reply.status
                condition.limits.learn(reply.headers, _now(), self._clock())
                chunks = cast("AsyncGenerator[Chunk]", reply.chunks())
                source = await stack.enter_async_context(aclosing(chunks))
                if reply.status == 200 and not is_readable(call, reply.headers):
                    dialect = None
                held = await open_answer(reply, source, progress, dialect, call.id)
        except TimeoutError as error:
            late = UpstreamTimeout(
                f"upstream {self.name} sent no content in time", kind=FailureKind.SILENT
            )
            self._failed(late, recording, progress, dialect)
            raise late from error
        except HeadstartError as error:
            self._failed(error, recording, progress, dialect)
            raise
        recording.first(_now())
        stall_s = self._options.stall_s or self._conditions.measures.stall_limit_s(
            recording.key, calls_tools=call.request is not None and _has_tools(call.request)
        )
        patience = Patience()
        stack.callback(patience.stop)
        return WatchedReply(
            reply,
            source,
            held,
            progress,
            recording,
            dialect,
            stall_s=stall_s,
            clock=self._clock,
            patience=patience,
            close=stack.aclose,
        )

    def _failed(
        self,
        error: HeadstartError,
        recording: Recording,
        progress: Progress,
        dialect: Dialect | None,
    ) -> None:
        if isinstance(error, RequestError):
            recording.dropped(_now())
            return
        recording.learn(progress, dialect)
        recording.failed(judge(error, self._clock()), _now())

    def _first_content_until(self, call: Call, recording: Recording) -> float | None:
        """Return the last moment for the first content. A whole answer comes when it is done."""
        request = call.request
        if request is None or not (request.stream or call.fold):
            return call.deadline
        limit_s = self._options.first_token_s
        if limit_s is None and call.hurried:
            limit_s = self._conditions.measures.first_token_limit_s(
                recording.key, call.prompt_tokens, recording.began
            )
        if limit_s is None:
            return call.deadline  # nobody else would answer: a model may think for minutes
        until = recording.began + limit_s
        return until if call.deadline is None else min(until, call.deadline)

    def _key(self, call: Call) -> Key:
        model = "" if call.request is None else call.request.model
        return Key(self.name, self._options.models.get(model, model))

    def _condition(self, call: Call, key: Key) -> Condition:
        """Return the condition under the key that the call goes out with: none is another's."""
        own = self._options.key
        if not own:
            sent = credential_of(call.headers, call.query_string, cookies=False) or b""
            own = blake2b(sent, digest_size=16).hexdigest()
        return self._conditions.of(key.upstream, key.model, own)

    def _ask(self, call: Call, now: float) -> Ask:
        served = self._conditions.affinities.of(call.affinity, now)
        return Ask(
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            max_tokens=None if call.request is None else _sane(call.request.max_tokens),
            place=call.place,
            warm=served == self.name,
        )

    def _reserved(self, ask: Ask) -> int:
        """Return the tokens that the call may use, as providers count them against a limit."""
        output = ask.max_tokens or ask.output_tokens
        if output is None:
            output = self._conditions.measures.expected_length(ask.place)
        return ask.prompt_tokens + round(output)


def _has_tools(request: ChatRequest) -> bool:
    return bool(request.document.get("tools") or request.document.get("functions"))


def _sane(max_tokens: int | None) -> int | None:
    """Return a limit as far as it can mean something: callers may write any number."""
    return None if max_tokens is None else min(max(0, max_tokens), MOST_TOKENS)


def _now() -> float:
    return asyncio.get_running_loop().time()

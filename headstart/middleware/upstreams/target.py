"""One provider, one key: the only candidate that calls; health, limits, figures and books."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from headstart.errors import UpstreamUnavailable
from headstart.middleware.identity import credential_of
from headstart.middleware.upstreams.calling import Calling
from headstart.middleware.upstreams.recording import Recording, Terms
from headstart.policies.routing.measures import Key
from headstart.policies.routing.outlooks import Ask, Standing, outlook

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headstart.attempts import Outlook
    from headstart.interfaces import Upstream
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
        self.own_key = bool(options.key)
        """Callers' keys do not reach it."""
        self.upstream = upstream
        self.dialects = dialects
        self.clock = clock
        self._options = options
        self._conditions = conditions
        self._ledger = ledger

    def outlook(self, call: Call) -> Outlook:
        """Return what to expect of this call, now."""
        options, now = self._options, asyncio.get_running_loop().time()
        key = self._key(call)
        condition = self._condition(call, key)
        expected = self._expected_length(call)
        breaker, limits = condition.breaker, condition.limits
        ask = Ask(
            prompt_tokens=call.prompt_tokens,
            output_tokens=expected,
            max_tokens=_max_tokens(call),
            warm=self._conditions.affinities.of(call.affinity, now) == self.name,
        )
        standing = Standing(
            ready_in_s=max(
                breaker.avoided_for_s(now), limits.ready_in_s(_reserved(call, expected), now)
            ),
            degraded=breaker.degraded(now),
            weight=breaker.weight(now),
            context_tokens=options.context_tokens(key.model),
            bills_cancelled=not options.cancels_billing,
            allowance=limits.allowance(now),
        )
        measures, price = self._conditions.measures, options.price(key.model)
        return outlook(self.name, key, ask, standing, measures, now, price=price)

    def stream(self, call: Call) -> Calling:
        """Send the call; entering waits for first content. Raises HeadstartError."""
        return Calling(self, call)

    def begin(self, call: Call, now: float) -> Recording:
        """Take leave to make the call; return where it is booked. Raises UpstreamUnavailable."""
        key = self._key(call)
        condition = self._condition(call, key)
        expected = self._expected_length(call)
        reserved = _reserved(call, expected)
        limit_s = condition.limits.ready_in_s(reserved, now)
        permit = condition.breaker.admit(now) if limit_s <= 0.0 else None
        if permit is None:
            wait_s = condition.breaker.ready_in_s(now)
            limited = limit_s > wait_s or condition.breaker.limited(now)
            if call.anyway and not limited:
                permit = condition.breaker.insist(now)
        if permit is None:
            why = "has used up its rate limit" if limited else "is not asked while it fails"
            raise UpstreamUnavailable(
                f"upstream {self.name} {why}", retry_after_s=max(limit_s, wait_s), limited=limited
            )
        condition.limits.take(reserved, now)
        options, most = self._options, _max_tokens(call)
        terms = Terms(
            options.price(key.model),
            expected if most is None else min(expected, most),
            options.cancels_billing,
        )
        return Recording(
            call,
            key,
            permit=permit,
            condition=condition,
            conditions=self._conditions,
            ledger=self._ledger,
            terms=terms,
            now=now,
            at=self.clock(),
            reserved=reserved,
        )

    def first_token_limit_s(self, key: Key, call: Call, now: float) -> float | None:
        """Return how long the call may take to begin; None: as long as it likes."""
        limit_s = self._options.first_token_s
        if limit_s is None and call.hurried:
            limit_s = self._conditions.measures.first_token_limit_s(key, call.prompt_tokens, now)
        return limit_s

    def stall_limit_s(self, key: Key, call: Call) -> float:
        """Return how long the call may be silent once it has begun."""
        if self._options.stall_s:
            return self._options.stall_s
        calls_tools = call.request is not None and _has_tools(call.request)
        return self._conditions.measures.stall_limit_s(key, calls_tools=calls_tools)

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

    def _expected_length(self, call: Call) -> float:
        if call.output_tokens is not None:
            return call.output_tokens
        return self._conditions.measures.expected_length(call.place)


def _reserved(call: Call, expected: float) -> int:
    """Return the tokens that the call may use, as providers count them against a limit."""
    return call.prompt_tokens + round(_max_tokens(call) or expected)


def _max_tokens(call: Call) -> int | None:
    """Return a call's limit as far as it can mean something: callers may write any number."""
    max_tokens = None if call.request is None else call.request.max_tokens
    return None if max_tokens is None else min(max(0, max_tokens), MOST_TOKENS)


def _has_tools(request: ChatRequest) -> bool:
    return bool(request.document.get("tools") or request.document.get("functions"))

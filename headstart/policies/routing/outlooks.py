"""Outlooks: what an upstream expects of a call, from what was learned, its price and its health."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from headstart.attempts import Outlook, Tokens
from headstart.policies.cost import Price, cancelled_cost_usd
from headstart.policies.routing.quantiles import LATE

if TYPE_CHECKING:
    from headstart.policies.routing.measures import Key, Measures

CACHEABLE_TOKENS = 1024
"""Shorter prompts are in no provider's prefix cache."""
_ESTIMATE = 1.2
"""Prompts are counted by estimate: only one that is this much too long surely does not fit."""


class Ask(NamedTuple):
    """What a call is, as far as its time and cost depend on it."""

    prompt_tokens: int = 0
    output_tokens: float | None = None
    """Expected length of the answer, where neighbours tell it."""
    max_tokens: int | None = None
    place: str = ""
    """The call's, whose answers' lengths are known."""
    warm: bool = False
    """This upstream served the conversation before (``Affinities``)."""


class Standing(NamedTuple):
    """How an upstream stands: its breaker, its rate limits, its terms."""

    ready_in_s: float = 0.0
    degraded: bool = False
    weight: float = 1.0
    """Share of its usual calls that it should get, while it comes back after an outage."""
    context_tokens: int | None = None
    bills_cancelled: bool = False
    allowance: float = 1.0
    """Share of its tightest rate limit that is left."""


def outlook(
    name: str,
    key: Key,
    ask: Ask,
    standing: Standing,
    measures: Measures,
    now: float,
    *,
    price: Price | None = None,
) -> Outlook:
    """Return what to expect of a call. A prompt too long for its model is never ready."""
    output = measures.expected_length(ask.place) if ask.output_tokens is None else ask.output_tokens
    if ask.max_tokens is not None:
        output = min(output, ask.max_tokens)
    cached = ask.prompt_tokens if ask.warm and ask.prompt_tokens >= CACHEABLE_TOKENS else 0
    sketch = measures.sketch(key, ask.prompt_tokens, now)
    ttft_s = measures.expected_ttft_s(key, ask.prompt_tokens, now)
    late_ttft_s = () if sketch is None else sketch.late()
    too_long = (standing.context_tokens or math.inf) * _ESTIMATE < ask.prompt_tokens
    ready_in_s = math.inf if too_long else standing.ready_in_s
    cost_usd = waste_usd = None
    if price is not None:
        used = Tokens(prompt=ask.prompt_tokens, cached=cached)
        billed = not standing.bills_cancelled
        cost_usd = price.cost_usd(used._replace(completion=round(output)))
        waste_usd = cancelled_cost_usd(price, used, output, cancels_billing=billed)
    return Outlook(
        name=name,
        ready=ready_in_s <= 0.0,
        ready_in_s=ready_in_s,
        degraded=standing.degraded,
        weight=standing.weight,
        samples=0 if sketch is None else round(sketch.weight(now)),
        ttft_s=ttft_s,
        tail_ttft_s=late_ttft_s[LATE.index(0.05)] if late_ttft_s else None,
        late_ttft_s=late_ttft_s,
        tokens_per_s=measures.tokens_per_s(key),
        output_tokens=output,
        cost_usd=cost_usd,
        waste_usd=waste_usd,
        bills_cancelled=standing.bills_cancelled,
        allowance=standing.allowance,
        warm=ask.warm,
        warm_usd=price.cached_saving_usd(cached) if price is not None else 0.0,
        warm_s=measures.prefill_s(key, ask.prompt_tokens, now) if cached else 0.0,
        context_tokens=standing.context_tokens,
    )


class Affinities:
    """Which upstream served a conversation lately; its prefix cache may still hold it.

    ``ttl_s`` is how long providers keep a prefix that nobody asks for: five minutes at Anthropic,
    five to ten at OpenAI.
    """

    def __init__(self, ttl_s: float = 300.0, most: int = 10_000) -> None:
        self._ttl_s = ttl_s
        self._most = most
        self._served: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def served(self, affinity: str, name: str, now: float) -> None:
        """Remember who served a conversation; ``affinity`` "" is none."""
        if not affinity:
            return
        self._served[affinity] = (name, now + self._ttl_s)
        self._served.move_to_end(affinity)
        if len(self._served) > self._most:
            self._served.popitem(last=False)

    def of(self, affinity: str, now: float) -> str | None:
        """Return the name of the upstream that served this conversation lately, or None."""
        name, until = self._served.get(affinity, (None, 0.0))
        return name if now < until else None

"""Attempts: the upstream calls that one request causes, what they cost and what to expect of them.

Units as in ``types``: ``_s`` seconds, ``_usd`` dollars. Time to first token and tokens per second
are two figures and never divided by one another.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable


class Tokens(NamedTuple):
    """What a call used. ``prompt`` includes what came from, or went into, the provider's cache."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    """Prompt tokens read from the provider's prefix cache."""
    cache_write: int = 0
    """Prompt tokens written to it at a price of their own."""
    reasoning: int = 0
    """Completion tokens that were thought, not said."""


class AttemptRole(StrEnum):
    """Why a call was made."""

    FIRST = "first"
    RETRY = "retry"
    RACE = "race"
    HEDGE = "hedge"
    FALLBACK = "fallback"
    RESCUE = "rescue"
    """It takes over an answer that broke off."""
    CONTINUE = "continue"
    """It goes on with an answer that our own limit cut."""
    DRAFT = "draft"
    ESCALATION = "escalation"
    JUDGE = "judge"


class AttemptOutcome(StrEnum):
    WON = "won"
    """Its answer went to the client, whole."""
    LOST = "lost"
    """Another was faster; it was cancelled."""
    REJECTED = "rejected"
    """A judge did not let its draft pass."""
    FAILED = "failed"
    """It answered with an error, with nothing, or not at all."""
    BROKEN = "broken"
    """It broke off after its first content."""
    ABANDONED = "abandoned"
    """Nobody waited for it any longer."""


class Attempt(Frozen):
    """One upstream call, as it is booked. A request's cost is the sum over its attempts."""

    upstream: str
    model: str
    role: AttemptRole
    outcome: AttemptOutcome
    at: float
    """Unix seconds."""
    total_s: float
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    """Decoding speed after the first token; None when it could not be measured."""
    status: int = 0
    error: str | None = None
    """Kind of the failure (``policies.failures``)."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    """None: no price is known."""
    estimated: bool = False
    """Tokens, and with them the cost, were estimated, not reported."""


def total_cost_usd(attempts: Iterable[Attempt]) -> float | None:
    """Return what calls cost together; None if no price of any of them is known."""
    costs = [each.cost_usd for each in attempts if each.cost_usd is not None]
    return sum(costs) if costs else None


def extra_cost_usd(attempts: Iterable[Attempt]) -> float:
    """Return what those calls cost whose answer nobody got: lost races, failures, drafts."""
    return sum(each.cost_usd or 0.0 for each in attempts if each.outcome is not AttemptOutcome.WON)


class Outlook(Frozen):
    """What an upstream expects of a call that it would make now. Values, read by pure policies."""

    name: str
    ready: bool = True
    """It would take the call: no breaker is open and no rate limit is used up."""
    ready_in_s: float = 0.0
    """When it would, if it is not ready."""
    degraded: bool = False
    """It fails or stalls more often than it should."""
    weight: float = 1.0
    """Share of its usual calls that it should get: below 1 while it comes back after an outage."""
    samples: int = 0
    """Measurements that the figures below rest on; 0: they are defaults."""
    ttft_s: float | None = None
    """Expected time to first token, waiting for those in flight included."""
    tail_ttft_s: float | None = None
    """Its p95."""
    late_ttft_s: tuple[float, ...] = ()
    """The times that 50, 25, 15, 10, 7.5, 5, 2 and 1 % of the calls exceed; empty: unknown."""
    tokens_per_s: float | None = None
    output_tokens: float | None = None
    """Expected length of the answer."""
    cost_usd: float | None = None
    """Expected cost, the provider's prefix cache considered."""
    waste_usd: float | None = None
    """Expected cost if it is cancelled at its first token; the whole cost where the provider bills
    cancelled calls."""
    bills_cancelled: bool = False
    allowance: float = 1.0
    """Share of its tightest rate limit that is left."""
    warm: bool = False
    """It served this conversation before, and its prefix cache may still hold it."""
    warm_usd: float = 0.0
    """What that cache saves on this call."""
    warm_s: float = 0.0
    context_tokens: int | None = None
    """Largest prompt that it takes."""

    @property
    def completion_s(self) -> float | None:
        """Expected time to the end of the answer, or None while nothing is known."""
        if self.ttft_s is None:
            return None
        if not self.tokens_per_s or self.output_tokens is None:
            return self.ttft_s
        return self.ttft_s + self.output_tokens / self.tokens_per_s

"""Samples, and what they say of each provider and model: time to first token and speed apart."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Subject(NamedTuple):
    """Who is measured. ``weights`` names models that are the same under other names."""

    upstream: str
    model: str
    """As the user asks for it."""
    weights: str
    cancels_billing: bool = False
    """An abort is known to stop the bill."""


class Sample(Frozen):
    """One call. Times are seconds from sending the request."""

    subject: Subject
    cold: bool
    """On a connection of its own, with a prompt that was not sent there before."""
    ttft_s: float | None = None
    """To the first content; None: there was none."""
    total_s: float = 0.0
    tokens_per_s: float | None = None
    """After the first token; None: too few to measure."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    """The provider did not report its tokens."""
    cost_usd: float | None = None
    error: str | None = None
    """Kind of the failure."""


class Quantiles(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """Nearest-rank quantiles; with fewer than a hundred samples p99 is the largest."""

    p50: float
    p95: float
    p99: float


class Figures(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """What the samples of one provider and model say. Times in seconds, money in dollars.

    But for ``calls``, ``errors`` and ``cold_ttft_s`` all are of warm calls that were answered, and
    quantiles are None without any.
    """

    upstream: str
    model: str
    calls: int
    errors: dict[str, int]
    """Calls that failed, by kind; cold ones count."""
    cold_ttft_s: Quantiles | None
    ttft_s: Quantiles | None
    tokens_per_s: Quantiles | None
    """p95 and p99 are the slow end: what 95 and 99 % of the calls exceed."""
    total_s: Quantiles | None
    completion_tokens: float
    """Mean of an answer."""
    cached_share: float
    """Share of warm prompt tokens that came from the provider's cache."""
    cost_usd: float | None
    """Mean of a call; None: no price is known."""
    estimated: bool
    """Some tokens, and with them cost and speed, are estimates."""

    @property
    def error_rate(self) -> float:
        return sum(self.errors.values()) / self.calls if self.calls else 0.0


def figures_of(subject: Subject, samples: Iterable[Sample]) -> Figures:
    """Return the figures of one subject's samples."""
    own = [each for each in samples if each.subject == subject]
    answered = [each for each in own if each.error is None]
    warm = [each for each in answered if not each.cold]
    prompt_tokens = sum(each.prompt_tokens for each in warm)
    costs = [each.cost_usd for each in warm if each.cost_usd is not None]
    return Figures(
        upstream=subject.upstream,
        model=subject.model,
        calls=len(own),
        errors=dict(Counter(each.error for each in own if each.error is not None)),
        cold_ttft_s=quantiles([s.ttft_s for s in answered if s.cold and s.ttft_s is not None]),
        ttft_s=quantiles(first_tokens_s(warm)),
        tokens_per_s=quantiles(
            [s.tokens_per_s for s in warm if s.tokens_per_s is not None], highest_first=True
        ),
        total_s=quantiles([each.total_s for each in warm]),
        completion_tokens=_mean([each.completion_tokens for each in warm]),
        cached_share=sum(s.cached_tokens for s in warm) / prompt_tokens if prompt_tokens else 0.0,
        cost_usd=_mean(costs) if costs else None,
        estimated=any(each.estimated for each in warm),
    )


def first_tokens_s(samples: Iterable[Sample]) -> list[float]:
    """Return the times to first token that were measured."""
    return [each.ttft_s for each in samples if each.ttft_s is not None]


def quantiles(values: Sequence[float], *, highest_first: bool = False) -> Quantiles | None:
    """Return the quantiles of some values, None of none."""
    if not values:
        return None
    ranked = sorted(values, reverse=highest_first)
    p50, p95, p99 = (ranked[math.ceil(len(ranked) * q) - 1] for q in (0.5, 0.95, 0.99))
    return Quantiles(p50=p50, p95=p95, p99=p99)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0

"""What a call costs: its price book entry applied to the tokens it used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.attempts import Tokens


class Price(Frozen):
    """Dollars per million tokens, and per request; ``multiplier``, a speed tier's, scales all."""

    input_per_million: float
    output_per_million: float
    cached_per_million: float | None = None
    """Prompt tokens read from the provider's prefix cache; None: the price of input."""
    cache_write_per_million: float | None = None
    """Prompt tokens written to it; None: the price of input."""
    per_request: float = 0.0
    multiplier: float = 1.0

    def cost_usd(self, tokens: Tokens) -> float:
        """Return what a call that used these tokens costs, in dollars."""
        plain = max(0, tokens.prompt - tokens.cached - tokens.cache_write)
        millionths = (
            plain * self.input_per_million
            + tokens.cached * _or(self.cached_per_million, self.input_per_million)
            + tokens.cache_write * _or(self.cache_write_per_million, self.input_per_million)
            + tokens.completion * self.output_per_million
        )
        return (millionths / 1e6 + self.per_request) * self.multiplier

    def cached_saving_usd(self, prompt_tokens: int) -> float:
        """Return what it saves that a prompt is read from the provider's cache."""
        cached = _or(self.cached_per_million, self.input_per_million)
        return max(0.0, self.input_per_million - cached) * prompt_tokens / 1e6 * self.multiplier


def cancelled_cost_usd(
    price: Price, tokens_so_far: Tokens, expected_output: float, *, cancels_billing: bool
) -> float:
    """Return what a call costs that is cancelled now, in dollars.

    A provider whose billing stops with the stream charges what it produced; another one goes on to
    the end that nobody reads, so the expected length is charged, at least what was seen.
    """
    if cancels_billing:
        return price.cost_usd(tokens_so_far)
    completion = max(tokens_so_far.completion, round(expected_output))
    return price.cost_usd(tokens_so_far._replace(completion=completion))


def _or(price: float | None, otherwise: float) -> float:
    return otherwise if price is None else price

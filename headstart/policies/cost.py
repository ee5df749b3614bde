"""The cost of a call: its price applied to the tokens that it used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from headstart.settings import PriceSettings

if TYPE_CHECKING:
    from headstart.attempts import Tokens


HOUR_WRITE = 2.0
"""Price of a prompt token that Anthropic or Bedrock keeps for an hour, in prices of input."""


class Price(PriceSettings):
    """The price of one model; ``multiplier``, of a speed tier or a discount, scales all of it."""

    multiplier: float = 1.0

    def cost_usd(self, tokens: Tokens) -> float:
        """Return the cost in dollars of a call that used these tokens."""
        plain = max(0, tokens.prompt - tokens.cached - tokens.cache_write)
        write = _or(self.cache_write_per_million, self.input_per_million)
        known = self.cache_write_per_million is not None
        hour = max(write, HOUR_WRITE * self.input_per_million) if known else write
        millionths = (
            plain * self.input_per_million
            + tokens.cached * _or(self.cached_per_million, self.input_per_million)
            + (tokens.cache_write - tokens.hour_write) * write
            + tokens.hour_write * hour
            + tokens.completion * self.output_per_million
        )
        return (millionths / 1e6 + self.per_request) * self.multiplier

    def prefix_saving_usd(self, tokens: Tokens) -> float:
        """Return the dollars that a whole prompt in the prefix cache would have saved."""
        if self.cached_per_million is None:
            return 0.0
        warm = replace(tokens, cached=tokens.prompt, cache_write=0, hour_write=0)
        return max(0.0, self.cost_usd(tokens) - self.cost_usd(warm))


def cancelled_cost_usd(
    price: Price, tokens_so_far: Tokens, expected_output: float, *, cancels_billing: bool
) -> float:
    """Return the cost in dollars of a call that is cancelled now.

    If the provider's billing stops with the stream, it charges the tokens so far. Otherwise it goes
    on to the end, and charges the expected length, but at least the tokens so far.
    """
    if cancels_billing:
        return price.cost_usd(tokens_so_far)
    completion = max(tokens_so_far.completion, round(expected_output))
    return price.cost_usd(replace(tokens_so_far, completion=completion))


def _or(price: float | None, otherwise: float) -> float:
    return otherwise if price is None else price

"""What a call costs."""

from __future__ import annotations

from headstart.types import Frozen


class Price(Frozen):
    """Dollars per million tokens."""

    input_per_million: float
    output_per_million: float

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of a call in dollars."""
        return (
            prompt_tokens * self.input_per_million + completion_tokens * self.output_per_million
        ) / 1e6

"""``[[upstream]]``: the providers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from headstart.canonical_request import Quirks
from headstart.config.section import Dollars, Seconds, Section

DialectName: TypeAlias = Literal["openai", "anthropic", "gemini", "cohere"]


class PriceSettings(Section):
    """Dollars per million tokens of one model, and per call."""

    input_per_million: Dollars
    output_per_million: Dollars
    cached_per_million: Dollars | None = None
    """Of prompt tokens read from the provider's prefix cache; None: as any other."""
    cache_write_per_million: Dollars | None = None
    """Of prompt tokens written to it; None: as any other."""
    per_request: Dollars = 0.0


class UpstreamSettings(Section):
    """``[[upstream]]``: one provider. ``checked`` fills in what its preset knows."""

    name: Annotated[
        str, msgspec.Meta(pattern=r"^[!-~]*$", description="ASCII letters and signs, no space")
    ] = ""
    """Default: the preset's, else the host."""
    preset: str | None = None
    base_url: str = ""
    """Required without a preset."""
    dialect: DialectName | None = None
    """None: the preset's, without one OpenAI's."""
    api_key_env: str | tuple[str, ...] | None = None
    """Variables with keys. None: the preset's variable, without one the caller's key passes.
    Empty: the caller's key passes."""
    models: dict[str, str] = msgspec.field(default_factory=dict)
    """Real name by alias."""
    price: dict[str, PriceSettings] = msgspec.field(default_factory=dict)
    """By model name as sent upstream; ``default`` is for every other model."""
    price_multiplier: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    cancels_billing: bool | None = None
    """Does an abort stop billing? None: as the preset says; of a server of your own, or one that
    costs nothing, it does; of any other nobody knows, and it counts as if it did not."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    """Added to every request body."""
    drops: tuple[str, ...] = ()
    """Request fields that it rejects, besides the preset's."""
    unsupported: Literal["drop", "refuse"] = "drop"
    """What becomes of a field that the provider can not take."""
    quirks: Quirks = Quirks()
    """Where it deviates from its dialect. ``checked`` merges the preset's, ``drops`` and
    ``unsupported`` into it."""
    include_usage: bool = True
    connect_s: Seconds = 10.0
    first_token_s: Seconds | None = None
    """Longest wait for the first content; None: learned."""
    stall_s: Seconds | None = None
    """Longest gap in an answer; None: learned."""
    read_s: Seconds = 120.0
    """Longest silence between two reads once the answer has begun."""
    warm: bool = False
    """Connect anew at once where a cancelled call took a connection."""
    proxy: str | None = None
    ca_file: str | None = None

    @property
    def speaks(self) -> DialectName:
        """``dialect``, or its default."""
        return self.dialect or "openai"

    @property
    def key_variables(self) -> tuple[str, ...]:
        """The variables of its own keys; none: the caller's key passes."""
        named = self.api_key_env or ()
        return (named,) if isinstance(named, str) else named

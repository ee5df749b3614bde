"""Strategies as they are in force: what the user wrote, then ``use``, then the defaults.

``uses.toml`` holds the defaults of each ``use``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headstart.config.providers import read_data
from headstart.config.routes import (  # noqa: TC001 - msgspec reads them
    Judge,
    JudgeInCode,
    Rescue,
    StrategyName,
    StrategySettings,
)
from headstart.config.section import Section

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.config.routes import RouteSettings


class Strategy(Section):
    """One strategy with all its values; ``docs/configuration.md`` tells what each means."""

    strategy: StrategyName = "single"
    upstreams: tuple[str | Strategy, ...] = ()
    extra_calls: float = 0.05
    extra_cost: float = 0.05
    hedge_floor_s: float = 0.05
    retries: int = 1
    within_s: float | None = None
    max_usd: float | None = None
    race_billed: bool = False
    equal_models: Literal["check", "assume"] = "check"
    first_complete: bool = False
    judge: tuple[Judge, ...] = ("refusal", "format")
    judges: tuple[JudgeInCode, ...] = ()
    min_confidence: float = 0.5
    escalate_early: bool = False
    sticky: bool = False
    """A conversation stays where its prefix is cached, though another comes first in the order."""
    deadline_s: float | None = None
    early_200_s: float | None = None
    rescue: Rescue = "restart"

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the upstreams, nested ones included, in order."""
        return tuple(
            name
            for each in self.upstreams
            for name in ((each,) if isinstance(each, str) else each.members)
        )

    @property
    def composition(self) -> str:
        """Return it as it is written in code: ``fallback(hedge(a, b), c)``."""
        parts = (each if isinstance(each, str) else each.composition for each in self.upstreams)
        return f"{self.strategy}({', '.join(parts)})"

    @property
    def nested(self) -> bool:
        """Whether a member is a strategy itself."""
        return any(isinstance(each, Strategy) for each in self.upstreams)


def strategy_of(route: RouteSettings) -> Strategy:
    """Return what a route asks for. One upstream, or none, needs no strategy: ``single``."""
    defaults = dict(uses()[route.use]) if route.use else {}
    if len(route.upstreams) < 2:
        defaults.pop("strategy", None)
    return _in_force(route, Strategy(**defaults))


@cache
def uses() -> dict[str, Mapping[str, Any]]:
    """Return the defaults of each ``use``, by setting."""
    return read_data("uses.toml")


def _in_force(written: StrategySettings, around: Strategy) -> Strategy:
    own = {
        name: value
        for name in Strategy.__struct_fields__
        if name != "upstreams" and (value := getattr(written, name, None)) is not None
    }
    outer = msgspec.structs.replace(around, **own)
    inside = msgspec.structs.replace(outer, strategy="single")
    members = tuple(
        each if isinstance(each, str) else _in_force(each, inside) for each in written.upstreams
    )
    return msgspec.structs.replace(outer, upstreams=members)

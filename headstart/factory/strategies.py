"""Routes and their strategies from their settings, and the router that picks among them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headstart.config.strategies import Strategy, strategy_of
from headstart.factory.clock import clock
from headstart.factory.upstreams import dialects, provider_of
from headstart.middleware.router import Router, RouteTaken
from headstart.middleware.shaping.predictions import Predicting
from headstart.policies.cascade.checks import CHECKED
from headstart.policies.routing.hedging import ExtraBudget
from headstart.policies.routing.retries import RetryBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.config import Settings
    from headstart.factory.shaping import Shaping
    from headstart.factory.upstreams import Opened
    from headstart.interfaces import Candidate
    from headstart.middleware.upstreams.jury import Jury
    from headstart.middleware.upstreams.ledger import Ledger

# Draws break ties between upstreams: nothing that a caller could gain by foreseeing.
_draw = random.random


def make_router(
    settings: Settings,
    opened: Sequence[Opened],
    ledger: Ledger,
    shaping: Shaping,
    juries: dict[str, Jury],
    hedges: dict[tuple[str, str], ExtraBudget],
) -> Router:
    """Return who picks among the upstreams, by route, model and dialect.

    ``juries`` receives what cascades learn, by the name under which it is to be kept, and
    ``hedges`` the budgets of those that hedge, by route and strategy.
    """
    builder = Builder(opened, ledger, juries, hedges, predicts=_predicts(settings))
    modest = [route for route in settings.route if not route.upstreams]
    providers = []
    for each in opened:
        alone = builder.alone(each.settings.name)
        shaped = {route.name: shaping.around(alone, route) for route in modest}
        providers.append(provider_of(each, {"": shaping.around(alone, None), **shaped}))
    routes = {"": RouteTaken(predicts=settings.output.predictions)}
    for route in settings.route:
        chosen = strategy_of(route)
        candidate = None
        if route.upstreams:
            candidate = shaping.around(builder.route(route.name, chosen), route)
        routes[route.name] = RouteTaken(
            candidate,
            chosen.deadline_s,
            chosen.early_200_s,
            predicts=settings.output.at(route).predictions,
        )
    return Router(providers, routes)


def _predicts(settings: Settings) -> bool:
    """Is any provider to be told what an answer may look like?"""
    outputs = [settings.output.at(route) for route in (None, *settings.route)]
    return any(each.predictions or each.edits == "prediction" for each in outputs)


class Builder:
    """Makes candidates of candidates."""

    def __init__(
        self,
        opened: Sequence[Opened],
        ledger: Ledger,
        juries: dict[str, Jury],
        hedges: dict[tuple[str, str], ExtraBudget],
        *,
        predicts: bool = False,
    ) -> None:
        self._ledger = ledger
        self._predicts = predicts
        self._juries = juries
        self._hedges = hedges
        self._upstreams = {each.settings.name: self._any_key(each) for each in opened}
        self._prefill = {
            target.name: each.settings.quirks.prefill for each in opened for target in each.targets
        }

    def alone(self, upstream: str) -> Candidate:
        """Return what answers where no route says otherwise: one upstream, retried if need be."""
        return self._rescued(
            Strategy(), self.build(upstream, Strategy(), self._upstreams[upstream])
        )

    def route(self, name: str, strategy: Strategy) -> Candidate:
        """Return what answers a route, whatever may break off rescued."""
        members = (self._member(name, each) for each in strategy.upstreams)
        return self._rescued(strategy, self.build(name, strategy, *members))

    def _rescued(self, strategy: Strategy, candidate: Candidate) -> Candidate:
        from headstart.middleware.upstreams.rescue import Rescued

        return Rescued(candidate, dialects(), mode=strategy.rescue, prefill=self._prefill)

    def build(self, name: str, strategy: Strategy, *members: Candidate) -> Candidate:
        """Return members that answer together."""
        if strategy.strategy == "cascade":
            return self._cascade(name, strategy, *members)
        from headstart.middleware.upstreams.contest import Contest, ContestOptions

        options = ContestOptions(
            strategy=strategy.strategy,
            retries=strategy.retries,
            extra_calls=strategy.extra_calls,
            hedge_floor_s=strategy.hedge_floor_s,
            within_s=strategy.within_s,
            max_usd=strategy.max_usd,
            race_billed=strategy.race_billed,
            first_complete=strategy.first_complete,
            sticky=strategy.sticky,
        )
        extra = ExtraBudget(strategy.extra_calls, strategy.extra_cost)
        if strategy.strategy == "hedge":
            self._hedges[name, strategy.composition] = extra
        return Contest(
            name,
            members,
            options,
            ledger=self._ledger,
            extra=extra,
            retrying=RetryBudget(),
            draw=_draw,
            clock=clock,
        )

    def _cascade(
        self, name: str, strategy: Strategy, fast: Candidate, slow: Candidate
    ) -> Candidate:
        """Return a fast member that a judge stands behind; each is retried before it has failed."""
        from headstart.middleware.upstreams.cascade import Cascade, CascadeOptions

        alone = Strategy(retries=strategy.retries)
        options = CascadeOptions(
            judge=strategy.judge,
            min_confidence=strategy.min_confidence,
            escalate_early=strategy.escalate_early,
            checked=min(CHECKED, strategy.extra_calls),
            extra_cost=strategy.extra_cost,
        )
        cascade = Cascade(
            name,
            self.build(f"{name}.fast", alone, fast),
            self.build(f"{name}.slow", alone, slow),
            options,
            ledger=self._ledger,
            dialects=dialects(),
            draw=_draw,
            clock=clock,
            judges=[each.ask for each in strategy.judges],
        )
        # Not by its terms: what a score is worth does not change with what is asked of it.
        self._juries[f"{name}: cascade({fast.identity},{slow.identity})"] = cascade.jury
        return cascade

    def _any_key(self, opened: Opened) -> Candidate:
        """Another key is asked where one is refused or has used up its limits."""
        targets: Sequence[Candidate] = opened.targets
        if self._predicts and opened.settings.quirks.prediction:
            targets = [Predicting(each, self._ledger) for each in targets]
        if len(targets) == 1:
            return targets[0]
        fallback = Strategy(strategy="fallback", retries=0, sticky=True)
        return self.build(opened.settings.name, fallback, *targets)

    def _member(self, route: str, member: str | Strategy) -> Candidate:
        if isinstance(member, str):
            return self._upstreams[member]
        inside = (self._member(route, each) for each in member.upstreams)
        return self.build(f"{route}.{member.strategy}", member, *inside)

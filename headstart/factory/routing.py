"""Builds the router from settings: for each route, its rule and the candidate that answers.

A *candidate* is anything that can answer a call. Candidates are built around each other, from the
inside out. For a route with ``strategy = "race"`` over the upstreams ``a`` and ``b``:

    target           one upstream under one key, with its own steps (``TargetSteps``)
    any key          the targets of ``a``, the next key if one is refused (``_any_key``)
    strategy         a race of ``a`` and ``b`` (``CandidateBuilder.build``)
    rescue           continues an answer that broke off (``_rescued``)
    shaped           the route's steps on prompts and answers (``ShapingBuilder.wrap``)
"""

from __future__ import annotations

import random
import re
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.config.providers import aliases
from headstart.config.strategies import strategy_of
from headstart.dialects.registry import claiming
from headstart.dialects.request_form import CACHE_POINT
from headstart.factory.context import BuildContext, clock, persist
from headstart.factory.upstreams import OpenedUpstream, dialects_of, price_of, provider_of
from headstart.middleware.router import BuiltRoute, Router
from headstart.middleware.shaping.steps import ShapedCandidate, Step, StepContext
from headstart.policies.freshness import Lifetimes, QuestionClass
from headstart.policies.output.answer_limits import Lengths
from headstart.policies.route_rules import REPEAT_WINDOW_S, RouteRule, first_rule
from headstart.settings import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headstart.interfaces import Candidate
    from headstart.middleware.shaping.prompt_compression import TextWorker
    from headstart.middleware.upstreams.accounting import UpstreamStates
    from headstart.middleware.upstreams.cascade import JudgePanel
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.middleware.upstreams.target import Target
    from headstart.policies.output.continuation import Prefill
    from headstart.settings import (
        CacheSettings,
        CompressionSettings,
        OutputSettings,
        RouteSettings,
        Settings,
        UpstreamSettings,
    )
    from headstart.types import Headers


def compression_by_route(settings: Settings) -> dict[str, CompressionSettings]:
    """Return the settings of compression by route; "" stands for all other routes."""
    own = {
        route.name: msgspec.structs.replace(settings.compression, mode=route.compression)
        for route in settings.route
        if route.compression is not None
    }
    return {"": settings.compression, **own}


def outputs_by_route(settings: Settings) -> dict[str, OutputSettings]:
    """Return the settings of answers by route; "" stands for all other routes."""
    return {"": settings.output, **{each.name: settings.output.at(each) for each in settings.route}}


LENGTHS_NAME = "output-lengths"
"""The name under which the store keeps the learned lengths of answers."""


def _prefill_by_target(opened: Sequence[OpenedUpstream]) -> dict[str, Prefill]:
    """Return how each target continues a last assistant message, by name."""
    return {target.name: each.settings.quirks.prefill for each in opened for target in each.targets}


class ShapingBuilder:
    """Makes candidates with the steps that the settings of a route ask for."""

    def __init__(
        self,
        build: BuildContext,
        opened: tuple[OpenedUpstream, ...],
        worker: TextWorker | None,
        lengths: Lengths,
    ) -> None:
        self.context = StepContext(build.observers, clock)
        self._worker = worker
        self._lengths = lengths
        self._compression = compression_by_route(build.settings)
        self._outputs = outputs_by_route(build.settings)
        self._prefill = _prefill_by_target(opened)

    def wrap(self, candidate: Candidate, route: str) -> Candidate:
        """Return a candidate that runs a route's steps; ``candidate`` itself if it has no steps."""
        steps = list(self._steps(route))
        return ShapedCandidate(candidate, steps, self.context) if steps else candidate

    def _steps(self, route: str) -> Iterator[Step]:
        """Yield steps in the order in which they see a call. Modules load where they are used."""
        output = self._outputs[route]
        if output.edits != "off":
            from headstart.middleware.shaping.edits import AskForEdits

            yield AskForEdits(output.edits)
        if output.quotes and self._worker is not None:
            from headstart.middleware.shaping.quotes import QuoteByNumber

            yield QuoteByNumber(self._worker)
        if output.concise or output.max_tokens != "off":
            from headstart.middleware.shaping.answer_length import AskBriefly, LimitAnswers

            if output.concise:
                yield AskBriefly(output)
            if output.max_tokens != "off":
                yield LimitAnswers(route, self._lengths, output, self._prefill)
        compression = self._compression.get(route) or self._compression[""]
        if self._worker is not None and compression.mode != "off":
            from headstart.middleware.shaping.prompt_compression import CompressPrompts

            recoverable = None
            if compression.mode == "recoverable":
                from headstart.middleware.shaping.recoverable import RecoverableCalls

                recoverable = RecoverableCalls(compression)
            yield CompressPrompts(compression, self._worker, recoverable)


async def open_shaping(build: BuildContext, opened: tuple[OpenedUpstream, ...]) -> ShapingBuilder:
    """Return the builder of steps. It starts with the answer lengths that earlier runs learned."""
    lengths = Lengths()
    outputs = outputs_by_route(build.settings).values()
    if any(each.max_tokens != "off" for each in outputs):
        await persist(build, LENGTHS_NAME, "output", saved=lengths.saved, load=lengths.load)
    quoting = any(each.quotes for each in outputs)
    return ShapingBuilder(build, opened, _open_worker(build, quoting=quoting), lengths)


def _open_worker(build: BuildContext, *, quoting: bool) -> TextWorker | None:
    """Return the worker for long texts; None if no step needs one."""
    from headstart.middleware.shaping.prompt_compression import TextWorker

    compressed = [each.mode != "off" for each in compression_by_route(build.settings).values()]
    if not quoting and not any(compressed):
        return None
    worker = TextWorker()
    build.stack.callback(worker.close)
    return worker


def route_rule(route: RouteSettings) -> RouteRule:
    """Return the rule of a ``[[route]]``; its patterns were checked with the settings."""
    return RouteRule(
        route.name,
        model=route.match.model,
        path=route.match.path,
        headers=tuple((name.lower().encode(), glob) for name, glob in route.match.header.items()),
        max_error=route.max_error,
        query=None if route.query is None else re.compile(route.query),
        semantic=route.semantic,
        cached_tools=None if route.cached_tools is None else one_or_more(route.cached_tools),
        never_stored=None if route.never_stored is None else expressions(route.never_stored),
        ttl_s=route.ttl_s,
        repeat_window_s=None
        if route.on_repeat == "hit"
        else route.repeat_window_s or REPEAT_WINDOW_S,
    )


def expressions(stated: str | tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Return regular expressions, which were checked with the settings."""
    return tuple(map(re.compile, one_or_more(stated)))


def one_or_more(stated: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the stated values as a tuple; a single value may be written alone."""
    return (stated,) if isinstance(stated, str) else stated


def lifetimes(cache: CacheSettings) -> Lifetimes:
    """Return how long answers live, by the class of their question."""
    ages = cache.ttl_by_class
    return Lifetimes(
        ttl_s=cache.ttl_s,
        by_class={QuestionClass.LIVE: ages.live, QuestionClass.DATED: ages.dated},
    )


# Random numbers break ties between upstreams. A caller who could predict them would gain nothing.
_draw = random.random


class BuiltRouter(NamedTuple):
    """The router, which chooses an upstream by route, model and dialect."""

    router: Router
    panels: dict[str, JudgePanel]
    """The judges of each cascade, by the name under which their state is saved."""


def make_router(
    settings: Settings,
    opened: Sequence[OpenedUpstream],
    shaping: ShapingBuilder,
    states: UpstreamStates,
) -> BuiltRouter:
    """Return the router. ``states.hedges`` gets the budget of each hedge, by route and strategy."""
    outputs, compression = outputs_by_route(settings), settings.compression
    predicts = any(each.predictions or each.edits == "prediction" for each in outputs.values())
    predicting = shaping.context if predicts else None
    caching = shaping.context if compression.prompt_cache == "auto" else None
    steps = TargetSteps(states, compression, predicting=predicting, caching=caching)
    builder = CandidateBuilder(opened, states, steps)
    # A request whose route names no upstreams goes to one upstream, which its model decides.
    without_upstreams = [route.name for route in settings.route if not route.upstreams]
    providers = []
    for each in opened:
        alone = builder.single(each.settings.name)
        candidates = {name: shaping.wrap(alone, name) for name in ("", *without_upstreams)}
        providers.append(provider_of(each, candidates, builder.relay(each.settings.name, each)))
    rescued = partial(builder.with_rescue, Strategy(), outputs[""])
    routes = {"": BuiltRoute(predicts=outputs[""].predictions, rescued=rescued)}
    for route in settings.route:
        routes[route.name] = _build_route(route, outputs[route.name], builder, shaping)
    router = Router(providers, routes, names_conversations=caching is not None)
    return BuiltRouter(router, builder.panels)


def _build_route(
    route: RouteSettings, output: OutputSettings, builder: CandidateBuilder, shaping: ShapingBuilder
) -> BuiltRoute:
    """Return a route as the router sees it. Without upstreams of its own it has no candidate."""
    chosen = strategy_of(route)
    candidate, relays = None, {}
    if route.upstreams:
        candidate = shaping.wrap(builder.route(route.name, chosen), route.name)
        relays = builder.relays(route.name, chosen)
    return BuiltRoute(
        candidate,
        relays,
        chosen.deadline_s,
        chosen.early_200_s,
        predicts=output.predictions,
        rescued=partial(builder.with_rescue, chosen, output),
        # In a cascade, the strong model answers calls whose drafts no judge can read.
        members=chosen.members[::-1] if chosen.strategy == "cascade" else chosen.members,
        assumes_equal=chosen.equal_models == "assume",
    )


class TargetSteps(NamedTuple):
    """The steps that depend on the target of a call."""

    states: UpstreamStates
    compression: CompressionSettings
    predicting: StepContext | None = None
    """The step for predicted outputs; None: they are off."""
    caching: StepContext | None = None
    """The step for cache marks in prompts; None: they are off."""

    def wrap(self, target: Target, upstream: UpstreamSettings) -> Candidate:
        """Return a candidate that runs the steps of a target; ``target`` itself without steps."""
        shaped: Candidate = target
        if self.predicting is not None and upstream.quirks.prediction:
            from headstart.middleware.shaping.edits import SendPrediction

            shaped = ShapedCandidate(shaped, [SendPrediction()], self.predicting)
        if self.caching is not None:
            from headstart.middleware.shaping.prompt_cache import (
                PromptCacheTarget,
                SteerPromptCache,
            )

            place = PromptCacheTarget(
                target.name,
                own_key=target.own_key,
                models=aliases(upstream),
                price=partial(price_of, upstream),
                takes_marks=CACHE_POINT not in upstream.quirks.drops,
                takes_key=upstream.quirks.prompt_cache_key,
            )
            step = SteerPromptCache(place, self.states.reuse, self.compression)
            shaped = ShapedCandidate(shaped, [step], self.caching)
        return shaped


@dataclass(eq=False, repr=False)
class CandidateBuilder:
    """Makes candidates that consist of other candidates."""

    opened: InitVar[Sequence[OpenedUpstream]]
    states: UpstreamStates
    steps: TargetSteps
    panels: dict[str, JudgePanel] = field(default_factory=dict)

    def __post_init__(self, opened: Sequence[OpenedUpstream]) -> None:
        self._opened = {each.settings.name: each for each in opened}
        self._upstreams = {each.settings.name: self._any_key(each) for each in opened}
        self._prefill = _prefill_by_target(opened)

    def single(self, upstream: str) -> Candidate:
        """Return the candidate for requests without a route: one upstream, with retries."""
        candidate = self.build(upstream, Strategy(), self._upstreams[upstream])
        return self._rescued(Strategy(), candidate, self._prefill)

    def route(self, name: str, strategy: Strategy) -> Candidate:
        """Return the candidate for a route. It rescues answers that break off."""
        members = (self._member(name, each) for each in strategy.upstreams)
        return self._rescued(strategy, self.build(name, strategy, *members), self._prefill)

    def relays(self, name: str, strategy: Strategy) -> dict[str, Candidate]:
        """Return the candidates for a route's relayed requests, by the dialect of the requests."""
        members = [self._opened[each] for each in dict.fromkeys(strategy.members)]
        by_dialect: dict[str, list[OpenedUpstream]] = {}
        for each in members:
            for dialect in dialects_of(each):
                by_dialect.setdefault(dialect.name, []).append(each)
        return {dialect: self.relay(name, *able) for dialect, able in by_dialect.items()}

    def relay(self, name: str, *members: OpenedUpstream) -> Candidate:
        """Return the candidate for relayed requests: each upstream in turn, with each key."""
        from headstart.middleware.upstreams.attempt_group import RelayedInTurn

        targets = [target for each in members for target in each.targets]
        return RelayedInTurn(name, targets, draw=_draw)

    def with_rescue(
        self, strategy: Strategy, output: OutputSettings, candidate: Candidate
    ) -> Candidate:
        """Return a candidate with the rescue of a strategy around it and around its steps."""
        # Steps that rewrite the answer need it from its beginning.
        rewritten = output.edits != "off" or output.quotes
        return self._rescued(strategy, candidate, {} if rewritten else self._prefill)

    def _rescued(
        self, strategy: Strategy, candidate: Candidate, prefill: Mapping[str, Prefill]
    ) -> Candidate:
        from headstart.middleware.upstreams.rescue import RescuedCandidate

        return RescuedCandidate(candidate, mode=strategy.rescue, prefill=prefill)

    def build(self, name: str, strategy: Strategy, *members: Candidate) -> Candidate:
        """Return a candidate that combines members by a strategy."""
        if strategy.strategy == "cascade":
            return self._cascade(name, strategy, *members)
        from headstart.middleware.upstreams.attempt_group import AttemptGroup

        if self.steps.caching is not None:
            strategy = msgspec.structs.replace(strategy, sticky=True)
        states, place = self.states, (name, strategy.composition)
        extra = states.extra_budget(*place, strategy.extra_calls, strategy.extra_cost)
        if strategy.strategy == "hedge":
            states.hedges[place] = extra
        return AttemptGroup(
            name,
            members,
            strategy,
            extra=extra,
            retrying=states.retry_budget(*place),
            draw=_draw,
            clock=clock,
        )

    def _cascade(
        self, name: str, strategy: Strategy, fast: Candidate, slow: Candidate
    ) -> Candidate:
        """Return a cascade. Each of its two members is retried before it counts as failed."""
        from headstart.middleware.upstreams.cascade import Cascade

        alone = Strategy(retries=strategy.retries)
        cascade = Cascade(
            name,
            self.build(f"{name}.fast", alone, fast),
            self.build(f"{name}.slow", alone, slow),
            strategy,
            draw=_draw,
            clock=clock,
        )
        # The name leaves out settings, because the meaning of a score does not depend on them.
        self.panels[f"{name}: cascade({fast.identity},{slow.identity})"] = cascade.panel
        return cascade

    def _any_key(self, opened: OpenedUpstream) -> Candidate:
        """Return a candidate of all keys of an upstream.

        If a key is refused or has used up its limits, the next key is tried.
        """
        targets = [self.steps.wrap(each, opened.settings) for each in opened.targets]
        if len(targets) == 1:
            return targets[0]
        fallback = Strategy(strategy="fallback", retries=0, sticky=True)
        return self.build(opened.settings.name, fallback, *targets)

    def _member(self, route: str, member: str | Strategy) -> Candidate:
        if isinstance(member, str):
            return self._upstreams[member]
        inside = (self._member(route, each) for each in member.upstreams)
        return self.build(f"{route}.{member.strategy}", member, *inside)


def socket_upstreams(
    routes: Sequence[RouteSettings], opened: Sequence[OpenedUpstream], router: Router
) -> Callable[[bytes, str, Headers], Sequence[Sequence[HTTPUpstream]]]:
    """Return a function that finds the upstreams of a WebSocket, in the order of its route.

    It takes path, model ("": none is named) and headers, and raises NoUpstream. Each upstream is
    there under each of its keys.
    """
    https = {each.settings.name: each.keys for each in opened}
    orders = {route.name: strategy_of(route).members for route in routes}
    rules = tuple(map(route_rule, routes))

    def upstreams(path: bytes, model: str, headers: Headers) -> Sequence[Sequence[HTTPUpstream]]:
        rule = first_rule(rules, model=model, path=path.decode("latin-1"), headers=headers)
        names = router.relayed(claiming(path, headers).name, model, rule.name).names
        return [https[name] for name in orders.get(rule.name) or https if name in names]

    return upstreams

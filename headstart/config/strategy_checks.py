"""What ``checked`` asks of strategies: who takes part, with which model, key and bill."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from headstart.config.models import model_at, model_table
from headstart.config.names import hint
from headstart.config.resolving import host_of
from headstart.config.settings import is_loopback_host
from headstart.config.strategies import Strategy, strategy_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.config.routes import RouteSettings
    from headstart.config.settings import Settings
    from headstart.config.upstreams import UpstreamSettings

_CONCURRENT = frozenset({"race", "hedge"})
"""Strategies in which two may answer one request at once, and one is cancelled."""
_WILD = frozenset("*?[")


def strategy_problems(settings: Settings) -> Iterator[str]:
    """Yield what contradicts itself in the strategies of ``[[route]]``, each with its fix."""
    known = {upstream.name: upstream for upstream in settings.upstream}
    for index, route in enumerate(settings.route):
        setting, strategy = f"route[{index}]", strategy_of(route)
        unknown = [name for name in strategy.members if name not in known]
        for name in unknown:
            yield f"{setting}.upstreams: no upstream is named {name!r}; {_names(name, known)}"
        if unknown:
            continue
        yield from _shape_problems(setting, strategy)
        members = [known[name] for name in dict.fromkeys(strategy.members)]
        if len(members) > 1:
            yield from _key_problems(setting, members, settings)
        if route.use == "regulated":
            yield from _regulated_problems(setting, members)
        for inner in _all(strategy):
            yield from _contest_problems(setting, inner, route, known)


def _names(name: str, known: dict[str, UpstreamSettings]) -> str:
    return hint(name, known) if known else "there is no [[upstream]]"


def _all(strategy: Strategy) -> Iterator[Strategy]:
    yield strategy
    for each in strategy.upstreams:
        if isinstance(each, Strategy):
            yield from _all(each)


def _shape_problems(setting: str, strategy: Strategy) -> Iterator[str]:
    kind, count = strategy.strategy, len(strategy.upstreams)
    place = f"{setting}.upstreams"
    if kind == "single" and count > 1:
        yield (
            f"{place}: there are {count} of them; say with {setting}.strategy how they work "
            'together, such as "fallback" or "hedge"'
        )
    elif kind == "cascade" and count != 2:
        yield f"{place}: a cascade has two, the fast model and then the slow one"
    elif kind != "single" and count < 2:
        yield f'{place}: strategy "{kind}" needs at least two'
    repeated = {each for each in strategy.upstreams if strategy.upstreams.count(each) > 1}
    for name in sorted(map(str, repeated)):
        yield f"{place}: {name!r} stands there twice"
    for index, each in enumerate(strategy.upstreams):
        if isinstance(each, Strategy):
            yield from _shape_problems(f"{place}[{index}]", each)


def _key_problems(
    setting: str, members: Sequence[UpstreamSettings], settings: Settings
) -> Iterator[str]:
    """A caller's key goes to the one upstream that it came for."""
    if settings.server.client_keys:
        return
    for upstream in members:
        if not upstream.key_variables and not is_loopback_host(host_of(upstream.base_url)):
            yield (
                f"{setting}.upstreams: {upstream.name!r} has no key of its own, and a caller's is "
                "never handed from one upstream to the next; set its api_key_env, or name callers "
                "in server.client_keys"
            )


def _regulated_problems(setting: str, members: Sequence[UpstreamSettings]) -> Iterator[str]:
    for upstream in members:
        if not upstream.quirks.refuse:
            yield (
                f'{setting}.use: "regulated" changes no request, but {upstream.name!r} drops what '
                'its provider can not take; set its unsupported = "refuse"'
            )


def _contest_problems(
    setting: str, strategy: Strategy, route: RouteSettings, known: dict[str, UpstreamSettings]
) -> Iterator[str]:
    if strategy.strategy not in _CONCURRENT:
        return
    members = [known[name] for name in strategy.members]
    if not strategy.race_billed:
        yield from _bill_problems(setting, strategy.strategy, members)
    if strategy.equal_models == "check":
        yield from _model_problems(setting, strategy.strategy, route.match.model, members)


def _bill_problems(setting: str, kind: str, members: Sequence[UpstreamSettings]) -> Iterator[str]:
    for upstream in members:
        if upstream.cancels_billing is False:
            yield (
                f"{setting}.upstreams: {upstream.name!r} bills a cancelled call in full, so a "
                f"{kind} with it pays twice; leave it out, or set {setting}.race_billed = true"
            )
        elif upstream.cancels_billing is None:
            yield (
                f"{setting}.upstreams: it is not known whether {upstream.name!r} bills a cancelled "
                f"call in full, so a {kind} with it may pay twice; leave it out, set its "
                f"cancels_billing, or set {setting}.race_billed = true"
            )


def _model_problems(
    setting: str, kind: str, pattern: str, members: Sequence[UpstreamSettings]
) -> Iterator[str]:
    """Yield the models of which the members do not certainly serve the same weights."""
    for model in asked_models(pattern, members):
        names = {upstream.name: model_at(upstream, model) for upstream in members}
        if len({_identity(upstream, names[upstream.name]) for upstream in members}) > 1:
            shown = ", ".join(f"{name} {real!r}" for name, real in names.items())
            yield (
                f"{setting}.upstreams: it is not known that {model!r} is one model in this {kind}: "
                f"{shown}; give each upstream the same model in its models, use strategy "
                f'"cascade" or "fallback", or set {setting}.equal_models = "assume" if you know '
                "that they are equal"
            )


def asked_models(pattern: str, members: Sequence[UpstreamSettings]) -> tuple[str, ...]:
    """Return the names that are known to reach the members: the route's own, or users' aliases.

    On every other name the model table makes them agree.
    """
    if not _WILD & set(pattern):
        return (pattern,)
    aliases = {
        alias
        for upstream in members
        for alias, real in upstream.models.items()
        if fnmatchcase(alias, pattern)
        and model_table().real_name(alias, upstream.preset or "") != real
    }
    return tuple(sorted(aliases))


def _identity(upstream: UpstreamSettings, model: str) -> str:
    """Name the weights; of an unknown model its name is all there is."""
    table = model_table()
    found = table.weights(model, upstream.preset)
    if found is not None:
        return found.name
    missing = upstream.preset is not None and table.weights(model) is not None
    return f"{model} at {upstream.name}" if missing else model

"""What ``headstart config check`` finds, and how it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.cli.start_checks import start_problems
from headstart.config import model_at, model_table, notes_on, price_at, strategy_of
from headstart.config.masking import masked_variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headstart.config import RouteSettings, Settings, UpstreamSettings

_WILD = frozenset("*?[")


class UpstreamReport(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream as it will be used."""

    name: str
    preset: str | None
    dialect: str
    base_url: str
    keys: dict[str, bool]
    """Is it set? By variable; none: callers' keys pass."""
    models: dict[str, str]
    cancels_billing: bool | None
    priced: int
    """Models whose price is known."""


class RouteReport(msgspec.Struct, frozen=True, kw_only=True):
    """One route as it will be taken."""

    name: str
    strategy: str
    """Its name, with the members where they are strategies themselves."""
    model: str
    members: dict[str, str]
    """What each upstream is asked for; the route's own pattern where it fits several models."""


class LiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one upstream did."""

    upstream: str
    model: str | None
    ttft_s: float | None = None
    error: str | None = None
    """Kind of the failure, and the provider's words; None: it answered."""
    models: tuple[str, ...] = ()
    """Some that it offers, where the one asked for is unknown."""


class ConfigReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. A configuration without problems works as far as can be known offline."""

    upstreams: tuple[UpstreamReport, ...]
    routes: tuple[RouteReport, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    live: tuple[LiveResult, ...] = ()


def report_on(settings: Settings, environ: Mapping[str, str]) -> ConfigReport:
    """Return what is known, without asking anybody."""
    by_name = {upstream.name: upstream for upstream in settings.upstream}
    return ConfigReport(
        upstreams=tuple(_upstream(each, environ) for each in settings.upstream),
        routes=tuple(_route(each, by_name) for each in settings.route),
        notes=(
            *notes_on(settings),
            *(each for route in settings.route for each in dict.fromkeys(_notes(route, by_name))),
        ),
        problems=tuple(start_problems(settings, environ)),
    )


def _upstream(upstream: UpstreamSettings, environ: Mapping[str, str]) -> UpstreamReport:
    return UpstreamReport(
        name=upstream.name,
        preset=upstream.preset,
        dialect=upstream.speaks,
        base_url=upstream.base_url,
        keys={masked_variable(each): bool(environ.get(each)) for each in upstream.key_variables},
        models=upstream.models,
        cancels_billing=upstream.cancels_billing,
        priced=sum(price_at(upstream, real) is not None for real in set(upstream.models.values())),
    )


def _route(route: RouteSettings, by_name: Mapping[str, UpstreamSettings]) -> RouteReport:
    strategy, model = strategy_of(route), route.match.model
    asked = {
        name: model if _WILD & set(model) else model_at(by_name[name], model)
        for name in strategy.members
    }
    kind = strategy.composition if strategy.nested else strategy.strategy
    if not strategy.upstreams:
        kind = "by model"
    return RouteReport(name=route.name, strategy=kind, model=model, members=asked)


def _notes(route: RouteSettings, by_name: Mapping[str, UpstreamSettings]) -> Iterator[str]:
    """Yield what a reader of the bill or of the answers should know, though it is no fault."""
    strategy, table = strategy_of(route), model_table()
    if not _WILD & set(route.match.model):
        for name in strategy.members:
            upstream = by_name[name]
            real = model_at(upstream, route.match.model)
            weights = table.weights(real, upstream.preset)
            if price_at(upstream, real) is None:
                yield (
                    f"route {route.name!r}: no price is known of {real!r} at {name}, so its cost "
                    "is not booked; set its price"
                )
            if weights is None and upstream.preset is not None:
                yield f"route {route.name!r}: it is not known that {name} has a model {real!r}"
            elif weights is not None and upstream.preset in weights.quantised:
                yield f"route {route.name!r}: {name} serves {real!r} quantised"
    if strategy.race_billed and len(strategy.members) > 1:
        for name in strategy.members:
            note = billing_note(by_name[name])
            if note is not None:
                yield f"route {route.name!r}: {note}"


def billing_note(upstream: UpstreamSettings) -> str | None:
    """Say what a cancelled call costs there, or None: no more than what came of it."""
    if upstream.cancels_billing is None:
        return f"it is not known whether {upstream.name} bills cancelled calls in full"
    return None if upstream.cancels_billing else f"{upstream.name} bills cancelled calls in full"


def tables(report: ConfigReport) -> Iterator[str]:
    """Yield the report's lines: upstreams, routes, and what the live calls brought."""
    if report.upstreams:
        yield from _table(
            ("upstream", "dialect", "address", "key", "models", "priced", "abort stops bill"),
            [
                (
                    each.name,
                    each.dialect,
                    each.base_url,
                    _keys(each.keys),
                    str(len(set(each.models.values()))),
                    str(each.priced),
                    {True: "yes", False: "no", None: "unknown"}[each.cancels_billing],
                )
                for each in report.upstreams
            ],
        )
    if report.routes:
        yield from _table(
            ("route", "strategy", "model", "upstreams"),
            [(each.name, each.strategy, each.model, _members(each)) for each in report.routes],
        )
    if report.live:
        yield from _table(
            ("asked", "model", "first token", "answer"),
            [
                (
                    each.upstream,
                    each.model or "-",
                    "-" if each.ttft_s is None else f"{each.ttft_s * 1000:,.0f} ms",
                    each.error or "ok",
                )
                for each in report.live
            ],
        )
        for each in report.live:
            if each.models:
                yield f"{each.upstream} offers: {', '.join(each.models)}"


def _keys(keys: Mapping[str, bool]) -> str:
    shown = (name if found else f"{name} (not set)" for name, found in keys.items())
    return ", ".join(shown) or "callers'"


def _members(route: RouteReport) -> str:
    return (
        ", ".join(
            name if real == route.model else f"{name} ({real})"
            for name, real in route.members.items()
        )
        or "-"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    yield ""

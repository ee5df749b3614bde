"""Builds upstreams from settings: one target for each key, with its prices and limits."""

from __future__ import annotations

import asyncio
import codecs
import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.attempts import Tokens
from headstart.config.checks import listed_upstreams
from headstart.config.discovery import sends_no_bill
from headstart.config.providers import aliases, context_at, model_table, preset, price_at
from headstart.dialects.registry import BY_SETTING, DIALECTS, spoken_dialects
from headstart.errors import ConfigError
from headstart.factory.cloud import cloud_access
from headstart.factory.context import clock, persist
from headstart.machines import Machine
from headstart.middleware.upstreams.accounting import UpstreamStates
from headstart.policies.cost import Price
from headstart.settings import masked_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AsyncExitStack

    from headstart.attempts import Attempt
    from headstart.dialects.dialect import UpstreamDialect
    from headstart.factory.cloud import CloudAccess
    from headstart.factory.context import BuildContext
    from headstart.interfaces import Candidate
    from headstart.middleware.client_ledger import ClientLedger
    from headstart.middleware.concurrency import Spawn
    from headstart.middleware.models import ListSource
    from headstart.middleware.router import Provider
    from headstart.middleware.telemetry import Tracing
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.middleware.upstreams.signers import Signer
    from headstart.middleware.upstreams.target import Target
    from headstart.settings import Settings, UpstreamSettings
    from headstart.types import Headers

MEASURES_NAME = "upstream-measures"


async def open_conditions(
    build: BuildContext, kept: UpstreamStates | None = None
) -> UpstreamStates:
    """Return the health and figures of upstreams. New ones start with those of earlier runs."""
    conditions = UpstreamStates() if kept is None else kept
    measures, loop = conditions.measures, asyncio.get_running_loop()
    await persist(
        build,
        MEASURES_NAME,
        "measures",
        saved=lambda: measures.saved(loop.time()),
        load=lambda saved: measures.is_empty and measures.load(saved, loop.time()),
    )
    return conditions


class Opened(NamedTuple):
    """One ``[[upstream]]`` that was opened."""

    settings: UpstreamSettings
    keys: tuple[HTTPUpstream, ...]
    """The upstream under each of its keys."""
    targets: tuple[Target, ...]
    """One target for each key."""

    @property
    def http(self) -> HTTPUpstream:
        """The upstream under its first key."""
        return self.keys[0]


async def open_upstreams(
    settings: Settings,
    conditions: UpstreamStates,
    stack: AsyncExitStack,
    spawn: Spawn | None = None,
    *,
    tracing: Tracing | None = None,
    ledger: ClientLedger | None = None,
    make: Callable[..., HTTPUpstream] | None = None,
) -> tuple[Opened, ...]:
    """Return the configured upstreams. ``stack`` closes them. Raises ConfigError.

    ``spawn`` starts tasks that outlive a call, for ``upstream.warm``; ``tracing`` traces calls, and
    ``ledger`` has the limits of callers' keys. ``make`` takes the place of ``HTTPUpstream``.
    """
    if not settings.upstream:
        raise ConfigError(
            "no upstream: add an [[upstream]] with base_url, pass --upstream URL, "
            "or set a provider's key such as OPENAI_API_KEY"
        )
    await asyncio.to_thread(_read_files, {each.price_file for each in settings.upstream})
    reached = await asyncio.to_thread(
        lambda: [cloud_access(each, os.environ, spawn) for each in settings.upstream]
    )
    return tuple(
        [
            _open(
                each, settings, conditions, stack, spawn, tracing=tracing, ledger=ledger, make=make
            )
            for each in reached
        ]
    )


def _read_files(prices: Collection[str | None]) -> None:
    """Read the files that the first request and the first connection would read on the loop."""
    for file in (None, *prices):
        model_table(file)
    codecs.lookup("idna")


def _open(
    reached: CloudAccess,
    settings: Settings,
    conditions: UpstreamStates,
    stack: AsyncExitStack,
    spawn: Spawn | None,
    *,
    tracing: Tracing | None,
    ledger: ClientLedger | None,
    make: Callable[..., HTTPUpstream] | None,
) -> Opened:
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.middleware.upstreams.target import Target

    chosen = reached.settings
    http: list[HTTPUpstream] = []
    targets: list[Target] = []
    for number, (credential, signer) in enumerate(_credentials(reached, settings), 1):
        used = msgspec.structs.replace(
            chosen,
            name=chosen.name if number == 1 else f"{chosen.name}#{number}",
            models=aliases(chosen),
        )
        upstream = (make or HTTPUpstream)(
            used, clock, credential=credential, signer=signer, spawn=spawn
        )
        stack.push_async_callback(upstream.aclose)
        http.append(upstream)
        target = Target(
            upstream,
            used,
            conditions,
            DIALECTS,
            clock,
            key="" if credential is None else str(number),
            context_tokens=partial(context_at, chosen),
            price=partial(price_of, chosen),
            tracing=tracing,
            ledger=ledger,
            is_free=sends_no_bill(chosen),
        )
        targets.append(target)
    return Opened(chosen, tuple(http), tuple(targets))


def _credentials(
    reached: CloudAccess, settings: Settings
) -> tuple[tuple[Headers | None, Signer | None], ...]:
    """Return the headers of each key of an upstream, or what signs its calls.

    None stands for the callers' keys, and () for no key, where callers have keys for Headstart.
    """
    upstream = reached.settings
    if upstream.key_variables:
        return tuple((_credential(upstream, each), None) for each in upstream.key_variables)
    if upstream.has_own_key:
        return ((reached.headers, reached.signer),)
    return ((() if settings.server.client_keys else None, None),)


def _credential(upstream: UpstreamSettings, variable: str) -> Headers:
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(
            f"upstream {upstream.name!r}: the variable {masked_variable(variable)} "
            "(upstream.api_key_env) is not set"
        )
    known = preset(upstream.preset)
    if known is not None and known.key_header is not None:
        return ((known.key_header.encode(), key.encode()),)
    name, prefix = BY_SETTING[upstream.speaks].key_header
    return ((name, prefix + key.encode()),)


def list_sources(opened: Sequence[Opened], settings: Settings) -> tuple[ListSource, ...]:
    """Return the upstreams that are asked for their lists of models."""
    from headstart.middleware.models import ListSource

    names = {each.name for each in listed_upstreams(settings)}
    forms = [(each, dialects_of(each)[0].models) for each in opened]
    return tuple(
        ListSource(each.settings.name, each.settings.base_url, form, each.http)
        for each, form in forms
        if form is not None and each.settings.name in names
    )


def dialects_of(opened: Opened) -> tuple[UpstreamDialect, ...]:
    """Return the wire formats that an upstream understands, its main one first."""
    chosen = opened.settings
    return spoken_dialects(chosen.speaks, chosen.further)


def provider_of(opened: Opened, candidates: Mapping[str, Candidate], relay: Candidate) -> Provider:
    """Return an upstream as the router sees it; ``candidates`` are by route, "" for all others."""
    from headstart.middleware.router import Provider

    chosen, (main, *further) = opened.settings, dialects_of(opened)
    preset_name = chosen.preset or ""
    return Provider(
        name=chosen.name,
        base_url=chosen.base_url,
        dialect=main.name,
        models=aliases(chosen),
        named=frozenset(chosen.models),
        known=model_table().priced_at(preset_name).union(model_table().names_at(preset_name)),
        candidates=candidates,
        relay=relay,
        weights=partial(_weights, chosen.preset),
        further=frozenset(each.name for each in further),
        own_keys=frozenset(target.name for target in opened.targets if target.own_key),
        connect_early=opened.http.connect_early,
    )


def billing_names(opened: Iterable[Opened]) -> frozenset[str]:
    """Return the names of all targets that send a bill: not those of a server of your own."""
    return frozenset(
        target.name
        for each in opened
        if not sends_no_bill(each.settings)
        for target in each.targets
    )


def _weights(preset: str | None, model: str) -> str:
    """Return the common name of a provider's model, or its own name if the table has none."""
    found = None if preset is None else model_table().weights(model, preset)
    return model if found is None else found.name


def price_of(upstream: UpstreamSettings, model: str) -> Price | None:
    """Return the price of a model, named as it is sent; None if the price is not known.

    A call to a machine that is paid by the hour costs nothing more.
    """
    if upstream.price_per_hour is not None:
        return Price(input_per_million=0.0, output_per_million=0.0)
    return metered_price(upstream, model)


def metered_price(upstream: UpstreamSettings, model: str) -> Price | None:
    """Return the price by tokens, also for a machine that is paid by the hour."""
    found = price_at(upstream, model)
    if found is None:
        return None
    price = msgspec.convert(found, Price, from_attributes=True)
    return msgspec.structs.replace(price, multiplier=upstream.price_multiplier)


def machines_of(settings: Settings) -> dict[str, Machine]:
    """Return the upstreams that are paid by the hour, by name."""
    return {
        upstream.name: Machine(upstream.price_per_hour, partial(_metered_usd, upstream))
        for upstream in settings.upstream
        if upstream.price_per_hour is not None
    }


def _metered_usd(upstream: UpstreamSettings, attempt: Attempt) -> float | None:
    """Return what a call would have cost at the upstream's price by tokens."""
    price = metered_price(upstream, attempt.model)
    if price is None:
        return None
    used = Tokens(attempt.prompt_tokens, attempt.completion_tokens, cached=attempt.cached_tokens)
    return price.cost_usd(used)

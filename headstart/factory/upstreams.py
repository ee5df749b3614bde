"""Upstreams from their settings: who can be asked, under which keys, at which prices."""

from __future__ import annotations

import asyncio
import codecs
import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headstart.config.masking import masked_variable
from headstart.config.models import aliases, context_at, model_table, price_at
from headstart.errors import ConfigError
from headstart.factory.clock import clock
from headstart.middleware.dialects.anthropic_messages import AnthropicMessages
from headstart.middleware.dialects.cohere_chat import CohereChat
from headstart.middleware.dialects.gemini_generate import GeminiGenerate
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.policies.cost import Price

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    from headstart.config import Settings, UpstreamSettings
    from headstart.interfaces import Candidate
    from headstart.middleware.dialects.dialect import Dialect, UpstreamDialect
    from headstart.middleware.router import Provider
    from headstart.middleware.supervisor import Spawn
    from headstart.middleware.upstreams.conditions import Conditions
    from headstart.middleware.upstreams.http import HTTPOptions, HTTPUpstream
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.middleware.upstreams.target import Target, TargetOptions
    from headstart.types import Headers

WIRE = {
    "openai": OpenAIChat.name,
    "anthropic": AnthropicMessages.name,
    "gemini": GeminiGenerate.name,
    "cohere": CohereChat.name,
}
"""Wire formats by what ``upstream.dialect`` calls them."""
_DEFAULTS = {"anthropic": {"anthropic-version": "2023-06-01"}}
"""Headers that the API asks for, by ``upstream.dialect``; a caller's own take their place."""
_SILENCE_S = 600.0
"""Longest wait for a first byte on a socket: whoever calls sets the bound that counts."""


class Opened(NamedTuple):
    """One ``[[upstream]]``, ready to be asked."""

    settings: UpstreamSettings
    http: HTTPUpstream
    """Under its first key."""
    targets: tuple[Target, ...]
    """One for each key."""


async def open_upstreams(
    settings: Settings,
    conditions: Conditions,
    ledger: Ledger,
    stack: AsyncExitStack,
    spawn: Spawn | None = None,
) -> tuple[Opened, ...]:
    """Return the configured upstreams. ``stack`` closes them. Raises ConfigError.

    ``spawn`` starts what outlives a call (``upstream.warm``).
    """
    if not settings.upstream:
        raise ConfigError(
            "no upstream: add an [[upstream]] with base_url, pass --upstream URL, "
            "or set a provider's key such as OPENAI_API_KEY"
        )
    await asyncio.to_thread(_read_files)
    return tuple(
        [_open(each, settings, conditions, ledger, stack, spawn) for each in settings.upstream]
    )


def _read_files() -> None:
    """Read what the first request, and the first connection, would read on the loop."""
    model_table()
    codecs.lookup("idna")


def _open(
    chosen: UpstreamSettings,
    settings: Settings,
    conditions: Conditions,
    ledger: Ledger,
    stack: AsyncExitStack,
    spawn: Spawn | None,
) -> Opened:
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.middleware.upstreams.target import Target

    http: list[HTTPUpstream] = []
    targets: list[Target] = []
    for number, credential in enumerate(_credentials(chosen, settings), 1):
        name = chosen.name if number == 1 else f"{chosen.name}#{number}"
        options = _http_options(name, chosen, credential)
        upstream = HTTPUpstream(options, dialects(), clock, spoken=upstream_dialects(), spawn=spawn)
        stack.push_async_callback(upstream.aclose)
        http.append(upstream)
        key = "" if credential is None else str(number)
        terms = _target_options(name, key, chosen)
        targets.append(Target(upstream, terms, conditions, ledger, dialects(), clock))
    return Opened(chosen, http[0], tuple(targets))


def _http_options(name: str, chosen: UpstreamSettings, credential: Headers | None) -> HTTPOptions:
    from headstart.middleware.upstreams.http import HTTPOptions

    return HTTPOptions(
        name=name,
        base_url=chosen.base_url,
        dialect=WIRE[chosen.speaks],
        credential=credential,
        headers=chosen.headers,
        defaults=_DEFAULTS.get(chosen.speaks, {}) if chosen.key_variables else {},
        models=aliases(chosen),
        quirks=chosen.quirks,
        fields=chosen.fields,
        include_usage=chosen.include_usage,
        connect_s=chosen.connect_s,
        first_token_s=_SILENCE_S,
        read_s=chosen.read_s,
        warm=chosen.warm,
        proxy=chosen.proxy,
        ca_file=chosen.ca_file,
    )


def _target_options(name: str, key: str, chosen: UpstreamSettings) -> TargetOptions:
    from headstart.middleware.upstreams.target import TargetOptions

    return TargetOptions(
        name=name,
        key=key,
        first_token_s=chosen.first_token_s,
        stall_s=chosen.stall_s,
        cancels_billing=chosen.cancels_billing is True,
        context_tokens=partial(context_at, chosen),
        price=partial(price_of, chosen),
        models=aliases(chosen),
    )


def _credentials(upstream: UpstreamSettings, settings: Settings) -> tuple[Headers | None, ...]:
    """The upstream's own keys; without one, callers' keys pass unless they are ``client_keys``."""
    if not upstream.key_variables:
        return (() if settings.server.client_keys else None,)
    return tuple(_credential(upstream, variable) for variable in upstream.key_variables)


def _credential(upstream: UpstreamSettings, variable: str) -> Headers:
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(
            f"upstream {upstream.name!r}: the variable {masked_variable(variable)} "
            "(upstream.api_key_env) is not set"
        )
    if upstream.speaks == "anthropic":
        return ((b"x-api-key", key.encode()),)
    if upstream.speaks == "gemini":
        return ((b"x-goog-api-key", key.encode()),)
    if upstream.preset == "azure":
        return ((b"api-key", key.encode()),)
    return ((b"authorization", b"Bearer " + key.encode()),)


def provider_of(opened: Opened, candidates: Mapping[str, Candidate]) -> Provider:
    """Return an upstream as the router sees it; ``candidates`` are by route, "" for all others."""
    from headstart.middleware.router import Provider

    chosen = opened.settings
    return Provider(
        name=chosen.name,
        base_url=chosen.base_url,
        dialect=WIRE[chosen.speaks],
        models=aliases(chosen),
        named=frozenset(chosen.models),
        known=frozenset(model_table().names_at(chosen.preset or "")),
        candidates=candidates,
        relay=opened.http,
        own_keys=frozenset(target.name for target in opened.targets if target.own_key),
    )


def price_of(upstream: UpstreamSettings, model: str) -> Price | None:
    """Return what a model costs there, named as it is sent; None if nobody says."""
    found = price_at(upstream, model)
    if found is None:
        return None
    return Price(
        input_per_million=found.input_per_million,
        output_per_million=found.output_per_million,
        cached_per_million=found.cached_per_million,
        cache_write_per_million=found.cache_write_per_million,
        per_request=found.per_request,
        multiplier=upstream.price_multiplier,
    )


def dialects() -> dict[str, Dialect]:
    """Return the wire formats that clients may speak, by name."""
    formats: tuple[Dialect, ...] = (OpenAIChat(), AnthropicMessages(), GeminiGenerate())
    return {each.name: each for each in formats}


def upstream_dialects() -> dict[str, UpstreamDialect]:
    """Return the wire formats that upstreams may speak, by name."""
    return {**dialects(), CohereChat.name: CohereChat()}


def paths() -> dict[str, Dialect]:
    """Return the wire formats by the exact path that is cached."""
    return {"/v1/chat/completions": OpenAIChat(), "/v1/messages": AnthropicMessages()}

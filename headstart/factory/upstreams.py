"""Upstreams from their settings: who answers a request, under which key, at which price."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headstart.errors import ConfigError
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.policies.cost import Price

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack

    from headstart.config import Settings, UpstreamSettings
    from headstart.interfaces import Upstream
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.types import ChatRequest, Headers


async def open_upstreams(settings: Settings, stack: AsyncExitStack) -> list[HTTPUpstream]:
    from headstart.middleware.upstreams.http import (
        HTTPOptions,
        HTTPUpstream,
    )

    if not settings.upstream:
        raise ConfigError(
            "no upstream: add an [[upstream]] with base_url, pass --upstream URL, "
            "or set a provider's key such as OPENAI_API_KEY"
        )
    opened = []
    for chosen in settings.upstream:
        options = HTTPOptions(
            name=chosen.name,
            base_url=chosen.base_url,
            credential=_credential(chosen, settings),
            headers=chosen.headers,
            models=chosen.models,
            include_usage=chosen.include_usage,
            connect_s=chosen.connect_s,
            first_token_s=chosen.first_token_s,
            read_s=chosen.read_s,
            proxy=chosen.proxy,
            ca_file=chosen.ca_file,
        )
        upstream = HTTPUpstream(options, dialects())
        stack.push_async_callback(upstream.aclose)
        opened.append(upstream)
    return opened


def _credential(upstream: UpstreamSettings, settings: Settings) -> Headers | None:
    """The upstream's own key; without one, callers' keys pass unless they are ``client_keys``."""
    if upstream.api_key_env is None:
        return () if settings.server.client_keys else None
    key = os.environ.get(upstream.api_key_env)
    if not key:
        raise ConfigError(
            f"upstream {upstream.name!r}: the variable {upstream.api_key_env} "
            "(upstream.api_key_env) is not set"
        )
    return ((b"authorization", b"Bearer " + key.encode()),)


def identity_of(upstreams: Sequence[UpstreamSettings], request: ChatRequest) -> str:
    """Name who would answer: another provider, or another model behind an alias, is another key."""
    if not upstreams:
        return "app"
    chosen = next((each for each in upstreams if request.model in each.models), upstreams[0])
    model = chosen.models.get(request.model, request.model)
    return f"{chosen.name} {chosen.base_url} {model}"


def pick(
    table: Sequence[tuple[UpstreamSettings, HTTPUpstream]], request: ChatRequest | None
) -> Upstream:
    """The first upstream that names the model, else the first of all."""
    if request is not None:
        for chosen, upstream in table:
            if request.model in chosen.models:
                return upstream
    return table[0][1]


def prices(settings: Settings) -> Callable[[str, str], Price | None]:
    """Return the price book by (upstream, model); ``default`` prices an upstream's other models."""
    book = {
        (upstream.name, model): Price(
            input_per_million=price.input_per_million, output_per_million=price.output_per_million
        )
        for upstream in settings.upstream
        for model, price in upstream.price.items()
    }
    return lambda upstream, model: book.get((upstream, model)) or book.get((upstream, "default"))


def dialects() -> dict[str, Dialect]:
    """Return the wire formats by name."""
    chat = OpenAIChat()
    return {chat.name: chat}

"""Upstreams from their settings: who answers a request, under which key, at which price."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headstart.errors import ConfigError, NoUpstream
from headstart.middleware.dialects.anthropic_messages import AnthropicMessages
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.policies.cost import Price

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack

    from headstart.config import Settings, UpstreamSettings
    from headstart.interfaces import Upstream
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.types import ChatRequest, Headers

_SPOKEN = {OpenAIChat.name: "openai", AnthropicMessages.name: "anthropic"}
"""What ``upstream.dialect`` calls a wire format."""
_DEFAULTS = {"anthropic": {"anthropic-version": "2023-06-01"}}
"""Headers that the API asks for, by ``upstream.dialect``; a caller's own take their place."""


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
            defaults=_DEFAULTS.get(chosen.dialect, {}) if chosen.api_key_env else {},
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
    if upstream.dialect == "anthropic":
        return ((b"x-api-key", key.encode()),)
    return ((b"authorization", b"Bearer " + key.encode()),)


def choose(
    upstreams: Sequence[UpstreamSettings], dialect: str, model: str = ""
) -> UpstreamSettings:
    """Return the first upstream of a dialect that names the model, else the first of the dialect.

    ``dialect`` is a wire format's name; "" takes any upstream. Raises NoUpstream.
    """
    spoken = _SPOKEN.get(dialect)
    able = [each for each in upstreams if spoken in (None, each.dialect)]
    if not able:
        raise NoUpstream(
            f'no upstream takes this request: add an [[upstream]] with dialect = "{spoken}"'
        )
    return next((each for each in able if model in each.models), able[0])


def identity_of(upstreams: Sequence[UpstreamSettings], dialect: str, request: ChatRequest) -> str:
    """Name who would answer: another provider, or another model behind an alias, is another key.

    Raises NoUpstream.
    """
    if not upstreams:
        return "app"
    chosen = choose(upstreams, dialect, request.model)
    model = chosen.models.get(request.model, request.model)
    return f"{chosen.name} {chosen.base_url} {model}"


def pick(
    table: Mapping[str, HTTPUpstream],
    upstreams: Sequence[UpstreamSettings],
    dialect: str,
    request: ChatRequest | None,
) -> Upstream:
    """Return who is to answer a request, from ``table`` by name. Raises NoUpstream."""
    return table[choose(upstreams, dialect, "" if request is None else request.model).name]


def pick_for_relay(
    table: Mapping[str, HTTPUpstream],
    upstreams: Sequence[UpstreamSettings],
    path: bytes,
    headers: Headers,
) -> HTTPUpstream:
    """Return who gets what is only relayed: the first upstream of its dialect.

    Both dialects have a ``/v1/models``, so a header of Anthropic's tells whom the caller means.
    Raises NoUpstream.
    """
    anthropic = (path + b"/").startswith(b"/v1/messages/") or any(
        name == b"anthropic-version" for name, _ in headers
    )
    dialect = AnthropicMessages.name if anthropic else OpenAIChat.name
    return table[choose(upstreams, dialect).name]


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
    formats: tuple[Dialect, ...] = (OpenAIChat(), AnthropicMessages())
    return {each.name: each for each in formats}


def paths() -> dict[str, Dialect]:
    """Return the wire formats by the path that is cached."""
    formats = dialects()
    return {
        "/v1/chat/completions": formats[OpenAIChat.name],
        "/v1/messages": formats[AnthropicMessages.name],
    }

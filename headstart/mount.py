"""The front doors for ASGI apps: a middleware around yours, a gateway to mount inside it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

import msgspec

from headstart.config import Settings, checked, load_settings
from headstart.errors import ConfigError
from headstart.factory import start_engine
from headstart.factory.upstreams import paths
from headstart.middleware.asgi import Gateway, not_found
from headstart.middleware.dialects.gemini_generate import GeminiGenerate
from headstart.middleware.endpoints import Endpoint, Routes
from headstart.observe import Observers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from headstart.factory import Parts
    from headstart.interfaces import Observer
    from headstart.middleware.asgi_types import ASGIApp, Scope


class CacheOptions(TypedDict, total=False):
    """The keys of ``[cache]`` as keyword arguments; ``docs/configuration.md`` explains them."""

    enabled: bool
    mode: Literal["serve", "shadow", "exact-only"]
    match: Literal["verified", "static"] | None
    max_error: float | None
    error_of: Literal["hits", "requests"]
    confidence: float | None
    shadow_first: int
    state: str | None
    threshold: float | None
    guards: Sequence[str]
    share_users: bool
    sampled: str
    holdout: float
    store: str
    on_corrupt: Literal["fail", "fresh"]
    ttl_s: float | None
    ttl_by_class: Mapping[str, float]
    max_entries: int | None
    max_bytes: int | None
    hot_bytes: int
    key_headers: Sequence[str]
    audit: Mapping[str, object]
    judge: Mapping[str, object] | None


class HeadstartMiddleware(Gateway):
    """ASGI middleware: ``app.add_middleware(HeadstartMiddleware)``.

    Answers repeats of ``POST /v1/chat/completions``, of ``POST /v1/messages`` (Anthropic's), of
    ``POST /v1beta/models/…:generateContent`` (Gemini's) and of your ``endpoints`` from the cache;
    on a miss it calls the wrapped app. ``settings`` are Settings, the path of a
    ``headstart.toml``, or None for defaults; keyword arguments override ``[cache]`` keys.
    ``scope`` maps the ASGI scope to who may share answers (None: bypass); by default the
    Authorization, Cookie and key headers do. A hit skips whatever stands behind the middleware:
    mount it inside authentication.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings | Path | str | None = None,
        *,
        endpoints: Sequence[Endpoint] = (),
        scope: Callable[[Scope], str | None] | None = None,
        observers: Sequence[Observer] = (),
        **cache: Unpack[CacheOptions],
    ) -> None:
        if settings is None:
            cache.setdefault("store", "memory:")
        resolved = resolve_settings(settings, cache)
        super().__init__(
            app,
            routes=Routes(paths(), tuple(endpoints), GeminiGenerate()),
            start=partial(
                start_engine, resolved, Observers(observers), wrapped=True, resolve=scope
            ),
        )


def gateway(
    settings: Settings | Path | str | None = None,
    *,
    endpoints: Sequence[Endpoint] = (),
    scope: Callable[[Scope], str | None] | None = None,
    observers: Sequence[Observer] = (),
    **cache: Unpack[CacheOptions],
) -> Gateway:
    """Return an ASGI app with the provider routes, to mount in yours: ``app.mount("/llm", …)``.

    Needs at least one ``[[upstream]]``. It starts with its first request; call ``aclose()`` in
    your lifespan to flush and stop it.
    """
    return build_gateway(
        resolve_settings(settings, cache),
        not_found,
        observers=Observers(observers),
        endpoints=endpoints,
        resolve=scope,
    )


def build_gateway(
    settings: Settings,
    app: ASGIApp,
    *,
    observers: Observers,
    endpoints: Sequence[Endpoint] = (),
    resolve: Callable[[Scope], str | None] | None = None,
    on_start: Callable[[Parts], None] | None = None,
) -> Gateway:
    """Return ``app`` behind the provider routes of ``settings``."""
    return Gateway(
        app,
        routes=Routes(paths(), tuple(endpoints), GeminiGenerate()),
        start=partial(
            start_engine,
            settings,
            observers,
            wrapped=False,
            resolve=resolve,
            on_start=on_start,
        ),
        relay_prefixes=(b"/v1/", b"/v1beta/"),
    )


def resolve_settings(
    settings: Settings | Path | str | None, cache: Mapping[str, object]
) -> Settings:
    """Return checked Settings from what a caller gave; ``cache`` overrides ``[cache]`` keys."""
    if isinstance(settings, Settings):
        unknown = sorted(set(cache) - set(settings.cache.__struct_fields__))
        if unknown:
            raise ConfigError(f"cache.{unknown[0]}: unknown setting")
        changed = msgspec.structs.replace(settings.cache, **cache)
        return checked(msgspec.structs.replace(settings, cache=changed))
    path = None if settings is None else Path(settings)
    return load_settings(path, os.environ, {f"cache.{key}": v for key, v in cache.items()})

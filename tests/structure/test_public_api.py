"""The public names are a promise: this list changes with CHANGELOG.md, never by accident."""

from __future__ import annotations

import headstart

PUBLIC = [
    "AdminApp",
    "Compression",
    "ConfigError",
    "EncoderError",
    "Endpoint",
    "HeadstartError",
    "HeadstartMiddleware",
    "InvalidRequest",
    "LiveDraft",
    "MissingExtra",
    "NoUpstream",
    "NotCached",
    "Overloaded",
    "RequestError",
    "RequestTooLarge",
    "Settings",
    "StageError",
    "StoreError",
    "Unauthorized",
    "UpstreamError",
    "UpstreamProtocolError",
    "UpstreamRefused",
    "UpstreamSettings",
    "UpstreamTimeout",
    "UpstreamUnavailable",
    "UpstreamUnreachable",
    "VectorIndexError",
    "__version__",
    "after_checks",
    "cascade",
    "cheapest",
    "compress",
    "fallback",
    "fastest",
    "gateway",
    "hedge",
    "race",
    "route",
    "wrap",
]


def test_public_names_are_frozen_and_sorted() -> None:
    assert list(headstart.__all__) == PUBLIC == sorted(PUBLIC)


def test_every_public_name_resolves_and_is_listed() -> None:
    for name in PUBLIC:
        assert getattr(headstart, name) is not None
    assert set(PUBLIC) <= set(dir(headstart))

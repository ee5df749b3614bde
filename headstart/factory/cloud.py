"""Addresses and credentials of upstreams at a cloud provider, from settings and the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.errors import ConfigError
from headstart.factory.context import clock
from headstart.middleware.upstreams.aws_signature import AwsKeys
from headstart.middleware.upstreams.signers import AwsSigner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.middleware.upstreams.signers import Signer
    from headstart.settings import UpstreamSettings
    from headstart.types import Headers

_REGIONS = {"aws": ("AWS_REGION", "AWS_DEFAULT_REGION")}
"""The usual variables of ``upstream.region``, by ``upstream.auth``."""
_BEARER = "AWS_BEARER_TOKEN_BEDROCK"
_KEY_ID, _SECRET, _TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_SERVICE = "bedrock"


def located(upstream: UpstreamSettings, environ: Mapping[str, str]) -> UpstreamSettings:
    """Return the upstream with its region in its address. Raises ConfigError without a region."""
    if "{" not in upstream.base_url:
        return upstream
    region = region_of(upstream, environ)
    return msgspec.structs.replace(
        upstream, base_url=upstream.base_url.replace("{region}", region), region=region
    )


def region_of(upstream: UpstreamSettings, environ: Mapping[str, str]) -> str:
    """Return the region of an upstream. Raises ConfigError."""
    variables = _REGIONS.get(upstream.auth or "", ())
    found = upstream.region or next(filter(None, map(environ.get, variables)), None)
    if found is None:
        raise ConfigError(
            f"upstream {upstream.name!r}: set its region, or the variable {' or '.join(variables)}"
        )
    return found


def access(upstream: UpstreamSettings, environ: Mapping[str, str]) -> tuple[Headers, Signer | None]:
    """Return the headers that every call carries, and what signs each. Raises ConfigError."""
    bearer = environ.get(_BEARER)
    if bearer:
        return ((b"authorization", b"Bearer " + bearer.encode()),), None
    id, secret = environ.get(_KEY_ID), environ.get(_SECRET)
    if not id or not secret:
        raise ConfigError(
            f"upstream {upstream.name!r}: set the variable {_BEARER}, or {_KEY_ID} and {_SECRET}"
        )
    keys = AwsKeys(id, secret, environ.get(_TOKEN) or None)
    region = region_of(upstream, environ)
    return (), AwsSigner(keys, region=region, service=_SERVICE, clock=clock)

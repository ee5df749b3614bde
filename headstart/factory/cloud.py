"""Addresses and credentials of upstreams at a cloud provider, from settings and the environment."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.errors import ConfigError
from headstart.factory.context import clock
from headstart.middleware.upstreams.aws_signature import AwsKeys
from headstart.middleware.upstreams.google_tokens import (
    Gcloud,
    GoogleTokens,
    MetadataServer,
    from_file,
)
from headstart.middleware.upstreams.signers import AwsSigner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.middleware.concurrency import Spawn
    from headstart.middleware.upstreams.google_tokens import TokenSource
    from headstart.middleware.upstreams.signers import Signer
    from headstart.settings import UpstreamSettings
    from headstart.types import Headers

_AWS_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_AWS_BEARER = "AWS_BEARER_TOKEN_BEDROCK"
_AWS_ID, _AWS_SECRET, _AWS_TOKEN = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
)  # fmt: skip
_AWS_SERVICE = "bedrock"
_GOOGLE_REGIONS = ("GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION", "CLOUD_ML_REGION")
_GOOGLE_PROJECTS = ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "ANTHROPIC_VERTEX_PROJECT_ID")
_GOOGLE_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_GOOGLE_METADATA = "GCE_METADATA_HOST"
_GOOGLE_WIDE = {
    "https://global-aiplatform.": "https://aiplatform.",
    "https://eu-aiplatform.": "https://aiplatform.eu.rep.",
    "https://us-aiplatform.": "https://aiplatform.us.rep.",
}
"""Addresses of what is no single region, by what they would be if it were one."""


class CloudAccess(NamedTuple):
    """An upstream with its whole address, and how its calls are authorised."""

    settings: UpstreamSettings
    headers: Headers = ()
    """What every call carries."""
    signer: Signer | None = None
    """What adds to each call."""


def cloud_access(
    upstream: UpstreamSettings, environ: Mapping[str, str], spawn: Spawn | None = None
) -> CloudAccess:
    """Return how an upstream is reached. Reads files; raises ConfigError for what is missing."""
    match upstream.auth:
        case "aws":
            return _aws(upstream, environ)
        case "google":
            return _google(upstream, environ, spawn)
    return CloudAccess(upstream)


def _aws(upstream: UpstreamSettings, environ: Mapping[str, str]) -> CloudAccess:
    region = _found(upstream, "region", upstream.region, _AWS_REGIONS, environ)
    placed = _placed(upstream, region=region)
    if upstream.key_variables:
        return CloudAccess(placed)
    if bearer := environ.get(_AWS_BEARER):
        return CloudAccess(placed, ((b"authorization", b"Bearer " + bearer.encode()),))
    id, secret = environ.get(_AWS_ID), environ.get(_AWS_SECRET)
    if not id or not secret:
        raise ConfigError(
            f"upstream {upstream.name!r}: set the variable {_AWS_BEARER}, or {_AWS_ID} and "
            f"{_AWS_SECRET}"
        )
    keys = AwsKeys(id, secret, environ.get(_AWS_TOKEN) or None)
    signer = AwsSigner(keys, region=region, service=_AWS_SERVICE, clock=clock)
    return CloudAccess(placed, (), signer)


def _google(
    upstream: UpstreamSettings, environ: Mapping[str, str], spawn: Spawn | None
) -> CloudAccess:
    source, project = _google_source(upstream, environ)
    placed = upstream
    if "{" in upstream.base_url:
        region = _found(upstream, "region", upstream.region, _GOOGLE_REGIONS, environ)
        own = upstream.project or project
        placed = _placed(
            upstream,
            region=region,
            project=_found(upstream, "project", own, _GOOGLE_PROJECTS, environ),
        )
        for narrow, wide in _GOOGLE_WIDE.items():
            if placed.base_url.startswith(narrow):
                address = wide + placed.base_url.removeprefix(narrow)
                placed = msgspec.structs.replace(placed, base_url=address)
    return CloudAccess(placed, (), GoogleTokens(upstream.name, source, spawn))


def _google_source(
    upstream: UpstreamSettings, environ: Mapping[str, str]
) -> tuple[TokenSource, str | None]:
    """Return where tokens come from, and the project of a file of credentials."""
    file, setting = upstream.credentials_file, f"upstream {upstream.name!r}: credentials_file"
    if file is None:
        file, setting = environ.get(_GOOGLE_FILE) or None, _GOOGLE_FILE
    if file is not None:
        return from_file(Path(file), setting=setting, proxy=upstream.proxy, clock=clock)
    program = shutil.which("gcloud", path=environ.get("PATH", ""))
    if program is not None and not environ.get(_GOOGLE_METADATA):
        return Gcloud(program), None
    return MetadataServer(environ.get(_GOOGLE_METADATA) or "metadata.google.internal"), None


def _found(
    upstream: UpstreamSettings,
    setting: str,
    own: str | None,
    variables: tuple[str, ...],
    environ: Mapping[str, str],
) -> str:
    """Return a setting, or the first of its usual variables. Raises ConfigError without any."""
    found = own or next(filter(None, map(environ.get, variables)), None)
    if found is None:
        raise ConfigError(
            f"upstream {upstream.name!r}: set its {setting}, or the variable "
            f"{' or '.join(variables)}"
        )
    return found


def _placed(upstream: UpstreamSettings, **parts: str) -> UpstreamSettings:
    """Return the upstream with the parts of its address filled in."""
    address = upstream.base_url
    for name, value in parts.items():
        address = address.replace(f"{{{name}}}", value)
    return msgspec.structs.replace(upstream, base_url=address, **parts)

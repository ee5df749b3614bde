"""Builds upstreams from settings: one target for each key, with its prices and limits.

For example, an ``[[upstream]]`` ``a`` with two keys in ``api_key_env`` becomes one
``OpenedUpstream`` with two targets, ``a`` and ``a#2``.

The last part has the addresses and credentials of cloud providers.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import shutil
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.attempts import Attempt, Tokens
from headstart.config.checks import has_no_list, listed_upstreams
from headstart.config.providers import (
    NO_UPSTREAM,
    aliases,
    context_at,
    model_table,
    preset,
    price_at,
    sends_no_bill,
)
from headstart.dialects.registry import BY_SETTING, spoken_dialects
from headstart.errors import ConfigError
from headstart.factory.context import BuildContext, clock, persist
from headstart.middleware.router import ListSource, Provider
from headstart.middleware.upstreams.accounting import UpstreamStates
from headstart.middleware.upstreams.signers import (
    AwsKeys,
    AwsSigner,
    GoogleTokens,
    ask_gcloud,
    ask_metadata_server,
    from_file,
)
from headstart.policies.cost import Price
from headstart.settings import Settings, UpstreamSettings, masked_variable
from headstart.usual_calls import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AsyncExitStack

    from headstart.dialects.dialect import UpstreamDialect
    from headstart.interfaces import Candidate
    from headstart.middleware.client_ledger import ClientLedger
    from headstart.middleware.concurrency import Spawn
    from headstart.middleware.telemetry import Tracing
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.middleware.upstreams.node_limits import NodeLimits
    from headstart.middleware.upstreams.signers import Signer, TokenSource
    from headstart.middleware.upstreams.target import Target
    from headstart.types import Headers

MEASURES_NAME = "upstream-measures"
"""The name under which the store keeps what was measured of upstreams."""


async def open_states(build: BuildContext, kept: UpstreamStates | None = None) -> UpstreamStates:
    """Return the health and figures of upstreams. New states start with figures of earlier runs."""
    states = UpstreamStates() if kept is None else kept
    measures, loop = states.measures, asyncio.get_running_loop()
    await persist(
        build,
        MEASURES_NAME,
        "measures",
        saved=lambda: measures.saved(loop.time()),
        load=lambda saved: measures.is_empty and measures.load(saved, loop.time()),
    )
    return states


class OpenedUpstream(NamedTuple):
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
    states: UpstreamStates,
    stack: AsyncExitStack,
    spawn: Spawn | None = None,
    *,
    tracing: Tracing | None = None,
    ledger: ClientLedger | None = None,
    make: Callable[..., HTTPUpstream] | None = None,
    nodes: NodeLimits | None = None,
) -> tuple[OpenedUpstream, ...]:
    """Return the configured upstreams. ``stack`` closes them. Raises ConfigError.

    ``spawn`` starts tasks that outlive a call, for ``upstream.warm``; ``tracing`` traces calls, and
    ``ledger`` has the limits of callers' keys. ``make`` takes the place of ``HTTPUpstream``.
    ``nodes`` has the rate limits that all nodes share.
    """
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.middleware.upstreams.target import Target

    if not settings.upstream:
        raise ConfigError(NO_UPSTREAM)
    await asyncio.to_thread(_read_files, {each.price_file for each in settings.upstream})
    accesses = await asyncio.to_thread(  # it reads files
        lambda: [cloud_access(each, os.environ, spawn) for each in settings.upstream]
    )
    make_http = partial(make or HTTPUpstream, clock=clock, spawn=spawn)
    make_target = partial(
        Target,
        states=states,
        clock=clock,
        tracing=tracing,
        ledger=ledger,
        nodes=nodes,
    )
    return tuple([_open(each, settings, stack, make_http, make_target) for each in accesses])


def _read_files(prices: Collection[str | None]) -> None:
    """Read the files that the first request and the first connection would read on the loop."""
    for file in (None, *prices):
        model_table(file)
    codecs.lookup("idna")


def _open(
    access: CloudAccess,
    settings: Settings,
    stack: AsyncExitStack,
    make_http: Callable[..., HTTPUpstream],
    make_target: Callable[..., Target],
) -> OpenedUpstream:
    """Open an upstream under each of its keys. Raises ConfigError."""
    chosen = access.settings
    http: list[HTTPUpstream] = []
    targets: list[Target] = []
    for number, key in enumerate(_keys(access, settings), 1):
        used = msgspec.structs.replace(
            chosen,
            name=chosen.name if number == 1 else f"{chosen.name}#{number}",
            models=aliases(chosen),
        )
        upstream = make_http(used, credential=key.headers, signer=key.signer)
        stack.push_async_callback(upstream.aclose)
        http.append(upstream)
        target = make_target(
            upstream,
            used,
            key="" if key.headers is None else str(number),
            context_tokens=partial(context_at, chosen),
            price=partial(price_of, chosen),
            is_free=sends_no_bill(chosen),
            address=_address_of(chosen, key.headers),
        )
        targets.append(target)
    return OpenedUpstream(chosen, tuple(http), tuple(targets))


def _address_of(upstream: UpstreamSettings, credential: Headers | None) -> str:
    """Return a name for a provider under a key, which is the same on all nodes.

    A signer's credentials change by the hour, and belong to one account.
    """
    own = b"" if credential is None else b"\0".join(value for _, value in credential)
    return f"{upstream.base_url} {blake2b(own, digest_size=16).hexdigest()}"


class _UpstreamKey(NamedTuple):
    """One key of an upstream."""

    headers: Headers | None
    """None: callers' own keys are sent."""
    signer: Signer | None = None
    """Signs the calls; then there are no headers."""


def _keys(access: CloudAccess, settings: Settings) -> list[_UpstreamKey]:
    """Return the keys under which an upstream is called, at least one. Raises ConfigError."""
    upstream = access.settings
    if upstream.key_variables:
        return [_UpstreamKey(_credential(upstream, each)) for each in upstream.key_variables]
    if upstream.has_own_key:
        return [_UpstreamKey(access.headers, access.signer)]
    # The upstream has no key. Callers' keys go to it, unless they are keys for Headstart.
    return [_UpstreamKey(() if settings.server.client_keys else None)]


def _credential(upstream: UpstreamSettings, variable: str) -> Headers:
    """Return the header with the key that a variable has. Raises ConfigError."""
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


# --- what the router knows of an upstream ---------------------------------------------------------


class ListSources(NamedTuple):
    """The upstreams that are asked for their lists of models."""

    open: tuple[ListSource, ...]
    """Those that are asked without a caller's key."""
    keyed: tuple[ListSource, ...]
    """Those that are sent callers' keys."""


def list_sources(opened: Sequence[OpenedUpstream], settings: Settings) -> ListSources:
    """Return the upstreams that are asked for their lists of models."""
    names = {each.name for each in listed_upstreams(settings)}
    open_, keyed = list[ListSource](), list[ListSource]()
    for each in opened:
        spoken, chosen = dialects_of(each)[0], each.settings
        if spoken.models is None or has_no_list(chosen):
            continue
        source = ListSource(chosen.name, chosen.base_url, spoken, spoken.models, each.http)
        if chosen.name in names:
            open_.append(source)
        elif each.http.passes_keys:
            keyed.append(source)
    return ListSources(tuple(open_), tuple(keyed))


def dialects_of(opened: OpenedUpstream) -> tuple[UpstreamDialect, ...]:
    """Return the wire formats that an upstream understands, its main one first."""
    chosen = opened.settings
    return spoken_dialects(chosen.speaks, chosen.further)


def provider_of(
    opened: OpenedUpstream, candidates: Mapping[str, Candidate], relay: Candidate
) -> Provider:
    """Return an upstream as the router sees it; ``candidates`` are by route, "" for all others."""
    chosen, (main, *further) = opened.settings, dialects_of(opened)
    preset_name, named = chosen.preset or "", aliases(chosen)
    by_preset = model_table().aliases_at(preset_name).items() if sends_no_bill(chosen) else ()
    return Provider(
        name=chosen.name,
        base_url=chosen.base_url,
        dialect=main.name,
        models=named,
        named=frozenset(chosen.models),
        assumed=frozenset(name for name, real in by_preset if named[name] == real),
        known=model_table().priced_at(preset_name).union(model_table().names_at(preset_name)),
        candidates=candidates,
        relay=relay,
        weights=partial(_weights, chosen.preset),
        further=frozenset(each.name for each in further),
        own_keys=frozenset(target.name for target in opened.targets if target.own_key),
        connect_early=opened.http.connect_early,
    )


def _weights(preset: str | None, model: str) -> str:
    """Return the common name of a provider's model, or its own name if the table has none."""
    found = None if preset is None else model_table().weights(model, preset)
    return model if found is None else found.name


# --- prices ---------------------------------------------------------------------------------------


def billing_names(opened: Iterable[OpenedUpstream]) -> frozenset[str]:
    """Return the names of all targets that send a bill. A server of your own sends none."""
    return frozenset(
        target.name
        for each in opened
        if not sends_no_bill(each.settings)
        for target in each.targets
    )


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
    """Return the cost of a call at the upstream's price by tokens."""
    price = metered_price(upstream, attempt.model)
    if price is None:
        return None
    used = Tokens(attempt.prompt_tokens, attempt.completion_tokens, cached=attempt.cached_tokens)
    return price.cost_usd(used)


# --- cloud providers ------------------------------------------------------------------------------

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
"""Google's addresses for locations that are not a single region, by the address that a region would
have."""


class CloudAccess(NamedTuple):
    """An upstream with its whole address, and the authorisation of its calls."""

    settings: UpstreamSettings
    headers: Headers = ()
    """The headers of every call."""
    signer: Signer | None = None
    """Signs each call."""


def cloud_access(
    upstream: UpstreamSettings, environ: Mapping[str, str], spawn: Spawn | None = None
) -> CloudAccess:
    """Return address and authorisation of an upstream. Reads files.

    Raises ConfigError if one is missing.
    """
    match upstream.auth:
        case "aws":
            return _aws(upstream, environ)
        case "google":
            return _google(upstream, environ, spawn)
    return CloudAccess(upstream)


def _aws(upstream: UpstreamSettings, environ: Mapping[str, str]) -> CloudAccess:
    """Use a key of the settings, else the variables with a bearer token or with access keys."""
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
    return CloudAccess(placed, signer=signer)


def _google(
    upstream: UpstreamSettings, environ: Mapping[str, str], spawn: Spawn | None
) -> CloudAccess:
    """Take tokens from a credentials file, from gcloud or from Google's own machines."""
    source, file_project = _google_source(upstream, environ)
    placed = upstream
    if "{" in upstream.base_url:
        region = _found(upstream, "region", upstream.region, _GOOGLE_REGIONS, environ)
        stated = upstream.project or file_project
        project = _found(upstream, "project", stated, _GOOGLE_PROJECTS, environ)
        placed = _placed(upstream, region=region, project=project)
        for regional, wide in _GOOGLE_WIDE.items():
            if placed.base_url.startswith(regional):
                address = wide + placed.base_url.removeprefix(regional)
                placed = msgspec.structs.replace(placed, base_url=address)
    return CloudAccess(placed, signer=GoogleTokens(upstream.name, source, spawn))


def _google_source(
    upstream: UpstreamSettings, environ: Mapping[str, str]
) -> tuple[TokenSource, str | None]:
    """Return the source of tokens, and the project of the credentials file."""
    file, setting = upstream.credentials_file, f"upstream {upstream.name!r}: credentials_file"
    if file is None:
        file, setting = environ.get(_GOOGLE_FILE) or None, _GOOGLE_FILE
    if file is not None:
        return from_file(Path(file), setting=setting, proxy=upstream.proxy, clock=clock)
    program = shutil.which("gcloud", path=environ.get("PATH", ""))
    if program is not None and not environ.get(_GOOGLE_METADATA):
        return partial(ask_gcloud, program), None
    return partial(ask_metadata_server, environ.get(_GOOGLE_METADATA)), None


def _found(
    upstream: UpstreamSettings,
    setting: str,
    stated: str | None,
    variables: tuple[str, ...],
    environ: Mapping[str, str],
) -> str:
    """Return a setting, or the first of its usual variables. Raises ConfigError without any."""
    found = stated or next(filter(None, map(environ.get, variables)), None)
    if found is None:
        raise ConfigError(
            f"upstream {upstream.name!r}: set its {setting}, or the variable "
            f"{' or '.join(variables)}"
        )
    return found


def _placed(upstream: UpstreamSettings, **parts: str) -> UpstreamSettings:
    """Return the upstream with the parts of its address filled in, such as ``{region}``."""
    address = upstream.base_url
    for name, value in parts.items():
        address = address.replace(f"{{{name}}}", value)
    return msgspec.structs.replace(upstream, base_url=address, **parts)

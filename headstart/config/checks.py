"""Checks between settings that types cannot express, and notes on valid settings."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from ipaddress import ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from headstart.config.names import hint, problem
from headstart.config.providers import (
    host_of,
    model_at,
    model_table,
    preset,
    providers,
    resolved,
    sends_no_bill,
    tiers,
)
from headstart.config.strategies import strategy_of
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.registry import BY_SETTING, KEY_HEADERS
from headstart.errors import ConfigError
from headstart.interfaces import STORE_SCHEMES, STORES
from headstart.settings import (
    CacheSettings,
    JudgeInCode,
    Settings,
    Strategy,
    masked_url,
    masked_variable,
)
from headstart.sockets import is_loopback_host
from headstart.types import is_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headstart.settings import JudgeSettings, RouteSettings, ServerSettings, UpstreamSettings

_VERSION = re.compile(r"/v\d\w*(/|$)")
_CALL = re.compile(
    r"(/v\d\w*)?/chat/completions/*$|(/v\d\w*)/(?:completions|embeddings|messages|responses)/*$"
)


def notes_on(settings: Settings) -> Iterator[str]:
    """Yield notes on checked settings, for the operator to read at the start."""
    cache = settings.cache
    if cache.enabled and cache.scope.startswith("header:") and not settings.server.trusted_proxies:
        yield (
            f"cache.scope: {cache.scope!r} is accepted only from server.trusted_proxies, and none "
            "is set, so nothing is cached"
        )
    yield from _key_notes(settings)
    yield from _limit_notes(settings)
    for upstream in settings.upstream:
        yield from _address_notes(upstream)


def ignored_proxy(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Return the variable that names a proxy for an upstream without one; other programs use it."""
    direct = (environ.get("NO_PROXY") or environ.get("no_proxy") or "").lower().split(",")
    suffixes = tuple("." + name.strip().lstrip(".") for name in direct if name.strip())
    if ".*" in suffixes:
        return None
    for upstream in settings.upstream:
        host, scheme = "." + host_of(upstream.base_url), urlsplit(upstream.base_url).scheme
        if upstream.proxy is None and not host.endswith(suffixes):
            names = (f"{scheme.upper()}_PROXY", f"{scheme}_proxy", "ALL_PROXY", "all_proxy")
            if (found := next(filter(environ.get, names), None)) is not None:
                return found
    return None


def unset_variables(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for each variable that a setting names and that is not set."""
    token = settings.server.admin_token_env
    if token is not None and not environ.get(token):
        yield f"server.admin_token_env: the variable {masked_variable(token)} is not set"
    for upstream in settings.upstream:
        for variable in upstream.key_variables:
            if not environ.get(variable):
                shown = masked_variable(variable)
                yield (
                    f"upstream {upstream.name!r}: the variable {shown} "
                    "(upstream.api_key_env) is not set"
                )


def _key_notes(settings: Settings) -> Iterator[str]:
    """Yield a note if a caller's key may reach the provider of another key."""
    taking = [each for each in settings.upstream if not each.has_own_key]
    if settings.server.client_keys or len(taking) < 2:
        return
    hosts = {host_of(each.base_url) for each in taking}
    if len(hosts) > 1 and not all(map(is_loopback_host, hosts)):
        names = ", ".join(repr(each.name) for each in taking)
        yield (
            f"upstreams {names} have no key of their own, so a caller's key goes to any of them, "
            "as the model or the route decides; set api_key_env for each, or tell callers for "
            "which models their key is"
        )


def _limit_notes(settings: Settings) -> Iterator[str]:
    """Yield a note on upstreams that callers with a limit of dollars cannot use."""
    strict = [
        name
        for name, each in settings.server.limits_by_client.items()
        if each.unknown_cost == "refuse"
        and (each.usd_per_day is not None or each.usd_per_month is not None)
    ]
    for upstream in settings.upstream if strict else ():
        if upstream.preset is None and not upstream.price and not sends_no_bill(upstream):
            yield (
                f"upstream {upstream.name!r} has no price, so callers with a limit of dollars "
                f"({', '.join(strict)}) cannot use it; set its price, or their "
                'unknown_cost = "allow"'
            )


def listed_upstreams(settings: Settings) -> Iterator[UpstreamSettings]:
    """Yield the upstreams that are asked for their lists of models, without a caller's key.

    A single upstream on this machine is left out, because it is not known whether it wants callers'
    keys.
    """
    for upstream in settings.upstream:
        is_open = len(settings.upstream) > 1 and is_loopback_host(host_of(upstream.base_url))
        has_key = bool(upstream.key_variables or settings.server.client_keys)
        # Azure lists the models that could be deployed, not the deployments.
        known = not has_no_list(upstream) and upstream.preset != "azure"
        if known and (has_key or is_open):
            yield upstream


def has_no_list(upstream: UpstreamSettings) -> bool:
    """Tell whether an upstream cannot be asked for its models. Google has no list for Claude."""
    return BY_SETTING[upstream.speaks].models is None or upstream.quirks.raw_predict


def listing_note(settings: Settings) -> str:
    """Say what ``GET /v1/models`` answers; "" without upstreams."""
    asked = ", ".join(each.name for each in listed_upstreams(settings))
    if asked:
        return f"GET /v1/models: the names in routes and upstreams, and the lists of {asked}"
    if not settings.upstream:
        return ""
    if all(map(has_no_list, settings.upstream)):
        return "GET /v1/models: the names in routes and upstreams"
    return "GET /v1/models: passes with the caller's key"


def _address_notes(upstream: UpstreamSettings) -> Iterator[str]:
    if upstream.preset is not None:
        return
    host, path = host_of(upstream.base_url), urlsplit(upstream.base_url).path
    known = next((each for each in providers().values() if host_of(each.base_url) == host), None)
    if known is not None and known.variable is not None:
        yield (
            f"upstream {upstream.name!r}: {known.name} is known at {known.base_url}; its preset "
            f"is not used with this base_url unless you add preset = {known.name!r}"
        )
        return
    below = BY_SETTING[upstream.speaks].path_below_version
    if below is not None and path.strip("/") and not _VERSION.search(path):
        address = upstream.base_url.rstrip("/")
        yield (
            f"upstream {upstream.name!r}: calls go to {address}{below}; if that is no "
            f'such path, write base_url = "{address}/v1"'
        )


CONFIDENCES = (0.69, 0.84, 0.95)
_MOST_ERRORS = 0.5
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LEARNED = ("max_error", "error_of", "confidence", "cold_start", "shadow_first", "state")
"""Settings that only verified matching has."""


def safety_problems(settings: Settings) -> Iterator[str]:
    """Yield the contradictions in ``[cache]`` and ``[[route]]``, each with its fix."""
    cache = settings.cache
    yield from _match_problems(cache)
    yield from _error_problems("cache.max_error", cache.max_error)
    yield from _expression_problems("cache.never_stored", cache.never_stored)
    if cache.confidence is not None and cache.confidence not in CONFIDENCES:
        yield f"cache.confidence: {cache.confidence} is not a choice; use 0.69, 0.84 or 0.95"
    if cache.audit.max_usd_per_day is not None:
        yield from _price_problems("cache.audit.max_usd_per_day", settings.upstream)
    if cache.judge is not None:
        yield from _judge_problems(cache.judge, settings.upstream)
    names: set[str] = set()
    for index, route in enumerate(settings.route):
        yield from _route_problems(f"route[{index}]", route, cache)
        if route.name in names:
            yield f"route[{index}].name: {route.name!r} is taken by another route; change it"
        names.add(route.name)


def _match_problems(cache: CacheSettings) -> Iterator[str]:
    if cache.match == "verified" and cache.threshold is not None:
        yield (
            'cache.threshold: verified matching learns its own; set cache.match = "static", or '
            "set the accepted share of wrong hits as cache.max_error"
        )
    if cache.effective_match == "static":
        for name in _LEARNED:
            if getattr(cache, name) != getattr(_DEFAULTS, name):
                yield (
                    f"cache.{name}: static matching does not learn; leave out cache.threshold and "
                    'set cache.match = "verified"'
                )


_DEFAULTS = CacheSettings()


def _error_problems(setting: str, share: float | None) -> Iterator[str]:
    if share is None or 0 < share <= _MOST_ERRORS:
        return
    if share == 0:
        of_cache = setting == "cache.max_error"
        fix = 'cache.mode = "exact-only"' if of_cache else "semantic = false for this route"
        yield f"{setting}: 0 accepts no semantic hit; set {fix}"
        return
    fix = f"for {share:g} % write {share / 100:g}" if 1 <= share <= 50 else "0.01 is 1 %"
    yield f"{setting}: {share:g} is not a share above 0 and at most {_MOST_ERRORS}; {fix}"


def _price_problems(setting: str, upstreams: Sequence[UpstreamSettings]) -> Iterator[str]:
    for index, upstream in enumerate(upstreams):
        if not upstream.price:
            yield (
                f"{setting}: {upstream.name!r} has no price of its own, and a list of prices may "
                f"lack a model; set upstream[{index}].price, or cap the calls with "
                "max_calls_per_hour"
            )


def _judge_problems(judge: JudgeSettings, upstreams: Sequence[UpstreamSettings]) -> Iterator[str]:
    chosen = [upstream for upstream in upstreams if upstream.name == judge.upstream]
    if not chosen:
        names = ", ".join(upstream.name for upstream in upstreams) or "none"
        yield f"cache.judge.upstream: no upstream is named {judge.upstream!r}; there is: {names}"
    for upstream in chosen:
        if BY_SETTING[upstream.speaks] is not OPENAI_CHAT:
            yield (
                f"cache.judge.upstream: {upstream.name!r} does not speak OpenAI's dialect, which "
                "calls to the judge use; name another upstream"
            )
        if not upstream.has_own_key and not is_loopback_host(host_of(upstream.base_url)):
            yield (
                f"cache.judge.upstream: {upstream.name!r} has no key of its own, and callers' "
                "keys are never used for judging; set its api_key_env"
            )
    if judge.max_usd_per_day is not None:
        yield from _price_problems("cache.judge.max_usd_per_day", chosen)


def _route_problems(setting: str, route: RouteSettings, cache: CacheSettings) -> Iterator[str]:
    yield from _error_problems(f"{setting}.max_error", route.max_error)
    if route.max_error is not None and cache.effective_match == "static":
        yield f'{setting}.max_error: needs cache.match = "verified"'
    for name in route.match.header:
        if not _HEADER_NAME.fullmatch(name):
            yield f"{setting}.match.header: {name!r} is not the name of a header"
    if route.repeat_window_s is not None and route.on_repeat != "fresh":
        yield f'{setting}.repeat_window_s: needs on_repeat = "fresh"'
    yield from _expression_problems(f"{setting}.never_stored", route.never_stored or ())
    if route.query is None:
        return
    try:
        named = "query" in re.compile(route.query).groupindex
    except re.error as error:
        yield f"{setting}.query: not a regular expression: {error}"
        return
    if not named:
        yield f"{setting}.query: name the question's group, as in '(?s).*Question: (?P<query>.+)'"


def _expression_problems(setting: str, stated: str | tuple[str, ...]) -> Iterator[str]:
    for expression in (stated,) if isinstance(stated, str) else stated:
        try:
            matches_nothing = re.compile(expression).search("") is not None
        except re.error as error:
            yield f"{setting}: {expression!r} is not a regular expression: {error}"
            continue
        if matches_nothing:
            yield f"{setting}: {expression!r} matches every text, so nothing would be stored"


_CONCURRENT = frozenset({"race", "hedge"})
"""Strategies that make several calls for one request and cancel the slower ones."""


def strategy_problems(settings: Settings) -> Iterator[str]:
    """Yield the contradictions in the strategies of ``[[route]]``, each with its fix."""
    known = {upstream.name: upstream for upstream in settings.upstream}
    for index, route in enumerate(settings.route):
        setting, strategy = f"route[{index}]", strategy_of(route)
        unknown = [name for name in strategy.members if name not in known]
        for name in unknown:
            yield f"{setting}.upstreams: no upstream is named {name!r}; {_nearest(name, known)}"
        if unknown:
            continue
        yield from _shape_problems(setting, strategy)
        members = [known[name] for name in dict.fromkeys(strategy.members)]
        if len(members) > 1:
            yield from _key_problems(setting, members, settings)
        if route.use == "regulated":
            yield from _regulated_problems(setting, members)
        for inner in _with_nested(strategy):
            yield from _concurrency_problems(setting, inner, route, known)


def _nearest(name: str, known: dict[str, UpstreamSettings]) -> str:
    return hint(name, known) if known else "there is no [[upstream]]"


def _with_nested(strategy: Strategy) -> Iterator[Strategy]:
    yield strategy
    for each in strategy.upstreams:
        if isinstance(each, Strategy):
            yield from _with_nested(each)


def _shape_problems(setting: str, strategy: Strategy) -> Iterator[str]:
    kind, count = strategy.strategy, len(strategy.upstreams)
    place = f"{setting}.upstreams"
    if kind == "single" and count > 1:
        yield (
            f"{place}: there are {count} upstreams; set {setting}.strategy, "
            'such as "fallback" or "hedge"'
        )
    elif kind == "cascade" and count != 2:
        yield f"{place}: a cascade needs two upstreams, first the fast model and then the slow one"
    elif kind != "single" and count < 2:
        yield f'{place}: strategy "{kind}" needs at least two upstreams'
    repeated = {each for each in strategy.upstreams if strategy.upstreams.count(each) > 1}
    for name in sorted(map(str, repeated)):
        yield f"{place}: {name!r} is listed twice"
    for index, each in enumerate(strategy.upstreams):
        if isinstance(each, Strategy):
            yield from _shape_problems(f"{place}[{index}]", each)


def _key_problems(
    setting: str, members: Sequence[UpstreamSettings], settings: Settings
) -> Iterator[str]:
    """Yield a problem for each upstream that would get a caller's key for another upstream."""
    if settings.server.client_keys:
        return
    for upstream in members:
        if not upstream.has_own_key and not is_loopback_host(host_of(upstream.base_url)):
            yield (
                f"{setting}.upstreams: {upstream.name!r} has no key of its own, and a caller's key "
                "is never sent to a second upstream; set its api_key_env, or give callers keys "
                "with server.client_keys"
            )


def _regulated_problems(setting: str, members: Sequence[UpstreamSettings]) -> Iterator[str]:
    for upstream in members:
        if not upstream.quirks.refuse:
            yield (
                f'{setting}.use: "regulated" must change no request, but {upstream.name!r} drops '
                'fields that its provider does not support; set its unsupported = "refuse"'
            )


def _concurrency_problems(
    setting: str, strategy: Strategy, route: RouteSettings, known: dict[str, UpstreamSettings]
) -> Iterator[str]:
    if strategy.strategy not in _CONCURRENT:
        return
    members = [known[name] for name in strategy.members]
    if not strategy.race_billed:
        yield from _bill_problems(setting, strategy.strategy, members)
    if strategy.equal_models == "check":
        yield from _model_problems(setting, strategy.strategy, route.match.model, members)


def _bill_problems(setting: str, kind: str, members: Sequence[UpstreamSettings]) -> Iterator[str]:
    for upstream in members:
        if upstream.cancels_billing is False:
            yield (
                f"{setting}.upstreams: {upstream.name!r} bills a cancelled call in full, so a "
                f"{kind} with it pays twice; leave it out, or set {setting}.race_billed = true"
            )
        elif upstream.cancels_billing is None:
            yield (
                f"{setting}.upstreams: it is not known whether {upstream.name!r} bills a cancelled "
                f"call in full, so a {kind} with it may pay twice; leave it out, set its "
                f"cancels_billing, or set {setting}.race_billed = true"
            )


def billing_note(upstream: UpstreamSettings) -> str | None:
    """Return a warning if a cancelled call may cost more than the tokens that came; else None."""
    if upstream.cancels_billing is None:
        return f"it is not known whether {upstream.name} bills cancelled calls in full"
    return None if upstream.cancels_billing else f"{upstream.name} bills cancelled calls in full"


def _model_problems(
    setting: str, kind: str, pattern: str, members: Sequence[UpstreamSettings]
) -> Iterator[str]:
    """Yield a problem for each model that may have other weights at another member."""
    for model in asked_models(pattern, members):
        names = {upstream.name: model_at(upstream, model) for upstream in members}
        if len({_identity(upstream, names[upstream.name]) for upstream in members}) > 1:
            shown = ", ".join(f"{name} {real!r}" for name, real in names.items())
            yield (
                f"{setting}.upstreams: it is not known that {model!r} is one model in this {kind}: "
                f"{shown}; give each upstream the same model in its models, use strategy "
                f'"cascade" or "fallback", or set {setting}.equal_models = "assume" if you know '
                "that they are equal"
            )


def asked_models(pattern: str, members: Sequence[UpstreamSettings]) -> tuple[str, ...]:
    """Return the model names to check: the name of the route, or the aliases of the members.

    For all other names the model table chooses equal models.
    """
    if not is_pattern(pattern):
        return (pattern,)
    aliases = {
        alias
        for upstream in members
        for alias, real in upstream.models.items()
        if fnmatchcase(alias, pattern)
        and model_table().real_name(alias, upstream.preset or "") != real
    }
    return tuple(sorted(aliases))


def _identity(upstream: UpstreamSettings, model: str) -> str:
    """Return the name of the weights. An unknown model is identified by its own name."""
    table = model_table()
    found = table.weights(model, upstream.preset)
    if found is not None:
        return found.name
    missing = upstream.preset is not None and table.weights(model) is not None
    return f"{model} at {upstream.name}" if missing else model


_HOST = re.compile(r"[A-Za-z0-9._-]+|(?=.*:.*:)[0-9A-Fa-f:.]+")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?!\*$)[^/?#\s@]+")
_RELAYED = re.compile(r"([A-Z]+ )?(/\S*|\*)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def checked(settings: Settings) -> Settings:
    """Return the settings with complete upstreams (``resolved``).

    Raises ConfigError that names each setting at fault, and the fix.
    """
    try:
        settings = _converted(settings)
    except msgspec.ValidationError as error:
        raise ConfigError(problem(error)) from error
    problems = list(_preset_problems(settings.upstream))
    if not problems:
        settings = resolved(settings)
        problems += _upstreams_problems(settings)
    if problems := [*_table_problems(settings), *problems]:
        raise ConfigError("\n".join(problems))
    return settings


def _converted(settings: Settings) -> Settings:
    """Return settings with their types checked. Judges in code pass unchecked."""
    kept: list[JudgeInCode] = []

    def keep(value: object) -> int:
        if not isinstance(value, JudgeInCode):
            raise TypeError(f"settings do not hold a {type(value).__name__}: {value!r}")
        kept.append(value)
        return len(kept) - 1

    plain = msgspec.to_builtins(settings, enc_hook=keep)
    return msgspec.convert(plain, Settings, dec_hook=lambda _, index: kept[index])


def _table_problems(settings: Settings) -> Iterator[str]:
    """Yield the contradictions in tables that need no complete upstream."""
    yield from _server_problems(settings.server)
    yield from _limit_problems(settings)
    yield from _store_problems(settings.cache.store)
    for index, name in enumerate(settings.cache.ignore_headers):
        if name.lower().encode() in KEY_HEADERS:
            yield (
                f"cache.ignore_headers[{index}]: {name!r} contains callers' keys, which decide "
                "who may share an answer"
            )
    yield from _live_problems(settings)
    if settings.batches.dir is not None and settings.cache.store.startswith("memory:"):
        yield (
            "batches.dir: callers are told apart by a secret of the store, which has to outlive a "
            "restart, so set cache.store to a SQLite file or Redis"
        )
    if settings.record.enabled and not settings.cache.enabled:
        yield (
            "record.enabled: a record needs the cache; set cache.enabled = true, and "
            'cache.mode = "shadow" to serve nothing but exact repeats'
        )
    if not settings.server.host.strip():
        yield 'server.host: is empty; write "0.0.0.0" for all addresses of this machine'


def _upstreams_problems(settings: Settings) -> Iterator[str]:
    """Yield the contradictions in complete upstreams, and in the tables that name upstreams."""
    names: set[str] = set()
    for index, upstream in enumerate(settings.upstream):
        setting = f"upstream[{index}]"
        yield from _upstream_problems(setting, upstream)
        if upstream.name and upstream.name in names:
            yield f"{setting}.name: {upstream.name!r} is taken by another upstream; change it"
        names.add(upstream.name)
    yield from safety_problems(settings)
    yield from strategy_problems(settings)
    yield from _exposed_key_problems(settings)


def _exposed_key_problems(settings: Settings) -> Iterator[str]:
    """Yield a problem for each upstream whose key anyone who reaches the server could use."""
    if settings.server.is_loopback or settings.server.client_keys:
        return
    for index, upstream in enumerate(settings.upstream):
        if upstream.has_own_key:
            yield (
                f"upstream[{index}].api_key_env: anyone who reaches server.host "
                f"{settings.server.host!r} could spend this key; set server.client_keys, or bind "
                "server.host to 127.0.0.1"
            )


def _server_problems(server: ServerSettings) -> Iterator[str]:
    for index, network in enumerate(server.trusted_proxies):
        try:
            ip_network(network, strict=False)
        except ValueError:
            yield (
                f"server.trusted_proxies[{index}]: {network!r} is neither an address nor a "
                "network such as 10.0.0.0/8"
            )
    for index, host in enumerate(server.allowed_hosts):
        if host != "*" and not _HOST.fullmatch(host):
            yield (
                f"server.allowed_hosts[{index}]: {host!r} is not a host's name alone, such as "
                'host.docker.internal, without scheme and port; "*" allows all'
            )
    for index, origin in enumerate(server.allowed_origins):
        if not _ORIGIN.fullmatch(origin):
            yield (
                f"server.allowed_origins[{index}]: {origin!r} is not an origin such as "
                "https://app.example, http://localhost:3000 or chrome-extension://ID; a * matches "
                "any part after ://, and to allow all set server.client_keys"
            )
    for index, path in enumerate(server.relay_paths):
        if not _RELAYED.fullmatch(path):
            yield (
                f"server.relay_paths[{index}]: {path!r} is not a path such as /v1/models or "
                '"GET /v1/files/*"; a * matches any characters'
            )
    if server.admin_token_env is not None:
        yield from _variable_problems("server.admin_token_env", (server.admin_token_env,))
    keys = [key for _, key in server.named_client_keys]
    if not all(keys):
        yield "server.client_keys: a key must not be empty"
    if isinstance(server.client_keys, dict) and len(set(keys)) < len(keys):
        yield "server.client_keys: two names have the same key, so they cannot be told apart"


def _limit_problems(settings: Settings) -> Iterator[str]:
    """Yield the contradictions in ``[server.client_limits]``, each with its fix."""
    server = settings.server
    if not server.client_limits:
        return
    names = [name for name, _ in server.named_client_keys if name]
    if not names:
        yield (
            "server.client_limits: limits are for keys with names; write "
            'server.client_keys = { team-a = "env:KEY_A" }'
        )
        return
    for name in server.client_limits:
        if name not in ("*", *names):
            yield (
                f"server.client_limits.{name}: no key of server.client_keys has this name; "
                f"{hint(name, names)}"
            )
    if settings.cache.store == "memory:":
        yield (
            "server.client_limits: what callers use is counted in the store, and a store in memory "
            "forgets it; set cache.store to sqlite:///PATH or redis://HOST"
        )


def _store_problems(store: str) -> Iterator[str]:
    scheme, colon, rest = store.partition(":")
    if scheme not in STORE_SCHEMES or not colon:
        offered = sorted({each.name for each in entry_points(group=STORES)})
        if not colon or scheme not in offered:
            known = ", ".join(dict.fromkeys((*STORE_SCHEMES, *offered)))
            written = masked_url(store)
            path = "path" if colon else written or "headstart.db"
            yield (
                f"cache.store: {written!r} is not a store; use sqlite:///{path}, memory: "
                f"or redis://host:6379/0. Known schemes: {known}; an installed distribution adds "
                f"its own by an entry point in the group {STORES}"
            )
    elif scheme == "memory" and rest:
        yield "cache.store: the URL of a store in memory is memory: and nothing more"
    elif scheme == "sqlite" and (not rest.startswith("///") or rest == "///"):
        yield "cache.store: a SQLite store is sqlite:///relative/path or sqlite:////absolute/path"


def _preset_problems(upstreams: Sequence[UpstreamSettings]) -> Iterator[str]:
    for index, upstream in enumerate(upstreams):
        setting, known = f"upstream[{index}]", preset(upstream.preset)
        if known is None:
            if upstream.preset is not None:
                yield (
                    f"{setting}.preset: no preset is named {upstream.preset!r}; "
                    f"{hint(upstream.preset, providers())}"
                )
            elif not upstream.base_url:
                names = ", ".join(providers())
                yield f"{setting}.base_url: required, or name a preset: {names}"
        elif upstream.dialect not in (None, known.dialect, *known.also_speaks):
            spoken = " and ".join(map(repr, (known.dialect, *known.also_speaks)))
            yield (
                f"{setting}.dialect: preset {known.name!r} speaks {spoken}; leave out "
                "dialect, or preset"
            )
        elif not (upstream.base_url or known.base_url):
            yield (
                f"{setting}.base_url: preset {known.name!r} needs yours, such as "
                "https://RESOURCE.openai.azure.com"
            )


def _upstream_problems(setting: str, upstream: UpstreamSettings) -> Iterator[str]:
    if upstream.tier is not None and upstream.tier not in tiers(upstream.preset or ""):
        known = ", ".join(tiers(upstream.preset or "")) or "none"
        yield f"{setting}.tier: the preset has no tier {upstream.tier!r}; known: {known}"
    yield from _url_problems(f"{setting}.base_url", upstream.base_url)
    if upstream.proxy is not None:
        yield from _url_problems(f"{setting}.proxy", upstream.proxy, may_have_user=True)
    if not upstream.base_url.isascii() or "?" in upstream.base_url or "#" in upstream.base_url:
        yield f"{setting}.base_url: must be ASCII, without query and fragment"
    if call := _CALL.search(upstream.base_url):
        versioned = BY_SETTING[upstream.speaks].path_below_version is not None
        base = upstream.base_url[: call.start()] + (call[1] or call[2] or "" if versioned else "")
        yield f'{setting}.base_url: is the address of a call; write "{masked_url(base)}"'
    yield from _variable_problems(f"{setting}.api_key_env", upstream.key_variables)
    yield from _header_problems(f"{setting}.headers", upstream.headers)
    if upstream.api_version is not None and BY_SETTING[upstream.speaks].path_below_version is None:
        yield f'{setting}.api_version: is for Azure, which speaks dialect = "openai"; leave it out'


_LENGTHS = ("content-length", "transfer-encoding")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def _header_problems(setting: str, headers: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for each header that cannot be sent, or that makes calls fail."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            yield f"{setting}: {name!r} is not the name of a header"
        elif _CONTROLS.search(value):
            yield f"{setting}.{name}: has a control character, which no header can hold"
        elif name.lower() in _LENGTHS:
            yield f"{setting}.{name}: depends on the body of each call; leave it out"
        elif name.lower() == "accept-encoding" and value.strip().lower() != "identity":
            yield f"{setting}.{name}: compressed answers could not be read; leave it out"


def _variable_problems(setting: str, variables: Sequence[str]) -> Iterator[str]:
    """Yield a problem for a text that is not a variable's name.

    The text may be a key, so it is masked.
    """
    if not all(map(_VARIABLE.fullmatch, variables)):
        yield (
            f"{setting}: write the name of an environment variable, such as OPENAI_API_KEY, and "
            "put the key into that variable"
        )


def _url_problems(setting: str, url: str, *, may_have_user: bool = False) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        yield f"{setting}: {masked_url(url)!r} is not a URL"
        return
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield f"{setting}: {masked_url(url)!r} must start with http:// or https:// and name a host"
    elif parts.username is not None and not may_have_user:
        yield f"{setting}: put the key into an environment variable and name it in api_key_env"


def _live_problems(settings: Settings) -> Iterator[str]:
    live, workers = settings.live, settings.server.workers
    if live.enabled and workers != 1:
        yield (
            "live.enabled: a live draft is held by one process, so set server.workers = 1, or "
            "live.enabled = false"
        )
    if live.enabled and not live.stages:
        yield 'live.stages: name at least one stage, such as "lookup"'


_FIXED = ("host", "port", "workers")
"""Settings of ``[server]`` that the process reads once."""


def refuse_fixed(old: Settings, new: Settings) -> None:
    """Refuse a reload that changes settings for which a restart is needed. Raises ConfigError."""
    changed = [name for name in _FIXED if getattr(old.server, name) != getattr(new.server, name)]
    if changed:
        names = " and ".join(f"server.{name}" for name in changed)
        raise ConfigError(f"{names}: this changes with a restart only")

"""``headstart serve``: runs the sidecar. Options can name the upstreams and a first route."""

from __future__ import annotations

import gc
import logging
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import click
import msgspec

from headstart.cli.options import command, config_field, option, setting
from headstart.config.checks import billing_note, checked, notes_on
from headstart.config.discovery import discover_local, discover_upstreams
from headstart.config.loading import load_settings
from headstart.config.providers import model_table, preset, providers
from headstart.config.strategies import strategy_of
from headstart.observe import access_logger
from headstart.settings import RouteMatch, RouteSettings, UpstreamSettings, masked_url

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

    from headstart.settings import CacheSettings, Settings

Kind = Literal["race", "hedge", "fallback"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class ServeOptions:
    """The options of ``headstart serve``."""

    config: Path | None = config_field()
    host: str | None = setting("server.host")
    port: int | None = setting("server.port")
    upstream: str | None = option(
        None, "Base URL of one upstream, which gets the callers' keys.", metavar="URL"
    )
    race: str | None = option(
        None, "Ask all these providers at once; the first token wins.", metavar="A,B"
    )
    hedge: str | None = option(
        None, "Ask the next provider when one is slow to start.", metavar="A,B"
    )
    fallback: str | None = option(None, "Ask the next provider when one fails.", metavar="A,B")
    model: str | None = option(
        None, "The model for --race, --hedge or --fallback.  [default: all]", metavar="NAME"
    )
    store: str | None = setting("cache.store", metavar="URL")
    access_log: str | None = setting("server.access_log")
    log_level: str = option("warning", type=click.Choice(["debug", "info", "warning", "error"]))


@command(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Run the sidecar proxy: it caches chat requests and relays all other paths under /v1/.

    Without a configuration it uses the providers whose key variables are set, or an Ollama or vLLM
    on this machine. Name a provider by its preset (openai, anthropic, groq, together, …:
    docs/providers.md) or by its [[upstream]] in the configuration. Each provider needs its key in
    its usual variable. The server is ready when /_headstart/ready answers 200.

    Examples:
      headstart serve --upstream https://api.openai.com/v1
      OPENAI_API_KEY=… headstart serve --port 8080
      headstart serve --race groq,together --model llama-3.3-70b
      headstart serve --config headstart.toml

    Then point any OpenAI client at it: OpenAI(base_url="http://127.0.0.1:8080/v1").
    """
    overrides = {
        "server.host": options.host,
        "server.port": options.port,
        "server.access_log": options.access_log,
        "cache.store": options.store,
        "upstream": None if options.upstream is None else [{"base_url": options.upstream}],
    }
    settings = load_settings(options.config, os.environ, overrides)
    chosen = [(kind, names) for kind in KINDS if (names := getattr(options, kind))]
    if len(chosen) > 1:
        raise click.UsageError(
            "--race, --hedge and --fallback exclude each other; a [[route]] in headstart.toml "
            "nests them (docs/configuration.md)"
        )
    if options.model and not chosen:
        raise click.UsageError("--model goes with one of --race, --hedge and --fallback")
    if chosen:
        [(kind, names)] = chosen
        settings = checked(with_route(settings, kind, names, options.model))
        notes = billed_notes(settings)
    elif not settings.upstream:
        settings, notes = _discovered(settings)
    else:
        notes = []
    for note in (*notes, *(f"note: {each}" for each in notes_on(settings))):
        click.echo(note)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    if settings.server.access_log != "off":
        _show_access_log()
    run_sidecar(settings, options.log_level)


def _show_access_log() -> None:
    """Write the lines of the access log to standard output, as they are."""
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(logging.Formatter("%(message)s"))
    access_logger.addHandler(lines)
    access_logger.setLevel(logging.INFO)
    access_logger.propagate = False


def with_route(settings: Settings, kind: Kind, names: str, model: str | None) -> Settings:
    """Return the settings with a first route over the named upstreams.

    A name is an ``[[upstream]]`` of the file, else a preset. A user who names providers for a race
    accepts the cost of all, even if one bills cancelled calls. Raises click.BadParameter.
    """
    members = [name.strip() for name in names.split(",") if name.strip()]
    known = {upstream.name: upstream for upstream in settings.upstream}
    for name in members:
        if name not in known:
            known[name] = _from_preset(kind, name)
        if model is not None:
            known[name] = _with_model(kind, known[name], model)
    route = RouteSettings(
        name=kind,
        match=RouteMatch(model=model or "*"),
        strategy=kind,
        upstreams=tuple(members),
        race_billed=True,
    )
    return msgspec.structs.replace(
        settings, upstream=tuple(known.values()), route=(route, *settings.route)
    )


def billed_notes(settings: Settings) -> list[str]:
    """Return a line for each member of the first route that may bill cancelled calls."""
    members = set(settings.route[0].upstreams)
    notes = [billing_note(each) for each in settings.upstream if each.name in members]
    return [f"note: {note}" for note in notes if note is not None]


def _from_preset(kind: Kind, name: str) -> UpstreamSettings:
    if preset(name) is None:
        raise click.BadParameter(
            f"{name!r} is neither an [[upstream]] nor a preset: {', '.join(providers())}",
            param_hint=f"--{kind}",
        )
    return UpstreamSettings(preset=name, name=name)


def _with_model(kind: Kind, upstream: UpstreamSettings, model: str) -> UpstreamSettings:
    """Add the name that clients use for a model to the aliases of an upstream."""
    table = model_table()
    if upstream.preset is None or model in upstream.models or table.weights(model) is None:
        return upstream
    real = table.real_name(model, upstream.preset)
    if real is None:
        raise click.BadParameter(
            f"{upstream.preset} is not known to serve {model!r}; these are: "
            f"{', '.join(table.providers_of(model))}",
            param_hint=f"--{kind}",
        )
    return msgspec.structs.replace(upstream, models={**upstream.models, model: real})


def _discovered(settings: Settings) -> tuple[Settings, list[str]]:
    """Return settings with the providers that have a key set, else with servers on this machine."""
    found, notes = discover_upstreams(os.environ)
    if not found:
        found, local_notes = discover_local()
        notes = (*notes, *local_notes)
    return checked(msgspec.structs.replace(settings, upstream=found)), list(notes)


def run_sidecar(settings: Settings, log_level: str = "warning") -> None:
    """Serve until interrupted. Raises ConfigError or StoreError when it cannot start."""
    import uvicorn

    from headstart.errors import HeadstartError
    from headstart.middleware.http_protocol import (
        BoundedHeadProtocol,
        DrainingServer,
        QuietWebSocket,
    )
    from headstart.sidecar import build_sidecar
    from headstart.sockets import bind, room_for_connections

    sidecar = build_sidecar(settings)
    failures: list[HeadstartError] = []
    drain_s = settings.server.effective_drain_s

    def begin_to_drain() -> None:
        sidecar.draining = True
        click.echo(f"draining for {drain_s:g} s (server.drain_s) before the server stops")

    class Protocol(BoundedHeadProtocol):
        head_timeout_s = settings.server.head_timeout_s
        max_connections = settings.server.max_connections or room_for_connections()

    class Server(DrainingServer):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            # Before uvicorn's own start-up, which would print a traceback over the reason.
            try:
                await sidecar.running()
            except HeadstartError as error:
                failures.append(error)
                self.should_exit = True
                return
            # These objects live as long as the process. Without freeze, each full collection would
            # visit them and stop the loop for a tenth of a second.
            gc.collect()
            gc.freeze()
            return_memory()
            await super().startup(sockets)
            click.echo(banner(settings, listening.getsockname()[1]))

    with bind(settings.server.host, settings.server.port) as listening:
        config = uvicorn.Config(
            sidecar,
            log_level=log_level,
            access_log=False,
            # server.trusted_proxies decides about proxy headers, by the real peer.
            proxy_headers=False,
            # The upstream's Date and Server headers pass, so uvicorn must not add its own.
            date_header=False,
            server_header=False,
            http=Protocol,
            ws=QuietWebSocket,
            ws_max_size=settings.server.max_body_bytes,
            ws_per_message_deflate=False,  # it costs more time than it saves, and much memory
            lifespan="on",
            # Longer than clients keep idle connections (httpx: 5 s). If the server closed a
            # connection first, a request could be on its way already.
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(settings.server.shutdown_s) + 1,
        )
        Server(config, drain_s=drain_s, on_drain=begin_to_drain).run([listening])
    if failures:
        raise failures[0]


def return_memory() -> None:
    """Return what starting needed, and nothing needs now, to the system, where glibc can."""
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def banner(settings: Settings, port: int) -> str:
    """Return the start message: where it listens, what is cached and learned, where misses go."""
    server, cache = settings.server, settings.cache
    host = f"[{server.host}]" if ":" in server.host else server.host
    base = f"http://{host}:{port}"
    upstreams = ", ".join(f"{up.name} ({up.base_url})" for up in settings.upstream)
    shared = "each credential" if cache.scope == "credential" else cache.scope
    rows = [
        ("upstream", upstreams),
        *(("route", line) for line in _routes(settings)),
        ("cache", f"{_cached(cache)}; shared by {shared}; store {masked_url(cache.store)}"),
        ("learning", _learned(cache)),
        ("admin", f"{base}/_headstart/stats"),
    ]
    if settings.record.enabled:
        rows.append(("record", f"on: {settings.record.path} (prompts and answers in the clear)"))
    lines = [f"  {name:9} {text}" for name, text in rows]
    ready = f"headstart is ready on {base}  (Ctrl-C stops it)"
    return "\n".join([ready, *lines])


def _routes(settings: Settings) -> Iterator[str]:
    """Yield the strategy and the models of each route with several upstreams."""
    for route in settings.route:
        strategy = strategy_of(route)
        if len(strategy.members) > 1:
            models = "all models" if route.match.model == "*" else route.match.model
            flat = f"{strategy.strategy} of {', '.join(strategy.members)}"
            yield f"{route.name}: {strategy.composition if strategy.nested else flat} for {models}"


def _cached(cache: CacheSettings) -> str:
    if not cache.enabled:
        return "off"
    if cache.mode == "exact-only":
        return "exact repeats only"
    if cache.mode == "shadow":
        return "exact repeats; rewordings are only watched (shadow)"
    guards = f"{len(cache.guards)} guards" if cache.guards else "no guards"
    if cache.effective_match == "static":
        threshold = cache.effective_threshold
        return f"exact repeats, and rewordings at similarity {threshold} with {guards}"
    return f"exact repeats, and rewordings that {guards} let pass"


def _learned(cache: CacheSettings) -> str:
    if not cache.enabled or cache.mode == "exact-only":
        return "off"
    if cache.effective_match == "static":
        return "off: a static threshold promises no error rate"
    from headstart.policies.ratchet.cold_start import (
        STRICT,
        cold_start_threshold,
        expected_hit_rate,
    )
    from headstart.policies.ratchet.settings import Promise

    target = Promise().max_error if cache.max_error is None else cache.max_error
    of = "semantic hits" if cache.error_of == "hits" else "requests"
    audits = "no audits" if cache.audit.mode == "off" else f"audits in {cache.audit.mode}"
    similarity = cold_start_threshold(target)
    cold = "nothing by meaning"
    if similarity is not None:
        first = f"first at similarity {STRICT}, then " if cache.cold_start == "strict" else ""
        cold = f"{first}at {similarity} where near misses prove right (not covered)"
    text = (
        f"at most {target:.1%} of {of} wrong, learned from every miss, {audits}; until labels "
        f"suffice, {cold}"
    )
    if target < Promise().max_error:
        text += (
            f"; expect about {expected_hit_rate(target):.0%} semantic hits at so strict a target"
        )
    return text

"""``headstart serve``: the sidecar."""

from __future__ import annotations

import gc
import logging
import os
from typing import TYPE_CHECKING

import click
import msgspec

from headstart.cli.configured import config_option
from headstart.cli.serve_route import billed_notes, with_route
from headstart.config import (
    checked,
    discover_local,
    discover_upstreams,
    load_settings,
    notes_on,
    strategy_of,
)
from headstart.config.masking import masked_url

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

    from headstart.cli.serve_route import Kind
    from headstart.config import CacheSettings, Settings

EPILOG = """\b
Examples:
  headstart serve --upstream https://api.openai.com/v1
  OPENAI_API_KEY=… headstart serve --port 8080
  headstart serve --race groq,together --model llama-3.3-70b
  headstart serve --config headstart.toml

Then point any OpenAI client at it: OpenAI(base_url="http://127.0.0.1:8080/v1").
"""


@click.command(epilog=EPILOG)
@config_option
@click.option("--host", help="Address to bind.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to bind.  [default: 8080]")
@click.option("--upstream", metavar="URL", help="One upstream's base URL; callers' keys pass.")
@click.option("--race", metavar="A,B", help="Ask these providers at once; the first token wins.")
@click.option("--hedge", metavar="A,B", help="Ask the next of these when one is slow to start.")
@click.option("--fallback", metavar="A,B", help="Ask the next of these when one fails.")
@click.option(
    "--model", metavar="NAME", help="The model that --race, --hedge or --fallback is for.  [all]"
)
@click.option("--store", metavar="URL", help="sqlite:///path, memory: or redis://…")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
)
def serve(
    path: Path | None,
    host: str | None,
    port: int | None,
    upstream: str | None,
    race: str | None,
    hedge: str | None,
    fallback: str | None,
    model: str | None,
    store: str | None,
    log_level: str,
) -> None:
    """Run the sidecar proxy: chat completions and messages cached, all else under /v1/ relayed.

    With no configuration it uses the providers whose key variables are set, or an Ollama or vLLM
    on this machine. Providers are named by their presets (openai, anthropic, groq, together, …:
    docs/providers.md) or as [[upstream]] in the configuration; each needs its key in its usual
    variable. Ready when /_headstart/ready answers 200.
    """
    overrides = {
        "server.host": host,
        "server.port": port,
        "cache.store": store,
        "upstream": None if upstream is None else [{"base_url": upstream}],
    }
    settings = load_settings(path, os.environ, overrides)
    kinds: dict[Kind, str | None] = {"race": race, "hedge": hedge, "fallback": fallback}
    chosen = [(kind, names) for kind, names in kinds.items() if names]
    if len(chosen) > 1:
        raise click.UsageError(
            "--race, --hedge and --fallback exclude each other; a [[route]] in headstart.toml "
            "nests them (docs/configuration.md)"
        )
    if model and not chosen:
        raise click.UsageError("--model goes with one of --race, --hedge and --fallback")
    if chosen:
        [(kind, names)] = chosen
        settings = checked(with_route(settings, kind, names, model))
        notes = billed_notes(settings)
    elif not settings.upstream:
        settings, notes = _discovered(settings)
    else:
        notes = []
    for note in (*notes, *(f"note: {each}" for each in notes_on(settings))):
        click.echo(note)
    logging.basicConfig(level=log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    run_sidecar(settings, log_level)


def _discovered(settings: Settings) -> tuple[Settings, list[str]]:
    """Return settings with the providers whose keys are set, else with servers on this machine."""
    found, notes = discover_upstreams(os.environ)
    if not found:
        found, local_notes = discover_local()
        notes = (*notes, *local_notes)
    return checked(msgspec.structs.replace(settings, upstream=found)), list(notes)


def run_sidecar(settings: Settings, log_level: str = "warning") -> None:
    """Serve until interrupted. Raises ConfigError or StoreError when it cannot start."""
    import uvicorn

    from headstart.errors import HeadstartError
    from headstart.middleware.http_protocol import BoundedHeadProtocol, DrainingServer
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
            # What lives as long as the process is not worth a look at each full collection, which
            # stops the loop for a tenth of a second.
            gc.collect()
            gc.freeze()
            await super().startup(sockets)
            click.echo(banner(settings, listening.getsockname()[1]))

    with bind(settings.server.host, settings.server.port) as listening:
        config = uvicorn.Config(
            sidecar,
            log_level=log_level,
            access_log=False,
            # Who may speak for a client is server.trusted_proxies' to say, by the real peer.
            proxy_headers=False,
            # The upstream's own Date and Server headers pass; ours would double them.
            date_header=False,
            server_header=False,
            http=Protocol,
            ws="none",  # a request for a websocket is answered, not upgraded
            lifespan="on",
            # Longer than clients keep idle connections (httpx: 5 s, uvicorn's default): whoever
            # closes first must not be us, just as a request is on its way.
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(settings.server.shutdown_s) + 1,
        )
        Server(config, drain_s=drain_s, on_drain=begin_to_drain).run([listening])
    if failures:
        raise failures[0]


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
    """Yield how upstreams answer together, and for which models."""
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
    from headstart.policies.ratchet.cold_start import STRICT, cold_start_threshold
    from headstart.policies.ratchet.expectations import expected_hit_rate
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

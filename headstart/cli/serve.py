"""``headstart serve``: runs the sidecar. Options can name the upstreams and a first route."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, get_args

import click
import msgspec

from headstart.cli.options import command, config_field, option, print_line, setting, upstream_field
from headstart.cli.reload import ReloadOnSignal, survive_hangups
from headstart.config.checks import billing_note, checked, ignored_proxy, notes_on, unset_variables
from headstart.config.loading import load_settings
from headstart.config.names import hint
from headstart.config.providers import discover, model_table, preset, providers
from headstart.config.strategies import strategy_of
from headstart.errors import ConfigError
from headstart.settings import (
    DialectName,
    RouteMatch,
    RouteSettings,
    UpstreamSettings,
    masked_url,
)
from headstart.sockets import bind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headstart.cli.sidecar_server import SidecarServer
    from headstart.settings import CacheSettings, ServerSettings, Settings

Kind = Literal["race", "hedge", "fallback"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class ServeOptions:
    """The options of ``headstart serve``."""

    config: Path | None = config_field()
    host: str | None = setting("server.host")
    port: int | None = setting("server.port")
    workers: str | None = setting("server.workers", metavar="N|auto")
    profile: str | None = setting("server.profile")
    upstream: str | None = upstream_field("Base URL of one upstream, which gets the callers' keys.")
    dialect: str | None = option(
        None,
        "The API that --upstream speaks.  [default: that of a known provider, else openai]",
        click.Choice(get_args(DialectName)),
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
    log_level: str = option(
        "warning",
        "The log has lines of this level and above.",
        click.Choice(["debug", "info", "warning", "error"]),
    )


@command(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Run the sidecar proxy.

    It caches chats, completions, embeddings, rerank and moderations, and relays all other paths
    under /v1/. Without --upstream and without a configuration it uses the providers whose key
    variables are set, or an Ollama or vLLM on this machine.

    --race, --hedge and --fallback take names of presets (openai, anthropic, groq, together, …:
    docs/providers.md) or of upstreams of the configuration. Each of them needs its key in its
    usual variable. The server is ready when /_headstart/ready answers 200.

    Examples:
      headstart serve --upstream https://api.openai.com/v1
      headstart serve --upstream http://127.0.0.1:9000 --dialect anthropic
      OPENAI_API_KEY=… headstart serve --port 8080
      headstart serve --race groq,together --model llama-3.3-70b
      headstart serve --config headstart.toml

    Then point any OpenAI client at it: OpenAI(base_url="http://127.0.0.1:8080/v1").
    """
    survive_hangups()
    settings, notes = chosen_settings(options)
    for note in (*notes, *(f"note: {each}" for each in notes_on(settings))):
        click.echo(note)
    if (variable := ignored_proxy(settings, os.environ)) is not None:
        click.echo(
            f"note: {variable} is set, and Headstart does not use it; set upstream.proxy if "
            "providers are reached through it"
        )
    logging.basicConfig(
        level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )

    if unset := list(unset_variables(settings, os.environ)):
        raise ConfigError("\n".join(unset))

    def load() -> Settings:
        try:
            return chosen_settings(options)[0]
        except click.ClickException as error:
            raise ConfigError(error.format_message()) from error

    if (count := worker_count(settings.server)) == 1:
        run_alone(settings, load, options.log_level)
    elif sys.platform != "win32":
        # A single process saves memory without this module.
        from headstart.cli.workers import run_workers

        run_workers(
            settings,
            count,
            load=load,
            log_level=options.log_level,
            banner=lambda port: banner(settings, port, count),
        )


def worker_count(server: ServerSettings) -> int:
    """Return the number of processes that ``server.workers`` asks for. Raises ConfigError."""
    from headstart.embeddings.encoder_worker import available_cores

    if sys.platform == "win32":
        if server.workers not in (1, "auto"):
            raise ConfigError(
                "server.workers: on Windows a server has one process; set 1, or use WSL or Linux"
            )
        return 1
    return available_cores() if server.workers == "auto" else server.workers


def _upstream_override(base_url: str | None, dialect: str | None) -> list[dict[str, str]] | None:
    if base_url is None:
        if dialect is not None:
            raise click.UsageError("--dialect goes with --upstream")
        return None
    named = {"base_url": base_url, "dialect": dialect}
    return [{key: value for key, value in named.items() if value is not None}]


def chosen_settings(options: ServeOptions) -> tuple[Settings, list[str]]:
    """Return the settings from the options and the configuration, and notes on them.

    Raises ConfigError or click.ClickException.
    """
    workers = options.workers
    overrides = {
        "server.host": options.host,
        "server.port": options.port,
        "server.workers": int(workers) if workers and workers.isdecimal() else workers,
        "server.profile": options.profile,
        "server.access_log": options.access_log,
        "cache.store": options.store,
        "upstream": _upstream_override(options.upstream, options.dialect),
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
        return settings, billed_notes(settings)
    return (settings, []) if settings.upstream else add_discovered(settings)


def with_route(settings: Settings, kind: Kind, names: str, model: str | None) -> Settings:
    """Return the settings with a first route over the named upstreams.

    A name is an ``[[upstream]]`` of the file, else a preset. A user who names providers for a race
    accepts the cost of all, even if one bills cancelled calls. Raises click.BadParameter.
    """
    members = [name.strip() for name in names.split(",") if name.strip()]
    if len(members) < 2:
        raise click.BadParameter(
            "needs at least two providers, with a comma between them, such as together,fireworks",
            param_hint=f"--{kind}",
        )
    known = {upstream.name: upstream for upstream in settings.upstream}
    for name in members:
        if name not in known:
            known[name] = _from_preset(kind, name, known)
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


def _from_preset(kind: Kind, name: str, known: Iterable[str]) -> UpstreamSettings:
    if preset(name) is None:
        names = hint(name, dict.fromkeys((*known, *providers())), all_of=True)
        wrong = f"{name!r} is neither an [[upstream]] nor a preset; {names}"
        raise click.BadParameter(wrong, param_hint=f"--{kind}")
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


def add_discovered(settings: Settings) -> tuple[Settings, list[str]]:
    """Return settings with the providers that have a key set, else with servers on this machine."""
    found, notes = discover(os.environ)
    return checked(msgspec.structs.replace(settings, upstream=found)), list(notes)


def run_alone(settings: Settings, load: Callable[[], Settings], log_level: str) -> None:
    """Serve in this process until interrupted. Raises HeadstartError when it cannot start."""
    from headstart.cli.sidecar_server import SidecarServer, end_process
    from headstart.sidecar import Sidecar, lasting_parts

    async def reload() -> None:
        changed = await asyncio.to_thread(load)
        await server.replace(changed)
        print_line("the configuration was reloaded")

    async def announce(started: SidecarServer) -> None:
        reloads.listen(started.spawn)
        print_line(banner(settings, listening.getsockname()[1]))

    # When the server has stopped, uvicorn sends the signal to this process again.
    signal.signal(signal.SIGTERM, end_process)
    signal.signal(signal.SIGINT, end_process)
    reloads = ReloadOnSignal(reload, lambda: os.kill(os.getpid(), signal.SIGTERM))
    sidecar = Sidecar(settings, dataclasses.replace(lasting_parts(), reload=reloads))
    with bind(settings.server.host, settings.server.port) as listening:
        server = SidecarServer(
            sidecar,
            listening,
            log_level=log_level,
            on_start=announce,
            on_drain=lambda server: print_line(draining_line(server)),
        )
        server.run()


def draining_line(server: ServerSettings) -> str:
    """Return the line that says that the server drains."""
    return f"draining for {server.effective_drain_s:g} s (server.drain_s) before the server stops"


def banner(settings: Settings, port: int, workers: int = 1) -> str:
    """Return the start message: the address, what is cached and learned, and where misses go."""
    server, cache = settings.server, settings.cache
    host = f"[{server.host}]" if ":" in server.host else server.host
    base = f"http://{host}:{port}"
    upstreams = ", ".join(f"{up.name} ({up.base_url})" for up in settings.upstream)
    # The name of the header, or "key" for the scope "credential".
    same = cache.scope.partition(":")[2] or "key"
    sharers = "all callers" if cache.scope == "shared" else f"callers with the same {same}"
    rows = [
        ("upstream", upstreams),
        *(("route", line) for line in _routes(settings)),
        ("cache", f"{_cache_line(cache)}; shared by {sharers}; store {masked_url(cache.store)}"),
        *_learning_rows(cache),
        ("page", f"{base}/_headstart/"),
    ]
    if settings.record.enabled:
        path = PurePath(settings.record.path)
        daily = path.with_name(f"{path.stem}-DATE{path.suffix}")
        rows.append(("record", f"on: {daily} (prompts and answers in the clear)"))
    if workers > 1:
        rows.append(("workers", f"{workers} processes"))
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


def _cache_line(cache: CacheSettings) -> str:
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


def _learning_rows(cache: CacheSettings) -> Iterator[tuple[str, str]]:
    """Yield what is promised, and what is served before enough is learned for the promise."""
    if not cache.enabled or cache.mode == "exact-only":
        yield "learning", "off"
        return
    if cache.effective_match == "static":
        yield "learning", "off: a static threshold promises no error rate"
        return
    from headstart.policies.learned_rule.error_limit import (
        STRICT,
        ErrorLimit,
        cold_start_threshold,
        expected_hit_rate,
    )

    target = ErrorLimit().max_error if cache.max_error is None else cache.max_error
    of = "semantic hits" if cache.error_of == "hits" else "requests"
    audits = {"off": "no audits", "sync": "audits while callers wait"}
    audited = audits.get(cache.audit.mode, "audits in the background")
    text = f"at most {target:.1%} of the {of} wrong; learns from every miss; {audited}"
    if target < ErrorLimit().max_error:
        text += (
            f"; expect about {expected_hit_rate(target):.0%} semantic hits at so strict a target"
        )
    yield "learning", text
    similarity = cold_start_threshold(target)
    if similarity is None:
        yield "at first", "only exact repeats, until enough is learned"
        return
    served = f"rewordings from similarity {similarity} on"
    if cache.cold_start == "strict":
        served = f"rewordings from similarity {STRICT} on, later from {similarity} on"
    yield (
        "at first",
        f"{served}, or with the same words; without this promise until enough is learned",
    )

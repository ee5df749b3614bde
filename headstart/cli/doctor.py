"""``headstart doctor``: checks a deployment from where the server runs, and prints what to fix."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import time
import tomllib
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import aiohttp
import anyio
import click
import msgspec

from headstart.cli import data_sources
from headstart.cli.config import start_problems
from headstart.cli.options import command, json_field, print_json
from headstart.cli.serve import ServeOptions, chosen_settings
from headstart.config.checks import ignored_proxy
from headstart.config.providers import NO_UPSTREAM
from headstart.errors import ConfigError, HeadstartError, MissingExtra, StoreError
from headstart.factory.caching import store_cipher
from headstart.factory.telemetry import is_wanted
from headstart.report.sections import counted
from headstart.settings import CacheSettings, ServerSettings, Settings, UpstreamSettings, masked_url
from headstart.sockets import bind, client_session, reason_of, tls_of, why_no_tls
from headstart.types import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping


Verdict = Literal["ok", "warning", "problem"]
LIMIT_S = 10.0
"""The time for one check."""
SHORT_KEY = 16
"""Shorter keys of callers, and shorter tokens, can be guessed."""
LITTLE_BYTES = 1024**3
"""Less free disk space is a warning."""
SLOW_ENCODING_S = 0.05
"""From this time on the encoding of a question is reported as slow."""
SLOW_STORE_S = 0.02
"""From this time on an answer of the store is reported as slow."""
WRONG_CLOCK_S = 30.0
"""From this difference on a clock is reported as wrong."""
FEW_FILES = 4096
"""A lower limit of open files is reported."""
SHARED_BYTES = 16 * 1024**2
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one check, and what to do about it."""

    check: str
    verdict: Verdict
    text: str
    fix: str = ""


def ok(check: str, text: str) -> Finding:
    """Return a finding without a fix."""
    return Finding(check=check, verdict="ok", text=text)


def warning(check: str, text: str, fix: str) -> Finding:
    """Return a finding that has a cost, but stops no request."""
    return Finding(check=check, verdict="warning", text=text, fix=fix)


def problem(check: str, text: str, fix: str) -> Finding:
    """Return a finding that prevents the start of the server, or makes requests fail."""
    return Finding(check=check, verdict="problem", text=text, fix=fix)


@dataclass(frozen=True)
class DoctorOptions(ServeOptions):
    """The options of the server, and those that only ``headstart doctor`` has."""

    as_json: bool = json_field()


@command(DoctorOptions)
def doctor(options: DoctorOptions) -> None:
    """Check a deployment where the server runs, with its environment and as its user.

    Give it the options with which you start the server, if there are any.

    It checks the configuration, the port, keys and tokens, the store (SQLite or Redis), the
    encoder, the modes of files, the way to each provider, proxies, the clock, limits of the system
    and the collector of traces. Each line that is not "ok" says what to do. It asks no provider
    for an answer and costs nothing; `headstart config check --live` does ask. It exits with 1 if
    there is a problem, and with 0 if there are only warnings.

    Examples:
      headstart doctor
      headstart doctor --config /etc/headstart/headstart.toml
      headstart doctor --upstream https://api.openai.com/v1 --port 9000
      headstart doctor --json | jq '.findings[] | select(.verdict != "ok")'
    """
    findings = anyio.run(examine, options, os.environ)
    worst = any(each.verdict == "problem" for each in findings)
    if options.as_json:
        print_json({"healthy": not worst, "findings": findings})
    else:
        for line in _lines(findings):
            click.echo(line)
    if worst:
        raise SystemExit(1)


def _lines(findings: list[Finding]) -> Iterator[str]:
    """Yield the findings as text, each fix below its finding."""
    width = max(len(each.check) for each in findings)
    for each in findings:
        yield f"{each.verdict:8} {each.check:{width}}  {each.text}"
        if each.fix:
            yield f"{'':{width + 9}}  fix: {each.fix}"
    problems = sum(each.verdict == "problem" for each in findings)
    warnings = sum(each.verdict == "warning" for each in findings)
    yield f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}"


async def examine(options: ServeOptions, environ: Mapping[str, str]) -> list[Finding]:
    """Run all checks. If the configuration cannot be read, that is the only finding."""
    config = options.config
    try:
        settings, _ = await asyncio.to_thread(chosen_settings, options)
    except ConfigError as error:
        fix = "headstart config check shows the same; docs/configuration.md lists all settings"
        return [problem("configuration", line, fix) for line in str(error).splitlines()]
    place = "the defaults and the environment" if config is None else str(config)
    found = [ok("configuration", f"read from {place}")]
    if not settings.upstream:
        found.append(await _no_upstream(settings.server))
    for findings in (
        _each(_keys(settings, environ)),
        _port(settings.server),
        _store(settings.cache),
        _encoder(settings),
        _each(_files(settings, config)),
        _upstreams(settings, environ),
        _each(_limits(settings.server)),
        _collector(settings, environ),
    ):
        found.extend([finding async for finding in findings])
    return found


async def _no_upstream(server: ServerSettings) -> Finding:
    """Return the finding for settings without an upstream."""
    if not await _state_of(server):
        return problem("configuration", "no upstream", NO_UPSTREAM.removeprefix("no upstream: "))
    return warning(
        "configuration",
        "a server runs with these settings, and its upstreams are unknown here",
        "give doctor the options and the variables with which it was started, such as --upstream",
    )


async def _each(findings: Iterator[Finding]) -> AsyncIterator[Finding]:
    for finding in await asyncio.to_thread(list, findings):
        yield finding


def _keys(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield settings that are missing for the start, and keys that are weak or absent."""
    server = settings.server
    missing = list(start_problems(settings, environ))
    for text in missing:
        yield problem("keys", text, "set the variable where the server runs, or the file's path")
    weak = [name for name, key in server.named_client_keys if len(key) < SHORT_KEY]
    if weak:
        names = ", ".join(filter(None, weak)) or "a caller"
        yield warning(
            "keys",
            f"the key of {names} has fewer than {SHORT_KEY} characters",
            "use a random key: openssl rand -hex 24",
        )
    token = environ.get(server.admin_token_env or "")
    if server.admin_token_env and token and len(token) < SHORT_KEY:
        yield warning(
            "keys",
            f"the admin token has fewer than {SHORT_KEY} characters",
            "use a random token: openssl rand -hex 24",
        )
    if not server.is_loopback and server.admin_token_env is None:
        yield warning(
            "keys",
            "no admin token: metrics, explain and the live page answer nobody off loopback",
            'set server.admin_token_env = "HEADSTART_ADMIN_TOKEN", and this variable',
        )
    if not server.is_loopback and not server.client_keys:
        yield warning(
            "keys",
            f"everyone who reaches {server.host} may call with a key of their own",
            "set server.client_keys, unless that is wanted",
        )
    if settings.upstream and not missing:
        own = sum(upstream.has_own_key for upstream in settings.upstream)
        text = f"{own} of {len(settings.upstream)} upstreams have a key of their own"
        if own < len(settings.upstream) and not server.client_keys:
            text += "; the others get the callers' keys"
        yield ok("keys", text)


async def _port(server: ServerSettings) -> AsyncIterator[Finding]:
    """Yield whether the server could listen, or which program listens already."""
    place = f"{server.host} port {server.port}"
    try:
        bind(server.host, server.port).close()
    except ConfigError as error:
        state = await _state_of(server)
        if state == "ready":
            yield ok("port", f"Headstart runs on {place}")
        elif state:
            yield warning(
                "port", f"Headstart runs on {place}, and is {state}", "its log says why; see: store"
            )
        else:
            fix = f"stop what listens there: ss -ltnp 'sport = :{server.port}'"
            yield problem("port", str(error), fix)
    else:
        yield ok("port", f"{place} is free")


async def _state_of(server: ServerSettings) -> str:
    """Return the state of the Headstart that listens there; "" if none does."""
    try:
        async with (
            asyncio.timeout(LIMIT_S),
            client_session() as session,
            session.get(f"{data_sources.url_of(server)}/_headstart/ready") as response,
        ):
            said = msgspec.json.decode(await response.read(), type=_State)
    except (aiohttp.ClientError, OSError, TimeoutError, *UNDECODABLE):
        return ""
    return said.status


class _State(msgspec.Struct):
    status: str


async def _store(cache: CacheSettings) -> AsyncIterator[Finding]:
    """Check whether the store can be used, and how quickly it answers."""
    url = cache.store
    if url == "memory:":
        yield warning(
            "store",
            "answers and the learned state end with the server",
            'set cache.store = "sqlite:////var/lib/headstart/headstart.db", or a redis:// URL',
        )
        return
    if url.startswith("sqlite:"):
        path = _file_of(url)
        for finding in await asyncio.to_thread(list, _sqlite_place(path)):
            yield finding
            if finding.verdict == "problem":
                return
        if not await anyio.Path(path).exists():
            return  # opening a missing file would create it, perhaps under the wrong user
    opened = [finding async for finding in _opened_store(cache)]
    for finding in opened:
        yield finding
    if url.startswith("redis") and opened[0].verdict == "ok":
        async for finding in _redis(url):
            yield finding


def _file_of(url: str) -> Path:
    """Return the file of a SQLite store."""
    return Path(url.removeprefix("sqlite:///")).expanduser()


def _sqlite_place(path: Path) -> Iterator[Finding]:
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        user = ""
        if sys.platform != "win32":
            user = f" (id {os.geteuid()})"
        yield problem(
            "store",
            f"{folder} cannot be written to by this user{user}",
            f"chown the folder to the server's user, or name another file in cache.store ({path})",
        )
        return
    free = shutil.disk_usage(folder).free
    if free < LITTLE_BYTES:
        yield warning(
            "store",
            f"{folder} has {free / 1e6:,.0f} MB left",
            "free some space, or set cache.max_bytes",
        )
    if not path.exists():
        yield ok("store", f"{path} will be made at the first start")


async def _opened_store(cache: CacheSettings) -> AsyncIterator[Finding]:
    from headstart.embeddings.stores.store_urls import open_store

    shown = masked_url(cache.store)
    try:
        cipher = await asyncio.to_thread(store_cipher, cache)
        store = open_store(cache.store, cipher=cipher)
        async with asyncio.timeout(LIMIT_S):
            await store.open()
            try:
                began = time.perf_counter()
                stats = await store.stats()
                took_s = time.perf_counter() - began
            finally:
                await store.aclose()
    except (ConfigError, StoreError) as error:
        yield problem("store", str(error), "repair it, or name another store in cache.store")
    except TimeoutError:
        yield problem(
            "store",
            f"{shown} does not answer within {LIMIT_S:g} s",
            "check its server and the network",
        )
    else:
        sealed = "" if cipher is None else ", encrypted from now on"
        size = f"{counted(stats.entries, 'answer')} ({stats.bytes / 1e6:,.1f} MB)"
        yield ok("store", f"{shown} has {size}{sealed}")
        if took_s > SLOW_STORE_S:
            yield warning(
                "store",
                f"it took {took_s * 1e3:,.0f} ms to answer",
                "bring it nearer to the server: misses wait for it",
            )


async def _redis(url: str) -> AsyncIterator[Finding]:
    """Check the clock of a Redis, and what it does when it is full."""
    from redis.exceptions import NoPermissionError, RedisError

    from headstart.embeddings.stores.redis_client import CLUSTER, connect

    if f"+{CLUSTER}:" in url:
        return  # each of its servers has settings of its own
    client = connect(url)
    try:
        async with asyncio.timeout(LIMIT_S):
            seconds, micro = await client.redis.time()
            skew_s = time.time() - (int(seconds) + int(micro) / 1e6)  # noqa: TID251 - the real clock
            memory = await client.redis.info("memory")
    except NoPermissionError:
        yield warning(
            "redis",
            "the user of the URL may not read the clock of Redis and its maxmemory-policy, so they "
            "are not checked",
            "ACL SETUSER with the user's name and +time +info",
        )
        return
    except (RedisError, OSError, TimeoutError):
        return  # the check before has reported it
    finally:
        await client.aclose()
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield warning(
            "redis",
            f"maxmemory-policy is {policy}: when Redis is full, it deletes answers and labels",
            "redis-cli config set maxmemory-policy noeviction; cache.max_bytes limits the answers",
        )
    if abs(skew_s) > WRONG_CLOCK_S:
        yield problem(
            "clock",
            f"this clock and that of Redis differ by {abs(skew_s):,.0f} s, so answers age wrongly",
            "synchronise both: timedatectl set-ntp true",
        )


async def _encoder(settings: Settings) -> AsyncIterator[Finding]:
    """Measure how long the encoder takes for a question."""
    cache, chosen = settings.cache, settings.encoder
    if not cache.enabled or cache.mode == "exact-only":
        yield ok("encoder", "not used: only exact repeats are found")
        return
    from headstart.embeddings.encoder import OnnxEncoder

    def encode() -> float:
        model = None if chosen.model == "default" else Path(chosen.model)
        encoder = OnnxEncoder(model, max_tokens=chosen.max_tokens)
        encoder.encode("warm up")
        began = time.perf_counter()
        encoder.encode("How can I change the address to which you send my invoices?")
        return time.perf_counter() - began

    try:
        took_s = await asyncio.to_thread(encode)
    except HeadstartError as error:
        yield problem("encoder", str(error), 'set encoder.model = "default"')
        return
    text = f"a question of 12 words takes {took_s * 1e3:,.1f} ms"
    if took_s > SLOW_ENCODING_S:
        fix = 'give the server a whole core, or set cache.mode = "exact-only"'
        yield warning("encoder", text, fix)
    else:
        yield ok("encoder", text)


def _files(settings: Settings, config: Path | None) -> Iterator[Finding]:
    """Yield files with secrets or prompts that other users may read."""
    if sys.platform == "win32":  # a mode does not say there who may read a file
        return
    store = settings.cache.store
    named = [
        ("the configuration", config if _holds_keys(config) else None),
        ("the store", _file_of(store) if store.startswith("sqlite:") else None),
        *(("the credentials", Path(each.credentials_file or "")) for each in settings.upstream),
    ]
    open_files = [
        (what, path)
        for what, path in named
        if path is not None and path.is_file() and stat.S_IMODE(path.stat().st_mode) & _OTHERS
    ]
    for what, path in open_files:
        yield warning("files", f"{what} in {path} can be read by others", f"chmod 600 {path}")
    if not open_files:
        yield ok("files", "no file with keys or prompts can be read by others")


def _holds_keys(config: Path | None) -> bool:
    """Tell whether a configuration holds keys of callers, not only names of variables."""
    if config is None:
        return False
    keys = tomllib.loads(config.read_text("utf-8-sig")).get("server", {}).get("client_keys", ())
    values = keys.values() if isinstance(keys, dict) else keys
    return any(not str(value).startswith("env:") for value in values)


async def _upstreams(settings: Settings, environ: Mapping[str, str]) -> AsyncIterator[Finding]:
    """Check whether each provider can be reached, and whether our clock agrees with theirs."""
    reached: list[_Reached] = []

    async def reach(upstream: UpstreamSettings) -> None:
        reached.append(await _reach(upstream))

    async with anyio.create_task_group() as group:
        for upstream in settings.upstream:
            group.start_soon(reach, upstream)
    for each in sorted(reached, key=lambda one: one.name):
        yield each.finding
    skews = [each.skew_s for each in reached if each.skew_s is not None]
    if skews:
        # The median counts, because most providers cannot all be wrong.
        skew_s = sorted(skews)[len(skews) // 2]
        side = "ahead of" if skew_s > 0 else "behind"
        if abs(skew_s) > WRONG_CLOCK_S:
            yield problem(
                "clock",
                f"it is {abs(skew_s):,.0f} s {side} the providers'",
                "timedatectl set-ntp true; signed calls (AWS, Google) are refused otherwise",
            )
        else:
            yield ok("clock", f"within {abs(skew_s):,.0f} s of the providers'")
    if (name := ignored_proxy(settings, environ)) is not None:
        yield warning(
            "proxy",
            f"{name} is set, and Headstart does not use it",
            "set upstream.proxy if providers are reached through it",
        )


class _Reached(msgspec.Struct, frozen=True):
    """An upstream, and how far our clock is ahead of its."""

    name: str
    finding: Finding
    skew_s: float | None = None


async def _reach(upstream: UpstreamSettings) -> _Reached:
    """Ask an upstream's address without a key, so that it costs nothing: any answer will do."""
    check, name = f"upstream {upstream.name}", upstream.name
    began = time.perf_counter()
    try:
        async with (
            asyncio.timeout(LIMIT_S),
            client_session() as session,
            session.head(
                upstream.base_url,
                ssl=tls_of(name, upstream.ca_file, upstream.client_cert_file),
                proxy=upstream.proxy,
                allow_redirects=False,
            ) as response,
        ):
            took_s = time.perf_counter() - began
            date = response.headers.get("date")
    except aiohttp.ClientSSLError as error:
        fix = "check base_url, upstream.ca_file and the system's certificates"
        return _Reached(name, problem(check, why_no_tls(error), fix))
    except (aiohttp.ClientError, OSError, TimeoutError, ConfigError) as error:
        said = str(error) or f"no answer within {LIMIT_S:g} s"
        if isinstance(error, aiohttp.ClientConnectorError):
            said = reason_of(error.os_error)
        through = f" through {masked_url(upstream.proxy)}" if upstream.proxy else ""
        fix = "check base_url, DNS, the firewall and upstream.proxy"
        return _Reached(name, problem(check, f"cannot be reached{through}: {said}", fix))
    now = time.time()  # noqa: TID251 - the real clock is what is checked
    skew_s = None if date is None else now - took_s / 2 - parsedate_to_datetime(date).timestamp()
    return _Reached(name, ok(check, f"answers in {took_s * 1e3:,.0f} ms"), skew_s)


def _limits(server: ServerSettings) -> Iterator[Finding]:
    """Yield limits of the system that are lower than the limits of the server."""
    if sys.platform == "win32":
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FEW_FILES:
        yield warning(
            "limits",
            f"the process may open {most:,} files, so it takes {most // 2:,} connections",
            "LimitNOFILE=65536 in the unit, --ulimit nofile=65536 for a container",
        )
    else:
        count = "any number of" if most == resource.RLIM_INFINITY else f"up to {most:,}"
        yield ok("limits", f"{count} open files")
    shared = Path("/dev/shm")  # noqa: S108 - where workers share memory
    if server.workers != 1 and shared.is_dir() and shutil.disk_usage(shared).free < SHARED_BYTES:
        yield problem(
            "limits",
            f"{shared} has less than 16 MB for the memory that workers share",
            "--shm-size 64m for a container",
        )


async def _collector(settings: Settings, environ: Mapping[str, str]) -> AsyncIterator[Finding]:
    """Check whether traces can be sent, if traces are on."""
    if not is_wanted(settings.otel, environ):
        return
    try:
        import opentelemetry.sdk  # noqa: F401 - tests whether it is installed
    except ImportError:
        missing = MissingExtra("otel", "OpenTelemetry")
        yield problem(
            "traces", str(missing), "pip install 'headstart[otel]', or set otel.enabled = false"
        )
        return
    base = settings.otel.endpoint or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if base is None:
        yield ok("traces", "are sent as the OTEL_ variables say")
        return
    try:
        async with (
            asyncio.timeout(LIMIT_S),
            client_session() as session,
            session.head(base),
        ):
            pass
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        fix = "start the collector, or correct otel.endpoint"
        yield warning("traces", f"the collector does not answer: {error}", fix)
    else:
        yield ok("traces", f"the collector at {masked_url(base)} answers")

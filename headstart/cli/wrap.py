"""``headstart wrap``: runs a tool against a sidecar, and then shows the savings."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import anyio
import click
import msgspec

from headstart.cli import data_sources
from headstart.cli.options import argument, command, config_field, token_field, url_field
from headstart.config.checks import checked
from headstart.config.loading import load_settings
from headstart.errors import HeadstartError
from headstart.sockets import is_loopback_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_READY = "headstart is ready on "
STOP_S = 15.0
"""A sidecar that has not stopped after this time is killed."""


@dataclass(frozen=True)
class WrappedTool:
    """A command-line tool: its providers, and how it gets the address of the sidecar."""

    presets: tuple[str, ...]
    arguments: Callable[[str], list[str]] = lambda url: []  # noqa: ARG005
    """Returns the arguments that come before those of the user."""


def _codex(url: str) -> list[str]:
    """Define a provider of our own: Codex has no variable for the address of its usual one."""
    provider = {
        "name": '"headstart"',
        "base_url": f'"{url}/v1"',
        "env_key": '"OPENAI_API_KEY"',
        "wire_api": '"responses"',
    }
    pairs = [f"model_providers.headstart.{name}={value}" for name, value in provider.items()]
    pairs.append('model_provider="headstart"')
    return [part for pair in pairs for part in ("-c", pair)]


TOOLS = {
    "claude": WrappedTool(("anthropic",)),
    "codex": WrappedTool(("openai",), _codex),
    "gemini": WrappedTool(("gemini",)),
}
_OTHER = WrappedTool(("openai", "anthropic", "gemini"))


class OwnAddress(NamedTuple):
    """How a user names another address of a provider, and what it speaks there."""

    variables: tuple[str, ...]
    version: str
    """The path that the SDKs add to the address."""
    speaks: str


ADDRESSES = {
    "openai": OwnAddress(("OPENAI_BASE_URL", "OPENAI_API_BASE"), "", 'also_speaks = ["responses"]'),
    "anthropic": OwnAddress(
        ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"), "/v1", 'dialect = "anthropic"'
    ),
    "gemini": OwnAddress(("GOOGLE_GEMINI_BASE_URL",), "/v1beta", 'dialect = "gemini"'),
}


def environment(url: str) -> dict[str, str]:
    """Return the variables in which tools and SDKs look for the address of their provider.

    Proxies of the environment are not used between the tool and the sidecar.
    """
    host = urlsplit(url).hostname or ""
    direct = ",".join(
        filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), host])
    )
    return {
        "NO_PROXY": direct,
        "no_proxy": direct,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_BASE": url,
        "GOOGLE_GEMINI_BASE_URL": url,
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_BASE_URL": f"{url}/v1",
    }


@dataclass(frozen=True)
class WrapOptions:
    """The options of ``headstart wrap``."""

    words: tuple[str, ...] = argument(
        "TOOL [-- ARGUMENTS]", click.UNPROCESSED, nargs=-1, required=True
    )
    url: str | None = url_field()
    config: Path | None = config_field()
    token_env: str | None = token_field()


@command(WrapOptions, context_settings={"allow_interspersed_args": False})
def wrap(options: WrapOptions) -> None:
    """Run a command-line tool against a sidecar, and print the savings at its end.

    The tool is claude, codex, gemini, aider or any other program that reads the address of its
    provider from the usual variables. If no sidecar runs at --url, one is started, and it stops
    when the tool has ended. It uses the configuration file, if there is one. Otherwise it calls the
    tool's provider (at the address in its usual variable, if that is set), with a cache in memory,
    compression without loss, and marks for the provider's prompt cache. The tool sends its own key.
    The command exits with the tool's exit status.

    Examples:
      headstart wrap claude
      headstart wrap codex -- exec "Explain this repository."
      headstart wrap aider -- --model gpt-5.2
      headstart wrap --config headstart.toml python agent.py
    """
    name, *given = options.words
    if given[:1] == ["--"]:
        given = given[1:]
    program = shutil.which(name)
    if program is None:
        raise click.UsageError(f"{name!r} is not a program on the PATH; is it installed?")
    tool = TOOLS.get(Path(name).stem, _OTHER)
    with _handling(_leave, *_ENDINGS), sidecar(options, tool) as server:
        before, url = _sums(server), server.url
        status = run([program, *tool.arguments(url), *given], environment(url))
        after = before if isinstance(before, HeadstartError) else _sums(server)
    if isinstance(before, HeadstartError) or isinstance(after, HeadstartError):
        click.echo(f"headstart: the savings are not known: {after}", err=True)
    else:
        click.echo(savings_text(before, after), err=True)
    sys.exit(status)


def run(words: list[str], variables: dict[str, str]) -> int:
    """Run a program to its end and return its exit status. A Ctrl-C is the program's own."""
    variables = {**os.environ, **variables}
    with subprocess.Popen(words, env=variables) as running:  # noqa: S603 - the user names it

        def pass_on(number: int, _: object) -> None:
            running.send_signal(number)

        with _handling(pass_on, *_ENDINGS), _handling(lambda *_: None, signal.SIGINT):
            status = running.wait()
    return 128 - status if status < 0 else status


_ENDINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that end a program, and the one that a closed terminal sends."""


@contextmanager
def _handling(act: Callable[[int, object], None], *numbers: signal.Signals) -> Iterator[None]:
    """Do ``act`` for signals, except those that are ignored, as under ``nohup``."""
    numbers = tuple(each for each in numbers if signal.getsignal(each) != signal.SIG_IGN)
    kept = [(each, signal.signal(each, act)) for each in numbers]
    try:
        yield
    finally:
        for number, handler in kept:
            signal.signal(number, handler)


def _leave(number: int, _: object) -> None:
    """End the command, so that its sidecar ends with it."""
    sys.exit(128 + number)


# --- the sidecar -----------------------------------------------------------------------------


@contextmanager
def sidecar(options: WrapOptions, tool: WrappedTool) -> Iterator[data_sources.RunningServer]:
    """Yield a running sidecar, or a new one that ends with the block."""
    running = data_sources.running_server(options.url, options.token_env, options.config)
    try:
        anyio.run(running.ask, "ready")
    except HeadstartError:
        if options.url is not None:
            raise
    else:
        yield running
        return
    with tempfile.TemporaryDirectory(prefix="headstart-") as folder:
        config = options.config
        if config is None:
            config = Path(folder, "headstart.toml")
            config.write_text(_configuration(tool, os.environ, running.url), "utf-8")
        else:
            # Errors in the configuration are reported here.
            checked(load_settings(config, os.environ, {}))
        with start_sidecar(config, Path(folder, "log")) as url:
            yield running._replace(url=url)


def _configuration(tool: WrappedTool, environ: Mapping[str, str], missing: str) -> str:
    """Return the configuration for a tool. ``missing``: the URL at which no sidecar answered."""
    upstreams = [_upstream(name, environ, missing) for name in tool.presets]
    cache = '[cache]\nstore = "memory:"\n'
    return "\n".join([cache, '[compression]\nprompt_cache = "auto"\n', *upstreams])


def _upstream(name: str, environ: Mapping[str, str], missing: str) -> str:
    own = ADDRESSES[name]
    address = next(filter(None, map(environ.get, own.variables)), "").strip().rstrip("/")
    if not address or _place(address) == _place(missing):
        return f'[[upstream]]\npreset = "{name}"\napi_key_env = []\n'
    path = urlsplit(address).path
    if path and not path.endswith(own.version):
        address += own.version
    # The tool's key is for this address, and not for the preset's address.
    return f'[[upstream]]\nname = "{name}"\nbase_url = {json.dumps(address)}\n{own.speaks}\n'


def _place(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return "127.0.0.1" if is_loopback_host(host) else host, parts.port


@contextmanager
def start_sidecar(config: Path, log: Path) -> Iterator[str]:
    """Start a sidecar on a free port of loopback; yield its URL. Raises HeadstartError."""
    # -P: no module of the folder that the tool works in takes the place of one of ours.
    words = [sys.executable, "-P", "-m", "headstart", "serve", "--config", str(config.resolve())]
    with log.open("wb") as out:
        running = subprocess.Popen(  # noqa: S603 - our own command
            [*words, "--host", "127.0.0.1", "--port", "0", "--workers", "1"],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            # A Ctrl-C in the terminal must not reach the sidecar.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
    try:
        yield anyio.run(_address, running, log)
    finally:
        _end(running)
        try:
            running.wait(STOP_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _end(running: subprocess.Popen[bytes]) -> None:
    """Ask a sidecar to end. Windows has no SIGTERM: ``terminate`` kills."""
    if sys.platform == "win32":
        with suppress(OSError, SystemError):  # without a console; the sidecar is killed later
            running.send_signal(signal.CTRL_BREAK_EVENT)
    else:
        running.terminate()


async def _address(running: subprocess.Popen[bytes], log: Path) -> str:
    """Return the URL that a sidecar reports when it is ready."""
    while True:
        text = await anyio.Path(log).read_text("utf-8", errors="replace")
        found = re.search(rf"{_READY}(\S+) ", text)
        if found is not None:
            return found[1]
        if running.poll() is not None:
            raise HeadstartError(f"the sidecar did not start:\n{text.strip()}")
        await anyio.sleep(0.05)


# --- what was saved --------------------------------------------------------------------------


class Sums(NamedTuple):
    """The sums of a sidecar."""

    requests: float = 0
    hits: float = 0
    failed: float = 0
    saved_s: float = 0.0
    paid_usd: float = 0.0
    would_have_usd: float = 0.0
    removed_tokens: float = 0.0
    """Tokens that compression removed from prompts."""


class _Totals(msgspec.Struct):
    requests: int
    outcomes: dict[str, int]
    failed: int
    saved_s: float
    paid_usd: float | None
    would_have_usd: float | None


class _View(msgspec.Struct):
    totals: _Totals


class _Live(msgspec.Struct):
    view: _View


_REMOVED = re.compile(
    rb'^headstart_tokens_removed_total\{[^}]*"compress"[^}]*\} (\S+)$', re.MULTILINE
)


def _sums(server: data_sources.RunningServer) -> Sums | HeadstartError:
    """Return the sums of a sidecar, or the reason why they cannot be read. The tool runs anyway."""

    async def ask() -> tuple[bytes, bytes]:
        return await server.ask("live?window_s=86400"), await server.ask("metrics")

    try:
        live, metrics = anyio.run(ask)
        totals = data_sources.decode_answer(live, _Live).view.totals
    except HeadstartError as error:
        return error
    return Sums(
        totals.requests,
        sum(totals.outcomes.get(each, 0) for each in ("exact", "semantic")),
        totals.failed,
        totals.saved_s,
        totals.paid_usd or 0.0,
        totals.would_have_usd or 0.0,
        sum(float(each) for each in _REMOVED.findall(metrics)),
    )


def savings_text(before: Sums, after: Sums) -> str:
    """Return the savings between two readings of the sums, in one or two lines."""
    grown = Sums(*(new - old for new, old in zip(after, before, strict=True)))
    if grown.requests <= 0:
        return "headstart: the tool sent no request that Headstart caches"
    noun = "request" if grown.requests == 1 else "requests"
    said = [f"{grown.requests:,.0f} {noun}", f"{grown.hits:,.0f} answered from the cache"]
    if grown.failed:
        said.append(f"{grown.failed:,.0f} failed")
    if grown.removed_tokens:
        said.append(f"{grown.removed_tokens:,.0f} tokens of prompts removed")
    if grown.saved_s > 0 and grown.hits:
        said.append(f"{grown.saved_s:.1f} s of waiting saved")
    line = "headstart: " + ", ".join(said)
    if not grown.would_have_usd:
        return line
    share = 1 - grown.paid_usd / grown.would_have_usd
    return (
        f"{line}\nheadstart: the providers cost ${grown.paid_usd:.4f}; without Headstart "
        f"${grown.would_have_usd:.4f}: saved {share:.0%}"
    )

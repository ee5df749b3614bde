"""The options that several commands share, and how commands print and write."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import signal
import sys
import threading
import time
from dataclasses import field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, get_args, get_origin

import click
import msgspec

from headstart.config.names import help_texts
from headstart.errors import ConfigError
from headstart.policies.route_rules import parse_share
from headstart.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    _ShareType = click.ParamType[float]
else:
    _ShareType = click.ParamType

Options = TypeVar("Options")
USUAL = Path("headstart.toml")
FILE = click.Path(path_type=Path, dir_okay=False)
OLD_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
"""A file that has to exist."""
INPUT = click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)
"""A file that has to exist, or `-` for the standard input."""
COUNT = click.IntRange(1)
ABOVE_ZERO = click.FloatRange(0, min_open=True)
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _usual(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:  # noqa: ARG001 - click's signature
    return USUAL if value is None and USUAL.exists() else value


class Share(_ShareType):
    """A share such as 0.01 or 1%."""

    name = "share"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the share. Raises BadParameter."""
        share = parse_share(str(value))
        if share is None:
            self.fail(f"share: {value!r} is not a share such as 0.01 or 1%", param, ctx)
        if not 0 <= share <= 1:
            self.fail(f"{value} is not between 0 and 1", param, ctx)
        return share


def option(
    default: Any,
    help: str | None = None,
    type: click.ParamType[Any] | None = None,
    flags: str = "",
    **attributes: Any,
) -> Any:
    """Return a dataclass field that is a command line option, ``--max-error`` for ``max_error``.

    ``flags`` takes the place of that spelling, and ``attributes`` go to ``click.option``.
    """
    shown = default is not None and default is not False and default != ()
    given = {"default": default, "help": help, "type": type, "show_default": shown, **attributes}

    def declare(name: str) -> Callable[[Any], Any]:
        return click.option(flags or f"--{name.replace('_', '-')}", name, **given)

    return field(default=default, metadata={"declare": declare})


def argument(metavar: str, type: click.ParamType[Any], **attributes: Any) -> Any:
    """Return a dataclass field that is an argument; ``attributes`` go to ``click.argument``."""

    def declare(name: str) -> Callable[[Any], Any]:
        return click.argument(name, metavar=metavar, type=type, **attributes)

    return field(metadata={"declare": declare})


def flag(help: str, flags: str = "") -> Any:
    """Return a dataclass field that is an option without a value, off by default."""
    return option(default=False, help=help, flags=flags, is_flag=True)


def json_field() -> Any:
    """Return a dataclass field that is ``--json``."""
    return flag("Print one JSON object.", "--json")


def command(
    options: type[Options], **attributes: Any
) -> Callable[[Callable[[Options], None]], click.Command]:
    """Return a decorator that makes a command of a function which takes an ``options`` dataclass.

    Every field of the dataclass is an ``option``, a ``flag`` or an ``argument``. The help is the
    function's docstring; the part from the line ``Examples:`` on is printed below the options.
    ``attributes`` go to ``click.command``.
    """

    def decorate(run: Callable[[Options], None]) -> click.Command:
        @wraps(run)
        def call(**given: Any) -> None:
            run(options(**given))

        for each in reversed(fields(options)):  # type: ignore[arg-type]
            each.metadata["declare"](each.name)(call)
        text, examples, more = (inspect.getdoc(run) or "").partition("\nExamples:\n")
        epilog = "\n\n".join(map(_keep_lines, (examples + more).strip().split("\n\n")))
        return click.command(None, click.Command, help=text, epilog=epilog, **attributes)(call)

    return decorate


def _keep_lines(paragraph: str) -> str:
    """Return a paragraph. A list gets the sign that tells click to keep its lines."""
    return f"\b\n{paragraph}" if re.search(r":$|\S  ", paragraph, re.MULTILINE) else paragraph


def setting(name: str, **attributes: Any) -> Any:
    """Return a dataclass field for an option that overrides a setting, such as ``server.port``.

    Its bounds, default and help are the setting's. Without the option on the command line, the
    value is None.
    """
    section, _, key = name.partition(".")
    table = getattr(Settings(), section)
    kind = next(each.type for each in msgspec.structs.fields(table) if each.name == key)
    text = plain_text(help_texts()[type(table).__name__][key])
    return option(
        None,
        f"{text}  [default: {getattr(table, key)}]",
        _bounded(kind),
        f"--{key.replace('_', '-')}",
        **attributes,
    )


def plain_text(markdown: str) -> str:
    """Return a help text without links, links in brackets and the signs for code."""
    markdown = re.sub(r" \(\[[^]]*\]\([^)]*\)\)", "", markdown)
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "")


def _bounded(kind: Any) -> click.ParamType[Any] | None:
    """Return click's type for whole numbers within bounds, or for names; None for any text."""
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    for meta in getattr(kind, "__metadata__", ()):
        return click.IntRange(meta.ge, meta.le)
    return None


def parse_duration(text: str) -> float:
    """Return the seconds of ``90s``, ``30m``, ``12h``, ``7d`` or ``2w``. Raises BadParameter."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a duration such as 90s, 30m, 12h, 7d or 2w")
    return float(found[1]) * UNITS_S[found[2]]


def since_field() -> Any:
    """Return a dataclass field that is ``--since``: the Unix seconds of its beginning."""
    duration = click.types.FuncParamType(parse_duration)
    text = "Read only the last 90s, 30m, 12h, 7d or 2w.  [default: all]"
    return option(None, text, duration, metavar="DURATION", callback=_begin)


def _begin(_: click.Context, __: click.Parameter, seconds: float | None) -> float:
    return 0.0 if seconds is None else time.time() - seconds  # noqa: TID251 - composition root


def store_field() -> Any:
    """Return a dataclass field that is ``--store``."""
    return option(None, "URL of the store.  [default: the configured one]", metavar="URL")


def parse_server_url(text: str) -> str:
    """Return the URL of a server as it is. Raises BadParameter."""
    if re.match(r"https?://[^/]", text) is None:
        raise click.BadParameter(f"{text!r} must start with http:// or https:// and name a host")
    return text


def url_field(help: str = "URL of the server.  [default: the configured one]") -> Any:
    """Return a dataclass field that is ``--url``; ``data_sources.running_server`` reads it."""
    return option(None, help, click.types.FuncParamType(parse_server_url), metavar="URL")


def parse_upstream_url(text: str) -> str:
    """Return the base URL of an upstream as it is. Raises BadParameter."""
    from headstart.config.providers import preset

    if (known := preset(text)) is None:
        return parse_server_url(text)
    file = f'an [[upstream]] with preset = "{text}" in headstart.toml'
    plain = known.base_url and "{" not in known.base_url
    instead = f"{known.base_url}, or set {known.variable}" if plain and known.variable else file
    raise click.BadParameter(f"{text!r} is the name of a preset, not a URL; use {instead}")


def upstream_field(help: str) -> Any:
    """Return a dataclass field that is ``--upstream`` with the base URL of one upstream."""
    return option(None, help, click.types.FuncParamType(parse_upstream_url), metavar="URL")


def token_field() -> Any:
    """Return a dataclass field that is ``--token-env``."""
    text = (
        "Variable with the admin token, if the server requires one.  [default: the one that "
        "server.admin_token_env names, or HEADSTART_ADMIN_TOKEN]"
    )
    return option(None, text, metavar="NAME")


def config_field() -> Any:
    """Return a dataclass field that is ``--config``."""
    return option(None, _CONFIG_HELP, FILE, "--config", callback=_usual)


_CONFIG_HELP = "Configuration file.  [default: ./headstart.toml, if there is one]"


def print_line(line: str) -> None:
    """Write a line to standard output. A server goes on if nobody is left to read it."""
    with contextlib.suppress(OSError):
        click.echo(line)


ENDS_S = 3.0
"""Seconds after which a process that was interrupted ends, although a thread still hangs."""


def end(code: int) -> NoReturn:
    """End this process after a signal.

    A plain exit waits for all threads. One of them may hang in the system, in a lookup of Redis'
    address or on a disk that does not answer. So the process ends after ``ENDS_S`` anyway.
    """
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)  # a further signal ends it at once
    late = threading.Timer(ENDS_S, os._exit, (code,))
    late.daemon = True
    late.start()
    sys.exit(code)


def number_table(first: str, *more: str) -> Table:
    """Return an empty table for a terminal. All columns except for the first hold numbers."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for name in more:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def write_file(path: Path, data: bytes, option: str) -> None:
    """Write the file that an option names. Raises ConfigError, which names both."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror or error}") from error


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())

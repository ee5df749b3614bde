"""``headstart report``: what the cache saved, from a store's books or a log of them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
import msgspec

from headstart.cli.configured import config_option
from headstart.cli.report_tables import print_tables
from headstart.cli.stores import existing_store
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from headstart.observe import Served
    from headstart.report import Report

EPILOG = """\b
Examples:
  headstart report
  headstart report --since 7d --html report.html
  headstart report --store redis://localhost:6379/0 --json
"""
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_duration(text: str) -> float:
    """Return the seconds of ``90s``, ``30m``, ``12h``, ``7d`` or ``2w``. Raises BadParameter."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration such as 90s, 30m, 12h, 7d or 2w")
    return float(found[1]) * UNITS_S[found[2]]


@click.command(epilog=EPILOG)
@click.option("--store", metavar="URL", help="The store.  [default: the one configured]")
@click.option(
    "--log",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Read served requests from a file, one JSON object a line, in place of a store.",
)
@click.option(
    "--since",
    type=parse_duration,
    metavar="DURATION",
    help="Only the last 90s, 30m, 12h, 7d or 2w.  [default: all]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one self-contained page with plots.",
)
@config_option
def report(
    store: str | None,
    log: Path | None,
    since: float | None,
    as_json: bool,
    html: Path | None,
    path: Path | None,
) -> None:
    """Show what the cache saved: hits, latencies side by side, time, tokens and money."""
    if store is not None and log is not None:
        raise click.UsageError("--store and --log exclude each other")
    start = time.time() - since if since is not None else 0.0  # noqa: TID251 - composition root
    if log is not None:
        found = report_on_log(log, start)
    else:
        found = anyio.run(report_on_store, store or _configured_store(path), start)
    if html is not None:
        _write_page(html, found)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        from rich.console import Console

        print_tables(Console(), found)
        if html is not None:
            click.echo(f"wrote {html}")


def report_on_log(path: Path, since: float = 0.0) -> Report:
    """Compute the report over a file of Served rows as JSON lines. Raises ConfigError."""
    from headstart.report import Accounts

    accounts = Accounts()
    for row in _log_rows(path):
        if row.at >= since:
            accounts.add(row)
    return accounts.report()


async def report_on_store(url: str, since: float = 0.0) -> Report:
    """Compute the report over a store's books. Raises ConfigError or StoreError."""
    from headstart.report import Accounts

    accounts = Accounts()
    async with existing_store(url) as store:
        async for row in store.books(since):
            accounts.add(row)
    return accounts.report()


async def print_report(console: Console, url: str) -> None:
    """Print the report over a store's books."""
    print_tables(console, await report_on_store(url))


def _configured_store(path: Path | None) -> str:
    from headstart.config import load_settings

    return load_settings(path, os.environ).cache.store


def _log_rows(path: Path) -> Iterator[Served]:
    from headstart.observe import Served

    decode = msgspec.json.Decoder(Served).decode
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise ConfigError(f"{path}, line {number}: {error}") from error


def _write_page(path: Path, found: Report) -> None:
    from headstart.report import render_page

    try:
        path.write_text(render_page(found), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html: {error}") from error

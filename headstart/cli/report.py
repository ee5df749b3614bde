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

from headstart.cli.stores import existing_store
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table

    from headstart.observe import Served
    from headstart.report import Report
    from headstart.report.values import Group, Quantiles

EPILOG = """\b
Examples:
  headstart report
  headstart report --since 7d --html report.html
  headstart report --store redis://localhost:6379/0 --json
"""
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
MAX_REASONS = 8


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
@click.option(
    "--config", "path", type=click.Path(path_type=Path, dir_okay=False), help="headstart.toml"
)
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


def print_tables(console: Console, found: Report) -> None:
    """Print the report for a terminal."""
    from headstart.report.wording import dollars, duration, money_note, percent

    group, savings = found.overall, found.overall.savings
    if found.first is None:
        console.print("No requests are booked yet.")
        return
    console.print(
        f"[bold]{group.requests:,}[/] requests, [bold]{percent(group.hit_rate)}[/] hits "
        f"(exact {percent(group.exact_rate)}, semantic {percent(group.semantic_rate)}), "
        f"{group.outcomes['joined']:,} joined, {group.outcomes['bypass']:,} bypassed, "
        f"{group.failures:,} failed"
    )
    note = f" ({money_note(savings)})" if money_note(savings) else ""
    estimated = f"; {savings.estimated_hits:,} hits estimated" if savings.estimated_hits else ""
    console.print(
        f"saved [bold]{duration(savings.total_s)}[/] "
        f"({duration(savings.ttft_s)} to the first token), "
        f"[bold]{savings.tokens:,}[/] tokens, [bold]{dollars(savings.usd)}[/]"
        f"{note}{estimated}; net of {duration(savings.overhead_s)} of our own"
    )
    console.print(_latencies(group))
    if found.holdout is not None:
        _print_holdout(console, found)
    console.print(_groups("model", found.models))
    console.print(_groups("endpoint", found.endpoints))
    if found.reasons:
        reasons = list(found.reasons.items())[:MAX_REASONS]
        console.print("no hit: " + ", ".join(f"{why} {count:,}" for why, count in reasons))


def _print_holdout(console: Console, found: Report) -> None:
    from headstart.report.wording import estimate, verdict

    holdout = found.holdout
    if holdout is None:
        return
    table = _table("saved, 95 % interval", "time", "money")
    table.add_row("by hits", estimate(holdout.by_hits_s), estimate(holdout.by_hits_usd, "usd"))
    table.add_row(
        "by holdout", estimate(holdout.by_holdout_s), estimate(holdout.by_holdout_usd, "usd")
    )
    console.print(table)
    console.print(
        f"{holdout.held_out:,} would-be hits held out, {holdout.hits:,} hits: "
        f"{verdict(disagree=holdout.disagree)}"
    )


def _latencies(group: Group) -> Table:
    from headstart.report.wording import duration

    table = _table("", "requests", "p50", "p95", "p99")

    def add(label: str, times: Quantiles | None) -> None:
        if times is None:
            table.add_row(label, "0", *[duration(None)] * 3)
        else:
            quantiles = (times.p50_s, times.p95_s, times.p99_s)
            table.add_row(label, f"{times.n:,}", *map(duration, quantiles))

    add("hits, first token", group.hits.ttft)
    add("misses, first token", group.misses.ttft)
    add("hits, whole answer", group.hits.total)
    add("misses, whole answer", group.misses.total)
    return table


def _groups(title: str, groups: tuple[Group, ...]) -> Table:
    from rich.markup import escape

    from headstart.report.wording import dollars, duration, percent

    table = _table(title, "requests", "failed", "exact", "semantic", "saved", "money")
    for group in groups:
        table.add_row(
            escape(group.name),
            f"{group.requests:,}",
            f"{group.failures:,}",
            percent(group.exact_rate),
            percent(group.semantic_rate),
            duration(group.savings.total_s),
            dollars(group.savings.usd),
        )
    return table


def _table(first: str, *others: str) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table

"""``headstart report``: shows the savings of the cache, from a store's books or a log of them."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio
import click
import msgspec
from rich.markup import escape

from headstart.cli.data_sources import decode_lines, existing_store, settings_to_read
from headstart.cli.options import (
    FILE,
    OLD_FILE,
    command,
    config_field,
    json_field,
    number_table,
    option,
    print_json,
    since_field,
    store_field,
    write_file,
)
from headstart.errors import ConfigError
from headstart.observe import Served
from headstart.report.accounts import Accounts, Breakdown, MachineAccounts
from headstart.report.reconciliation import Books, ExportRow, read_usage
from headstart.report.sections import (
    bill_note,
    counted,
    dollars,
    duration,
    money_note,
    percent,
    render_page,
    sections,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from headstart.report.values import Report
    from headstart.types import LimitUse
    from headstart.usual_calls import Machine


NARROWEST = 80
"""Columns of a terminal that the tables need. A narrower one breaks their lines itself."""


def print_tables(console: Console, found: Report) -> None:
    """Print the report on a terminal."""
    console.width = max(console.width, NARROWEST)
    if found.first is None:
        console.print("No requests are booked yet.")
        return
    _print_summary(console, found)
    for section in sections(found):
        if section.table is None:
            continue
        source = section.table
        columns = [n for n, name in enumerate(source.header) if name not in source.page_only]
        table = number_table(*(source.header[n] for n in columns))
        for name, *numbers in source.rows:
            cells = [source.short_name(name), *numbers]
            table.add_row(*(escape(cells[n]) for n in columns))
        console.print(f"\n[bold]{section.title}[/]")
        console.print(table)
        if section.note:
            console.print(section.note)


def _print_summary(console: Console, found: Report) -> None:
    group, savings = found.overall, found.overall.savings
    console.print(
        f"[bold]{group.requests:,}[/] requests, [bold]{percent(group.hit_rate)}[/] hits "
        f"(exact {percent(group.exact_rate)}, semantic {percent(group.semantic_rate)}), "
        f"{group.outcomes['joined']:,} joined, {group.outcomes['bypass']:,} bypassed, "
        f"{group.failures:,} failed"
    )
    if bill := bill_note(group, lambda number: f"[bold]{number}[/]"):
        console.print(bill)
    note = f" ({money_note(savings)})" if money_note(savings) else ""
    estimated = (
        f"; {counted(savings.estimated_hits, 'hit')} estimated" if savings.estimated_hits else ""
    )
    money = "an unknown sum of money" if savings.usd is None else dollars(savings.usd)
    console.print(
        f"saved [bold]{duration(savings.total_s)}[/] "
        f"({duration(savings.ttft_s)} to the first token), "
        f"[bold]{savings.tokens:,}[/] tokens, [bold]{money}[/]"
        f"{note}{estimated}; Headstart's own time ({duration(savings.overhead_s)}) is subtracted"
    )


@dataclass(frozen=True)
class ReportOptions:
    """The options of ``headstart report``."""

    store: str | None = store_field()
    log: Path | None = option(
        None,
        "Read served requests from this file, one JSON object per line, and not from a store.",
        OLD_FILE,
    )
    since: float = since_field()
    as_json: bool = json_field()
    html: Path | None = option(None, "Write one self-contained page with plots.", FILE)
    as_csv: Path | None = option(
        None,
        "Write one line for each day, caller, route, model, endpoint and set of tags: requests, "
        "tokens, cost.",
        FILE,
        "--csv",
    )
    reconcile: Path | None = option(
        None,
        "Compare the books with this usage or cost export of OpenAI or Anthropic, CSV or JSON.",
        OLD_FILE,
    )
    config: Path | None = config_field()


@command(ReportOptions)
def report(options: ReportOptions) -> None:
    """Show what the cache has saved: time, tokens and money, and the times of hits and misses.

    Examples:
      headstart report
      headstart report --since 7d --html report.html
      headstart report --store redis://localhost:6379/0 --json
      headstart report --since 30d --csv bill.csv
      headstart report --reconcile usage.csv
    """
    store, log, since, html = options.store, options.log, options.since, options.html
    if store is not None and log is not None:
        raise click.UsageError("--store and --log exclude each other")
    export = None if options.reconcile is None else _read_export(options.reconcile)
    breakdown, books = Breakdown(), Books()
    machines = MachineAccounts(_machines(options.config))
    collectors: list[Collector] = [machines]
    if options.as_csv is not None:
        collectors.append(breakdown)
    if export is not None:
        collectors.append(books)
    if log is not None:
        found = report_on_log(log, since, *collectors)
    else:
        found = anyio.run(report_on_store, store, options.config, since, *collectors)
        found = msgspec.structs.replace(found, limits=anyio.run(_limits, store, options.config))
    found = msgspec.structs.replace(found, machines=machines.machines())
    if options.as_csv is not None:
        lines = io.StringIO()
        breakdown.write(lines)
        write_file(options.as_csv, lines.getvalue().encode(), "--csv")
    if export is not None:
        found = msgspec.structs.replace(found, reconciliation=books.reconcile(export))
    if html is not None:
        write_file(html, render_page(found).encode(), "--html")
    if options.as_json:
        print_json(found)
    else:
        from rich.console import Console

        print_tables(Console(), found)
        for written in (html, options.as_csv):
            if written is not None:
                click.echo(f"wrote {written}")


def _machines(config: Path | None) -> dict[str, Machine]:
    """Return the upstreams of a file that are paid by the hour, by name. Raises ConfigError."""
    from headstart.factory.upstreams import machines_of

    return {} if config is None else machines_of(settings_to_read(config))


async def _limits(url: str | None, config: Path | None) -> tuple[LimitUse, ...]:
    """Return the used part of the limits that the configuration sets for client keys."""
    from headstart.middleware.client_ledger import limit_uses
    from headstart.policies.callers import spending

    settings = settings_to_read(config)
    callers = {name: spending(each) for name, each in settings.server.limits_by_client.items()}
    if not any(callers.values()):
        return ()
    async with existing_store(url, config) as store:
        return tuple(await limit_uses(callers, store, time.time()))  # noqa: TID251 - the composition root


class Collector(Protocol):
    """Gets each row of the books."""

    def add(self, row: Served) -> None: ...


def report_on_log(path: Path, since: float = 0.0, *collectors: Collector) -> Report:
    """Compute the report over a file of Served rows as JSON lines. Raises ConfigError.

    ``collectors`` get the same rows.
    """
    accounts = Accounts()
    with path.open("rb") as lines:
        for row in decode_lines(lines, Served, str(path)):
            if row.at >= since:
                for each in (accounts, *collectors):
                    each.add(row)
    return accounts.report()


async def report_on_store(
    url: str | None, config: Path | None = None, since: float = 0.0, *collectors: Collector
) -> Report:
    """Compute the report over a store's books. Raises ConfigError or StoreError.

    Without ``url`` it is the store of the configuration. ``collectors`` get the same rows.
    """
    accounts = Accounts()
    async with existing_store(url, config) as store:
        async for row in store.read_books(since):
            for each in (accounts, *collectors):
                each.add(row)
    return accounts.report()


async def print_report(console: Console, url: str) -> None:
    """Print the report over a store's books."""
    print_tables(console, await report_on_store(url))


def _read_export(path: Path) -> list[ExportRow]:
    try:
        return read_usage(path.read_bytes())
    except (OSError, ConfigError) as error:
        raise ConfigError(f"--reconcile {path}: {error}") from error

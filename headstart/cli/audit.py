"""``headstart audit``: shows the error rates that audits prove for the served hits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import click
from rich.markup import escape

from headstart.cli import data_sources
from headstart.cli.options import (
    Share,
    command,
    config_field,
    json_field,
    number_table,
    option,
    print_json,
    since_field,
    store_field,
    token_field,
    url_field,
)
from headstart.report.sections import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from headstart.middleware.learning.certificates import AuditReport, CertificateRow

MOST_ROWS = 40
"""Most rows of weeks in the terminal; ``--json`` has all."""
MOST_WRONG_HITS = 20
"""Most wrong hits in the terminal, the newest ones."""


@dataclass(frozen=True)
class AuditOptions:
    """The options of ``headstart audit``."""

    url: str | None = url_field(
        "Ask the server at this URL, such as http://127.0.0.1:8080, and do not read a store."
    )
    store: str | None = store_field()
    config: Path | None = config_field()
    since: float = since_field()
    fail_over: float | None = option(
        None,
        "Exit with 1 if the audits of the latest week do not rule out a larger share of wrong hits."
        "  [without an audit: exit with 0]",
        Share(),
    )
    as_json: bool = json_field()
    token_env: str | None = token_field()


@command(AuditOptions)
def audit(options: AuditOptions) -> None:
    """Show the share of wrong hits by learning domain and week, and the hits that were wrong.

    Audits have measured the shares: they ask the provider again after a hit.

    Examples:
      headstart audit
      headstart audit --url http://127.0.0.1:8080 --since 7d
      headstart audit --store redis://localhost:6379/0 --json
      headstart audit --fail-over 1%
    """
    url, store, since = options.url, options.store, options.since
    if url is not None and (store is not None or options.config is not None):
        raise click.UsageError("--url asks a server: it excludes --store and --config")
    if url is not None:
        server = data_sources.running_server(url, options.token_env, None)
        found = anyio.run(audit_of_server, server, since)
    else:
        found = anyio.run(audit_of_store, store, options.config, since)
    if options.as_json:
        print_json(found)
    else:
        from rich.console import Console

        print_audit(Console(), found)
    if options.fail_over is not None:
        _exit_if_more_wrong(found, options.fail_over)


async def audit_of_server(server: data_sources.RunningServer, since: float) -> AuditReport:
    """Ask a running server. Raises ConfigError or HeadstartError."""
    from headstart.middleware.learning.certificates import AuditReport

    body = await server.ask(f"audit?since={since}")
    return data_sources.decode_answer(body, AuditReport)


async def audit_of_store(url: str | None, path: Path | None, since: float) -> AuditReport:
    """Read a store. The configuration has the promise. Raises ConfigError or StoreError."""
    from headstart.factory.caching import error_limit_of
    from headstart.middleware.learning.certificates import audit_report

    limit = error_limit_of(data_sources.settings_to_read(path).cache)
    async with data_sources.existing_store(url, path) as store:
        return await audit_report(store, limit, since=since)


def _exit_if_more_wrong(found: AuditReport, most: float) -> None:
    """Exit with 1 when a bound of the latest week exceeds ``most``."""
    newest = max((row.week for row in found.certificates), default=None)
    for row in found.certificates:
        if row.week != newest:
            continue
        bound = row.bound_per_request if found.error_of == "requests" else row.bound_per_hit
        if bound is not None and bound > most:
            raise click.ClickException(
                f"{row.week}, {row.name}: up to {bound:.2%} of the {found.error_of} may be"
                f" wrong by {counted(row.audits, 'audit')}, over --fail-over {most:.2%}"
            )


def print_audit(console: Console, found: AuditReport) -> None:
    """Print the report for a terminal."""
    whose = "semantic hits" if found.error_of == "hits" else "requests"
    console.print(f"promise: at most [bold]{_share(found.max_error)}[/] of the {whose} wrong")
    if not found.certificates:
        console.print("No semantic hit was served or audited yet: there is nothing to prove.")
        return
    rows = found.certificates[-MOST_ROWS:]
    for domain in dict.fromkeys(row.domain for row in rows):
        weeks = [row for row in rows if row.domain == domain]
        name = f"{escape(weeks[-1].name)}  [dim]{domain}[/]" if weeks[-1].path else domain
        console.print(f"\n{name}", highlight=False, soft_wrap=True)
        console.print(_weeks_table(weeks))
    if len(rows) < len(found.certificates):
        console.print(f"… {len(found.certificates) - len(rows):,} older rows; --json shows all")
    _print_wrong_hits(console, found)
    cold = "cold: hits before enough was learned, which the promise does not cover."
    console.print(f"[dim]{cold} x % ≤ y %: the share found, and its upper bound. {found.words}[/]")


def _weeks_table(weeks: Sequence[CertificateRow]) -> Table:
    table = number_table("week", "hits", "cold", "audits", "wrong", "of hits", "of requests")
    table.add_column("certified")
    for row in weeks:
        table.add_row(
            row.week,
            f"{row.hits:,}",
            f"{row.cold_start_hits:,}",
            f"{row.audits:,}",
            f"{row.wrong:,}",
            _bounded(row.wrong_per_hit, row.bound_per_hit),
            _bounded(row.wrong_per_request, row.bound_per_request),
            _certified(row),
        )
    return table


def _print_wrong_hits(console: Console, found: AuditReport) -> None:
    if not found.wrong_hits:
        return
    console.print(f"{len(found.wrong_hits):,} wrong, newest first (headstart explain REQUEST):")
    for wrong in reversed(found.wrong_hits[-MOST_WRONG_HITS:]):
        at = datetime.fromtimestamp(wrong.at, UTC)
        console.print(
            f"  {wrong.request} answered by {wrong.entry}, similarity {wrong.similarity:.3f},"
            f" {at:%Y-%m-%d %H:%M} UTC",
            highlight=False,
            soft_wrap=True,  # no line break inside an id, so that it can be copied
        )


def _certified(row: CertificateRow) -> str:
    unsure = f" ({row.unsure:,} unsure)" if row.unsure else ""
    if row.certified:
        return f"yes{unsure}"
    if row.more_audits is None:
        return f"no: too many wrong{unsure}"
    return f"{row.more_audits:,} more audits{unsure}"


def _bounded(share: float | None, bound: float | None) -> str:
    if share is None or bound is None:
        return "unknown"
    return f"{_share(share)} ≤ {_share(bound)}"


def _share(share: float) -> str:
    return f"{100 * share:.3g} %"

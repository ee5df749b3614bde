"""``headstart audit``: what audits prove about the hits that were served."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import click
import msgspec

from headstart.cli import admin_api
from headstart.cli.configured import config_option
from headstart.cli.lab import Share
from headstart.cli.report import parse_duration
from headstart.cli.stores import existing_store

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from headstart.middleware.learning.certificates import AuditReport, CertificateRow

EPILOG = """\b
Examples:
  headstart audit
  headstart audit --url http://127.0.0.1:8080 --since 7d
  headstart audit --store redis://localhost:6379/0 --json
  headstart audit --fail-over 1%
"""
MOST_ROWS = 40
MOST_WRONG_HITS = 20


@click.command(epilog=EPILOG)
@click.option("--url", metavar="URL", help="Ask the server that runs here, such as "
              f"{admin_api.DEFAULT_URL}, in place of reading a store.")  # fmt: skip
@click.option("--store", metavar="URL", help="The store.  [default: the one configured]")
@config_option
@click.option(
    "--since",
    type=parse_duration,
    metavar="DURATION",
    help="Only the last 90s, 30m, 12h, 7d or 2w.  [default: all]",
)
@click.option(
    "--fail-over",
    type=Share(),
    help="Exit with 1 if audits of the latest week do not prove the error to be at most so much.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@admin_api.token_option
def audit(
    url: str | None,
    store: str | None,
    path: Path | None,
    since: float | None,
    fail_over: float | None,
    as_json: bool,
    token_env: str,
) -> None:
    """Show the certificate by domain and week, and the hits that audits found wrong."""
    if url is not None and (store is not None or path is not None):
        raise click.UsageError("--url asks a server: it excludes --store and --config")
    start = time.time() - since if since is not None else 0.0  # noqa: TID251 - composition root
    if url is not None:
        found = anyio.run(audit_of_server, url, start, token_env)
    else:
        found = anyio.run(audit_of_store, store, path, start)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        from rich.console import Console

        print_audit(Console(), found)
    if fail_over is not None:
        _fail_over(found, fail_over)


async def audit_of_server(url: str, since: float, token_env: str) -> AuditReport:
    """Ask a running server. Raises ConfigError or HeadstartError."""
    from headstart.middleware.learning.certificates import AuditReport

    body = await admin_api.ask(url, f"audit?since={since}", token_env)
    return admin_api.read(body, AuditReport)


async def audit_of_store(url: str | None, path: Path | None, since: float) -> AuditReport:
    """Read a store, by the promise that is configured. Raises ConfigError or StoreError."""
    from headstart.config import load_settings
    from headstart.factory.learning import promise_of
    from headstart.middleware.learning.certificates import audit_report

    cache = load_settings(path, os.environ).cache
    async with existing_store(url or cache.store) as store:
        return await audit_report(store, promise_of(cache), since=since)


def _fail_over(found: AuditReport, most: float) -> None:
    """Exit with 1 when a bound of the latest week exceeds ``most``."""
    for row in latest_week(found):
        bound = row.bound_per_request if found.error_of == "requests" else row.bound_per_hit
        if bound is not None and bound > most:
            raise click.ClickException(
                f"{row.week}, domain {row.domain}: up to {bound:.2%} of the {found.error_of} may be"
                f" wrong by {row.audits:,} audits, over --fail-over {most:.2%}"
            )


def latest_week(found: AuditReport) -> list[CertificateRow]:
    """Return the rows of the newest week that has any."""
    newest = max((row.week for row in found.certificates), default=None)
    return [row for row in found.certificates if row.week == newest]


def print_audit(console: Console, found: AuditReport) -> None:
    """Print the report for a terminal."""
    from rich.table import Table

    whose = "semantic hits" if found.error_of == "hits" else "requests"
    console.print(f"promise: at most [bold]{_share(found.max_error)}[/] of the {whose} wrong")
    if not found.certificates:
        console.print("No semantic hit was served or audited yet: there is nothing to prove.")
        return
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("domain", max_width=16, overflow="fold")
    table.add_column("week", no_wrap=True)
    for name in ("hits", "cold start", "audits", "wrong", "of hits", "of requests"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("certified")
    rows = found.certificates[-MOST_ROWS:]
    for row in rows:
        table.add_row(
            row.domain,
            row.week,
            f"{row.hits:,}",
            f"{row.cold_start_hits:,}",
            f"{row.audits:,}",
            f"{row.wrong:,}",
            _bounded(row.wrong_per_hit, row.bound_per_hit),
            _bounded(row.wrong_per_request, row.bound_per_request),
            _certified(row),
        )
    console.print(table)
    if len(rows) < len(found.certificates):
        console.print(f"… {len(found.certificates) - len(rows):,} older rows; --json shows all")
    _print_wrong_hits(console, found)
    cold = "cold start: hits before enough was learned, which the promise does not cover."
    console.print(f"[dim]{cold} x % ≤ y %: the share found, and its upper bound. {found.words}[/]")


def _print_wrong_hits(console: Console, found: AuditReport) -> None:
    if not found.wrong_hits:
        return
    console.print(f"{len(found.wrong_hits):,} wrong, newest first (headstart explain REQUEST):")
    for wrong in found.wrong_hits[: -MOST_WRONG_HITS - 1 : -1]:
        at = datetime.fromtimestamp(wrong.at, UTC)
        console.print(
            f"  {wrong.request} answered by {wrong.entry}, similarity {wrong.similarity:.3f},"
            f" {at:%Y-%m-%d %H:%M} UTC",
            highlight=False,
            soft_wrap=True,  # ids stay whole, to be copied
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

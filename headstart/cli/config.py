"""``headstart config``: check or show the settings in force."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import anyio
import click
import msgspec

from headstart.cli.configured import config_option
from headstart.config import discover_upstreams, load_settings, masked
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from headstart.cli.config_report import ConfigReport

EPILOG = """\b
Examples:
  headstart config check --config headstart.toml
  headstart config check --live
  headstart config check --json | jq .problems
"""


@click.group(epilog="\b\nExample:\n  headstart config check --config headstart.toml")
def config() -> None:
    """Check or show the configuration."""


@config.command(epilog=EPILOG, short_help="Say what is wrong with it; --live asks each upstream.")
@config_option
@click.option("--live", is_flag=True, help="Ask each upstream for one token (costs next to none).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(path: Path | None, live: bool, as_json: bool) -> None:
    """Validate settings, the variables and files they name, models and routes.

    Offline unless --live is given. Prints each upstream with its key variables, how many models
    and prices are known of it and whether an abort stops its bill; each route with its members
    and the model that they are asked for; then notes, which are harmless, and problems. Exits 1
    if there is a problem, 2 if the settings cannot be read.
    """
    from headstart.cli.config_report import report_on

    try:
        settings = load_settings(path, os.environ)
    except ConfigError as error:
        if as_json:
            _print_json({"valid": False, "problems": str(error).splitlines()})
        raise
    report = report_on(settings, os.environ)
    if live and not report.problems and settings.upstream:
        from headstart.cli.live import ask_all

        results = tuple(anyio.run(ask_all, settings))
        report = msgspec.structs.replace(
            report,
            live=results,
            problems=tuple(f"{each.upstream}: {each.error}" for each in results if each.error),
        )
    if as_json:
        _print_json({"valid": not report.problems, **msgspec.to_builtins(report)})
    else:
        _print(report)
    if report.problems:
        raise SystemExit(1)


@config.command(
    epilog="\b\nExample:\n  headstart config show",
    short_help="Print what is in force as JSON, secrets masked.",
)
@config_option
def show(path: Path | None) -> None:
    """Print the settings in force as JSON, secrets masked and presets filled in."""
    _print_json(masked(load_settings(path, os.environ)))


def _print(report: ConfigReport) -> None:
    from headstart.cli.config_report import tables

    for line in tables(report):
        click.echo(line)
    if not report.upstreams:
        _, found = discover_upstreams(os.environ)
        for note in found or ("no [[upstream]], and no key of a provider in its usual variable",):
            click.echo(f"serve would use: {note}" if found else note)
    for note in report.notes:
        click.echo(f"note: {note}")
    for problem in report.problems:
        click.echo(f"problem: {problem}", err=True)
    if not report.problems:
        click.echo("the configuration is valid")


def _print_json(value: dict[str, Any]) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())

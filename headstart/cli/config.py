"""``headstart config``: check or show the settings in force."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from headstart.config import load_settings, masked

_path = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="headstart.toml; without it, defaults and the environment.",
)


@click.group(epilog="\b\nExample:\n  headstart config check --config headstart.toml")
def config() -> None:
    """Check or show the configuration."""


@config.command(epilog="\b\nExample:\n  headstart config check --config headstart.toml")
@_path
def check(path: Path | None) -> None:
    """Validate settings and the variables that they name, offline."""
    settings = load_settings(path, os.environ)
    missing = [
        f"upstream {upstream.name!r} names {upstream.api_key_env}, which is not set"
        for upstream in settings.upstream
        if upstream.api_key_env is not None and not os.environ.get(upstream.api_key_env)
    ]
    for problem in missing:
        click.echo(problem, err=True)
    if missing:
        raise SystemExit(1)
    click.echo("the configuration is valid")


@config.command(epilog="\b\nExample:\n  headstart config show")
@_path
def show(path: Path | None) -> None:
    """Print the settings in force as JSON, secrets masked."""
    values = masked(load_settings(path, os.environ))
    click.echo(msgspec.json.format(msgspec.json.encode(values)).decode())

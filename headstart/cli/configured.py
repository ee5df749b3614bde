"""The option that names the configuration, the same for all commands."""

from __future__ import annotations

from pathlib import Path

import click

USUAL = Path("headstart.toml")


def _usual(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:  # noqa: ARG001 - click's signature
    return USUAL if value is None and USUAL.is_file() else value


config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_usual,
    help="Configuration file.  [default: ./headstart.toml, if there is one]",
)

"""``headstart replay``: one log, several match policies, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from headstart.cli import lab
from headstart.cli.lab_input import play_all, query_option, read_material

if TYPE_CHECKING:
    import re

    from headstart.lab.rates import Ordering

EPILOG = """\b
Examples:
  headstart replay log.jsonl
  headstart replay log.jsonl --policy bare:0.9 --policy static:0.9 --policy verified:1% --json
"""
POLICIES = ("off", "static:0.90", "verified")


@click.command(epilog=EPILOG)
@click.argument(
    "paths",
    metavar="LOG.jsonl...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=POLICIES,
    show_default=True,
    help="verified, verified:1%, static:0.90, bare:0.90 (no guards) or off. Repeat it.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Start from what headstart tune has learned.",
)
@query_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(
    paths: tuple[Path, ...],
    policies: tuple[str, ...],
    state: Path | None,
    pattern: re.Pattern[str] | None,
    as_json: bool,
) -> None:
    """Play a log, labelled pairs or a labelled stream in order against each policy from cold.

    docs/tuning.md says which logs can be read, and what counts as a wrong hit.
    """
    from headstart.lab.contenders import Setup, contender_of
    from headstart.lab.rates import ordering_report
    from headstart.policies.ratchet.settings import JudgeNoise

    snapshot = state.read_bytes() if state else None
    for name in policies:
        contender_of(name, Setup(guards=True, noise=JudgeNoise(), state=snapshot))
    material = read_material(paths, pattern)
    setup = Setup(guards=True, noise=material.noise, state=snapshot)
    found = {
        name: ordering_report(play_all(material, contender_of(name, setup)(), name), None)
        for name in policies
    }
    if as_json:
        document = {"policies": found, "skipped": material.skipped}
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
    else:
        _print(found)


def _print(found: dict[str, Ordering]) -> None:
    from rich.console import Console

    rows = ((name, [f"{rates.hits:,}"], rates) for name, rates in found.items())
    Console().print(lab.comparison("policy", rows, "served"))

"""``headstart evaluate``: how often the match policy hits, and how often it is wrong."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.policies.evaluation import PairReport, Prepared, Rates, StreamReport
    from headstart.policies.guards.parse import Parse
    from headstart.policies.match import StaticMatch

T = TypeVar("T")

EPILOG = """\b
Examples:
  headstart evaluate pairs.jsonl
  headstart evaluate stream.jsonl --policy static:0.95 --no-guards --seed 1 --json

\b
Lines of pairs:     {"a": "…", "b": "…", "same_answer": true, "category": "…"}
Lines of a stream:  {"prompt": "…", "class": "…"}

Texts may be message lists: then the history must be equal, and the last user text similar.
"""


@click.command(epilog=EPILOG)
@click.argument(
    "path",
    metavar="PAIRS_OR_STREAM.jsonl",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@click.option("--policy", default="static", help="static, or static:THRESHOLD.", show_default=True)
@click.option("--guards/--no-guards", default=True, help="Let guards veto.", show_default=True)
@click.option("--seed", type=int, help="Shuffle a stream; without it, the file's order.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(path: Path, policy: str, guards: bool, seed: int | None, as_json: bool) -> None:
    """Judge the match policy on labelled pairs or on a stream with classes."""
    match = _policy(policy, guards=guards)
    report = _judge(path, match, seed)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        _print(report, match.minimum)


def _policy(name: str, *, guards: bool) -> StaticMatch:
    from headstart.policies.match import GUARDS, StaticMatch

    kind, _, threshold = name.partition(":")
    if kind != "static":
        raise ConfigError(f"--policy {name}: use static or static:THRESHOLD, as in static:0.90")
    try:
        value = float(threshold) if threshold else None
    except ValueError as error:
        raise ConfigError(f"--policy {name}: {threshold!r} is not a number") from error
    return StaticMatch(value, tuple(GUARDS) if guards else ())


def _judge(path: Path, policy: StaticMatch, seed: int | None) -> PairReport | StreamReport:
    from headstart.embeddings.encoder import OnnxEncoder
    from headstart.policies.evaluation import Prepared, judge_pairs, judge_stream
    from headstart.policies.labelled import Pairs, read_labelled

    with path.open("rb") as lines:
        labelled = read_labelled(lines)
    encoder = OnnxEncoder()

    @lru_cache(maxsize=4096)
    def prepare(text: str) -> Prepared[Parse]:
        encoding = encoder.encode(text)
        return Prepared(encoding.sentence, policy.prepare(text, encoding), encoding.complete)

    if isinstance(labelled, Pairs):
        return judge_pairs(_tracked(labelled.rows), prepare, policy)
    prompts = list(labelled.without_repeats().rows)
    if seed is not None:
        random.Random(seed).shuffle(prompts)  # noqa: S311  an order, not a secret
    return judge_stream(_tracked(prompts), prepare, policy)


def _tracked(rows: Sequence[T]) -> Iterable[T]:
    """Show progress on a terminal's error stream, so that output stays clean for pipes."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(rows, "Judging", console=console, transient=True, disable=not console.is_terminal)


def _print(report: PairReport | StreamReport, threshold: float) -> None:
    from headstart.policies.evaluation import PairReport

    click.echo(f"{report.n} prompts, static policy at similarity {threshold}")
    for name in ("hit_rate", "wrong_per_hit", "wrong_per_request"):
        click.echo(f"  {name.replace('_', ' '):18} {_share(report, name)}")
    if isinstance(report, PairReport):
        click.echo(f"  genuine served     {report.genuine_served} of {report.genuine}")
        click.echo(f"  traps served       {report.traps_served} of {report.traps}")
        for name, served in report.categories.items():
            click.echo(
                f"    {name:16} genuine {served.genuine_served}/{served.genuine}, "
                f"traps {served.traps_served}/{served.traps}"
            )
    refused = ", ".join(f"{name} {count}" for name, count in report.refused.items())
    click.echo(f"  refused by         {refused or 'nothing'}")


def _share(report: Rates, name: str) -> str:
    interval = report.intervals[name]
    if interval is None:
        return "none: nothing was served"
    return f"{getattr(report, name):.2%} (95 %: {interval.low:.2%} to {interval.high:.2%})"

"""``headstart evaluate``: how often the match policy hits, and how often it is wrong."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from headstart.cli import lab
from headstart.cli.lab_input import same_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.lab.contenders import Contender
    from headstart.lab.labelled import Pairs, Stream
    from headstart.lab.pairs import PairReport
    from headstart.lab.rates import StreamReport
    from headstart.policies.ratchet.settings import JudgeNoise

EPILOG = """\b
Examples:
  headstart evaluate pairs.jsonl --max-error 2%
  headstart evaluate stream.jsonl --max-error 1% --judge real --orderings 3 --json
  headstart evaluate stream.jsonl --policy static:0.95 --no-guards --seed 1
  headstart evaluate stream.jsonl --fail-over 1%

\b
Lines of pairs:     {"a": "…", "b": "…", "same_answer": true, "category": "…"}
Lines of a stream:  {"prompt": "…", "class": "…", "query": "…", "category": "…"}

category and query may be missing. Texts may be message lists: then what was said before must mean
the same, as in production. query names the question inside a templated prompt.
"""


@click.command(epilog=EPILOG)
@click.argument(
    "path",
    metavar="PAIRS_OR_STREAM.jsonl",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@click.option(
    "--max-error",
    type=lab.Share(),
    help="Share of wrong hits to promise.  [default: the product's]",
)
@click.option(
    "--policy",
    default="verified",
    help="verified, verified:1%, static, static:0.90, bare:0.90 or off.",
    show_default=True,
)
@click.option("--guards/--no-guards", default=True, help="Let guards veto.", show_default=True)
@click.option(
    "--judge",
    default="oracle",
    help="Who labels a stream: oracle, real (errs as the shipped judge) or noise=BETA,ALPHA.",
    show_default=True,
)
@click.option("--seed", type=int, help="Shuffle a stream; without it, the file's order.")
@click.option(
    "--orderings", type=click.IntRange(1), default=1, help="Play a stream so often, reshuffled."
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Start from what headstart tune has learned.",
)
@click.option(
    "--fail-over", type=lab.Share(), help="Exit with 1 if more hits are wrong for certain."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    path: Path,
    max_error: float | None,
    policy: str,
    guards: bool,
    judge: str,
    seed: int | None,
    orderings: int,
    state: Path | None,
    fail_over: float | None,
    as_json: bool,
) -> None:
    """Judge the match policy on labelled pairs or on a stream with classes.

    Pairs teach nothing, so verified judges them by its cold-start rule, as if the first near
    misses had had the same answers; before those it would serve pairs from similarity 0.98 alone.
    A stream is played in order into an empty cache, and verified learns from it as it goes.
    """
    from headstart.lab.contenders import Setup, contender_of
    from headstart.lab.judges import judge_noise
    from headstart.lab.labelled import Pairs, read_labelled

    noise = judge_noise(judge)
    with path.open("rb") as lines:
        labelled = read_labelled(lines)
    prior = state.read_bytes() if state else None
    setup = Setup(guards, noise, max_error, prior, settled=isinstance(labelled, Pairs))
    contender = contender_of(policy, setup)
    report: PairReport | StreamReport
    if isinstance(labelled, Pairs):
        report = _judge_pairs(labelled, contender())
    else:
        seeds: list[int | None] = [seed]
        if orderings > 1:
            seeds = [(seed or 0) + place for place in range(orderings)]
        report = _play(labelled, contender, noise, seeds)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        _print(report, policy)
    lab.fail_over(report, fail_over)


def _judge_pairs(pairs: Pairs, contender: Contender) -> PairReport:
    from headstart.lab.pairs import judge_pairs

    prepare = lab.encoded(side.query for pair in pairs.rows for side in (pair.a, pair.b))
    return judge_pairs(lab.tracked(pairs.rows, "Judging"), prepare, contender.policy)


def _play(
    stream: Stream,
    make: Callable[[], Contender],
    noise: JudgeNoise,
    seeds: list[int | None],
) -> StreamReport:
    from headstart.lab.conversations import history_judge
    from headstart.lab.judges import noisy
    from headstart.lab.rates import ordering_report, stream_report
    from headstart.lab.stream import Game, play

    rows = stream.rows
    prepare = lab.encoded(row.prompt.query for row in rows)
    orderings = []
    for seed in seeds:
        contender = make()
        chance = random.Random(seed or 0)  # noqa: S311 - must be repeatable, guards no secret
        ordered = list(rows)
        if seed is not None:
            chance.shuffle(ordered)
        judge = noisy(same_class, noise, chance.random)
        game = Game(
            contender.policy,
            contender.domain,
            same_class,
            judge,
            chance.random,
            history_judge(contender.policy, prepare),
        )
        steps = play(lab.tracked(ordered, "Playing"), prepare, game)
        orderings.append(ordering_report(steps, seed))
    return stream_report(orderings)


def _print(report: PairReport | StreamReport, policy: str) -> None:
    from headstart.lab.pairs import PairReport

    click.echo(f"{report.n:,} prompts, {policy}")
    for name in ("hit_rate", "wrong_per_hit", "wrong_per_request"):
        click.echo(f"  {name.replace('_', ' '):18} {lab.share_with_interval(report, name)}")
    click.echo(f"  at least           {report.wrong_per_hit_at_least:.2%} of hits (one-sided 95 %)")
    if isinstance(report, PairReport):
        click.echo(f"  genuine served     {report.genuine_served} of {report.genuine}")
        click.echo(f"  traps served       {report.traps_served} of {report.traps}")
        for name, served in report.categories.items():
            click.echo(
                f"    {name:16} genuine {served.genuine_served}/{served.genuine}, "
                f"traps {served.traps_served}/{served.traps}"
            )
    else:
        for name, category in report.categories.items():
            click.echo(f"    {name:16} hits {category.hits}/{category.n}, wrong {category.wrong}")
    refused = ", ".join(f"{name} {count}" for name, count in report.refused.items())
    click.echo(f"  refused by         {refused or 'nothing'}")

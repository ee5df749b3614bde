"""``headstart evaluate``: how often the match policy hits, and how often it is wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from headstart.cli.data_sources import read_lines
from headstart.cli.options import (
    COUNT,
    OLD_FILE,
    Share,
    argument,
    command,
    json_field,
    option,
    print_json,
)
from headstart.lab.commands import playing
from headstart.lab.rates import (
    PairReport,
    Pairs,
    judge_pairs,
    ordering_report,
    read_labelled,
    same_class,
    stream_report,
)
from headstart.lab.stream import (
    POLICIES,
    PolicySetup,
    TestedPolicy,
    judge_noise,
    noisy,
    policy_maker,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headstart.lab.rates import Stream, StreamReport
    from headstart.policies.learned_rule.error_limit import JudgeNoise


ORDERINGS_HELP = "Times to play a stream, each in another order."
JUDGE_HELP = (
    "Judge that labels a stream: oracle, real (errs like the shipped judge) or noise=BETA,ALPHA."
)


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of ``headstart evaluate``."""

    path: Path = argument("PAIRS_OR_STREAM.jsonl", OLD_FILE)
    max_error: float | None = option(None, playing.MAX_ERROR_HELP, Share())
    policy: str = option("verified", f"{POLICIES}.")
    guards: bool = option(default=True, help="Let guards veto.", flags="--guards/--no-guards")
    judge: str = option("oracle", JUDGE_HELP)
    seed: int | None = option(None, "Shuffle a stream; without it, the file's order.", click.INT)
    orderings: int = option(1, ORDERINGS_HELP, COUNT, show_default=False)
    state: Path | None = option(None, playing.STATE_HELP, OLD_FILE)
    fail_over: float | None = option(None, playing.FAIL_OVER_HELP, Share())
    as_json: bool = json_field()


@command(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> None:
    """Judge the match policy on labelled pairs or on a stream with classes.

    A stream is played in order into an empty cache, and the policy "verified" learns from each
    prompt. From pairs it learns nothing: it judges each pair as a new deployment does after its
    first comparisons, if those found equal answers. (Before them it serves only pairs with a
    similarity of 0.98 or more.)

    Examples:
      headstart evaluate pairs.jsonl --max-error 2%
      headstart evaluate stream.jsonl --max-error 1% --judge real --orderings 3 --json
      headstart evaluate stream.jsonl --policy static:0.95 --no-guards --seed 1
      headstart evaluate stream.jsonl --fail-over 1%

    Lines of pairs:     {"a": "…", "b": "…", "same_answer": true, "category": "…"}
    Lines of a stream:  {"prompt": "…", "class": "…", "query": "…", "category": "…"}

    category and query may be missing. Texts may be lists of messages: then the earlier messages
    must mean the same, as in production. query names the question inside a templated prompt.
    """
    noise = judge_noise(options.judge)
    with playing.file_names_in_errors(options.path):
        labelled = read_labelled(read_lines(options.path))
    prior = options.state.read_bytes() if options.state else None
    is_pairs = isinstance(labelled, Pairs)
    setup = PolicySetup(options.guards, noise, options.max_error, prior, optimistic=is_pairs)
    make = policy_maker(options.policy, setup)
    policy = make().policy  # before the long work, because it reads the state
    report: PairReport | StreamReport
    if isinstance(labelled, Pairs):
        prepare = playing.encode_all(key for pair in labelled.rows for key in (pair.a, pair.b))
        report = judge_pairs(playing.show_progress(labelled.rows, "Judging"), prepare, policy)
    else:
        seeds: list[int | None] = [options.seed]
        if options.orderings > 1:
            seeds = [(options.seed or 0) + place for place in range(options.orderings)]
        report = _play(labelled, make, noise, seeds)
    if options.as_json:
        print_json(report)
    else:
        _print(report, options.policy)
    playing.exit_if_more_wrong(report, options.fail_over)


def _play(
    stream: Stream,
    make: Callable[[], TestedPolicy],
    noise: JudgeNoise,
    seeds: list[int | None],
) -> StreamReport:
    prepare = playing.encode_all(row.prompt for row in stream.rows)
    orderings = []
    for seed in seeds:
        chance = random.Random(seed or 0)  # noqa: S311 - must be repeatable, guards no secret
        rows = list(stream.rows)
        if seed is not None:
            chance.shuffle(rows)
        judge = noisy(same_class, noise, chance.random)
        played = playing.play_rows(
            rows, prepare, make(), same_class, "Playing", chance, judge=judge
        )
        orderings.append(ordering_report(played, seed))
    return stream_report(orderings)


def _print(report: PairReport | StreamReport, policy: str) -> None:
    click.echo(f"{report.n:,} prompts, {policy}")
    for name in ("hit_rate", "wrong_per_hit", "wrong_per_request"):
        click.echo(f"  {name.replace('_', ' '):18} {playing.share_with_interval(report, name)}")
    click.echo(f"  wrong at least     {report.wrong_per_hit_at_least:.2%} of hits (one-sided 95 %)")
    if isinstance(report, PairReport):
        click.echo(f"  same answer        {report.genuine_served} of {report.genuine} served")
        click.echo(f"  different answers  {report.traps_served} of {report.traps} served, wrongly")
        for name, served in report.categories.items():
            click.echo(
                f"    {name:16} same answer {served.genuine_served}/{served.genuine}, "
                f"different answers {served.traps_served}/{served.traps}"
            )
    else:
        for name, category in report.categories.items():
            click.echo(f"    {name:16} hits {category.hits}/{category.n}, wrong {category.wrong}")
    refused = ", ".join(f"{name} {count}" for name, count in report.refused.items())
    click.echo(f"  refused by         {refused or 'nothing'}")

"""``headstart bench``: measure providers with your own prompts, and recommend a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import anyio
import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from headstart.cli.data_sources import lines_of
from headstart.cli.options import (
    ABOVE_ZERO,
    COUNT,
    OLD_FILE,
    Share,
    command,
    config_field,
    json_field,
    number_table,
    option,
    print_json,
)
from headstart.lab.bench import (
    MIX,
    BenchPrompt,
    Capacity,
    LoadStep,
    ProviderFigures,
    Recommendation,
    Sample,
    SampleQuantiles,
    Subject,
    capacity_of,
    figures_of,
    read_prompts,
    recommend,
)
from headstart.lab.commands.bench_calls import (
    BenchPlan,
    Source,
    judge_target,
    measure,
    open_configured,
    open_simulated,
)
from headstart.lab.quality import Quality, QualityChoice, choose, qualities
from headstart.policies.routing.failures import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.table import Table

NAMES = "NAME,NAME"
PROMPTS_HELP = (
    'Your prompts: one text per line, or .jsonl with "prompt" or "messages".  [default: a mix]'
)
PARALLEL_HELP = "Warm calls at a time, of each provider and model. 1,4,16,64 finds the knee."
JUDGE_HELP = 'Model that judges an answer that does not contain the words of "expect".'
QUALITY_HELP = "Least share of right answers: the report names the cheapest model that has it."
MOST_PARALLEL = 1000
"""The largest number in ``--concurrency``."""


@dataclass(frozen=True)
class BenchOptions:
    """The options of ``headstart bench``."""

    path: Path | None = config_field()
    simulate: str | None = option(None, "Simulated providers: no key, no network.", metavar=NAMES)
    upstream: tuple[str, ...] = option(
        (), "Measure only this upstream; may be given again.", multiple=True
    )
    model: tuple[str, ...] = option((), "Model to ask for; may be given again.", multiple=True)
    prompts: Path | None = option(None, PROMPTS_HELP, OLD_FILE)
    calls: int = option(100, "Warm calls (on open connections) of each provider and model.", COUNT)
    cold: int = option(
        3, "Calls before the warm ones, each on a connection of its own.", click.IntRange(0)
    )
    concurrency: str = option("4", PARALLEL_HELP, metavar="N,N")
    judge: str | None = option(None, JUDGE_HELP, metavar="MODEL")
    quality: float | None = option(None, QUALITY_HELP, Share())
    max_tokens: int = option(256, "Longest answer; a prompt may ask for less.", COUNT)
    timeout: float = option(120, "Seconds until a call counts as failed.", ABOVE_ZERO)
    seed: int = option(0, "Seed of the simulated providers.")
    speed: float = option(1.0, "Run simulated providers this many times faster.", ABOVE_ZERO)
    as_json: bool = json_field()


@command(BenchOptions)
def bench(options: BenchOptions) -> None:
    """Measure the time to first token, speed, errors and cost of providers.

    Every provider is called directly, in its own dialect: --calls with each model, --concurrency
    at a time, after --cold calls on connections of their own. Real providers bill these calls. The
    command exits with 1 if no provider answers. Ctrl-C reports the figures so far and exits with
    130.

    With several numbers in --concurrency, each is one step, and the report shows the knee: the
    number of calls at a time above which the provider gives no more answers per second. Prompts
    with "expect" are checked: an answer is right if it contains the words of "expect", or if the
    model of --judge says so.

    Examples:
      headstart bench --simulate groq,together
      headstart bench --config headstart.toml --model llama-3.3-70b --prompts prompts.jsonl
      headstart bench --upstream groq --calls 20 --concurrency 1 --json
      headstart bench --upstream my-gpu --concurrency 1,4,16,64
      headstart bench --prompts checked.jsonl --model gpt-5 --model gpt-5-mini --quality 90%
    """
    plan, source = _plan(options), _source(options)
    collected = _Collected([], [], {})
    whole = _run(source, plan, options.judge, collected)
    found = _found(collected, plan, options.quality)
    if options.as_json:
        _print_json(found, plan, whole=whole)
    else:
        _print(found)
    if not whole:
        raise SystemExit(130)
    if not any(figure.total_s for figure in found.figures):
        raise SystemExit(1)


def _plan(options: BenchOptions) -> BenchPlan:
    """Return the calls to make. Raises ConfigError or UsageError."""
    prompts = read_bench_prompts(options.prompts)
    if not any(prompt.expect for prompt in prompts) and (options.judge or options.quality):
        raise click.UsageError('--judge and --quality need --prompts with "expect" in some lines')
    return BenchPlan(
        prompts=prompts,
        calls=options.calls,
        cold=options.cold,
        concurrency=_steps(options.concurrency),
        max_tokens=options.max_tokens,
        timeout_s=options.timeout,
        speed=options.speed,
    )


def _source(options: BenchOptions) -> Source:
    """Return the providers to call: simulated or real ones. Raises UsageError."""
    if options.simulate is not None:
        names = tuple(filter(None, options.simulate.split(",")))
        return open_simulated(names, options.seed, options.speed)
    if options.speed != 1.0:
        raise click.UsageError("--speed is for --simulate: real time cannot be compressed")
    return open_configured(options.path, options.upstream, options.model)


class _Found(NamedTuple):
    """The results of a run."""

    figures: list[ProviderFigures]
    route: Recommendation | None
    capacity: list[Capacity]
    quality: tuple[Quality, ...]
    choice: QualityChoice | None


def _found(collected: _Collected, plan: BenchPlan, least_right: float | None) -> _Found:
    """Return the figures of the calls. ``least_right`` is the least share of right answers."""
    samples, prices = collected.samples, collected.usd_per_hour
    answered = {sample.subject for sample in samples}
    subjects = tuple(each for each in collected.subjects if each in answered)
    fewest = [s for s in samples if s.cold or s.concurrency == plan.concurrency[0]]
    quality = qualities(subjects, samples)
    return _Found(
        figures=[figures_of(subject, fewest) for subject in subjects],
        route=recommend(subjects, fewest),
        capacity=[capacity_of(each, samples, prices.get(each.upstream)) for each in subjects],
        quality=quality,
        choice=None if least_right is None else choose(quality, least_right),
    )


def _steps(text: str) -> tuple[int, ...]:
    """Return the numbers of calls at a time, the smallest first."""
    try:
        steps = sorted({int(each) for each in text.split(",")})
    except ValueError:
        steps = []
    if not steps or not 1 <= steps[0] <= steps[-1] <= MOST_PARALLEL:
        raise click.UsageError(
            f"--concurrency: {text!r} is not a list of numbers from 1 to {MOST_PARALLEL}, as 1,4,16"
        )
    return tuple(steps)


def read_bench_prompts(path: Path | None) -> tuple[BenchPrompt, ...]:
    """Return the prompts of a file, or the usual mix. Raises ConfigError."""
    if path is None:
        return MIX
    return read_prompts(path.name, lines_of(path))


class _Collected(NamedTuple):
    """The samples of a run so far, and the prices of machines."""

    subjects: list[Subject]
    """In the order in which the user named them."""
    samples: list[Sample]
    usd_per_hour: dict[str, float]
    """The hourly price of the user's own machines, by upstream."""


def _run(source: Source, plan: BenchPlan, judge: str | None, collected: _Collected) -> bool:
    """Measure into ``collected``, with progress on a terminal's error stream.

    Returns False when Ctrl-C ended the measurement early.
    """
    console = Console(stderr=True)

    async def call() -> None:
        async with source as (settings, targets, notes):
            for note in notes:
                console.print(note, highlight=False)
            total = plan.total * len(targets)
            bar = progress.add_task(f"{total} calls", total=total)

            def record(sample: Sample) -> None:
                collected.samples.append(sample)
                progress.advance(bar)

            collected.subjects.extend(target.subject for target in targets)
            collected.usd_per_hour.update(
                (target.upstream.name, target.upstream.price_per_hour)
                for target in targets
                if target.upstream.price_per_hour is not None
            )
            judging = None if judge is None else judge_target(settings, judge)
            await measure(settings, targets, plan._replace(judge=judging), record)

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        try:
            anyio.run(call)
        except KeyboardInterrupt:
            return False
    return True


def _print_json(found: _Found, plan: BenchPlan, *, whole: bool) -> None:
    route = found.route
    print_json(
        {
            "whole": whole,
            "calls": plan.calls,
            "cold": plan.cold,
            "concurrency": plan.concurrency,
            "measured": found.figures,
            "steps": found.capacity,
            "quality": found.quality,
            "choice": found.choice,
            "recommended": route and {**msgspec.to_builtins(route), "toml": route.toml()},
        }
    )


def _print(found: _Found) -> None:

    console = Console()
    console.print(_figures_table(found.figures))
    for each in found.figures:
        for note in _notes(each):
            click.echo(f"{each.upstream} {each.model}: {note}")
    for capacity in found.capacity:
        if len(capacity.steps) > 1:
            _print_steps(console, capacity)
    if found.quality:
        _print_quality(console, found.quality, found.choice)
    if found.route is None:
        click.echo("\nno route can be recommended: no provider answered reliably")
    else:
        click.echo(f"\nfor headstart.toml:\n\n{found.route.toml()}", nl=False)


def _figures_table(figures: list[ProviderFigures]) -> Table:
    table = number_table(
        "\n", "errs\n", "first, s\np50", "\np95", "\np99", "\ncold", "tok/s\np50", "\np95",
        "whole, s\np50", "\np95", "\np99", "$ for\n1,000",
    )  # fmt: skip
    for found in figures:
        table.add_row(
            f"{found.upstream}\n[dim]{found.model}[/dim]",
            f"{found.error_rate:.1%}",
            *_cells(found.ttft_s),
            *_cells(found.cold_ttft_s)[:1],
            *_cells(found.tokens_per_s, ".0f")[:2],
            *_cells(found.total_s),
            "?" if found.cost_usd is None else f"{found.cost_usd * 1000:.3g}",
        )
    return table


def _print_steps(console: Console, capacity: Capacity) -> None:
    where = f" in {capacity.region}" if capacity.region else ""
    console.print(f"\n[bold]{capacity.upstream} {capacity.model}{where}[/], by calls at a time")
    table = number_table(
        "\n", "errs\n", "answers\n/s", "tok/s\nin all", "first, s\np50", "\np95", "tok/s\na call",
        "whole, s\np50", "$ an\nhour", "tok/s for\n$1/hour",
    )  # fmt: skip
    for step in capacity.steps:
        table.add_row(str(step.concurrency), *_step_cells(step))
    console.print(table)
    if capacity.knee is None:
        console.print("no knee up to here: more calls at a time still bring more")
    else:
        console.print(f"knee: {capacity.knee:.0f} calls at a time; beyond it calls only wait")


def _step_cells(step: LoadStep) -> tuple[str, ...]:
    return (
        f"{step.errors / step.calls:.1%}",
        _number(step.answers_per_s),
        _number(step.tokens_per_s),
        *_cells(step.ttft_s)[:2],
        *_cells(step.call_tokens_per_s, ".0f")[:1],
        *_cells(step.total_s)[:1],
        _number(step.usd_per_hour),
        _number(step.tokens_per_s_per_usd),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _print_quality(
    console: Console, found: Sequence[Quality], choice: QualityChoice | None
) -> None:
    console.print("\n[bold]right answers[/] (95 % intervals)")
    table = number_table(
        "\n", "prompts\n", "right\n", "from\nto", "behind\nthe best", "from\nto", "$ for\n1,000"
    )
    for each in found:
        behind = each.behind_interval
        table.add_row(
            f"{each.upstream}\n[dim]{each.model}[/dim]",
            str(each.prompts),
            f"{each.right:.1%}",
            f"{each.interval.low:.1%}\n{each.interval.high:.1%}",
            f"{each.behind_best:.1%}",
            "-" if behind is None else f"{behind.low:.1%}\n{behind.high:.1%}",
            "?" if each.cost_usd is None else f"{each.cost_usd * 1000:.3g}",
        )
    console.print(table)
    if choice is None:
        return
    if choice.model is None:
        console.print(f"no model surely gives {choice.bar:.0%} right answers")
    else:
        console.print(
            f"cheapest with {choice.bar:.0%} right answers or more: "
            f"[bold]{choice.upstream} {choice.model}[/]"
        )
    if choice.possible:
        console.print(
            f"cheaper, and not decided by these prompts: {', '.join(choice.possible)}. "
            "More prompts make the intervals narrower."
        )


def _cells(found: SampleQuantiles | None, form: str = ".2f") -> tuple[str, str, str]:
    if found is None:
        return ("-", "-", "-")
    return (format(found.p50, form), format(found.p95, form), format(found.p99, form))


def _notes(found: ProviderFigures) -> Iterator[str]:

    for kind, count in found.errors.items():
        fix = "; take --prompts that fit" if kind == FailureKind.CONTEXT_TOO_LONG else ""
        yield f"{count} of {found.calls} calls failed: {kind}{fix}"
    if found.cached_share:
        yield f"{found.cached_share:.0%} of the prompt tokens came from its cache"
    if found.estimated:
        yield "some tokens were not reported, but estimated"

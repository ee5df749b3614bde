"""``headstart bench``: measure providers with your own prompts, and recommend a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import click
import msgspec

from headstart.cli.options import (
    COUNT,
    JSON,
    OLD_FILE,
    command,
    config_field,
    flag,
    option,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headstart.lab.bench import (
        BenchPrompt,
        ProviderFigures,
        Recommendation,
        Sample,
        SampleQuantiles,
    )
    from headstart.lab.commands.bench_calls import BenchPlan, Source

NAMES = "NAME,NAME"
PROMPTS_HELP = (
    'Your prompts: a text a line, or .jsonl with "prompt" or "messages".  [default: a mix]'
)
PARALLEL = click.IntRange(1, 1000)
ABOVE_ZERO = click.FloatRange(0, min_open=True)


@dataclass(frozen=True)
class BenchOptions:
    """The options of ``headstart bench``."""

    path: Path | None = config_field()
    simulate: str | None = option(None, "Simulated providers: no key, no network.", metavar=NAMES)
    upstream: tuple[str, ...] = option((), "Measure only this one. Repeat it.", multiple=True)
    model: tuple[str, ...] = option((), "What to ask for. Repeat it.", multiple=True)
    prompts: Path | None = option(None, PROMPTS_HELP, OLD_FILE)
    calls: int = option(100, "Warm calls of each provider and model.", COUNT)
    cold: int = option(3, "Calls before those, each on a connection of its own.", click.IntRange(0))
    concurrency: int = option(4, "Warm calls at a time, of each provider and model.", PARALLEL)
    max_tokens: int = option(256, "Longest answer; a prompt may ask for less.", COUNT)
    timeout: float = option(120, "Seconds until a call counts as failed.", ABOVE_ZERO)
    seed: int = option(0, "Of simulated providers.")
    speed: float = option(1.0, "Run simulated providers this many times faster.", ABOVE_ZERO)
    as_json: bool = flag(JSON, "--json")


@command(BenchOptions)
def bench(options: BenchOptions) -> None:
    """Measure time to first token, tokens per second, errors and cost, each by itself.

    Every provider is called directly, in its own dialect: --calls with each model, --concurrency
    at a time, after --cold calls on connections of their own. Real providers bill for it. Exits 1
    if nobody answers; Ctrl-C reports what was measured so far and exits 130.

    Examples:
      headstart bench --simulate groq,together
      headstart bench --config headstart.toml --model llama-3.3-70b --prompts prompts.jsonl
      headstart bench --upstream groq --calls 20 --concurrency 1 --json
    """
    from headstart.lab.bench import figures_of, recommend
    from headstart.lab.commands.bench_calls import BenchPlan, configured, simulated

    plan = BenchPlan(
        prompts=_prompts(options.prompts),
        calls=options.calls,
        cold=options.cold,
        concurrency=options.concurrency,
        max_tokens=options.max_tokens,
        timeout_s=options.timeout,
        speed=options.speed,
    )
    if options.simulate is not None:
        names = tuple(filter(None, options.simulate.split(",")))
        source = simulated(names, options.seed, options.speed)
    elif options.speed != 1.0:
        raise click.UsageError("--speed is for --simulate: real time cannot be compressed")
    else:
        source = configured(options.path, options.upstream, options.model)
    samples: list[Sample] = []
    whole = _run(source, plan, samples)
    subjects = tuple(dict.fromkeys(sample.subject for sample in samples))
    figures = [figures_of(subject, samples) for subject in subjects]
    route = recommend(subjects, samples)
    if options.as_json:
        _print_json(figures, route, plan, whole=whole)
    else:
        _print(figures, route)
    if not whole:
        raise SystemExit(130)
    if not any(figure.total_s for figure in figures):
        raise SystemExit(1)


def _prompts(path: Path | None) -> tuple[BenchPrompt, ...]:
    from headstart.lab.bench import MIX, read_prompts

    if path is None:
        return MIX
    with path.open("rb") as lines:
        return read_prompts(path.name, lines)


def _run(source: Source, plan: BenchPlan, samples: list[Sample]) -> bool:
    """Measure into ``samples``, with progress on a terminal's error stream.

    Returns False when Ctrl-C ended the measurement early.
    """
    from rich.console import Console
    from rich.progress import Progress

    from headstart.lab.commands.bench_calls import measure

    console = Console(stderr=True)

    async def run() -> None:
        async with source as (settings, targets, notes):
            for note in notes:
                console.print(note, highlight=False)
            total = (plan.calls + plan.cold) * len(targets)
            bar = progress.add_task(f"{total} calls", total=total)

            def record(sample: Sample) -> None:
                samples.append(sample)
                progress.advance(bar)

            await measure(settings, targets, plan, record)

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        try:
            anyio.run(run)
        except KeyboardInterrupt:
            return False
    return True


def _print_json(
    figures: list[ProviderFigures], route: Recommendation | None, plan: BenchPlan, *, whole: bool
) -> None:
    print_json(
        {
            "whole": whole,
            "calls": plan.calls,
            "cold": plan.cold,
            "concurrency": plan.concurrency,
            "measured": [{**msgspec.to_builtins(f), "error_rate": f.error_rate} for f in figures],
            "recommended": route and {**msgspec.to_builtins(route), "toml": route.toml()},
        }
    )


def _print(figures: list[ProviderFigures], route: Recommendation | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("\n", min_width=13, max_width=24, overflow="ellipsis")
    for name in (
        "errs\n", "first\np50", "token\np95", "s\np99", "\ncold", "tokens\np50", "a s\np95",
        "whole\np50", "answer\np95", "s\np99", "$ for\n1,000",
    ):  # fmt: skip
        table.add_column(name, justify="right")
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
    console.print(table)
    for found in figures:
        for note in _notes(found):
            click.echo(f"{found.upstream} {found.model}: {note}")
    if route is None:
        click.echo("\nno route can be recommended: nobody answered reliably")
    else:
        click.echo(f"\nfor headstart.toml:\n\n{route.toml()}", nl=False)


def _cells(found: SampleQuantiles | None, form: str = ".2f") -> tuple[str, str, str]:
    if found is None:
        return ("-", "-", "-")
    return (format(found.p50, form), format(found.p95, form), format(found.p99, form))


def _notes(found: ProviderFigures) -> Iterator[str]:
    for kind, count in found.errors.items():
        yield f"{count} of {found.calls} calls failed: {kind}"
    if found.cached_share:
        yield f"{found.cached_share:.0%} of the prompt tokens came from its cache"
    if found.estimated:
        yield "some tokens were not reported, but estimated"

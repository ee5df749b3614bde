"""``headstart bench``: measure providers with your own prompts, and recommend a route."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
import msgspec

from headstart.cli.configured import config_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.bench.figures import Figures, Quantiles, Sample
    from headstart.bench.prompts import BenchPrompt
    from headstart.bench.recommend import Recommendation
    from headstart.cli.bench_calls import Plan
    from headstart.cli.bench_targets import Source

EPILOG = """\b
Examples:
  headstart bench --simulate groq,together
  headstart bench --config headstart.toml --model llama-3.3-70b --prompts prompts.jsonl
  headstart bench --upstream groq --calls 20 --concurrency 1 --json
"""


@click.command(epilog=EPILOG)
@config_option
@click.option("--simulate", metavar="NAME,NAME", help="Simulated providers: no key, no network.")
@click.option("--upstream", "names", multiple=True, help="Measure only this one. Repeat it.")
@click.option("--model", "models", multiple=True, help="What to ask for. Repeat it.")
@click.option(
    "--prompts",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help='Your prompts: a text a line, or .jsonl with "prompt" or "messages".  [default: a mix]',
)
@click.option(
    "--calls",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Warm calls of each provider and model.",
)
@click.option(
    "--cold",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Calls before those, each on a connection of its own.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    help="Warm calls at a time, of each provider and model.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Longest answer; a prompt may ask for less.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=120,
    show_default=True,
    help="Seconds until a call counts as failed.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of simulated providers.")
@click.option(
    "--speed",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Run simulated providers this many times faster.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(
    path: Path | None,
    simulate: str | None,
    names: tuple[str, ...],
    models: tuple[str, ...],
    prompts: Path | None,
    calls: int,
    cold: int,
    concurrency: int,
    max_tokens: int,
    timeout: float,
    seed: int,
    speed: float,
    as_json: bool,
) -> None:
    """Measure time to first token, tokens per second, errors and cost, each by itself.

    Every provider is called directly, in its own dialect: --calls with each model, --concurrency
    at a time, after --cold calls on connections of their own. Real providers bill for it. Exits 1
    if nobody answers; Ctrl-C reports what was measured so far and exits 130.
    """
    from headstart.bench.figures import figures_of
    from headstart.bench.recommend import recommend
    from headstart.cli.bench_calls import Plan
    from headstart.cli.bench_targets import Configured, Simulated

    if simulate is None and speed != 1.0:
        raise click.UsageError("--speed is for --simulate: real time cannot be compressed")
    plan = Plan(
        prompts=_prompts(prompts),
        calls=calls,
        cold=cold,
        concurrency=concurrency,
        max_tokens=max_tokens,
        timeout_s=timeout,
        speed=speed,
    )
    source: Source = Configured(path, names, models)
    if simulate is not None:
        source = Simulated(tuple(filter(None, simulate.split(","))), seed, speed)
    samples: list[Sample] = []
    whole = _run(source, plan, samples)
    subjects = tuple(dict.fromkeys(sample.subject for sample in samples))
    figures = [figures_of(subject, samples) for subject in subjects]
    route = recommend(subjects, samples)
    if as_json:
        _print_json(figures, route, plan, whole=whole)
    else:
        _print(figures, route)
    if not whole:
        raise SystemExit(130)
    if not any(figure.total_s for figure in figures):
        raise SystemExit(1)


def _prompts(path: Path | None) -> tuple[BenchPrompt, ...]:
    from headstart.bench.prompts import MIX, read_prompts

    if path is None:
        return MIX
    with path.open("rb") as lines:
        return read_prompts(path.name, lines)


def _run(source: Source, plan: Plan, samples: list[Sample]) -> bool:
    """Measure into ``samples``, with progress on a terminal's error stream.

    Returns False when Ctrl-C ended it before its time.
    """
    from rich.console import Console
    from rich.progress import Progress

    from headstart.cli.bench_calls import measure

    console = Console(stderr=True)

    async def run() -> None:
        async with source.open() as (settings, targets):
            for note in source.notes:
                console.print(note, highlight=False)
            total = plan.calls_each * len(targets)
            bar = progress.add_task(f"{total} calls", total=total)

            def tell(sample: Sample) -> None:
                samples.append(sample)
                progress.advance(bar)

            await measure(settings, targets, plan, tell)

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        try:
            anyio.run(run)
        except KeyboardInterrupt:
            return False
    return True


def _print_json(
    figures: list[Figures], route: Recommendation | None, plan: Plan, *, whole: bool
) -> None:
    recommended = None
    if route is not None:
        recommended = {**msgspec.to_builtins(route), "toml": route.toml()}
    document = {
        "whole": whole,
        "calls": plan.calls,
        "cold": plan.cold,
        "concurrency": plan.concurrency,
        "measured": [{**msgspec.to_builtins(f), "error_rate": f.error_rate} for f in figures],
        "recommended": recommended,
    }
    click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


def _print(figures: list[Figures], route: Recommendation | None) -> None:
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


def _cells(found: Quantiles | None, form: str = ".2f") -> tuple[str, str, str]:
    if found is None:
        return ("-", "-", "-")
    return (format(found.p50, form), format(found.p95, form), format(found.p99, form))


def _notes(found: Figures) -> Iterator[str]:
    for kind, count in found.errors.items():
        yield f"{count} of {found.calls} calls failed: {kind}"
    if found.cached_share:
        yield f"{found.cached_share:.0%} of the prompt tokens came from its cache"
    if found.estimated:
        yield "some tokens were not reported, but estimated"

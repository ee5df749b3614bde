"""``headstart demo``: watch hits, refused traps, failing providers, and what is saved."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headstart.cli.demo_failover import TROUBLES, attempts_of
from headstart.cli.demo_run import Answer, Demo, Tally, running_demo
from headstart.simulator import traffic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.simulator import Prompt

NOTE = "simulated providers, scripted traffic: times and prices are modelled, hits are real"
NEW = (
    "How can I sign up for ChatGPT?",
    "What is the difference between TCP and UDP?",
    "Cancel my subscription",
)
SCRIPT = (
    ("the same words again", "How can I sign up for ChatGPT?"),
    ("other words, same meaning", "I want to sign up for ChatGPT"),
    ("other words, same meaning", "What's the difference between UDP and TCP?"),
    ("a trap: close in words, opposite in meaning", "Don't cancel my subscription"),
)
CONCURRENCY = 8
EPILOG = """\b
Examples:
  headstart demo
  headstart demo --requests 1000 --profile groq
  headstart demo --interactive
"""


@click.command(epilog=EPILOG)
@click.option("--requests", type=click.IntRange(0), default=300, show_default=True)
@click.option(
    "--profile", default="openai", show_default=True, help="See: headstart simulate --list"
)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--speed",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Run the provider's clock faster.",
)
@click.option("--interactive", is_flag=True, help="Type your own prompts instead of the load.")
def demo(requests: int, profile: str, seed: int, speed: float, *, interactive: bool) -> None:
    """Watch it work: simulated providers, the sidecar, realistic traffic. No key, no network.

    Shows hits, a trap refused, a race of which one provider fails and a broken stream that another
    one ends; then plays a load and prints the report.
    """
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="headstart-demo-") as folder:
            store = f"sqlite:///{Path(folder) / 'demo.db'}"
            asyncio.run(_run(console, requests, profile, seed, speed, store, interactive))
    except KeyboardInterrupt:
        console.print("stopped")
        raise SystemExit(130) from None


async def _run(
    console: Console,
    requests: int,
    profile: str,
    seed: int,
    speed: float,
    store: str,
    interactive: bool,
) -> None:
    console.print(f"[bold]Headstart demo[/]  [dim]{NOTE}[/]\n")
    async with running_demo(profile, seed, speed, store) as running:
        await _first_screen(console, running)
        await _second_screen(console, running)
        if interactive:
            await _converse(console, running)
        elif requests:
            await _load(console, running, requests, seed)
        await asyncio.sleep(0.5)  # The books are written within a quarter of a second.
        await _report(console, store)
    console.print(f"[dim]{NOTE}; this environment takes {_install_mb():.0f} MB on disk[/]")


async def _first_screen(console: Console, running: Demo) -> None:
    """Show a miss, an exact hit, a reworded hit and a trap refused, in a few seconds."""
    console.print("[bold]First asked[/] (three misses, streamed from the provider)")
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(running.ask(prompt)) for prompt in NEW]
    for task in asked:
        console.print(_line(task.result()))
    # Stored answers are encoded in the background; a moment later they can be matched.
    await asyncio.sleep(0.3)
    for title, prompt in SCRIPT:
        console.print(f"[bold]{title.capitalize()}[/]")
        console.print(_line(await running.ask(prompt)))
    console.print()


async def _second_screen(console: Console, running: Demo) -> None:
    """Show a race of which one fails, and a broken stream that another provider ends."""
    for trouble in TROUBLES:
        console.print(f"[bold]{trouble.title.capitalize()}[/]")
        answer = await running.ask(trouble.prompt, trouble.name)
        console.print(_line(answer))
        await asyncio.sleep(0.1)  # The request is explained once its last byte is out.
        for each in await attempts_of(running.session, running.admin_url, answer.request_id):
            console.print(f"    {each.upstream}: {each.role}, {each.outcome}", style="dim")
    console.print()


def _line(answer: Answer) -> Text:
    colours = {"exact": "green", "semantic": "green", "joined": "cyan", "miss": "yellow"}
    line = Text("  ")
    line.append(f"{answer.kind:9}", style=f"bold {colours[answer.kind]}")
    line.append(f"first token {answer.ttft_s * 1e3:7.1f} ms  total {answer.total_s * 1e3:7.1f} ms")
    line.append(f"  {answer.prompt}", style="italic")
    if answer.similarity is not None:
        line.append(f"  similarity {answer.similarity:.2f}", style="dim")
    if answer.veto not in (None, "threshold"):
        line.append(f"  refused: {answer.veto}", style="bold magenta")
    if answer.wrong:
        line.append("  WRONG", style="bold red")
    return line


async def _load(console: Console, running: Demo, requests: int, seed: int) -> None:
    tally = Tally()
    prompts: Iterator[Prompt] = traffic(
        seed, requests, repeat_share=0.3, reword_share=0.25, trap_share=0.1
    )

    async def work() -> None:
        for prompt in prompts:
            tally.add(await running.ask(prompt.text))

    with Live(console=console, refresh_per_second=8, transient=not console.is_terminal) as live:
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(work()) for _ in range(CONCURRENCY)]
            while not all(worker.done() for worker in workers):
                live.update(_screen(tally, requests))
                await asyncio.sleep(0.1)
        live.update(_screen(tally, requests))
    if not console.is_terminal:
        console.print(_screen(tally, requests))


def _screen(tally: Tally, requests: int) -> Group:
    title = (
        f"{tally.total} of {requests} scripted requests, {CONCURRENCY} at a time: their client's "
        "view (the report below has the sidecar's)"
    )
    table = Table(title=title, title_justify="left")
    for column in ("", "requests", "share", "first token p50", "p95"):
        table.add_column(column, justify="left" if not column else "right")
    hits, misses = tally.hits, tally.total - tally.hits
    for name, count, times in (
        ("hits", hits, tally.hit_ttft_s),
        ("misses", misses, tally.miss_ttft_s),
    ):
        share = f"{count / tally.total:.0%}" if tally.total else ""
        table.add_row(name, str(count), share, _ms(times, 0.5), _ms(times, 0.95))
    kinds = tally.kinds
    wrong = f"{tally.wrong} wrong of {hits} hits"
    style = "bold red" if tally.wrong else "bold green"
    vetoes = ", ".join(f"{name} {count}" for name, count in tally.vetoes.most_common()) or "none"
    return Group(
        table,
        Text(
            f"exact {kinds['exact']}, reworded {kinds['semantic']}, joined {kinds['joined']}, "
            f"upstream {kinds['miss']}"
        ),
        Text(wrong, style=style),
        Text(f"near misses refused by a guard: {vetoes}"),
    )


def _ms(times: list[float], share: float) -> str:
    if not times:
        return "-"
    ordered = sorted(times)
    return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3:.1f} ms"


async def _converse(console: Console, running: Demo) -> None:
    console.print("Ask anything; an empty line ends. Try a question again in other words.")
    while True:
        prompt = (await asyncio.to_thread(console.input, "[bold]> [/]")).strip()
        if not prompt:
            return
        answer = await running.ask(prompt)
        console.print(answer.text)
        console.print(_line(answer))


async def _report(console: Console, store: str) -> None:
    from headstart.cli.report import print_report

    await print_report(console, store)


def _install_mb() -> float:
    """Size of the packages in this environment."""
    folder = Path(sysconfig.get_paths()["purelib"])
    if sys.prefix == sys.base_prefix:
        folder = Path(__file__).parents[1]
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20

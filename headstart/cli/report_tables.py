"""The savings report as tables in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from headstart.report import Report
    from headstart.report.values import Group, Quantiles, Reshaped, Trial

MAX_REASONS = 8


def print_tables(console: Console, found: Report) -> None:
    """Print the report for a terminal."""
    from headstart.report.wording import dollars, duration, extra_note, money_note, percent

    group, savings = found.overall, found.overall.savings
    if found.first is None:
        console.print("No requests are booked yet.")
        return
    console.print(
        f"[bold]{group.requests:,}[/] requests, [bold]{percent(group.hit_rate)}[/] hits "
        f"(exact {percent(group.exact_rate)}, semantic {percent(group.semantic_rate)}), "
        f"{group.outcomes['joined']:,} joined, {group.outcomes['bypass']:,} bypassed, "
        f"{group.failures:,} failed"
    )
    note = f" ({money_note(savings)})" if money_note(savings) else ""
    estimated = f"; {savings.estimated_hits:,} hits estimated" if savings.estimated_hits else ""
    console.print(
        f"saved [bold]{duration(savings.total_s)}[/] "
        f"({duration(savings.ttft_s)} to the first token), "
        f"[bold]{savings.tokens:,}[/] tokens, [bold]{dollars(savings.usd)}[/]"
        f"{note}{estimated}; net of {duration(savings.overhead_s)} of our own"
    )
    console.print(_latencies(group))
    if found.holdout is not None:
        _print_holdout(console, found)
    console.print(_groups("model", found.models))
    console.print(_groups("endpoint", found.endpoints))
    if found.calls:
        console.print(_calls(found))
    if found.extra is not None:
        console.print(extra_note(found.extra))
    if found.reshaped:
        console.print(_reshaped(found.reshaped))
    if found.trials:
        console.print(_trials(found.trials))
    if found.reasons:
        reasons = list(found.reasons.items())[:MAX_REASONS]
        console.print("no hit: " + ", ".join(f"{why} {count:,}" for why, count in reasons))


def _print_holdout(console: Console, found: Report) -> None:
    from headstart.report.wording import estimate, verdict

    holdout = found.holdout
    if holdout is None:
        return
    table = _table("saved, 95 % interval", "time", "money")
    table.add_row("by hits", estimate(holdout.by_hits_s), estimate(holdout.by_hits_usd, "usd"))
    table.add_row(
        "by holdout", estimate(holdout.by_holdout_s), estimate(holdout.by_holdout_usd, "usd")
    )
    console.print(table)
    console.print(
        f"{holdout.held_out:,} would-be hits held out, {holdout.hits:,} hits: "
        f"{verdict(disagree=holdout.disagree)}"
    )


def _latencies(group: Group) -> Table:
    from headstart.report.wording import duration

    table = _table("", "requests", "p50", "p95", "p99")

    def add(label: str, times: Quantiles | None) -> None:
        if times is None:
            table.add_row(label, "0", *[duration(None)] * 3)
        else:
            quantiles = (times.p50_s, times.p95_s, times.p99_s)
            table.add_row(label, f"{times.n:,}", *map(duration, quantiles))

    add("hits, first token", group.hits.ttft)
    add("misses, first token", group.misses.ttft)
    add("hits, whole answer", group.hits.total)
    add("misses, whole answer", group.misses.total)
    return table


def _groups(title: str, groups: tuple[Group, ...]) -> Table:
    from rich.markup import escape

    from headstart.report.wording import dollars, duration, percent

    table = _table(title, "requests", "failed", "exact", "semantic", "saved", "money")
    for group in groups:
        table.add_row(
            escape(group.name),
            f"{group.requests:,}",
            f"{group.failures:,}",
            percent(group.exact_rate),
            percent(group.semantic_rate),
            duration(group.savings.total_s),
            dollars(group.savings.usd),
        )
    return table


def _calls(found: Report) -> Table:
    from rich.markup import escape

    from headstart.report.wording import UNKNOWN, dollars, duration

    table = _table(
        "upstream, model",
        "calls",
        "won",
        "lost",
        "failed",
        "ttft p50",
        "p95",
        "p99",
        "tok/s",
        "money",
        gap=1,
    )
    for each in found.calls:
        times = each.ttft
        quantiles = (None,) * 3 if times is None else (times.p50_s, times.p95_s, times.p99_s)
        table.add_row(
            escape(_short(each.name)),
            f"{each.calls:,}",
            f"{each.won:,}",
            f"{each.lost:,}",
            f"{each.failed:,}",
            *map(duration, quantiles),
            UNKNOWN if each.tokens_per_s is None else f"{each.tokens_per_s:,.0f}",
            dollars(each.usd),
        )
    return table


def _short(name: str) -> str:
    """Return upstream and model without the model's path, so that the table fits a terminal."""
    upstream, _, model = name.partition(" ")
    return f"{upstream} {model.rpartition('/')[2]}".rstrip()


def _reshaped(reshaped: tuple[Reshaped, ...]) -> Table:
    from headstart.report.wording import percent

    table = _table("reshaped", "requests", "tokens before", "after", "saved")
    for each in reshaped:
        saved = 1 - each.tokens_after / each.tokens_before if each.tokens_before else None
        table.add_row(
            each.kind,
            f"{each.requests:,}",
            f"{each.tokens_before:,}",
            f"{each.tokens_after:,}",
            percent(saved),
        )
    return table


def _trials(trials: tuple[Trial, ...]) -> Table:
    from headstart.report.wording import estimate, percent

    table = _table("saved an answer, 95 %", "answers", "left alone", "tokens", "share", "time")
    for each in trials:
        table.add_row(
            each.name,
            f"{each.answers:,}",
            f"{each.held_out:,}",
            estimate(each.saved_tokens, "tokens"),
            percent(each.saved_share),
            estimate(each.saved_s),
        )
    return table


def _table(first: str, *others: str, gap: int = 2) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="dim", padding=(0, gap, 0, 0))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table

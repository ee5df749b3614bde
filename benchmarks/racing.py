"""Races and hedges through the real proxy, compared with theory and with the providers' records.

    python -m benchmarks.racing [--calls N] [--json FILE]

Simulated providers answer over sockets from a process of their own, ``headstart serve`` calls them.
The time of a race is compared with the smallest of the delays that its providers drew. The
providers time the cancelled calls, on one clock. The booked costs are compared with the bills of
the providers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from benchmarks.racing_site import (
    Provider,
    Sample,
    Site,
    ask,
    by_number,
    drive,
    load,
    quantiles,
    site,
)
from benchmarks.safe_hits_programs import metric
from headstart.lab.simulator.simulated_calls import CallOutcome

if TYPE_CHECKING:
    from headstart.lab.simulator import EndedCall

PER_S = 50.0
WINDOW = 1000
WARM_UP = 200
"""Calls before those that are judged: a hedge has to know its p95 first."""
NAMES = ("anton", "berta", "caesar")


def providers(profile: str, count: int, **options: Any) -> tuple[Provider, ...]:
    """Return so many providers of one profile whose draws are independent."""
    return tuple(
        Provider(name, profile, seed=place + 1, **options)
        for place, name in enumerate(NAMES[:count])
    )


async def calls(at: Site, count: int, *, per_s: float = PER_S, stream: bool = True) -> list[Sample]:
    """Make calls through the sidecar."""
    at.samples = await drive(
        count, per_s, lambda number, due: ask(at, at.url, number, due, stream=stream)
    )
    await asyncio.sleep(0.5)  # The losers' records end when their sockets do.
    return at.samples


def drawn(at: Site, records: dict[str, list[EndedCall]]) -> list[float]:
    """Return the least time to first token that a call's providers drew, by call."""
    by_name = {each.name: each for each in at.providers}
    return [
        min(by_name[name].ttft_s(each.number) for name, seen in asked.items() for each in seen)
        for _, asked in sorted(by_number(records).items())
    ]


def closings(records: dict[str, list[EndedCall]]) -> list[float]:
    """Return the seconds from each win, as its provider sent it, to each loser's closed socket."""
    lags = []
    for asked in by_number(records).values():
        seen = [each for rows in asked.values() for each in rows]
        wins = [each for each in seen if each.outcome is CallOutcome.COMPLETED]
        if len(wins) != 1 or wins[0].first_token_s is None:
            continue
        won_at = wins[0].at + wins[0].first_token_s
        lags += [each.cancelled_at - won_at for each in seen if each.cancelled_at is not None]
    return lags


def most_extra(records: dict[str, list[EndedCall]]) -> int:
    """Return the most extra calls that came between any 1,000 requests in a row."""
    begun: set[str] = set()
    extras: list[int] = []
    rows = sorted((each.at, each.headers["x-bench-call"]) for s in records.values() for each in s)
    for _, number in rows:
        if number in begun:
            extras[-1] += 1
        else:
            begun.add(number)
            extras.append(0)
    sums = [0]
    for each in extras:
        sums.append(sums[-1] + each)
    return max(sums[end] - sums[max(0, end - WINDOW)] for end in range(1, len(sums)))


async def books(at: Site, records: dict[str, list[EndedCall]]) -> dict[str, float]:
    """Return what losers and all calls cost, as booked and as their providers would bill them."""
    by_name = {each.name: each for each in at.providers}
    text = await at.metrics()
    bills = {CallOutcome.COMPLETED: 0.0, CallOutcome.CANCELLED: 0.0}
    for name, seen in records.items():
        for each in seen:
            bills[each.outcome] += by_name[name].bill_usd(each)
    lost = sum(
        metric(text, f'headstart_cost_usd_total{{outcome="lost",upstream="{name}"}}')
        for name in by_name
    )
    return {
        "lost_booked_usd": lost,
        "lost_billed_usd": bills[CallOutcome.CANCELLED],
        "all_booked_usd": metric(text, "headstart_cost_usd_total"),
        "all_billed_usd": sum(bills.values()),
    }


async def race(profile: str, racers: int, count: int, **options: Any) -> dict[str, Any]:
    """Race providers; hold the client's times to first token to the least that was drawn."""
    stream = options.pop("stream", True)
    route = {"strategy": "race", "upstreams": NAMES[:racers], "race_billed": True}
    async with site(providers(profile, racers, **options), [route]) as at:
        cpu_s = at.cpu_s()
        samples = await calls(at, count, stream=stream)
        cpu_s = at.cpu_s() - cpu_s
        records = await at.records()
        theory = drawn(at, records)
        decoding_s = 0.0
        if not stream:  # The last of n tokens comes n - 1 tokens after the first.
            decoding_s = (at.providers[0].answer_tokens - 1) / 100
        lags = closings(records)
        row = {
            "profile": profile,
            "racers": racers,
            "stream": stream,
            "cancels_billing": options.get("cancels_billing", True),
            "calls": count,
            "unanswered": sum(not each.whole for each in samples),
            "measured_s": quantiles([each.first_s for each in samples]),
            "least_drawn_s": quantiles([each + decoding_s for each in theory]),
            "losers": len(lags),
            "closed_after_s": quantiles(lags) if lags else None,
            "cpu_us": cpu_s / count * 1e6,
            **await books(at, records),
        }
    _tell(row)
    return row


async def hedge(strategy: str, count: int, **rules: Any) -> dict[str, Any]:
    """Answer stalling calls with one provider, or with a second one when it is late."""
    pair = providers("stalls", 2, speed=5.0)
    names = [each.name for each in pair][: 1 if strategy == "single" else 2]
    async with site(pair, [{"strategy": strategy, "upstreams": names, **rules}]) as at:
        samples = await calls(at, WARM_UP + count)
        records = await at.records()
        made = sum(map(len, records.values()))
        lags = closings(records)
        row = {
            "strategy": strategy,
            "rules": rules,
            "calls": count,
            "unanswered": sum(not each.whole for each in samples),
            "measured_s": quantiles([each.first_s for each in samples[WARM_UP:]]),
            "extra_calls": made / len(samples) - 1,
            "most_extra_in_1000": most_extra(records),
            "closed_after_s": quantiles(lags) if lags else None,
            **await books(at, records),
        }
    _tell(row)
    return row


def _tell(row: dict[str, Any]) -> None:
    print(json.dumps(row), file=sys.stderr, flush=True)


async def run(count: int) -> dict[str, Any]:
    """Measure all of it."""
    began = load()
    races = [
        await race("lognormal-05", 3, count),
        await race("lognormal-08", 2, count),
        await race("lognormal-08", 3, count),
        await race("lognormal-08", 3, count // 2, stream=False, answer_tokens=40),
        await race("lognormal-08", 3, count // 2, cancels_billing=False, answer_tokens=40),
    ]
    hedges = [
        await hedge("single", 2 * count),
        await hedge("hedge", 2 * count),
        await hedge("hedge", 2 * count, extra_calls=0.07, extra_cost=0.1),
    ]
    return {"load": [began, load()], "races": races, "hedges": hedges}


def _ms(values: dict[str, float] | None) -> str:
    return "none" if values is None else " ".join(f"{each * 1e3:.1f}" for each in values.values())


def table(figures: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = [
        f"Load of the machine before and after: {'; '.join(figures['load'])}.",
        "",
        (
            "| race | first token, ms: p50 p95 p99 | least of the same draws | off "
            "| losers closed, ms: p50 p95 p99 | lost: booked / billed | CPU µs a call |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for row in figures["races"]:
        got, least = row["measured_s"], row["least_drawn_s"]
        off = " ".join(f"{got[name] / least[name] - 1:+.1%}" for name in got)
        kind = "" if row["stream"] else ", whole answers"
        kind += "" if row["cancels_billing"] else ", cancelled calls billed"
        lost = f"${row['lost_booked_usd']:.4f} / ${row['lost_billed_usd']:.4f}"
        lines.append(
            f"| {row['profile']} x {row['racers']}{kind} | {_ms(got)} | {_ms(least)} | {off} "
            f"| {_ms(row['closed_after_s'])} | {lost} | {row['cpu_us']:.0f} |"
        )
    lines += [
        "",
        (
            "| stalls | first token, ms: p50 p95 p99 | p99, alone | extra calls | most in 1,000 "
            "| losers closed, ms | booked / billed |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    alone = figures["hedges"][0]["measured_s"]["p99"]
    for row in figures["hedges"]:
        gain = row["measured_s"]["p99"] / alone - 1
        name = f"{row['strategy']}{row['rules'].get('extra_calls', '')}"
        lines.append(
            f"| {name} | {_ms(row['measured_s'])} | {gain:+.0%} | {row['extra_calls']:.1%} "
            f"| {row['most_extra_in_1000']} | {_ms(row['closed_after_s'])} "
            f"| ${row['all_booked_usd']:.4f} / ${row['all_billed_usd']:.4f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1500, help="of each race; hedges take twice")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    figures = uvloop.run(run(arguments.calls))
    print(table(figures))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

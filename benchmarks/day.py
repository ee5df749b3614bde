"""A bad day of four simulated providers, each with another fault, compressed to minutes.

    python -m benchmarks.day [--calls 20000] [--minutes 10] [--strategies race,hedge] [--json FILE]

One provider becomes slow and refuses more and more calls, one fails for some time again and again,
one is rate-limited, and one breaks off its answers and then fails. Every strategy gets the same day
through ``headstart serve``. Round robin is a client that takes turns among the providers, with one
try and with two. Costs are the providers' charges for all calls, also for calls without an answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from msgspec.structs import replace

from benchmarks.racing_site import Provider, Sample, Site, ask, drive, load, quantiles, site
from headstart.lab.simulator import Spell, find_profile
from headstart.lab.simulator.faults import Cut, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_TOKENS = 30
FAILURE = Status(status=503, message="That model is currently overloaded.")
RULES: dict[str, dict[str, Any]] = {
    "single": {"strategy": "single"},
    "fallback": {"strategy": "fallback"},
    "race": {"strategy": "race"},
    "hedge": {"strategy": "hedge"},
    "fastest": {"strategy": "fastest"},
    "cheapest": {"strategy": "cheapest", "within_s": 3.0},
}
TURNS = {"round robin": 1, "round robin, two tries": 2}


def providers(calls: int, minutes: float) -> tuple[Provider, ...]:
    """Return the four, in the order in which a route names them."""
    day_s, per_minute = 60 * minutes, calls / minutes
    steady = replace(find_profile("lognormal-05"), stall=0.01)
    degrading = (
        Spell(
            from_s=0.2 * day_s, to_s=0.8 * day_s, worsens=True, slower=6.0, share=0.3, fault=FAILURE
        ),
        Spell(from_s=0.8 * day_s, slower=6.0, share=0.3, fault=FAILURE),
    )
    flapping = (Spell(period_s=day_s / 10, fault=FAILURE),)
    dying = (
        Spell(from_s=0.5 * day_s, to_s=0.6 * day_s, share=0.5, fault=Cut(after=10)),
        Spell(from_s=0.6 * day_s, fault=Cut()),
    )
    limited = replace(steady, requests_per_minute=max(1, round(0.4 * per_minute)))
    tokens: dict[str, Any] = {"answer_tokens": ANSWER_TOKENS}
    return (
        Provider("degrading", steady, seed=1, weather=degrading, price=(0.6, 1.8), **tokens),
        Provider("flapping", steady, seed=2, weather=flapping, price=(0.5, 1.5), **tokens),
        Provider("limited", limited, seed=3, price=(1.0, 3.0), **tokens),
        Provider("dying", steady, seed=4, weather=dying, price=(0.3, 0.9), **tokens),
    )


async def in_turn(at: Site, number: int, due: float, tries: int) -> Sample:
    """Ask the providers in turn, like a client without a proxy: a provider that fails is skipped.

    An answer that has begun cannot be withdrawn.
    """
    urls = list(at.urls.values())
    for attempt in range(tries):
        sample = await ask(at, urls[(number + attempt) % len(urls)], number, due)
        if sample.whole or sample.status == 200:
            break
    return sample


async def day(name: str, calls: int, minutes: float) -> dict[str, Any]:
    """Run one day."""
    four = providers(calls, minutes)
    rules = RULES.get(name)
    route = None
    if rules is not None:
        names = [each.name for each in four]
        route = {**rules, "upstreams": names[:1] if name == "single" else names}
    began = load()
    async with site(four, None if route is None else [route]) as at:
        cpu_s = at.cpu_s() if at.pid else 0.0
        samples = await drive(
            calls,
            calls / (60 * minutes),
            lambda number, due: (
                ask(at, at.url, number, due) if at.url else in_turn(at, number, due, TURNS[name])
            ),
        )
        cpu_s = at.cpu_s() - cpu_s if at.pid else 0.0
        records = await at.records()
    whole = [each for each in samples if each.whole]
    paid = sum(each.bill_usd(row) for each in four for row in records[each.name])
    row = {
        "strategy": name,
        "calls": calls,
        "minutes": minutes,
        "load": began,
        "availability": len(whole) / calls,
        "broken": sum(each.status == 200 and not each.whole for each in samples),
        "first_s": quantiles([each.first_s for each in whole]),
        "total_s": quantiles([each.total_s for each in whole]),
        "mean_total_s": sum(each.total_s for each in whole) / len(whole),
        "upstream_calls": sum(map(len, records.values())) / calls,
        "usd_per_1000": paid / len(whole) * 1000,
        "cpu_us": cpu_s / calls * 1e6,
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = [
        (
            "| strategy | answered whole | broken off | first token, s: p50 p95 p99 "
            "| whole answer, s: p50 p95 p99 | upstream calls | $ for 1,000 answers |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        first, total = (
            " ".join(f"{each:.2f}" for each in row[name].values())
            for name in ("first_s", "total_s")
        )
        lines.append(
            f"| {row['strategy']} | {row['availability']:.2%} | {row['broken']} | {first} "
            f"| {total} | {row['upstream_calls']:.2f} | {row['usd_per_1000']:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000, help="of each strategy")
    parser.add_argument("--minutes", type=float, default=10.0, help="that a day takes")
    parser.add_argument("--strategies", default=",".join((*RULES, "round robin")))
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    names = arguments.strategies.split(",")
    if "round robin" in names:
        names.append("round robin, two tries")
    rows = [uvloop.run(day(name, arguments.calls, arguments.minutes)) for name in names]
    print(table(rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

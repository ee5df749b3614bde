"""Routing through the real proxy: the providers of short and long answers, and the gain.

    python -m benchmarks.racing_routes [--calls N] [--json FILE]

One provider has an early first token and decodes slowly, one starts late and decodes fast, one is
in between. Short and long answers have a route each. The two simple policies for comparison send
all calls to the provider with the lowest time to first token, or to the one with the most tokens
per second.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.racing_site import Provider, Sample, ask, by_number, drive, load, site
from headstart.lab.simulator import ProviderProfile

SPEED = 3.0
SHORT, LONG = 12, 400
LONG_SHARE = 0.2
PER_S = 15.0
WARM_UP = 150
PROVIDERS = {
    "soon": ProviderProfile(model="soon", ttft_ms=200, ttft_sigma=0.4, tokens_per_s=(45, 45)),
    "between": ProviderProfile(model="between", ttft_ms=450, ttft_sigma=0.4, tokens_per_s=(90, 90)),
    "fast": ProviderProfile(model="fast", ttft_ms=1000, ttft_sigma=0.4, tokens_per_s=(300, 300)),
}
POLICIES = {
    "fastest": ("soon", "between", "fast"),
    "lowest time to first token": ("soon",),
    "most tokens/s": ("fast",),
    "between": ("between",),
}


def is_long(number: int) -> bool:
    """Return the kind of answer that a call asks for, which depends on its number."""
    return random.Random(f"length/{number}").random() < LONG_SHARE


async def routed(policy: str, calls: int) -> dict[str, Any]:
    """Answer short and long calls by one policy; return seconds as the providers count them."""
    names = POLICIES[policy]
    strategy = "fastest" if len(names) > 1 else "single"
    rules = [
        {"name": kind, "match": {"model": kind}, "strategy": strategy, "upstreams": names}
        for kind in ("short", "long")
    ]
    made = [
        Provider(name, profile, seed=place, speed=SPEED, answer_tokens=LONG)
        for place, (name, profile) in enumerate(PROVIDERS.items())
    ]
    async with site(made, rules) as at:

        async def one(number: int, due: float) -> Sample:
            long = is_long(number)
            return await ask(
                at, at.url, number, due, model="long" if long else "short",
                max_tokens=None if long else SHORT,
            )  # fmt: skip

        samples = await drive(WARM_UP + calls, PER_S, one)
        asked = by_number(await at.records())
    judged = samples[WARM_UP:]
    row: dict[str, Any] = {"policy": policy, "calls": calls, "load": load()}
    row["unanswered"] = sum(not each.whole for each in samples)
    for kind, wanted in (("short", False), ("long", True)):
        mine = [each for each in judged if is_long(each.number) is wanted]
        row[f"{kind}_s"] = sum(each.total_s for each in mine) / len(mine) * SPEED
        row[f"{kind}_to"] = Counter(name for each in mine for name in asked[each.number])
    row["mean_s"] = sum(each.total_s for each in judged) / len(judged) * SPEED
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = [
        (
            "| policy | short answers, s | sent to | long answers, s | sent to | mean, s "
            "| gain of `fastest` |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        gain = rows[0]["mean_s"] / row["mean_s"] - 1
        short, long = (
            ", ".join(f"{name} {count / sum(sent.values()):.0%}" for name, count in sent.items())
            for sent in (row["short_to"], row["long_to"])
        )
        lines.append(
            f"| {row['policy']} | {row['short_s']:.2f} | {short} | {row['long_s']:.2f} | {long} "
            f"| {row['mean_s']:.2f} | {gain:+.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=600, help="of each policy")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    rows = [uvloop.run(routed(policy, arguments.calls)) for policy in POLICIES]
    print(table(rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

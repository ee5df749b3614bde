"""How true are the figures with which one chooses a provider or a machine?

    python -m benchmarks.buying --seeds 40

Simulated providers have a known truth. The figures are the knee of servers with a known number of
slots, the break-even of a machine with a known load, and the drift of a provider that becomes
slower or worse on a known day: how soon ``headstart watch`` finds it, what that costs, and in how
many simulated months there is a false alarm. The provider is
30 % slower by day than by night. No sockets, no clock: only the decisions are measured.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import sys
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from headstart.attempts import Attempt, AttemptOutcome, AttemptRole
from headstart.decisions import Outcome
from headstart.lab.bench import CALLS_PER_SLOT, Sample, Subject, capacity_of
from headstart.lab.quality import FIGURES, Round, Watch, limit_for
from headstart.observe import Served
from headstart.report.accounts import MachineAccounts
from headstart.usual_calls import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

ONE = Subject("own", "m", "m", region="eu-1")
DAY_S = 86_400.0


def queue_samples(slots: int, concurrency: int, calls: int, rng: random.Random) -> list[Sample]:
    """Return the samples of callers who call again at once, before a server with a queue."""
    free = [0.0] * slots
    callers = [(0.0, n) for n in range(concurrency)]
    samples = []
    for _ in range(calls):
        asked, caller = heapq.heappop(callers)
        begins = max(asked, heapq.heappop(free))
        tokens = rng.randint(20, 200)
        ends = begins + rng.lognormvariate(-1.5, 0.5) + tokens / 50
        heapq.heappush(free, ends)
        heapq.heappush(callers, (ends, caller))
        samples.append(
            Sample(
                subject=ONE, cold=False, ttft_s=begins - asked + 0.2, total_s=ends - asked,
                completion_tokens=tokens, cost_usd=0.002, concurrency=concurrency, ended_s=ends,
            )
        )  # fmt: skip
    return samples


def step_samples(slots: int, seed: int, *steps: int) -> list[Sample]:
    """Return the samples of ``headstart bench --concurrency`` on a server with so many slots."""
    rng = random.Random(seed)
    return [
        sample
        for step in steps
        for sample in queue_samples(slots, step, max(100, CALLS_PER_SLOT * step), rng)
    ]


def knee_errors(slots: int, seeds: int) -> list[float]:
    """Return the relative errors of the knee, one for each seed."""
    knees = [
        capacity_of(ONE, step_samples(slots, seed, 1, 4, 16, 64, 256)).knee for seed in range(seeds)
    ]
    return [math.inf if knee is None else abs(knee / slots - 1) for knee in knees]


HOURLY_USD = 3.0
TOKEN_USD = 2e-6
MEAN_TOKENS = math.exp(5.0 + 0.6**2 / 2)
SPEED = 50.0


def served(number: int, at: float, total_s: float, tokens: int, upstream: str = "gpu") -> Served:
    """Return the row of a call in the books."""
    attempt = Attempt(
        upstream=upstream, model="m", role=AttemptRole.FIRST, outcome=AttemptOutcome.WON, at=at,
        total_s=total_s, completion_tokens=tokens,
    )  # fmt: skip
    return Served(
        id=f"{number:026d}", at=at, endpoint="/v1/chat/completions", outcome=Outcome.MISS,
        status=200, stream=True, total_s=total_s, attempts=(attempt,),
    )  # fmt: skip


def machine_accounts() -> MachineAccounts:
    """Return the accounts of one machine, ``gpu``."""
    return MachineAccounts({"gpu": Machine(HOURLY_USD, lambda a: a.completion_tokens * TOKEN_USD)})


def break_even_error(calls_per_s: float, seed: int, calls: int = 20_000) -> float:
    """Return the relative error of the calls an hour from which the machine pays."""
    rng, at, accounts = random.Random(seed), 0.0, machine_accounts()
    for number in range(calls):
        at += rng.expovariate(calls_per_s)
        tokens = round(rng.lognormvariate(5.0, 0.6))
        accounts.add(served(number, at, tokens / SPEED, tokens))
    (found,) = accounts.machines()
    told = (found.break_even_load or 0.0) * found.calls / found.hours
    return abs(told / (HOURLY_USD / (MEAN_TOKENS * TOKEN_USD)) - 1)


class Change(NamedTuple):
    """What becomes different on the day ``day``."""

    day: float = math.inf
    ttft: float = 1.0
    """The time to first token is so many times the usual."""
    speed: float = 1.0
    right: float = 0.0
    """This share of the answers is wrong in addition."""
    errors: float = 0.0


EVERY_S = 3600.0
CALLS = 8
CALL_USD = 0.002


def rounds(days: float, change: Change, seed: int) -> Iterator[Round]:
    """Yield hourly rounds of a provider that is slower by day, and changes on a day."""
    rng = random.Random(seed)
    for number in range(int(days * DAY_S / EVERY_S)):
        at = number * EVERY_S
        now = change if at >= change.day * DAY_S else Change()
        load = 1 + 0.3 * math.sin(2 * math.pi * at / DAY_S)
        failed = sum(rng.random() < 0.01 + now.errors for _ in range(CALLS))
        firsts = [0.3 * load * now.ttft * math.exp(rng.gauss(0, 0.5)) for _ in range(CALLS)]
        speeds = [rng.uniform(45, 55) / load * now.speed for _ in range(CALLS)]
        right = sum(rng.random() < 0.9 - now.right for _ in range(CALLS)) / CALLS
        yield Round(
            at=at, upstream="u", model="m", calls=CALLS, errors=failed, ttft_s=median(firsts),
            tokens_per_s=median(speeds), right=right, cost_usd=CALLS * CALL_USD,
        )  # fmt: skip


def first_alarm_day(change: Change, seed: int, days: float = 30.0) -> float | None:
    """Return the day of the first alarm in a month of hourly rounds."""
    tests = Watch(limit_for(EVERY_S, len(FIGURES)))
    return next((r.at / DAY_S for r in rounds(days, change, seed) if tests.add(r)), None)


CHANGES = {
    "first token twice as late": Change(14.0, ttft=2.0),
    "first token half as late again": Change(14.0, ttft=1.5),
    "speed a fifth lower": Change(14.0, speed=0.8),
    "30 % more wrong answers": Change(14.0, right=0.3),
    "20 % more failures": Change(14.0, errors=0.2),
}


def drift_row(change: Change, seeds: int) -> dict[str, Any]:
    """Return how soon a change is found, and how often an alarm came before it."""
    days = [first_alarm_day(change, seed) for seed in range(seeds)]
    late = sorted((day - change.day) * 24 for day in days if day is not None and day >= change.day)
    hours = late[len(late) // 2] if late else None
    per_day = CALLS * CALL_USD * DAY_S / EVERY_S
    return {
        "found": len(late),
        "early": sum(day is not None and day < change.day for day in days),
        "of": seeds,
        "hours_p50": hours,
        "hours_max": late[-1] if late else None,
        "usd_p50": None if hours is None else per_day * hours / 24,
        "usd_per_day": per_day,
    }


def measure(seeds: int) -> dict[str, Any]:
    """Return all figures."""
    knees = {slots: sorted(knee_errors(slots, seeds)) for slots in (6, 10, 24, 48)}
    loads = (0.05, 0.5, 5.0)
    even = {load: max(break_even_error(load, seed) for seed in range(5)) for load in loads}
    return {
        "knee": {
            slots: {"p50": found[len(found) // 2], "p95": found[int(len(found) * 0.95) - 1]}
            for slots, found in knees.items()
        },
        "break_even_worst": even,
        "drift": {name: drift_row(change, seeds) for name, change in CHANGES.items()},
        "months_with_false_alarm": sum(
            first_alarm_day(Change(), 10_000 + seed) is not None for seed in range(5 * seeds)
        ),
        "months": 5 * seeds,
    }


def main() -> None:
    """Print a table on stderr and JSON on stdout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=40)
    found = measure(parser.parse_args().seeds)
    lines = ["knee: slots, error p50, p95"]
    lines += [f"  {n:3d}  {e['p50']:6.1%}  {e['p95']:6.1%}" for n, e in found["knee"].items()]
    lines += ["break-even: calls a second, worst error of 5"]
    lines += [f"  {n:4g}  {e:6.2%}" for n, e in found["break_even_worst"].items()]
    lines += ["drift: found, hours p50, max, dollars until found"]
    for name, row in found["drift"].items():
        hours = (
            "-" if row["hours_p50"] is None else f"{row['hours_p50']:.0f}, {row['hours_max']:.0f}"
        )
        usd = row["usd_p50"] or 0.0
        lines += [f"  {name:32s} {row['found']} of {row['of']}  {hours} h  ${usd:.2f}"]
    lines += [f"months with a false alarm: {found['months_with_false_alarm']} of {found['months']}"]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

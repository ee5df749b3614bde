"""Compare the report's savings with known truth: in drawn worlds, and in runs with the cache off.

    python -m benchmarks.savings [--worlds 200] [--runs 30] [--only worlds|sockets] [--json FILE]

*Worlds* are rows of the books that are drawn at random: the truth is what the hits of a world would
have taken on average. *Runs* send the same requests, one at a time, to Headstart with and without
its cache, before a simulated provider on real sockets: the truth is the difference in the client's
waiting time and in the provider's bill. It contains the noise of both runs.

*mean error* and *rms*: how far the sums are from the truth. *covered*: the share of the 95 %
intervals that contain the truth; *half*: half of their width. *positive*: intervals that lie wholly
above zero; there must be none if the truth is negative. Times are compared without the outliers of
the report; *with outliers* adds the time of the outliers as the report shows it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from benchmarks.racing_site import NUMBER, Provider, Site, ask, load, site
from headstart.attempts import Attempt, AttemptOutcome, AttemptRole
from headstart.cli.data_sources import existing_store
from headstart.decisions import Outcome
from headstart.lab.simulator.profiles import ProviderProfile
from headstart.middleware.observers import FLUSH_S
from headstart.observe import Served
from headstart.report.accounts import Accounts
from headstart.types import new_ulid

if TYPE_CHECKING:
    from headstart.report.values import Interval, Report

MEASURES = ("total_s", "ttft_s", "tokens", "usd")
FULL_PRICE, CACHED_PRICE, OUTPUT_PRICE = 2.0, 0.2, 8.0
"""Dollars per million tokens."""


# --- worlds -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """How requests and the provider behave. Seconds; shares."""

    name: str
    requests: int = 1500
    questions: int = 250
    zipf: float = 1.0
    spacing_s: float = 30.0
    ttft_s: float = 0.4
    sigma: float = 0.5
    per_token_s: float = 0.01
    question_sigma: float = 0.0
    """How much the questions differ in their time, beyond the length of their answers."""
    length_sigma: float = 0.0
    """How much the lengths of two answers to one question differ."""
    prompt_tokens: int = 60
    outlier_share: float = 0.0
    """The share of the calls that take 60 medians."""
    outages: int = 0
    """The outages of 5 minutes in which calls take 20 medians."""
    drift: float = 1.0
    """The speed of the provider at the end, in that of the beginning."""
    lookup_s: float = 0.005
    hit_s: float = 0.005
    holdout: float = 0.0
    whole: float = 0.0
    """The share of the questions that are first asked without a stream, and later with one."""
    prefix_cache: bool = False


WORLDS = (
    World("ordinary"),
    World("ordinary, holdout 10 %", holdout=0.1),
    World("ordinary, holdout 2 %", holdout=0.02),
    World("heavy tail", sigma=1.0),
    World("heavy tail, holdout 2 %", sigma=1.0, holdout=0.02),
    World("outliers", outlier_share=0.002),
    World("outliers, holdout 10 %", outlier_share=0.002, holdout=0.1),
    World("outages", outages=3),
    World("outages, holdout 10 %", outages=3, holdout=0.1),
    World("twice as fast at the end", drift=2.0),
    World("few questions", questions=60, zipf=1.2, holdout=0.1),
    World("questions differ", question_sigma=0.5, holdout=0.1),
    World("lengths vary", length_sigma=0.5, holdout=0.1),
    World("prefix cache", prompt_tokens=8000, prefix_cache=True),
    World("prefix cache, holdout 10 %", prompt_tokens=8000, prefix_cache=True, holdout=0.1),
    World("mixed modes", whole=0.5),
    World("slow lookup", lookup_s=0.2, hit_s=0.2, holdout=0.1),
    World("hits are slower", lookup_s=2.0, hit_s=3.0),
    World("hits are slower, holdout 10 %", lookup_s=2.0, hit_s=3.0, holdout=0.1),
)
BEGIN = 1.7e9
PREFIX_TTL_S = 300.0


@dataclass
class Truth:
    """What the hits of a run saved."""

    total_s: float = 0.0
    ttft_s: float = 0.0
    tokens: float = 0.0
    usd: float = 0.0


class Draw:
    """One run of a world: its rows, and what its hits would have taken without the cache."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.noise = random.Random(f"{world.name}/{seed}")
        self.rows: list[Served] = []
        self.gross = Truth()
        """What hits would have taken on average; times without outliers."""
        self.outliers_s = 0.0
        self.own = Truth()
        noise, number = self.noise, world.questions
        self._lengths = [round(noise.lognormvariate(4.0, 0.5)) for _ in range(number)]
        self._slow = [noise.lognormvariate(0.0, world.question_sigma) for _ in range(number)]
        self._whole = [noise.random() < world.whole for _ in range(number)]
        end_s = world.requests * world.spacing_s
        self._outages = [BEGIN + noise.uniform(0, end_s) for _ in range(world.outages)]
        self._asked: dict[int, float] = {}
        self._called: dict[int, float] = {}
        """When the provider itself was asked a question. Hits keep it out of its prefix cache."""
        self._origins: dict[int, Served] = {}
        weights = [1 / (rank + 1) ** world.zipf for rank in range(number)]
        for place, question in enumerate(noise.choices(range(number), weights, k=world.requests)):
            self._request(question, BEGIN + place * world.spacing_s)

    def _outage(self, at: float) -> bool:
        return any(begin <= at < begin + 300.0 for begin in self._outages)

    def _median_s(self, question: int, at: float) -> float:
        world = self.world
        elapsed = (at - BEGIN) / (world.requests * world.spacing_s)
        slow = 20.0 if self._outage(at) else 1.0
        return world.ttft_s * self._slow[question] * slow / (1 + (world.drift - 1) * elapsed)

    def _request(self, question: int, at: float) -> None:
        world, noise = self.world, self.noise
        first = question not in self._origins
        stream = not (self._whole[question] and (first or noise.random() < 0.5))
        hit = not first and noise.random() >= world.holdout
        last = (self._asked if hit else self._called).get(question, -math.inf)
        warm = at - last <= PREFIX_TTL_S and world.prefix_cache
        self._asked[question] = at
        if hit:
            self._hit(question, at, stream=stream, warm=warm)
            return
        self._called[question] = at
        row = self._call(question, at, stream=stream, warm=warm)
        if not first:
            origin = self._origins[question]
            row = msgspec.structs.replace(row, holdout=True, entry=origin.id)
        else:
            self._origins[question] = row
        self.rows.append(row)

    def _call(self, question: int, at: float, *, stream: bool, warm: bool) -> Served:
        world, noise = self.world, self.noise
        first_s = self._median_s(question, at) * noise.lognormvariate(0.0, world.sigma)
        if noise.random() < world.outlier_share:
            first_s = 60 * world.ttft_s
        spread = world.length_sigma
        length = self._lengths[question] * noise.lognormvariate(-spread * spread / 2, spread)
        tokens = max(1, round(length))
        total_s = world.lookup_s + first_s + tokens * world.per_token_s
        price = CACHED_PRICE if warm else FULL_PRICE
        usd = (world.prompt_tokens * price + tokens * OUTPUT_PRICE) / 1e6
        spared = world.prompt_tokens * (price - CACHED_PRICE) / 1e6 if world.prefix_cache else 0.0
        attempt = Attempt(
            upstream="a", model="m", role=AttemptRole.FIRST, outcome=AttemptOutcome.WON, at=at,
            total_s=total_s, prompt_tokens=world.prompt_tokens, completion_tokens=tokens,
            cached_tokens=world.prompt_tokens if warm else 0, cost_usd=usd, prefix_usd=spared,
        )  # fmt: skip
        return Served(
            id=new_ulid(lambda: at), at=at, endpoint="chat", outcome=Outcome.MISS, status=200,
            stream=stream, model="m", total_s=total_s, overhead_s=world.lookup_s,
            ttft_s=world.lookup_s + first_s if stream else total_s,
            prompt_tokens=world.prompt_tokens, completion_tokens=tokens, cost_usd=usd,
            attempts=(attempt,),
        )  # fmt: skip

    def _hit(self, question: int, at: float, *, stream: bool, warm: bool) -> None:
        world, origin = self.world, self._origins[question]
        (call,) = origin.attempts
        original_s = origin.total_s - world.lookup_s
        first_s = (origin.ttft_s or 0.0) - world.lookup_s
        self.rows.append(
            Served(
                id=new_ulid(lambda: at), at=at, endpoint="chat", outcome=Outcome.EXACT, status=200,
                stream=stream, model="m", entry=origin.id, total_s=world.hit_s,
                ttft_s=world.hit_s, prompt_tokens=world.prompt_tokens,
                completion_tokens=origin.completion_tokens, cost_usd=0.0,
                saved_total_s=original_s - world.hit_s,
                saved_ttft_s=first_s - world.hit_s if origin.stream or not stream else None,
                saved_tokens=origin.spent_tokens, saved_usd=call.cost_usd,
                saved_prefix_usd=call.prefix_usd,
            )
        )  # fmt: skip
        usual_s = self._median_s(question, at) * math.exp(world.sigma**2 / 2)
        length = self._lengths[question]
        rest_s = length * world.per_token_s
        self.gross.total_s += usual_s + rest_s
        self.gross.ttft_s += usual_s + (0.0 if stream else rest_s)
        self.outliers_s += world.outlier_share * (60 * world.ttft_s - usual_s)
        self.gross.tokens += world.prompt_tokens + length
        price = CACHED_PRICE if warm else FULL_PRICE
        self.gross.usd += (world.prompt_tokens * price + length * OUTPUT_PRICE) / 1e6
        self.own.total_s += world.hit_s
        self.own.ttft_s += world.hit_s

    def report(self) -> Report:
        """Return the report over the rows."""
        accounts = Accounts()
        for row in self.rows:
            accounts.add(row)
        return accounts.report()

    def truth(self, measure: str) -> float:
        """Return what the cache saved."""
        lookups_s = sum(row.overhead_s for row in self.rows)
        less = lookups_s if measure in ("total_s", "ttft_s") else 0.0
        found: float = getattr(self.gross, measure) - getattr(self.own, measure) - less
        return found


class Figures:
    """Errors and intervals of one sum, over runs."""

    def __init__(self) -> None:
        self.errors: list[float] = []
        self.covered: list[bool] = []
        self.halves: list[float] = []
        self.positive = 0

    def add(self, value: float, truth: float, interval: Interval | None = None) -> None:
        """Add a run. ``interval`` belongs to the value."""
        self.errors.append((value - truth) / abs(truth))
        if interval is None or interval.low is None or interval.high is None:
            return
        slack = 1e-9 * abs(truth)
        self.covered.append(interval.low - slack <= truth <= interval.high + slack)
        self.halves.append((interval.high - interval.low) / 2 / abs(truth))
        self.positive += interval.low > 0

    def summary(self) -> dict[str, float | None]:
        """Return the means, as shares of the truth."""
        return {
            "mean_error": fmean(self.errors),
            "rms_error": math.sqrt(fmean([each**2 for each in self.errors])),
            "covered": fmean(self.covered) if self.covered else None,
            "half_width": fmean(self.halves) if self.halves else None,
            "positive": self.positive,
        }


def compare(sums: defaultdict[str, Figures], report: Report, truth: dict[str, float]) -> None:
    """Add a report, and what was true, to the figures."""
    assert report.estimates is not None
    for estimate in report.estimates.estimates:
        right = truth[estimate.measure]
        for way, interval in (("calls", estimate.by_calls), ("holdout", estimate.by_holdout)):
            if interval is not None:
                sums[f"{estimate.measure} by {way}"].add(interval.value, right, interval)
    if "outliers_s" in truth:
        savings, more = report.overall.savings, truth["total_s"] + truth["outliers_s"]
        sums["total_s with outliers"].add(savings.total_s + savings.outliers_s, more)


def play(world: World, runs: int) -> dict[str, Any]:
    """Return what the reports over so many runs of a world are worth."""
    sums: defaultdict[str, Figures] = defaultdict(Figures)
    alarms, negative = 0, 0
    for seed in range(runs):
        draw = Draw(world, seed)
        report = draw.report()
        assert report.estimates is not None
        alarms += any(each.disagree for each in report.estimates.estimates)
        truth = {measure: draw.truth(measure) for measure in MEASURES}
        negative += truth["total_s"] < 0
        compare(sums, report, {**truth, "outliers_s": draw.outliers_s})
    return {
        "name": world.name,
        "runs": runs,
        "disagree": alarms / runs,
        "negative": negative,
        "sums": {name: figures.summary() for name, figures in sums.items()},
    }


# --- runs on sockets ----------------------------------------------------------------------------

REQUESTS = 150
QUESTIONS = 40
HOLDOUT = 0.1
AT_ONCE = 6
"""Runs that are made at the same time: each mostly waits."""
APART_S = 8.0
"""Time between their begins, so that not all are cold at the same time."""
PROVIDER = Provider(
    "sim",
    ProviderProfile(model="bench", ttft_ms=150.0, ttft_sigma=0.5, tokens_per_s=(80.0, 120.0)),
    seed=1,
    answer_tokens=10,
    price=(2.0, 8.0),
)


class Waited:
    """What the clients of a gateway waited in a run, in seconds."""

    def __init__(self) -> None:
        self.first_s = self.total_s = 0.0

    async def ask(self, site: Site, run: int, question: int, *, stream: bool) -> None:
        """Ask a question. Each run has questions and a model of its own."""
        number, due = 1000 * run + question, perf_counter()
        sample = await ask(site, site.url, number, due, stream=stream, model=f"run-{run}")
        assert sample.whole, sample
        self.first_s += sample.first_s
        self.total_s += sample.total_s


async def bill(site: Site, run: int) -> tuple[int, float]:
    """Return the tokens and the dollars of a run on the provider's bill."""
    (records,) = (await site.records()).values()
    own = [each for each in records if int(each.headers[NUMBER]) // 1000 == run]
    tokens = sum(sum(each.billed(cancels_billing=True)) for each in own)
    return tokens, sum(PROVIDER.bill_usd(each) for each in own)


async def run_once(run: int, off: Site, on: Site, store: str) -> tuple[Report, dict[str, float]]:
    """Ask both the same, and return the report beside what the client and the provider saw."""
    noise = random.Random(run)
    weights = [1 / (rank + 1) for rank in range(QUESTIONS)]
    without, cached = Waited(), Waited()
    for question in noise.choices(range(QUESTIONS), weights, k=REQUESTS):
        stream = noise.random() < 0.5
        await without.ask(off, run, question, stream=stream)
        await cached.ask(on, run, question, stream=stream)
    await asyncio.sleep(2 * FLUSH_S)
    accounts = Accounts()
    async with existing_store(store) as books:
        async for row in books.read_books():
            if row.model == f"run-{run}":
                accounts.add(row)
    (off_tokens, off_usd), (on_tokens, on_usd) = [await bill(each, run) for each in (off, on)]
    return accounts.report(), {
        "total_s": without.total_s - cached.total_s,
        "ttft_s": without.first_s - cached.first_s,
        "tokens": float(off_tokens - on_tokens),
        "usd": off_usd - on_usd,
    }


async def on_sockets(runs: int) -> dict[str, Any]:
    """Return what the reports over so many runs are worth."""
    sums: defaultdict[str, Figures] = defaultdict(Figures)
    some = asyncio.Semaphore(AT_ONCE)
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/books.db"
        cache = {"store": store, "mode": "exact-only", "holdout": HOLDOUT}
        without = {"store": "memory:", "enabled": False}
        other = replace(PROVIDER, seed=2)
        async with (
            site((PROVIDER,), [], cache=without) as off,
            site((other,), [], cache=cache) as on,
        ):

            async def one(run: int) -> None:
                await asyncio.sleep(APART_S * min(run, AT_ONCE))
                async with some:
                    report, truth = await run_once(run, off, on, store)
                compare(sums, report, truth)

            async with asyncio.TaskGroup() as group:
                for run in range(runs):
                    group.create_task(one(run))
    name = f"sockets: {REQUESTS} requests a run, holdout {HOLDOUT:.0%}; load {load()}"
    summaries = {name: figures.summary() for name, figures in sums.items()}
    return {"name": name, "runs": runs, "disagree": None, "negative": 0, "sums": summaries}


# --- the page -----------------------------------------------------------------------------------


def percent(share: float | None) -> str:
    """Return ``12.3 %``."""
    return "-" if share is None else f"{100 * share:.1f} %"


def show(found: dict[str, Any]) -> None:
    """Print what the runs of a world are worth."""
    negative = f", the truth is negative in {found['negative']}" if found["negative"] else ""
    disagree = "" if found["disagree"] is None else f", disagree {percent(found['disagree'])}"
    print(f"\n{found['name']}: {found['runs']} runs{disagree}{negative}")
    print(f"  {'':24}{'mean error':>12}{'rms':>10}{'covered':>10}{'half':>10}{'positive':>10}")
    for name, each in found["sums"].items():
        cells = [percent(each[key]) for key in ("mean_error", "rms_error", "covered", "half_width")]
        print(f"  {name:24}{cells[0]:>12}{cells[1]:>10}{cells[2]:>10}{cells[3]:>10}", end="")
        print(f"{each['positive']:>10}")


def main() -> None:
    """Run the worlds, then the runs on sockets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=200, help="runs of each world")
    parser.add_argument("--runs", type=int, default=30, help="runs on sockets")
    parser.add_argument("--only", choices=("worlds", "sockets"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for world in WORLDS if options.only != "sockets" else ():
        found.append(play(world, options.worlds))
        show(found[-1])
    if options.only != "worlds":
        found.append(uvloop.run(on_sockets(options.runs)))
        show(found[-1])
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The gain of racing, hedging and routing, simulated with the policies of the proxy.

    python -m benchmarks.racing_model [--calls N] [--seed N] [--json FILE]

No sockets and no clock: times to first token are drawn from seeded distributions (lognormal bodies,
rare stalls), and the policies learn and decide online, call after call, as they do in the proxy.
Races and hedges stand beside figures that were drawn independently of this code, at fixed delays
and without a budget, so the budget is half as large again as the share there; the last row has the
default one. Routing stands beside the field's policies and an oracle that knows every mean and
each answer's length.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headstart.policies.routing.measures import Measures, UpstreamModel
from headstart.policies.routing.ordering import Availability, CallShape, by_speed, predict_call
from headstart.policies.routing.schedule import BUDGET_WINDOW, ExtraBudget, hedge_delay_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.attempts import RoutingEstimate

STEP_S = 0.1
"""Between two calls of a race or hedge."""
PROMPT = 400


class Profile(NamedTuple):
    """Times to first token: a lognormal body, and stalls of 5 to 30 s on top of it."""

    p50_s: float = 1.0
    sigma: float = 0.8
    stalls: float = 0.0

    def ttft_s(self, noise: random.Random, common: float = 0.0, shared: float = 0.0) -> float:
        """Draw one; ``shared`` is its correlation with others of the same ``common`` draw."""
        normal = math.sqrt(shared) * common + math.sqrt(1 - shared) * noise.gauss(0, 1)
        stall_s = noise.uniform(5, 30) if noise.random() < self.stalls else 0.0
        return self.p50_s * math.exp(self.sigma * normal) + stall_s


STALLING = Profile(p50_s=0.4, sigma=math.log(0.9 / 0.4) / 1.645, stalls=0.05)


class Race(NamedTuple):
    sigma: float
    racers: int
    shared: float
    published: tuple[float, float, float, float]
    """Mean, p50, p95, p99."""


RACES = (
    Race(0.5, 1, 0.0, (1.13, 1.00, 2.28, 3.19)),
    Race(0.5, 2, 0.0, (0.82, 0.76, 1.46, 1.90)),
    Race(0.5, 3, 0.0, (0.70, 0.66, 1.18, 1.48)),
    Race(0.8, 1, 0.0, (1.38, 1.00, 3.73, 6.44)),
    Race(0.8, 2, 0.0, (0.79, 0.65, 1.84, 2.79)),
    Race(0.8, 3, 0.0, (0.60, 0.52, 1.31, 1.88)),
    Race(0.8, 2, 0.5, (0.95, 0.73, 2.41, 3.94)),
    Race(1.0, 1, 0.0, (1.65, 1.00, 5.18, 10.3)),
    Race(1.0, 2, 0.0, (0.79, 0.58, 2.14, 3.60)),
)


class Hedge(NamedTuple):
    name: str
    profile: Profile
    extra_calls: float
    budget: float
    published: tuple[float | None, float | None, float | None]
    """Extra calls, p95, p99."""


HEDGES = (
    Hedge("own p95, sigma 0.8", Profile(), 0.05, 0.075, (0.05, 3.73, 4.90)),
    Hedge("own p75, sigma 0.8", Profile(), 0.25, 0.375, (0.25, 2.75, 3.71)),
    Hedge("own p50, sigma 0.8", Profile(), 0.50, 0.75, (0.50, 2.36, None)),
    Hedge("5 % stall, at 0.9 s", STALLING, 0.097, 0.145, (0.097, None, 1.57)),
    Hedge("5 % stall, at 1.2 s", STALLING, 0.062, 0.093, (0.062, None, 1.86)),
    Hedge("own p95, default", Profile(), 0.05, 0.05, (None, None, None)),
    Hedge("5 % stall, default", STALLING, 0.05, 0.05, (None, None, None)),
)


class Summary(NamedTuple):
    mean: float
    p50: float
    p95: float
    p99: float


def summary(values: Sequence[float]) -> Summary:
    """Return exact figures of a sample."""
    ranked = sorted(values)
    p50, p95, p99 = (ranked[int(share * len(ranked))] for share in (0.5, 0.95, 0.99))
    return Summary(sum(ranked) / len(ranked), p50, p95, p99)


def raced(race: Race, calls: int, seed: int) -> tuple[Summary, float]:
    """Return a race's times, and the p95 of one racer as learned from races that cut it short."""
    noise, measures = random.Random(seed), Measures()
    keys = [UpstreamModel(f"provider-{i}", "model") for i in range(race.racers)]
    profile, times = Profile(sigma=race.sigma), []
    for number in range(calls):
        common = noise.gauss(0, 1)
        drawn = [profile.ttft_s(noise, common, race.shared) for _ in keys]
        won_s = min(drawn)
        for key, ttft_s in zip(keys, drawn, strict=True):
            learn = measures.first if ttft_s == won_s else measures.censored
            learn(key, PROMPT, won_s, number * STEP_S)
        times.append(won_s)
    return summary(times), measures.ttft_s(keys[0], PROMPT, 0.95, calls * STEP_S) or 0.0


class Hedged(NamedTuple):
    alone: Summary
    hedged: Summary
    extra: float
    """Extra calls as a share of all."""
    most_in_window: int
    """Most extra calls in any window of 1,000 calls."""
    delay_s: float
    """The delay at the end."""


def hedged(hedge: Hedge, calls: int, seed: int) -> Hedged:
    """Return what online hedging makes of two providers with independent times."""
    noise, measures = random.Random(seed), Measures()
    keys = (UpstreamModel("first", "model"), UpstreamModel("second", "model"))
    budget = ExtraBudget(hedge.budget, hedge.budget)
    alone, times, extra = [], [], []
    delay_s: float | None = None
    for number in range(calls):
        now = number * STEP_S
        looks = [
            predict_call(k.upstream, k, CallShape(PROMPT), Availability(), measures, now)
            for k in keys
        ]
        delay_s = hedge_delay_s(looks, extra_calls=hedge.extra_calls)
        one_s, other_s = hedge.profile.ttft_s(noise), hedge.profile.ttft_s(noise)
        budget.earn(0.0)
        asked = delay_s is not None and one_s > delay_s and budget.spend(0.0)
        over_s = min(one_s, (delay_s or 0.0) + other_s) if asked else one_s
        (measures.first if over_s == one_s else measures.censored)(keys[0], PROMPT, over_s, now)
        if asked:
            learn = measures.censored if over_s == one_s else measures.first
            learn(keys[1], PROMPT, over_s - (delay_s or 0.0), now)
        alone.append(one_s)
        times.append(over_s)
        extra.append(int(asked))
    run = list(itertools.accumulate(extra, initial=0))
    most = max(run[i] - run[max(0, i - BUDGET_WINDOW)] for i in range(1, len(run)))
    return Hedged(summary(alone), summary(times), sum(extra) / calls, most, delay_s or 0.0)


# --- routing ---------------------------------------------------------------------------------


class Provider(NamedTuple):
    name: str
    ttft: Profile
    tokens_per_s: float


class Traffic(NamedTuple):
    route: str
    p50_tokens: float
    share: float


PROVIDERS = (
    Provider("prompt", Profile(0.15, 0.5, 0.01), 45.0),
    Provider("balanced", Profile(0.35, 0.5, 0.01), 90.0),
    Provider("fluent", Profile(0.80, 0.5, 0.01), 300.0),
)
TRAFFIC = (Traffic("short", 15.0, 0.8), Traffic("medium", 60.0, 0.1), Traffic("long", 800.0, 0.1))
STALL_MEAN_S = 17.5


def chosen_by(name: str, noise: random.Random) -> Callable[[list[RoutingEstimate], int], int]:
    """Return a policy. All measure a provider that has fewer than eight samples first."""

    def measured(
        best: Callable[[RoutingEstimate], float],
    ) -> Callable[[list[RoutingEstimate], int], int]:
        def choose(looks: list[RoutingEstimate], _: int) -> int:
            few = [i for i, look in enumerate(looks) if look.samples < 8]
            return few[0] if few else min(range(len(looks)), key=lambda i: best(looks[i]))

        return choose

    return {
        "by_speed": lambda looks, _: by_speed(looks, draw=noise.random)[0],
        "lowest TTFT": measured(lambda look: look.ttft_s or 0.0),
        "highest tokens/s": measured(lambda look: -(look.tokens_per_s or 0.0)),
        "round robin": lambda looks, number: number % len(looks),
    }[name]


POLICIES = ("by_speed", "lowest TTFT", "highest tokens/s", "round robin", "oracle")


def routed(policy: str, calls: int, seed: int) -> dict[str, float]:
    """Return the mean time to complete an answer of each kind of traffic, in seconds."""
    noise, measures = random.Random(seed), Measures()
    keys = [UpstreamModel(provider.name, "model") for provider in PROVIDERS]
    choose = None if policy == "oracle" else chosen_by(policy, random.Random(seed + 1))
    times: dict[str, list[float]] = {each.route: [] for each in TRAFFIC}
    ending: list[tuple[float, int, int, float, int, str]] = []
    now = 0.0
    for number in range(calls):
        now += noise.expovariate(2.0)
        while ending and ending[0][0] <= now:
            _learn(measures, keys, heapq.heappop(ending))
        traffic = noise.choices(TRAFFIC, [each.share for each in TRAFFIC])[0]
        tokens = max(2, round(traffic.p50_tokens * math.exp(0.4 * noise.gauss(0, 1))))
        drawn = [provider.ttft.ttft_s(noise) for provider in PROVIDERS]
        if choose is None:
            best = min(range(len(keys)), key=lambda i: _mean_s(PROVIDERS[i], tokens))
        else:
            ask = CallShape(PROMPT, route_or_endpoint=traffic.route)
            looks = [predict_call(k.upstream, k, ask, Availability(), measures, now) for k in keys]
            best = choose(looks, number)
        measures.began(keys[best], now)
        took_s = drawn[best] + tokens / PROVIDERS[best].tokens_per_s
        row = (now + took_s, number, best, drawn[best], tokens, traffic.route)
        heapq.heappush(ending, row)
        times[traffic.route].append(took_s)
    means = {route: sum(each) / len(each) for route, each in times.items()}
    return {**means, "mean": sum(map(sum, times.values())) / calls}


def _learn(
    measures: Measures, keys: Sequence[UpstreamModel], row: tuple[float, int, int, float, int, str]
) -> None:
    at, _, index, ttft_s, tokens, route = row
    decoding_s = tokens / PROVIDERS[index].tokens_per_s
    measures.first(keys[index], PROMPT, ttft_s, at - decoding_s)
    measures.speed(keys[index], tokens, decoding_s, at)
    measures.length(route, tokens, at)
    measures.ended(keys[index])


def _mean_s(provider: Provider, tokens: int) -> float:
    body_s = provider.ttft.p50_s * math.exp(provider.ttft.sigma**2 / 2)
    return body_s + provider.ttft.stalls * STALL_MEAN_S + tokens / provider.tokens_per_s


# --- the page --------------------------------------------------------------------------------


def _beside(measured: float, published: float | None) -> str:
    if published is None:
        return f"{measured:7.3f}        "
    return f"{measured:7.3f} {measured / published - 1:+6.1%} "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=60_000, help="calls of each row")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    figures: dict[str, list[dict[str, object]]] = {"races": [], "hedges": [], "routing": []}

    print("race    mean           p50            p95            p99            p95 learned of one")
    for race in RACES:
        times, learned_s = raced(race, args.calls, args.seed)
        label = f"{race.sigma} x{race.racers}{'*' if race.shared else ''}"
        cells = "".join(map(_beside, times, race.published))
        print(f"{label:8}{cells}{learned_s:7.3f}")
        figures["races"].append({**race._asdict(), **times._asdict(), "learned_p95": learned_s})

    print(
        "\nhedge                 extra          p95            p99          alone      1,000  delay"
    )
    for hedge in HEDGES:
        got = hedged(hedge, args.calls, args.seed)
        measured = (got.extra, got.hedged.p95, got.hedged.p99)
        cells = "".join(map(_beside, measured, hedge.published))
        gain = got.hedged.p99 / got.alone.p99 - 1
        print(
            f"{hedge.name:22}{cells}{got.alone.p99:6.2f} {gain:+.0%} "
            f"{got.most_in_window:5} {got.delay_s:6.2f}"
        )
        figures["hedges"].append(
            {"name": hedge.name, "published": hedge.published, **got._asdict()}
        )

    print(
        "\nrouting, s to complete" + "".join(f"{each.route:>9}" for each in TRAFFIC) + "     mean"
    )
    for policy in POLICIES:
        means = routed(policy, args.calls, args.seed)
        print(f"{policy:22}" + "".join(f"{each:9.3f}" for each in means.values()))
        figures["routing"].append({"policy": policy, **means})

    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

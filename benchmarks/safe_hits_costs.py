"""The cost of safe hits: CPU time of each part, bytes of an entry and of a learning domain.

    python -m benchmarks.safe_hits_costs [--cache FOLDER]

Plays the synthetic slots once, then times each part on their pairs: the shortest of five rounds, in
microseconds of CPU, on one thread. The encoder is not measured.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from benchmarks.safe_hits_vectors import Prompts
from benchmarks.slots import slots_stream
from headstart.decisions import Label, LabelSource, MatchContext, Neighbor, RankedNeighbor
from headstart.policies.guards.substitution import exchanged_maxsim
from headstart.policies.guards.table import parse_prompt
from headstart.policies.learned_rule.domain import Domain, redraw_curve
from headstart.policies.learned_rule.error_limit import MOST_ENTRY_STATS, ErrorLimit
from headstart.policies.learned_rule.features import unpack_features
from headstart.policies.learned_rule.threshold import MEMORY
from headstart.policies.match import VerifiedMatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.policies.guards.words import Parse

PAIRS = 400
ROUNDS = 5


class Pair(NamedTuple):
    """A prompt, one to compare it with, and its neighbours."""

    query: Parse
    candidate: Parse
    nearby: RankedNeighbor


def pairs_of(prompts: Prompts, texts: Sequence[str]) -> list[Pair]:
    """Return neighbouring prompts with eight neighbours each."""
    prepared = [prompts.prepare(text) for text in texts]
    pairs = []
    for place, asked in enumerate(prepared[8:], 8):
        near = sorted(
            (float(asked.vector @ prepared[other].vector), other)
            for other in range(place - 8, place)
        )[::-1]
        nearby = RankedNeighbor(
            MatchContext(), [Neighbor(id=str(other), similarity=s) for s, other in near], 0
        )
        pairs.append(Pair(asked.parse, prepared[near[0][1]].parse, nearby))
    return pairs


def filled(policy: VerifiedMatch, domain: Domain, pairs: Sequence[Pair]) -> list[Label]:
    """Fill a domain's memory and its entry records; return the labels of the last pairs."""
    labels: list[Label] = []
    while domain.status().candidates < MEMORY or len(labels) < MOST_ENTRY_STATS:
        for pair in pairs:
            number = len(labels)
            verdict = policy.judge(pair.query, pair.candidate, pair.nearby)
            labels.append(
                Label(
                    id=f"{number:026}",
                    entry=f"{number - 1:026}",
                    domain="",
                    source=LabelSource.MISS,
                    same=number % 3 > 0,
                    at=float(number),
                    similarity=verdict.similarity,
                    version=policy.version,
                    features=verdict.features,
                    stored=True,
                )
            )
            domain.apply(labels[-1])
    return labels[-PAIRS:]


def least_us(work: Callable[[int], object], count: int) -> float:
    """Return the CPU microseconds of one call, the least of the rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for number in range(count):
            work(number)
        best = min(best, (time.process_time() - start) / count)
    return best * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--cache", type=Path, help="folder for encodings")
    prompts = Prompts(parser.parse_args().cache)
    texts = [asked.text for asked in slots_stream(0)]
    pairs = pairs_of(prompts, texts)
    error_limit = ErrorLimit()
    tracemalloc.start()
    domain = Domain(error_limit)
    policy = VerifiedMatch(error_limit, lambda _: domain)
    before = tracemalloc.get_traced_memory()[0]
    labels = filled(policy, domain, pairs)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    state = domain._state  # noqa: SLF001 - the update is timed alone
    encodings = [prompts.encoding(text) for text in texts[:PAIRS]]
    rows = [unpack_features(label.features) for label in labels]

    def decide(number: int) -> object:
        query, candidate, nearby = pairs[number]
        return policy.judge(query, candidate, nearby, policy.veto(query, candidate))

    measured = {
        "parse of a prompt": least_us(lambda n: parse_prompt(texts[n], encodings[n]), PAIRS),
        "guards of one neighbour": least_us(
            lambda n: policy.veto(pairs[n].query, pairs[n].candidate), PAIRS
        ),
        "MaxSim of exchanged words": least_us(
            lambda n: exchanged_maxsim(pairs[n].query, pairs[n].candidate), PAIRS
        ),
        "decision: guards, features, score": least_us(decide, PAIRS),
        "of it the score": least_us(lambda n: domain.score(rows[n], labels[n].entry), PAIRS),
        "learning a label, updates included": least_us(lambda n: domain.apply(labels[n]), PAIRS),
        "threshold update, full memory": least_us(lambda _: redraw_curve(state, error_limit), 20),
    }
    for name, cost in measured.items():
        print(f"{name:36} {cost:8.1f} µs")
    parses = [len(policy.pack(prompts.prepare(text).parse)) for text in texts]
    print(f"{'an entry: parse':36} {sum(parses) / len(parses):8.0f} bytes")
    print(f"{'a label in the store':36} {len(msgspec.msgpack.encode(labels[0])):8} bytes")
    print(f"{'a domain, full: in memory':36} {held:8} bytes")
    print(f"{'a domain, full: snapshot':36} {len(domain.snapshot()):8} bytes")
    fresh = Domain(error_limit).snapshot()
    print(f"{'a domain without labels: snapshot':36} {len(fresh):8} bytes")


if __name__ == "__main__":
    main()

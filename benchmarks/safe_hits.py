"""Are hits safe? Streams of labelled prompts against match policies, each from cold.

    python -m benchmarks.safe_hits --clinc data_full.json --banking train.csv --pairs pairs.jsonl
        [--orderings 0 1 2] [--requests 6000] [--judges oracle real noise=0.087,0.22]
        [--targets 0.005 0.01 0.02 0.05] [--confidence 0.84]
        [--streams clinc banking slots mix] [--without-sketches] [--ask-twice]
        [--cache FOLDER]
        [--processes 2] [--out FILE]
    python -m benchmarks.safe_hits --files geography.jsonl advising.jsonl [...]

Streams: CLINC150 and Banking77 as ``benchmarks/convert.py`` draws them (same intent, same answer),
the synthetic slots of the tests, a mix of the three, and ``shift``: 4,000 of CLINC150, then the
slots, only on demand. ``--files`` plays files of ``{"prompt", "class"}`` lines instead, each in as
many orders. All are played as ``headstart evaluate`` plays a file, with the same numbers.
The pairs (fow-cache's, by category) meet the cold-start rule as it is after an uneventful start.

A run breaks the promise when the exact one-sided 95 % lower bound of its error exceeds the target.
"hit" counts all semantic hits, "saved" those that were not audited: an audit asks upstream.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from itertools import chain, product
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.convert import banking77, clinc150
from benchmarks.safe_hits_table import Run, print_pairs, print_shift, print_table, summary
from benchmarks.safe_hits_vectors import Prompts
from benchmarks.slots import slots_stream
from headstart.decisions import Rule
from headstart.lab.rates import LabelledPrompt, Pairs, judge_pairs, read_labelled, same_class
from headstart.lab.stream import (
    PolicySetup,
    ReplayRun,
    TestedPolicy,
    judge_noise,
    noisy,
    play,
    policy_maker,
)
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import ErrorLimit
from headstart.policies.match import VerifiedMatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headstart.lab.rates import PairReport
    from headstart.lab.stream import PlayedPrompt
    from headstart.policies.guards.words import Parse

STATIC = ("bare:0.80", "bare:0.90", "bare:0.95", "static:0.90")
SHIFT_AT = 4000
"""The number of requests before the shift."""
AFTER_SHIFT = 1000


class Entrant(NamedTuple):
    """A policy and its judge.

    With ``oracle@real`` the policy assumes the errors of the real judge, but the oracle labels.
    """

    policy: str
    judge: str
    confidence: float
    optimistic: bool = False
    ask_twice: bool = False

    def __call__(self) -> TestedPolicy:
        """Return a new policy. ``optimistic``: as if its first near misses had equal answers."""
        noise = judge_noise(self.judge.rpartition("@")[2])
        kind, _, value = self.policy.partition(":")
        if kind != "verified":
            return policy_maker(self.policy, PolicySetup(guards=True, noise=noise))()
        error_limit = ErrorLimit(
            max_error=float(value),
            confidence=self.confidence,
            judge=noise,
            cold_start="optimistic" if self.optimistic else "strict",
        )
        domain = Domain(error_limit)
        return TestedPolicy(VerifiedMatch(error_limit, lambda _: domain), domain)


class Source(NamedTuple):
    """The sources of the streams. ``files`` are streams by name."""

    clinc: Path | None
    banking: Path | None
    requests: int
    files: Mapping[str, Path]

    def read(self, name: str, ordering: int) -> Sequence[LabelledPrompt]:
        """Return a stream's rows in the order in which they are asked."""
        lines = (
            json.dumps({"prompt": text, "class": label}).encode()
            for text, label in self._pairs(name, ordering)
        )
        rows = read_labelled(lines)
        if isinstance(rows, Pairs):
            raise TypeError
        return rows.rows

    def _pairs(self, name: str, ordering: int) -> list[tuple[str, str]]:
        if name == "slots":
            return [(row.text, row.label) for row in slots_stream(ordering)]
        if name == "shift":
            return [*self._pairs("clinc", ordering)[:SHIFT_AT], *self._pairs("slots", ordering)]
        if name == "mix":
            half, third = self.requests // 2, self.requests // 3
            parts = {"clinc": half, "banking": half, "slots": third}
            mixed = [
                (text, f"{part} {label}")
                for part, most in parts.items()
                for text, label in self._pairs(part, ordering)[:most]
            ]
            random.Random(ordering).shuffle(mixed)
            return mixed
        rows = self._unordered(name)
        random.Random(ordering).shuffle(rows)
        return rows[: self.requests]

    def _unordered(self, name: str) -> list[tuple[str, str]]:
        if name in self.files:
            lines = self.files[name].read_bytes().splitlines()
            return [(line["prompt"], line["class"]) for line in map(json.loads, lines)]
        reader, path = {"clinc": (clinc150, self.clinc), "banking": (banking77, self.banking)}[name]
        if path is None:
            raise SystemExit(f"--{name} is missing: it is the file of the stream {name!r}")
        return list(reader(path))


def run(
    name: str, ordering: int, rows: Sequence[LabelledPrompt], entrant: Entrant, prompts: Prompts
) -> Run:
    """Play one stream against one policy."""
    tested = entrant()
    chance = random.Random(0)
    run: ReplayRun[Parse, LabelledPrompt] = ReplayRun(
        tested.policy,
        tested.domain,
        same_class,
        noisy(same_class, judge_noise(entrant.judge.partition("@")[0]), chance.random),
        chance.random,
        repeats=entrant.ask_twice,
    )
    steps = list(play(rows, prompts.prepare, run))
    kind, _, target = entrant.policy.partition(":")
    cold = [step for step in steps if step.verdict and step.verdict.rule is Rule.COLD_START]
    return Run(
        stream=name,
        ordering=ordering,
        policy=entrant.policy,
        judge=entrant.judge,
        confidence=entrant.confidence,
        target=float(target) if kind == "verified" else None,
        requests=len(steps),
        **_counts(steps),
        audits=sum(step.audited for step in steps),
        cold_hits=_counts(cold)["hits"],
        cold_wrong=_counts(cold)["wrong"],
        quarters=[
            _counts(steps[len(steps) * q // 4 : len(steps) * (q + 1) // 4])["hits"]
            for q in range(4)
        ],
        after_shift=_counts(steps[SHIFT_AT : SHIFT_AT + AFTER_SHIFT]) if name == "shift" else None,
        alarms=tested.domain.status().alarms if tested.domain else 0,
    )


def _counts(steps: Iterable[PlayedPrompt[LabelledPrompt]]) -> dict[str, int]:
    found = Counter(bool(step.right) for step in steps if step.served)
    return {"hits": found.total(), "wrong": found[False]}


def judge_file(path: Path, policies: Sequence[str], prompts: Prompts) -> dict[str, PairReport]:
    """Judge a file of pairs by each policy, as ``headstart evaluate`` does."""
    with path.open("rb") as lines:
        pairs = read_labelled(lines)
    if not isinstance(pairs, Pairs):
        raise TypeError(f"{path} holds no pairs")
    confidence = ErrorLimit().confidence
    return {
        policy: judge_pairs(
            pairs.rows,
            prompts.prepare,
            Entrant(policy, "oracle", confidence, optimistic=True)().policy,
        )
        for policy in policies
    }


class _Inherited:
    """Data that forked workers share: streams by name and ordering, parsed prompts."""

    prompts: Prompts
    streams: Mapping[tuple[str, int], Sequence[LabelledPrompt]]


def _play(job: tuple[str, int, Entrant]) -> Run:
    name, ordering, entrant = job
    return run(name, ordering, _Inherited.streams[name, ordering], entrant, _Inherited.prompts)


def play_all(
    source: Source,
    streams: Sequence[str],
    orderings: Sequence[int],
    entrants: Sequence[Entrant],
    prompts: Prompts,
    processes: int,
) -> list[Run]:
    """Play every stream in every ordering against all entrants."""
    rows = {(name, place): source.read(name, place) for name in streams for place in orderings}
    for row in chain.from_iterable(rows.values()):
        if row.prompt.query is not None:
            prompts.prepare(row.prompt.query, row.prompt.task)
    _Inherited.prompts, _Inherited.streams = prompts, rows
    jobs = product(streams, orderings, entrants)
    with get_context("fork").Pool(processes) as pool:
        return list(pool.imap(_play, jobs))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--clinc", type=Path)
    parser.add_argument("--banking", type=Path)
    parser.add_argument("--files", type=Path, nargs="+", default=[], help="streams to play")
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--orderings", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--judges", nargs="*", default=["oracle", "real", "noise=0.087,0.22"])
    parser.add_argument("--targets", nargs="*", default=["0.005", "0.01", "0.02", "0.05"])
    parser.add_argument("--static", nargs="*", default=STATIC, help="policies that never learn")
    parser.add_argument("--confidence", type=float, nargs="+", default=[ErrorLimit().confidence])
    parser.add_argument("--streams", nargs="*")
    parser.add_argument(
        "--without-sketches", action="store_true", help="find neighbours by their encodings"
    )
    parser.add_argument(
        "--ask-twice",
        action="store_true",
        help="as with cache.audit.ask_twice",
    )
    parser.add_argument("--cache", type=Path, help="folder for encodings")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    """Play all and print."""
    args = _arguments(argv)
    entrants = [Entrant(policy, "oracle", args.confidence[0]) for policy in args.static]
    entrants += [
        Entrant(f"verified:{target}", judge, confidence, ask_twice=args.ask_twice)
        for judge in args.judges
        for confidence in args.confidence
        for target in args.targets
    ]
    prompts = Prompts(args.cache, sketches=not args.without_sketches)
    source = Source(args.clinc, args.banking, args.requests, {p.stem: p for p in args.files})
    streams = args.streams
    if streams is None:
        streams = source.files or ["clinc", "banking", "slots", "mix"]
    runs = play_all(source, list(streams), args.orderings, entrants, prompts, args.processes)
    policies = [*args.static, *(f"verified:{target}" for target in args.targets)]
    pairs = judge_file(args.pairs, policies, prompts) if args.pairs else {}
    print_table(runs)
    print_shift(runs)
    print_pairs(pairs)
    if args.out:
        args.out.write_text(json.dumps(summary(runs, pairs), separators=(",", ":")) + "\n")
    prompts.keep()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Are hits safe? Streams of labelled prompts against match policies, each from cold.

    python -m benchmarks.safe_hits CLINC150/data_full.json BANKING77/train.csv [--json]
        [--orderings 0 1 2] [--requests 6000] [--judges oracle band noisy] [--cache FOLDER]

Streams: CLINC150 and Banking77 (same intent, same answer), the synthetic slots of the tests, and a
mix of the three; no exact repeats. A run breaks the promise when the exact one-sided 95 % lower
bound of its error exceeds the target. Audited hits are served; "hit" counts them, "saved" does not.
Judges: ``oracle`` never errs; ``noisy`` calls 8.7 % of same answers different and 22 % of different
ones the same; ``band`` is the same judge with its unsure cases left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headstart.decisions import Encoding
from headstart.embeddings.encoder import OnnxEncoder
from headstart.lab.contenders import Setup, contender_of
from headstart.lab.judges import noisy
from headstart.lab.statistics import least_share
from headstart.lab.stream import Game, Prepared, play
from headstart.policies.guards.parse import parse_prompt
from headstart.policies.ratchet.settings import EXACT_JUDGE, JudgeNoise
from headstart.types import CacheKey
from tests.support.slots import slots_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.policies.guards.parse import Parse

JUDGES = {
    "oracle": EXACT_JUDGE,
    "band": JudgeNoise(),
    "noisy": JudgeNoise(
        false_disagree=0.087, false_agree=0.22, unsure_same=0.0, unsure_different=0.0
    ),
}
STATIC = ("bare:0.80", "bare:0.90", "bare:0.95", "static:0.90")
TARGETS = (0.005, 0.01, 0.02, 0.05)


class Row(NamedTuple):
    """One prompt; prompts of one label have one answer."""

    prompt: CacheKey
    label: str


class Run(NamedTuple):
    """One policy on one ordering of one stream."""

    stream: str
    ordering: int
    policy: str
    judge: str
    target: float | None
    requests: int
    hits: int
    wrong: int
    audits: int

    @property
    def broken(self) -> bool:
        """Did it break its promise, beyond chance?"""
        return self.target is not None and least_share(self.wrong, self.hits) > self.target


class Prompts:
    """Encodes each prompt once; ``folder`` keeps the encodings for the next time."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / "safe_hits.npz" if folder else None
        self._encoder = OnnxEncoder()
        self._prepared: dict[str, Prepared[Parse]] = {}
        self._encodings: dict[str, Encoding] = {}
        if self._file and self._file.exists():
            self._encodings = dict(_read(self._file))

    def prepare(self, text: str) -> Prepared[Parse]:
        """Return a prompt's vector and parse."""
        if text not in self._prepared:
            if text not in self._encodings:
                self._encodings[text] = self._encoder.encode(text)
            encoding = self._encodings[text]
            parse = parse_prompt(text, encoding)
            self._prepared[text] = Prepared(encoding.sentence, parse, encoding.complete)
        return self._prepared[text]

    def keep(self) -> None:
        """Write the encodings, if there is a folder."""
        if self._file is None:
            return
        texts, encodings = list(self._encodings), list(self._encodings.values())
        np.savez(
            self._file,
            texts=np.array(texts),
            lengths=np.array([len(encoding.spans) for encoding in encodings]),
            sentences=np.array([encoding.sentence for encoding in encodings]),
            tokens=np.concatenate([encoding.tokens for encoding in encodings]).astype(np.float16),
            spans=np.concatenate([np.array(encoding.spans) for encoding in encodings]),
            complete=np.array([encoding.complete for encoding in encodings]),
        )


def _read(file: Path) -> Iterable[tuple[str, Encoding]]:
    kept = {name: array for name, array in np.load(file).items()}  # noqa: C416 - loaded once
    ends = np.cumsum(kept["lengths"])
    for place, (text, last) in enumerate(zip(kept["texts"].tolist(), ends, strict=True)):
        span = slice(last - kept["lengths"][place], last)
        yield (
            text,
            Encoding(
                sentence=kept["sentences"][place],
                tokens=kept["tokens"][span].astype(np.float32),
                spans=tuple(map(tuple, kept["spans"][span].tolist())),
                complete=bool(kept["complete"][place]),
            ),
        )


def read_streams(
    clinc: Path, banking: Path, requests: int, ordering: int
) -> dict[str, Sequence[Row]]:
    """Return the streams of one ordering, without exact repeats."""
    data = json.loads(clinc.read_text())
    intents = [pair for part in ("train", "val", "test") for pair in data[part]]
    with banking.open(newline="") as lines:
        cards = [(row["text"], row["category"]) for row in csv.DictReader(lines)]
    shuffled = random.Random(ordering)
    drawn = {}
    for name, pairs in (("clinc", intents), ("banking", cards)):
        different = list({text.strip().lower(): (text, label) for text, label in pairs}.values())
        drawn[name] = [
            _row(text, f"{name}/{label}")
            for text, label in shuffled.sample(different, min(requests, len(different)))
        ]
    drawn["slots"] = [_row(*asked) for asked in slots_stream(ordering)]
    half, third = requests // 2, requests // 3
    mix = [*drawn["clinc"][:half], *drawn["banking"][:half], *drawn["slots"][:third]]
    return {**drawn, "mix": shuffled.sample(mix, len(mix))}


def _row(text: str, label: str) -> Row:
    return Row(CacheKey(scope="", partition="", exact=text, query=text), label)


def run(
    name: str, ordering: int, rows: Sequence[Row], policy: str, judge: str, prompts: Prompts
) -> Run:
    """Play one stream against one policy."""
    noise = JUDGES[judge]
    contender = contender_of(policy, Setup(guards=True, noise=noise))()
    draw = random.Random(f"{ordering}{judge}").random
    game: Game[Parse, Row] = Game(
        contender.policy, contender.domain, _same, noisy(_same, noise, draw), draw, _one_history
    )
    steps = list(play(rows, prompts.prepare, game))
    hits = [step for step in steps if step.served]
    kind, _, target = policy.partition(":")
    return Run(
        name,
        ordering,
        policy,
        judge,
        float(target) if kind == "verified" else None,
        len(steps),
        len(hits),
        sum(not step.right for step in hits),
        sum(step.audited for step in hits),
    )


def _one_history(fresh: CacheKey, cached: CacheKey) -> bool:
    """Single questions have no history."""
    return fresh.scope == cached.scope


def _same(fresh: Row, cached: Row) -> bool:
    return fresh.label == cached.label


def print_table(runs: Sequence[Run]) -> None:
    """Print means over the orderings."""
    print(
        f"{'stream':8} {'judge':7} {'policy':15} hit%  saved%  wrong/hit%  wrong/request%  broken"
    )
    for key in dict.fromkeys((each.stream, each.judge, each.policy) for each in runs):
        group = [each for each in runs if (each.stream, each.judge, each.policy) == key]
        requests, hits, wrong, audits = (
            sum(getattr(each, field) for each in group)
            for field in ("requests", "hits", "wrong", "audits")
        )
        broken = sum(each.broken for each in group)
        print(
            f"{key[0]:8} {key[1]:7} {key[2]:15} {hits / requests:5.1%}"
            f" {(hits - audits) / requests:6.1%} {wrong / max(hits, 1):10.2%}"
            f" {wrong / requests:14.2%}  {broken}/{len(group)}"
        )
    promised = [each for each in runs if each.target is not None]
    print(f"broken: {sum(each.broken for each in promised)} of {len(promised)} runs")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("clinc", type=Path)
    parser.add_argument("banking", type=Path)
    parser.add_argument("--orderings", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--judges", nargs="+", choices=JUDGES, default=list(JUDGES))
    parser.add_argument("--streams", nargs="+", default=["clinc", "banking", "slots", "mix"])
    parser.add_argument("--cache", type=Path, help="folder for encodings")
    parser.add_argument("--json", action="store_true", help="print JSON lines beside the table")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    """Play all and print."""
    args = _arguments(argv)
    prompts = Prompts(args.cache)
    runs = []
    policies = [(policy, "oracle") for policy in STATIC]
    policies += [(f"verified:{target}", judge) for judge in args.judges for target in TARGETS]
    for ordering in args.orderings:
        streams = read_streams(args.clinc, args.banking, args.requests, ordering)
        for name, (policy, judge) in ((s, p) for s in args.streams for p in policies):
            runs.append(run(name, ordering, streams[name], policy, judge, prompts))
            if args.json:
                fields: dict[str, Any] = {**runs[-1]._asdict(), "broken": runs[-1].broken}
                print(json.dumps(fields), flush=True)
    prompts.keep()
    print_table(runs)


if __name__ == "__main__":
    main(sys.argv[1:])

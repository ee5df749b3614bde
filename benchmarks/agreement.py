"""Fit and measure the agreement judge (``docs/agreement.md``) on answers that people judged.

    python -m benchmarks.agreement NQ.json [--vectors CACHE.npz] [--json]

Questions with an even number are used to fit the judge, the others to measure it. The command
prints the constants of ``headstart/policies/agreement/judge.py``. ``agreement_pairs`` describes the
kinds of pairs. Encoding takes two minutes; ``--vectors`` saves the vectors for the next run.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.agreement_pairs import Pair, build_pairs, read_questions
from headstart.embeddings.encoder import OnnxEncoder
from headstart.policies.agreement.judge import (
    ENCODED_CHARS,
    LIKENESS_FEATURES,
    WITHOUT_COSINE,
    AgreementMethod,
    AgreementModel,
    compare_words,
    judge,
    question_words,
    read_words,
)
from headstart.types import Choice, Completion, Text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

WEIGHTS = {
    "same": 1.0,
    "reworded": 3.0,
    "far": 1.0,
    "near": 3.0,
    "exchanged": 0.3,
    "exchanged by another": 0.2,
    "upstream": 0.1,
}
"""The weights of the kinds in the fit. A cache's typical error is the answer to a similar question,
not an error of an upstream."""
BAND = {True: (0.015, 0.12), False: (0.02, 0.25)}
"""The target shares of ``same`` pairs that are judged different, and that stay unsure: with a
cosine (True), and without one."""
RIDGE = 1.0


class Sample(NamedTuple):
    """A pair of free texts, as the regression sees it."""

    pair: Pair
    features: tuple[float, ...]
    features_of_words: tuple[float, ...]


class Encoded:
    """Unit vectors of texts, encoded once."""

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._encoder = OnnxEncoder()
        self._known: dict[str, NDArray[np.float32]] = {}
        if cache is not None and cache.exists():
            stored = np.load(cache)
            self._known = dict(zip(stored["texts"].tolist(), stored["vectors"], strict=True))

    def __call__(self, text: str) -> NDArray[np.float32]:
        text = text[:ENCODED_CHARS]
        if text not in self._known:
            self._known[text] = self._encoder.encode(text).sentence
        return self._known[text]

    def save(self) -> None:
        if self._cache is not None:
            texts = np.array(list(self._known))
            np.savez(self._cache, texts=texts, vectors=np.stack(list(self._known.values())))


def completion(text: str) -> Completion:
    choice = Choice(index=0, parts=(Text(text=text),), finish="stop")
    return Completion(model="", choices=(choice,), created=0)


def cosine_of(pair: Pair, encode: Encoded) -> float:
    return float(encode(pair.fresh) @ encode(pair.cached))


def sample(pair: Pair, encode: Encoded) -> Sample | None:
    """Return the features of a pair, None when the judge needs no features."""
    judged = judge(completion(pair.fresh), completion(pair.cached), pair.questions, None)
    if judged.method is not AgreementMethod.TEXT:
        return None
    one, other = read_words(pair.fresh), read_words(pair.cached)
    given = question_words(pair.questions[0]) | question_words(pair.questions[1])
    return Sample(
        pair,
        compare_words(one, other, given, cosine_of(pair, encode)),
        compare_words(one, other, given, None),
    )


def fit(samples: Sequence[Sample], *, cosine: bool) -> AgreementModel:
    """Fit a ridge logistic regression by Newton's method, and its band by quantiles."""
    used = [one for one in samples if one.pair.kind in WEIGHTS]
    rows = np.array([one.features if cosine else one.features_of_words for one in used])
    labels = np.array([float(one.pair.positive) for one in used])
    mass = np.array([WEIGHTS[one.pair.kind] for one in used])
    ridge = RIDGE * np.eye(rows.shape[1])
    ridge[0, 0] = 1e-6
    weights = np.zeros(rows.shape[1])
    for _ in range(30):
        likely = 1 / (1 + np.exp(-rows @ weights))
        gradient = rows.T @ (mass * (labels - likely)) - ridge @ weights
        hessian = (rows * (mass * likely * (1 - likely))[:, None]).T @ rows + ridge
        weights += np.linalg.solve(hessian, gradient)
    weights = np.round(weights, 3)
    likely = 1 / (1 + np.exp(-rows @ weights))
    different, unsure = BAND[cosine]
    same = np.array([one.pair.kind == "same" for one in used])
    low, high = np.quantile(likely[same], [different, different + unsure])
    return AgreementModel(
        weights=tuple(weights.tolist()),
        different_to=round(float(low), 3),
        same_from=round(float(high), 3),
    )


def judges(
    encode: Encoded, with_cosine: AgreementModel, of_words: AgreementModel
) -> dict[str, Callable[[Pair], Any]]:
    bare = AgreementModel(weights=with_cosine.weights, different_to=0.5, same_from=0.5)

    def by(chosen: AgreementModel, *, cosine: bool) -> Callable[[Pair], bool | None]:
        return lambda pair: (
            judge(
                completion(pair.fresh),
                completion(pair.cached),
                pair.questions,
                cosine_of(pair, encode) if cosine else None,
                chosen,
            ).same
        )

    return {
        "equal text": lambda pair: pair.fresh.casefold() == pair.cached.casefold(),
        "cosine >= 0.8": lambda pair: cosine_of(pair, encode) >= 0.8,
        "logistic": by(bare, cosine=True),
        "logistic with band": by(with_cosine, cosine=True),
        "words alone, with band": by(of_words, cosine=False),
    }


GROUPS: dict[str, Callable[[Pair], bool]] = {
    "same": lambda pair: pair.kind == "same",
    "same, 40 words": lambda pair: pair.kind == "same" and shorter(pair) >= 40,
    "reworded": lambda pair: pair.kind == "reworded",
    "far": lambda pair: pair.kind == "far",
    "near": lambda pair: pair.kind == "near",
    "near, 40 words": lambda pair: pair.kind == "near" and shorter(pair) >= 40,
    "near, all": lambda pair: pair.kind in {"near", "near, answered"},
    "exchanged": lambda pair: pair.kind == "exchanged",
    "exchanged by another": lambda pair: pair.kind == "exchanged by another",
    "upstream": lambda pair: pair.kind == "upstream",
}


def shorter(pair: Pair) -> int:
    """Return the words of the shorter answer."""
    return min(len(pair.fresh.split()), len(pair.cached.split()))


def measure(decide: Callable[[Pair], bool | None], pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the share of errors and of doubt by group."""
    verdicts = [(pair, decide(pair)) for pair in pairs]
    found: dict[str, Any] = {}
    for name, belongs in GROUPS.items():
        chosen = [(pair.positive, same) for pair, same in verdicts if belongs(pair)]
        found[name] = {
            "n": len(chosen),
            "wrong": sum(same is not None and same != positive for positive, same in chosen)
            / len(chosen),
            "unsure": sum(same is None for _, same in chosen) / len(chosen),
        }
    return found


def cost_us(rounds: int = 200) -> float:
    """Return CPU microseconds of one comparison of answers of 300 words, without the encoder."""
    dice = random.Random(1)
    syllables = ["ba", "co", "di", "fu", "ga", "li", "mo", "na", "pe", "ro", "su", "te"]
    answers = [
        completion(
            " ".join(
                "".join(dice.choices(syllables, k=3)).capitalize() + "." * (place % 15 == 14)
                if place % 15 in {0, 7, 14}
                else dice.choice(("the", "of", "is", "".join(dice.choices(syllables, k=2))))
                for place in range(300)
            )
        )
        for _ in range(2)
    ]
    started = time.process_time()
    for _ in range(rounds):
        judge(answers[0], answers[1], ("How large is the tower in Paris?",), 0.9)
    return (time.process_time() - started) / rounds * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--vectors", type=Path, help="keep encoded texts here between runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    encode = Encoded(options.vectors)
    pairs = build_pairs(read_questions(options.data), encode)
    samples = [found for pair in pairs if pair.place % 2 == 0 and (found := sample(pair, encode))]
    with_cosine, of_words = fit(samples, cosine=True), fit(samples, cosine=False)
    held_out = [pair for pair in pairs if pair.place % 2]
    table = {
        name: measure(decide, held_out)
        for name, decide in judges(encode, with_cosine, of_words).items()
    }
    encode.save()
    cost = cost_us()
    if options.json:
        print(json.dumps({"table": table, "cost_us": cost}))
        return
    print(f"WITH_COSINE = {with_cosine}\nWORDS_ALONE = {of_words}")
    for label, chosen, names in (
        ("with cosine", with_cosine, LIKENESS_FEATURES),
        ("words alone", of_words, WITHOUT_COSINE),
    ):
        print(label, dict(zip(names, chosen.weights, strict=True)))
    for name, groups in table.items():
        print(name)
        for group, found in groups.items():
            print(
                f"  {group:22} n {found['n']:5}  wrong {100 * found['wrong']:5.1f} %"
                f"  unsure {100 * found['unsure']:5.1f} %"
            )
    print(f"CPU per comparison of 300-word answers: {cost:.0f} us")


if __name__ == "__main__":
    main()

"""Measure the judges of ``docs/cascade.md`` on prompts that a weak and a strong model answered.

    python -m benchmarks.cascade DIRECTORY [--json] [--fit]

DIRECTORY holds RouteLLM's outcome tables (github.com/lm-sys/RouteLLM, Apache-2.0, under
``routellm/evals``): ``gsm8k_responses.csv`` and ``mmlu/*.csv``. Prompt scores are cross-fitted:
five folds, three seeds. ``--fit`` prints the constants of ``headstart/policies/drafts.py``: the
weights of ``expected_gain`` and the measured ``CALIBRATION_PRIORS``. The tables have no
log-probabilities, so they are simulated, and the printed table says so.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headstart.lab.quality import CascadeRow, tune_cascade
from headstart.policies.drafts import (
    CALIBRATION_BINS,
    CALIBRATION_PRIORS,
    PROMPT_FEATURES,
    ScoreBasis,
    expected_gain,
    read_features,
    score_logprobs,
    veto_draft,
)
from headstart.types import ChatRequest, Choice, Completion, Text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

WEAK, STRONG = "mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"
FOLDS, SEEDS = 5, 3
RIDGE = 100.0
SEPARATIONS = (0.5, 1.0, 1.5)
"""The distances of the simulated certainty of right and wrong drafts, in standard deviations. They
give an AUC of .64, .76 and .86."""
TOKENS = 40


class Outcomes(NamedTuple):
    """One set of prompts, with the outcomes of both models."""

    prompts: list[str]
    features: NDArray[np.float64]
    cheap: NDArray[np.float64]
    strong: NDArray[np.float64]
    drafts: list[str]


class Figures(NamedTuple):
    """Means over the seeds."""

    apgr: float
    cpt50: float
    cpt80: float


def read_outcomes(paths: Sequence[Path]) -> Outcomes:
    """Read RouteLLM's tables."""
    rows = []
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            rows += list(csv.DictReader(file))
    return Outcomes(
        prompts=[row["prompt"] for row in rows],
        features=np.array([read_features(row["prompt"]) for row in rows]),
        cheap=np.array([float(row[WEAK] == "True") for row in rows]),
        strong=np.array([float(row[STRONG] == "True") for row in rows]),
        drafts=[row.get(f"{WEAK}_response") or "" for row in rows],
    )


def fit_gain(sets: Sequence[Outcomes]) -> NDArray[np.float64]:
    """Return ridge weights and a constant for strong minus weak; each set counts the same."""
    features = np.concatenate([each.features for each in sets])
    gain = np.concatenate([each.strong - each.cheap for each in sets])
    largest = max(len(each.prompts) for each in sets)
    weight = np.concatenate([np.full(len(s.prompts), largest / len(s.prompts)) for s in sets])
    mean = np.average(features, axis=0, weights=weight)
    deviation = np.sqrt(np.average((features - mean) ** 2, axis=0, weights=weight)) + 1e-9
    design = np.column_stack([(features - mean) / deviation, np.ones(len(features))])
    weighted = design * weight[:, None]
    solved = np.linalg.solve(
        design.T @ weighted + RIDGE * np.eye(design.shape[1]), weighted.T @ gain
    )
    slopes = solved[:-1] / deviation
    return np.append(slopes, solved[-1] - slopes @ mean)


def predict(fit: NDArray[np.float64], features: NDArray[np.float64]) -> NDArray[np.float64]:
    gains: NDArray[np.float64] = features @ fit[:-1] + fit[-1]
    return gains


def cross_fitted(own: Outcomes, seed: int) -> NDArray[np.float64]:
    """Return gains that are predicted by a fit to the other folds."""
    fold = np.random.default_rng(seed).integers(0, FOLDS, len(own.prompts))
    gains = np.zeros(len(own.prompts))
    for held in range(FOLDS):
        train, test = fold != held, fold == held
        part = Outcomes([""] * int(train.sum()), own.features[train], own.cheap[train],
                        own.strong[train], [])  # fmt: skip
        gains[test] = predict(fit_gain([part]), own.features[test])
    return gains


def simulated(own: Outcomes, separation: float) -> Callable[[int], NDArray[np.float64]]:
    """Return a score, by seed, of drafts with made-up log-probabilities; see ``_simulate``."""
    return lambda seed: _simulate(own, separation, seed)


def _simulate(own: Outcomes, separation: float, seed: int) -> NDArray[np.float64]:
    """Return scores of drafts with made-up log-probabilities.

    Model: a draft's certainty is normal with deviation 1, its mean ``separation`` higher for right
    drafts; each token's log-odds are 2.5 + certainty + noise of deviation 1.5.
    """
    draw = np.random.default_rng(seed)
    certainty = draw.normal(size=len(own.prompts)) + separation * own.cheap
    odds = 2.5 + certainty[:, None] + draw.normal(scale=1.5, size=(len(own.prompts), TOKENS))
    scores = [score_logprobs(_draft("", [-math.log1p(math.exp(-x)) for x in row])) for row in odds]
    return np.array([-(score or 0.0) for score in scores])


def figures(own: Outcomes, need: Callable[[int], NDArray[np.float64]]) -> Figures:
    """Measure a score, higher meaning more need of the strong model, over the seeds."""
    found = []
    for seed in range(SEEDS):
        scores = (-need(seed)).tolist()
        rows = map(CascadeRow, scores, own.cheap.tolist(), own.strong.tolist())
        report = tune_cascade(list(rows))
        found.append((report.apgr or 0.0, report.cpt50 or 1.0, report.cpt80 or 1.0))
    return Figures(*(statistics.fmean(column) for column in zip(*found, strict=True)))


def measure(own: Outcomes, other: Outcomes) -> dict[str, Figures]:
    """Measure all scores on one set. Scores that must transfer are fitted on ``other``."""
    lengths = np.array([float(len(prompt)) for prompt in own.prompts])
    transferred = predict(fit_gain([other]), own.features)
    shipped = np.array([expected_gain(prompt) for prompt in own.prompts])
    scores: dict[str, Callable[[int], NDArray[np.float64]]] = {
        "random": lambda seed: np.random.default_rng(seed).random(len(own.prompts)),
        "length of the prompt": lambda _: lengths,
        "prompt score, five-fold": lambda seed: cross_fitted(own, seed),
        "prompt score, fitted to the other set": lambda _: transferred,
        "prompt score as shipped (saw this set)": lambda _: shipped,
    }
    for separation in SEPARATIONS:
        name = f"log-probabilities, SIMULATED, d'={separation}"
        scores[name] = simulated(own, separation)
    scores["the draft's correctness, known"] = lambda _: -own.cheap
    scores["oracle"] = lambda _: own.strong - own.cheap
    return {name: figures(own, need) for name, need in scores.items()}


def vetoes(own: Outcomes) -> dict[str, dict[str, int]] | None:
    """Count the vetoes of real drafts, by reason and by whether they were right."""
    counts: dict[str, dict[str, int]] = {}
    for prompt, draft, right in zip(own.prompts, own.drafts, own.cheap, strict=True):
        request = ChatRequest(model="weak", stream=False, document={}, query=prompt)
        reason = veto_draft(request, _draft(draft, None)) if draft else None
        if reason is not None:
            row = counts.setdefault(reason, {"right": 0, "wrong": 0})
            row["right" if right else "wrong"] += 1
    return counts if any(own.drafts) else None


def prompt_prior(sets: Sequence[Outcomes]) -> list[float | None]:
    """Return the share of right drafts in each tenth of the score; each set counts the same."""
    good, seen = np.zeros(CALIBRATION_BINS), np.zeros(CALIBRATION_BINS)
    for own in sets:
        score = np.array([1.0 - expected_gain(prompt) for prompt in own.prompts])
        place = np.minimum(CALIBRATION_BINS - 1, (score * CALIBRATION_BINS).astype(int))
        good += np.bincount(place, own.cheap, CALIBRATION_BINS) / len(own.prompts)
        seen += np.bincount(place, minlength=CALIBRATION_BINS) / len(own.prompts)
    return [float(g / s) if s > 0 else None for g, s in zip(good, seen, strict=True)]


def calibration_error(own: Outcomes) -> tuple[float, float]:
    """Return the expected calibration error of the prompt's Calibration: prior, then learning.

    Each draft is predicted before it is learned from, in a random order.
    """
    order = np.random.default_rng(0).permutation(len(own.prompts))
    prior = learned = CALIBRATION_PRIORS[ScoreBasis.PROMPT]
    believed: list[tuple[float, float, float]] = []
    for at in order:
        score = 1.0 - expected_gain(own.prompts[at])
        right = float(own.cheap[at])
        believed.append((prior.probability(score), learned.probability(score), right))
        learned = learned.learn(score, good=bool(right))
    table = np.array(believed)
    return _ece(table[:, 0], table[:, 2]), _ece(table[:, 1], table[:, 2])


def _ece(believed: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    place = np.minimum(CALIBRATION_BINS - 1, (believed * CALIBRATION_BINS).astype(int))
    gaps = np.abs(np.bincount(place, believed - right, CALIBRATION_BINS))
    return float(gaps.sum() / len(right))


def _draft(text: str, logs: Sequence[float] | None) -> Completion:
    listed = None if logs is None else {"content": [{"token": "", "logprob": x} for x in logs]}
    choice = Choice(index=0, parts=(Text(text=text),), finish="stop", logprobs=listed)
    return Completion(model="weak", choices=(choice,), created=0)


def _print_table(name: str, own: Outcomes, found: dict[str, Figures]) -> None:
    both = np.maximum(own.cheap, own.strong)
    print(f"\n{name}: {len(own.prompts)} prompts, weak {own.cheap.mean():.3f}, "
          f"strong {own.strong.mean():.3f}, either {both.mean():.3f}")  # fmt: skip
    print(f"{'score':45} {'APGR':>6} {'CPT50':>6} {'CPT80':>6}")
    for score, row in found.items():
        print(f"{score:45} {row.apgr:6.3f} {row.cpt50:6.1%} {row.cpt80:6.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    sets = {
        "GSM8K": read_outcomes([options.directory / "gsm8k_responses.csv"]),
        "MMLU": read_outcomes(sorted((options.directory / "mmlu").glob("*.csv"))),
    }
    if options.fit:
        fit = fit_gain(list(sets.values()))
        for feature, weight in zip((*PROMPT_FEATURES, "constant"), fit, strict=True):
            print(f"{feature:25} {weight:8.4f}")
        print("prior", prompt_prior(list(sets.values())))
        return
    report = {}
    for name, other in (("GSM8K", "MMLU"), ("MMLU", "GSM8K")):
        own = sets[name]
        found = measure(own, sets[other])
        report[name] = {
            "scores": {score: row._asdict() for score, row in found.items()},
            "vetoes of real drafts": vetoes(own),
            "calibration error, prior and learning": calibration_error(own),
        }
        if not options.json:
            _print_table(name, own, found)
            print("vetoes of real drafts:", report[name]["vetoes of real drafts"])
            print("calibration error, prior and learning: {:.3f}, {:.3f}".format(
                *calibration_error(own)))  # fmt: skip
    if options.json:
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

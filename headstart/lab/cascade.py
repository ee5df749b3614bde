"""Quality and cost of a cascade, by the share of calls that the strong model gets.

The figures are those of RouteLLM (arXiv 2406.18665). The gap is the difference in quality between
the two models. PGR is the part of the gap that a cascade recovers. APGR is the mean of PGR over all
shares of strong calls; random choice has 0.5. CPT50 is the share of strong calls that recovers half
of the gap.
"""

from __future__ import annotations

import csv
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from headstart.errors import ConfigError
from headstart.policies.agreement.judge import judge
from headstart.policies.drafts import CALIBRATION_PRIORS, Basis, expected_gain, veto_draft
from headstart.types import ChatRequest, Choice, Completion, Frozen, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_POINTS = 101
KEPT = 0.8
"""The part of the gap that the suggested threshold keeps."""
_TRUE = frozenset(("true", "1", "1.0", "yes"))


class CascadeRow(NamedTuple):
    """One prompt that both models answered."""

    score: float
    """The score of the cheap draft, from 0 to 1. Drafts below the threshold are escalated."""
    cheap: float
    """Quality of the cheap answer, from 0 to 1."""
    strong: float
    cheap_usd: float = 0.0
    strong_usd: float = 0.0
    length: int = 0
    """The number of characters of the prompt."""
    vetoed: bool = False
    """The draft is escalated whatever its score."""


class CascadePoint(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """The results of one threshold."""

    threshold: float
    """The lowest score that is accepted; above 1: no draft is accepted."""
    strong_share: float
    quality: float
    recovered: float | None
    """The recovered part of the gap; None where the strong model is not better."""
    cost_usd: float
    """Mean cost of a call, with the drafts of escalated calls."""


class CascadeReport(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """The results of a cascade on one set of prompts."""

    n: int
    cheap: float
    strong: float
    either: float
    """Quality of an ideal cascade, which always takes the better answer."""
    apgr: float | None
    cpt50: float | None
    cpt80: float | None
    curve: tuple[CascadePoint, ...]
    suggested: CascadePoint | None
    """The cheapest point that keeps ``KEPT`` of the gap; None without a gap."""


class Baseline(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """The results of another way to choose, on the same prompts."""

    name: str
    apgr: float | None
    cpt50: float | None
    cpt80: float | None


class CascadeTuning(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """A cascade, measured on a table of outcomes, and the settings that follow."""

    report: CascadeReport
    baselines: tuple[Baseline, ...]
    judge: str
    """The judge that these settings are for."""
    min_confidence: float | None
    """None where the strong model is not better, so that escalation gains nothing."""
    at_min_confidence: CascadePoint | None
    """The results of this setting on these prompts, with calibrated scores."""


def study_cascade(rows: Sequence[CascadeRow]) -> CascadeTuning:
    """Measure a cascade beside two simpler choices, and suggest its settings.

    The simpler choices are chance and the length of the prompt. ``min_confidence`` is a calibrated
    probability, not a score: the scores are calibrated on the rows, from the prior of a new
    cascade. Raises ConfigError without rows.
    """
    report = tune_cascade(rows)
    by_prompt = all(row.length for row in rows)
    basis = Basis.PROMPT if by_prompt else Basis.LOGPROBS
    calibration = CALIBRATION_PRIORS[basis]
    judged = [row for row in rows if not row.vetoed]
    # Tables are often sorted, and a calibration forgets: the last rows must not be of one kind.
    for at in np.random.default_rng(0).permutation(len(judged)):
        row = judged[at]
        calibration = calibration.learn(row.score, good=row.cheap >= row.strong)
    confident = [
        row._replace(score=0.0 if row.vetoed else calibration.probability(row.score))
        for row in rows
    ]
    suggested = tune_cascade(confident).suggested
    # In expectation; drawing would only add noise.
    half, most = (0.5, 0.8) if report.apgr is not None else (None, None)
    baselines = [Baseline(name="chance", apgr=half, cpt50=half, cpt80=most)]
    if by_prompt:
        shortest = tune_cascade([row._replace(score=-float(row.length)) for row in rows])
        found = {"apgr": shortest.apgr, "cpt50": shortest.cpt50, "cpt80": shortest.cpt80}
        baselines.append(Baseline(name="length of the prompt", **found))
    return CascadeTuning(
        report=report,
        baselines=tuple(baselines),
        judge="prompt" if by_prompt else "logprob",
        min_confidence=None
        if suggested is None
        else min(1.0, math.floor(suggested.threshold * 1000) / 1000),
        at_min_confidence=suggested,
    )


def tune_cascade(rows: Sequence[CascadeRow]) -> CascadeReport:
    """Measure a cascade on prompts that both models answered. Raises ConfigError without rows.

    Rows of equal score are escalated together, because no threshold separates them.
    """
    if not rows:
        raise ConfigError("no prompt that both models answered: nothing to tune a cascade on")
    table = np.array([tuple(row) for row in rows], dtype=np.float64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    points = _points(table)
    cheap, strong = float(table[:, 1].mean()), float(table[:, 2].mean())
    curve = tuple(
        points[i] for i in np.unique(np.linspace(0, len(points) - 1, _POINTS).astype(int))
    )
    kept = [point for point in points if point.recovered is not None and point.recovered >= KEPT]
    return CascadeReport(
        n=len(rows),
        cheap=cheap,
        strong=strong,
        either=float(table[:, 1:3].max(axis=1).mean()),
        apgr=_area(points),
        cpt50=_first_share(points, 0.5),
        cpt80=_first_share(points, 0.8),
        curve=curve,
        suggested=min(kept, key=lambda point: point.strong_share, default=None),
    )


def read_rows(path: Path, cheap: str = "cheap", strong: str = "strong") -> list[CascadeRow]:
    """Read a table of outcomes, or all tables of a folder: CSV with a header, or JSON lines.

    ``cheap`` and ``strong`` name the columns with the outcomes (true, false, or 0 to 1). Without
    outcomes the texts of both answers will do, in ``cheap_answer`` and ``strong_answer`` (or
    ``_response``): the cheap one is then as good as it agrees with the other. A ``score`` column
    is used as it is; without one the ``prompt`` is scored, and a draft that would be vetoed scores
    nothing. ``cheap_usd`` and ``strong_usd`` are optional. Raises ConfigError for a table
    without these columns.
    """
    if path.is_dir():
        tables = sorted(each for each in path.iterdir() if each.suffix in (".csv", ".jsonl"))
        if not tables:
            raise ConfigError(f"{path.name}: no .csv and no .jsonl file is in it")
        return [row for table in tables for row in read_rows(table, cheap, strong)]
    with path.open(newline="", encoding="utf-8") as file:
        records: Iterable[dict[str, Any]]
        records = csv.DictReader(file) if path.suffix == ".csv" else map(msgspec.json.decode, file)
        try:
            return [_read_row(record, cheap, strong) for record in records]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path.name} needs the columns {cheap!r}, {strong!r} and 'prompt' or 'score': "
                f"{error}"
            ) from error


def _read_row(record: dict[str, Any], cheap: str, strong: str) -> CascadeRow:
    score: Any = record.get("score")
    draft, other = _answer(record, cheap), _answer(record, strong)
    outcomes = record.get(cheap), record.get(strong)
    if outcomes == (None, None) and draft is not None and other is not None:
        agreed = judge(draft, other, [record.get("prompt")], None)
        outcomes = (agreed.probability if agreed.same is None else float(agreed.same)), 1.0
    given = score not in (None, "")
    vetoed = not given and draft is not None and _is_vetoed(record["prompt"], draft)
    return CascadeRow(
        score=float(score) if given else 0.0 if vetoed else 1.0 - expected_gain(record["prompt"]),
        cheap=_quality(outcomes[0], cheap),
        strong=_quality(outcomes[1], strong),
        cheap_usd=float(record.get("cheap_usd") or 0.0),
        strong_usd=float(record.get("strong_usd") or 0.0),
        length=0 if given else len(record["prompt"]),
        vetoed=vetoed,
    )


def _answer(record: dict[str, Any], name: str) -> Completion | None:
    text = record.get(f"{name}_answer") or record.get(f"{name}_response")
    if not isinstance(text, str):
        return None
    choice = Choice(index=0, parts=(Text(text=text),), finish="stop")
    return Completion(model=name, choices=(choice,), created=0)


def _is_vetoed(prompt: str, draft: Completion) -> bool:
    request = ChatRequest(model="", stream=False, document={}, query=prompt)
    return veto_draft(request, draft) is not None


def _quality(value: object, name: str) -> float:
    if value is None:
        raise KeyError(name)
    text = str(value).strip().lower()
    if text in _TRUE:
        return 1.0
    return 0.0 if text in ("false", "no") else float(text)


def _points(table: NDArray[np.float64]) -> list[CascadePoint]:
    """Return a point for each threshold that matters, ordered by the share of strong calls."""
    n = len(table)
    scores = table[:, 0]
    gains = np.concatenate([[0.0], np.cumsum(table[:, 2] - table[:, 1])]) / n
    spent = np.concatenate([[0.0], np.cumsum(table[:, 4])]) / n
    cheap, gap = float(table[:, 1].mean()), float(gains[-1])
    drafts = float(table[:, 3].mean())
    ends = [0, *(np.flatnonzero(np.diff(scores)) + 1).tolist(), n]
    return [
        CascadePoint(
            threshold=float(scores[end]) if end < n else float(np.nextafter(scores[-1], np.inf)),
            strong_share=end / n,
            quality=cheap + float(gains[end]),
            recovered=float(gains[end]) / gap if gap > 0 else None,
            cost_usd=drafts + float(spent[end]),
        )
        for end in ends
    ]


def _area(points: Sequence[CascadePoint]) -> float | None:
    known = [
        (point.strong_share, point.recovered) for point in points if point.recovered is not None
    ]
    if len(known) != len(points):
        return None
    return sum(
        (share - last_share) * (recovered + last) / 2
        for (last_share, last), (share, recovered) in pairwise(known)
    )


def _first_share(points: Sequence[CascadePoint], wanted: float) -> float | None:
    """Return the share of strong calls that recovers ``wanted``; equal scores are interpolated."""
    for last, point in pairwise(points):
        if last.recovered is None or point.recovered is None:
            return None
        if point.recovered >= wanted:
            part = (wanted - last.recovered) / (point.recovered - last.recovered)
            return last.strong_share + part * (point.strong_share - last.strong_share)
    return None

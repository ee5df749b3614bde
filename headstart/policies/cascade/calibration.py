"""From a judge's score to the probability that the draft is good, learned as answers come in.

Isotonic regression (pool adjacent violators: Ayer et al. 1955; for calibration Zadrozny and Elkan
2002) over ten bins of the score. A prior stands in each bin as a few imagined drafts, so the first
real ones correct it without jumps. UCCI (arXiv 2605.18796) reports an expected calibration error
of .03 with isotonic calibration where raw margins had .12.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.policies.cascade.scores import Basis
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BINS = 10
_PRIOR_WEIGHT = 4.0
"""Imagined drafts in each bin."""
_MEMORY = 400.0
"""Drafts that a bin remembers: when it holds more, the older ones fade. Models change."""


class Calibration(Frozen):
    """P(good | score). Immutable: ``learn`` returns the next one."""

    good: tuple[float, ...]
    """Weight of good drafts in each tenth of the score."""
    seen: tuple[float, ...]
    """Weight of all drafts there."""

    def probability(self, score: float) -> float:
        """Return P(good), between the centres of the bins linearly. Never falls with the score."""
        heights = _pool(self.good, self.seen)
        place = min(1.0, max(0.0, score)) * BINS - 0.5
        low = min(BINS - 2, max(0, int(place)))
        share = min(1.0, max(0.0, place - low))
        return heights[low] * (1 - share) + heights[low + 1] * share

    def learn(self, score: float, *, good: bool, weight: float = 1.0) -> Calibration:
        """Return what is known after one more draft.

        A draft that stands for several, because only a share of its kind is ever checked, has a
        ``weight`` of one over that share.
        """
        at = min(BINS - 1, max(0, int(score * BINS)))
        keep = min(1.0, _MEMORY / (self.seen[at] + weight))
        return msgspec.structs.replace(
            self,
            good=_set(self.good, at, (self.good[at] + good * weight) * keep),
            seen=_set(self.seen, at, (self.seen[at] + weight) * keep),
        )


def prior(heights: Sequence[float]) -> Calibration:
    """Return a calibration that believes ``heights``, P(good) in each bin, a little."""
    return Calibration(
        good=tuple(height * _PRIOR_WEIGHT for height in heights), seen=(_PRIOR_WEIGHT,) * BINS
    )


PRIORS: Mapping[Basis, Calibration] = {
    # Assumed: a usual token margin, before anything is known of the model. It is overconfident.
    Basis.LOGPROBS: prior((0.20, 0.30, 0.40, 0.48, 0.56, 0.64, 0.71, 0.78, 0.85, 0.92)),
    # Of two answers that agree most are right; the judge's own doubt lies in the middle.
    Basis.AGREEMENT: prior((0.35, 0.38, 0.42, 0.48, 0.55, 0.62, 0.68, 0.74, 0.80, 0.86)),
    # Measured: Mixtral 8x7B on GSM8K and MMLU. A prompt alone tells little (docs/cascade.md).
    Basis.PROMPT: prior((0.40, 0.40, 0.40, 0.40, 0.40, 0.53, 0.54, 0.60, 0.70, 0.72)),
    # Taken at its word until drafts show otherwise.
    Basis.CALLER: prior((0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)),
}


def _pool(good: Sequence[float], seen: Sequence[float]) -> list[float]:
    """Return the heights, made monotone by pooling neighbours that are out of order."""
    blocks: list[tuple[float, float, int]] = []
    for one_good, one_seen in zip(good, seen, strict=True):
        block = (one_good, one_seen, 1)
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
        blocks.append(block)
    return [part_good / part_seen for part_good, part_seen, width in blocks for _ in range(width)]


def _set(values: tuple[float, ...], at: int, value: float) -> tuple[float, ...]:
    return (*values[:at], value, *values[at + 1 :])

"""Accept a draft, or escalate to the strong model; and when not to wait for the draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.policies.cascade.calibration import Calibration
    from headstart.policies.cascade.scores import Score

_EVEN = 0.5


class Decision(Frozen):
    """What becomes of a draft."""

    accept: bool
    reason: str
    """``confident``, ``unsure``, ``unjudged`` or the veto."""
    confidence: float | None = None
    """Calibrated probability that the draft is good."""


def decide_draft(
    veto: str | None,
    score: Score | None,
    calibration: Calibration | None,
    min_confidence: float,
) -> Decision:
    """Accept a draft that no judge vetoes and that is good with ``min_confidence``.

    ``calibration`` is that of the score's basis. A draft that cannot be judged is escalated.
    """
    if veto is not None:
        return Decision(accept=False, reason=veto)
    if score is None or calibration is None:
        return Decision(accept=False, reason="unjudged")
    confidence = calibration.probability(score.value)
    if confidence >= min_confidence:
        return Decision(accept=True, reason="confident", confidence=confidence)
    return Decision(accept=False, reason="unsure", confidence=confidence)


def start_both(prompt: Score | None, acceptance: Calibration | None) -> bool:
    """Tell whether to start the strong model at once, without waiting for the draft's judge.

    ``acceptance`` is a Calibration over scores of prompts whose "good" means "was accepted".
    Where escalation is likelier than not, a draft mostly costs time.
    """
    if prompt is None or acceptance is None:
        return False
    return 1.0 - acceptance.probability(prompt.value) > _EVEN

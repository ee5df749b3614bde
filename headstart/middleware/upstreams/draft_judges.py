"""What a cascade's judges say of drafts, and what their scores turned out to be worth.

The judges themselves are pure (``policies.drafts``); here is what is learned of them.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.policies.agreement.judge import judge
from headstart.policies.drafts import (
    CALIBRATION_BINS,
    CALIBRATION_PRIORS,
    Basis,
    Calibration,
    DraftDecision,
    Score,
    decide_draft,
    score_draft,
    score_prompt,
    start_both,
    veto_draft,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.interfaces import DraftJudge
    from headstart.settings import Judge
    from headstart.types import ChatRequest, Completion

logger = logging.getLogger("headstart")

_SCORING = frozenset({"logprob", "prompt", "agreement"})
_SOFT = ("unsure", "unjudged")
_VERSION = 1


class DraftVerdict(NamedTuple):
    """What becomes of a draft, and why."""

    decision: DraftDecision
    score: Score | None

    @property
    def soft(self) -> bool:
        """Nothing speaks against the draft but doubt: better than no answer."""
        return self.decision.reason in _SOFT


class _SavedCalibrations(msgspec.Struct, frozen=True):
    version: int
    scores: dict[Basis, Calibration]
    acceptance: Calibration


class JudgePanel:
    """The judges of one cascade, which never raise; ``own`` are the user's, asked in order.

    A draft passes when no judge vetoes it and, if any of them scores, when it is good with
    ``min_confidence``. Truncated drafts never pass, unless by the caller's own limit.
    """

    def __init__(
        self,
        judges: Sequence[Judge],
        min_confidence: float,
        own: Sequence[DraftJudge] = (),
    ) -> None:
        self._names = frozenset(judges)
        self._min_confidence = min_confidence
        self._own = tuple(own)
        self._scores = dict(CALIBRATION_PRIORS)
        self._acceptance = CALIBRATION_PRIORS[Basis.PROMPT]

    @property
    def scores(self) -> bool:
        """Whether there is a score whose worth can be learned."""
        return bool(self._names & _SCORING or self._own)

    @property
    def reads_logprobs(self) -> bool:
        return "logprob" in self._names

    @property
    def compares(self) -> bool:
        """A second draft is wanted, to be compared with the first."""
        return "agreement" in self._names

    def finds_hard(self, request: ChatRequest) -> bool:
        """Tell, before any draft, whether the prompt alone asks for the strong model."""
        if "prompt" not in self._names:
            return False
        score = score_prompt(request)
        if score is None:
            return False
        return self._scores[score.basis].probability(score.value) < self._min_confidence

    def expects_failure(self, request: ChatRequest) -> bool:
        """Tell whether a draft is likelier to be rejected than not."""
        return start_both(score_prompt(request), self._acceptance)

    def failure_rate(self, request: ChatRequest) -> float:
        """Return the probability that a draft of this will be rejected."""
        score = score_prompt(request)
        return 0.5 if score is None else 1.0 - self._acceptance.probability(score.value)

    async def rule(
        self, request: ChatRequest, draft: Completion | None, second: Completion | None
    ) -> DraftVerdict:
        """Judge a finished draft; None: it could not be read. ``second`` is another one."""
        ruling = await self._rule(request, draft, second)
        prompt = score_prompt(request)
        if prompt is not None:
            self._acceptance = self._acceptance.learn(prompt.value, good=ruling.decision.accept)
        return ruling

    def learn(
        self,
        request: ChatRequest,
        draft: Completion | None,
        ruling: DraftVerdict,
        strong: Completion,
        *,
        weight: float = 1.0,
    ) -> None:
        """Learn from the strong model's answer whether a draft that was scored is good.

        Where the comparison is unsure, nothing is learned.
        """
        score = ruling.score
        if draft is None or score is None:
            return
        same = judge(strong, draft, [request.question or request.query], None).same
        if same is not None:
            known = self._scores[score.basis]
            self._scores[score.basis] = known.learn(score.value, good=same, weight=weight)

    def saved(self) -> bytes:
        """Return what was learned."""
        return msgspec.json.encode(_SavedCalibrations(_VERSION, self._scores, self._acceptance))

    def load(self, data: bytes) -> None:
        """Go on from what was ``saved``; ignored if another version wrote it."""
        try:
            saved = msgspec.json.decode(data, type=_SavedCalibrations)
        except msgspec.MsgspecError:
            return
        known = (*saved.scores.values(), saved.acceptance)
        if saved.version == _VERSION and all(
            len(each.good) == len(each.seen) == CALIBRATION_BINS for each in known
        ):
            self._scores.update(saved.scores)
            self._acceptance = saved.acceptance

    async def _rule(
        self, request: ChatRequest, draft: Completion | None, second: Completion | None
    ) -> DraftVerdict:
        if draft is None:
            return DraftVerdict(DraftDecision(accept=False, reason="unjudged"), None)
        names = self._names
        veto = veto_draft(request, draft, refusals="refusal" in names, formats="format" in names)
        said, own = await self._ask_own(request, draft) if veto is None else (None, None)
        veto = veto or said
        if veto is not None:
            return DraftVerdict(DraftDecision(accept=False, reason=veto), None)
        if own is None and not names & _SCORING:
            return DraftVerdict(DraftDecision(accept=True, reason="passed"), None)
        score = own or self._score(request, draft, second)
        calibration = None if score is None else self._scores[score.basis]
        return DraftVerdict(decide_draft(None, score, calibration, self._min_confidence), score)

    async def _ask_own(
        self, request: ChatRequest, draft: Completion
    ) -> tuple[str | None, Score | None]:
        """Return the veto of the user's own judges, and the lowest of their scores."""
        values: list[float] = []
        for each in self._own:
            try:
                said = each(request, draft)
                if inspect.isawaitable(said):
                    said = await said
                value = min(1.0, max(0.0, float(said)))
            except Exception as error:  # noqa: BLE001 - somebody else's code
                # Its name alone: what it says may quote a prompt.
                logger.warning("a cascade's own judge failed: %s", type(error).__name__)
                return "caller", None
            if said is False:
                return "caller", None
            if said is not True:
                values.append(value)
        return None, Score(basis=Basis.CALLER, value=min(values)) if values else None

    def _score(
        self, request: ChatRequest, draft: Completion, second: Completion | None
    ) -> Score | None:
        """Return the best score that was asked for; the prompt's where there is none."""
        read = draft if self.reads_logprobs else without_logprobs(draft)
        return score_draft(request, read, second)


def without_logprobs(answer: Completion) -> Completion:
    """Return an answer as it would have been without log-probabilities."""
    choices = tuple(msgspec.structs.replace(each, logprobs=None) for each in answer.choices)
    return msgspec.structs.replace(answer, choices=choices)

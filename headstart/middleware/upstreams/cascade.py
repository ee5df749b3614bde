"""Cascade: a cheap, fast model writes a draft; a strong model answers if the draft does not pass.

1. ``Cascade.send`` chooses the order in which the two models are asked (``CascadeOrder``).
2. ``CascadeRun`` makes the calls of one request. It reads the draft to its end before the client
   gets anything, because only a whole answer can be judged.
3. The ``JudgePanel`` judges the draft. A judge may veto it, for example because the draft refuses
   to answer. Otherwise a score, such as the log-probabilities of its tokens, must be high enough.
4. A draft that passes is the answer, byte for byte. Otherwise the strong model answers, and its
   answer is passed on as it comes.
5. The panel compares a scored draft with the strong model's answer, if there is one. So it learns
   which scores good drafts have (``Calibration``).

For example, the strategy asks for a confidence of 0.8. The first draft has a score with which 95 %
of the drafts were good: the client gets it, marked ``cascade:fast``. The next draft has a score
with which 60 % were good: the strong model is asked, and its answer is marked ``cascade:slow``. If
the strong model fails, the client gets the doubtful draft after all, marked ``cascade:draft``.

The judges are pure functions (``policies/drafts.py``).
"""

from __future__ import annotations

import inspect
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from headstart.attempts import AttemptOutcome, AttemptRole, RoutingEstimate
from headstart.dialects.registry import DIALECTS
from headstart.errors import (
    HeadstartError,
    InvalidRequest,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from headstart.middleware.upstreams.accounting import classify_failure
from headstart.middleware.upstreams.attempt_group import AttemptErrors, CallTask, close_calls
from headstart.observe import logger
from headstart.policies.agreement.judge import judge
from headstart.policies.drafts import (
    CALIBRATION_BINS,
    CALIBRATION_PRIORS,
    CHECKED,
    Calibration,
    DraftDecision,
    Escalations,
    Score,
    ScoreBasis,
    check_share,
    decide_draft,
    score_draft,
    score_prompt,
    start_both,
    veto_draft,
)
from headstart.reply import HELD_BYTES, Reply, Transcript, read_up_to
from headstart.types import Call, ChatRequest, Completion, Ended, LogprobsDelta, Piece, Started

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from headstart.dialects.dialect import Dialect
    from headstart.interfaces import Candidate, DraftJudge
    from headstart.settings import Judge, Strategy

    _Teach: TypeAlias = Callable[[Completion], Awaitable[None]]

_IDENTITY = (b"accept-encoding", b"identity")
_FAST, _SLOW = 0, 1
_CHECKED_WEIGHT = 5.0
"""The weight of a checked draft that is accepted, or whose prompt is hard.

Such drafts are compared only in checks, and one call in fifty is checked. So each represents fifty
drafts or more. But with a weight of 50, one draft would outweigh all earlier ones
(``docs/cascade.md``).
"""
FAST_MARK, SLOW_MARK, DRAFT_MARK = "cascade:fast", "cascade:slow", "cascade:draft"
_SCORING = frozenset({"logprob", "prompt", "agreement"})
"""Judges that give scores. The other ones only veto."""
_DOUBTS = ("unsure", "unjudged")
"""Reasons to reject a draft that is only doubtful, and no known fault."""
_VERSION = 1
"""The version of the saved state of a panel."""


class CascadeOrder(Enum):
    """The order in which the two models are asked."""

    DRAFT = "draft"
    """The strong model is asked only if the draft does not pass."""
    BOTH = "both"
    """The strong model is asked at once, because the draft will probably not pass."""
    HARD = "hard"
    """The strong model is asked first, and a draft only if it fails."""
    CHECK = "check"
    """The strong model answers. The draft is compared with its answer, to learn from it."""


@dataclass(eq=False, repr=False)
class Cascade:
    """Asks ``fast``, judges its whole draft, and asks ``slow`` if the draft does not pass.

    ``send`` waits for an accepted draft, or for the first content of ``slow``. If ``slow`` fails, a
    doubtful draft is served, with the mark ``cascade:draft``; it is not stored. ``clock`` returns
    Unix seconds, ``draw`` random numbers in [0, 1). ``strategy.judges`` has the user's own judges
    for the ``JudgePanel``. They are functions without a lasting name, so drafts that they accepted
    are cached under the ``name`` of this cascade only.
    """

    name: str
    fast: Candidate
    slow: Candidate
    strategy: Strategy
    _: KW_ONLY
    draw: Callable[[], float]
    clock: Callable[[], float]
    refusing_logprobs: set[str] = field(default_factory=set)
    """Models that refused log-probabilities."""
    _escalations: Escalations = field(default_factory=Escalations)

    def __post_init__(self) -> None:
        fast, slow, strategy = self.fast, self.slow, self.strategy
        judges = [each.ask for each in strategy.judges]
        # A stricter cascade must not get from the cache what another one has accepted.
        named = (*sorted(strategy.judge), *([f"own@{self.name}"] if judges else []))
        terms = f"{'+'.join(named)}>={strategy.min_confidence:g}"
        self.identity = f"cascade({fast.identity},{slow.identity},{terms})"
        self.names = fast.names | slow.names
        self.panel = JudgePanel(strategy.judge, strategy.min_confidence, judges)

    def estimate(self, call: Call) -> RoutingEstimate:
        """Return the estimate: that of a draft, and the strong model's times its usual share."""
        fast, slow = self.fast.estimate(call), self.slow.estimate(call)
        share = 1.0 if call.request is None else self.panel.failure_rate(call.request)
        drafted_s, cost_usd = fast.completion_s, fast.cost_usd
        return RoutingEstimate(
            name=self.name,
            ready=fast.ready or slow.ready,
            ready_in_s=min(fast.ready_in_s, slow.ready_in_s),
            degraded=fast.degraded and slow.degraded,
            samples=min(fast.samples, slow.samples),
            ttft_s=_sum(drafted_s, slow.ttft_s, share),
            tail_ttft_s=_sum(drafted_s, slow.tail_ttft_s, 1.0),
            tokens_per_s=slow.tokens_per_s,
            output_tokens=slow.output_tokens,
            cost_usd=_sum(cost_usd, slow.cost_usd, share),
            waste_usd=_sum(cost_usd, slow.waste_usd, share),
            bills_cancelled=slow.bills_cancelled,
            context_tokens=slow.context_tokens,
        )

    async def send(self, call: Call) -> Reply:
        """Answer the call. Waits until it is known which model answers. Raises HeadstartError."""
        alone = self._only_member(call)
        if alone is not None:
            member, asked, mark = alone
            return _add_mark(await member.send(asked), mark, storable=mark == SLOW_MARK)
        order = self._choose_order(call)
        run = CascadeRun(self, call, DIALECTS[call.dialect], order)
        try:
            reply = await run.answer()
        except BaseException as error:
            await run.close(error)
            raise
        if order in (CascadeOrder.DRAFT, CascadeOrder.BOTH):
            self._escalations = self._escalations.after(escalated=run.escalated)
        return reply

    def _only_member(self, call: Call) -> tuple[Candidate, Call, str] | None:
        """Return the member, the call and the mark if only one member may answer; else None.

        A rescue continues with the strong model: a draft is sent whole, so only an answer of the
        strong model can break off.
        """
        if call.role == AttemptRole.RESCUE and self.slow.names <= call.avoid:
            call = msgspec.structs.replace(call, avoid=call.avoid - self.slow.names)
        if self.slow.names <= call.avoid:
            if self.fast.names <= call.avoid:
                raise UpstreamUnavailable("no upstream is left to ask")
            return self.fast, call, DRAFT_MARK
        unread = call.request is None or call.dialect not in DIALECTS
        if unread or call.role == AttemptRole.RESCUE or self.fast.names <= call.avoid:
            return self.slow, call, SLOW_MARK
        return None

    def _choose_order(self, call: Call) -> CascadeOrder:
        panel, request = self.panel, call.request
        assert request is not None
        hard = panel.finds_hard(request)
        if panel.scores and self._checks(call, hard=hard):
            return CascadeOrder.CHECK
        if hard:
            return CascadeOrder.HARD
        early = self.strategy.escalate_early and panel.expects_failure(request)
        return CascadeOrder.BOTH if early else CascadeOrder.DRAFT

    def _checks(self, call: Call, *, hard: bool) -> bool:
        # If no judge gives scores, there is nothing to check.
        drawn, checked = self.draw(), min(CHECKED, self.strategy.extra_calls)
        if drawn >= checked:
            return False
        fast_usd = self.fast.estimate(call).cost_usd or 0.0
        slow_usd = self.slow.estimate(call).cost_usd or 0.0
        drafted_usd = fast_usd + self._escalations.share * slow_usd
        call_usd, check_usd = (slow_usd, fast_usd) if hard else (drafted_usd, slow_usd)
        return drawn < check_share(
            call_usd, check_usd, checked=checked, extra_cost=self.strategy.extra_cost
        )


def _sum(one: float | None, other: float | None, share: float) -> float | None:
    return None if one is None or other is None else one + share * other


# --- one request ----------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class CascadeRun:
    """Makes the calls of one request, each in a task of its own."""

    cascade: Cascade
    call: Call
    dialect: Dialect
    order: CascadeOrder
    _errors: AttemptErrors = field(default_factory=lambda: AttemptErrors((_SLOW, _FAST)))
    _tasks: list[CallTask] = field(default_factory=list)
    _draft: CallTask | None = None
    _second: CallTask | None = None
    """A second draft of the same model, with which the first one is compared."""
    _slow: CallTask | None = None
    _served: CallTask | None = None
    """The call whose answer the client gets."""

    def __post_init__(self) -> None:
        assert self.call.request is not None
        self._request = self.call.request

    @property
    def escalated(self) -> bool:
        """Whether the strong model answers."""
        return self._served is not None and self._served is self._slow

    async def answer(self) -> Reply:
        """Ask, judge and return the answer. If no model answers, raises the most useful error."""
        order = self.order
        if order is not CascadeOrder.HARD:
            self._ask_fast(AttemptRole.DRAFT)
        if order is not CascadeOrder.DRAFT:
            self._ask_slow(AttemptRole.ESCALATION)

        # In these orders the strong model answers, unless it fails.
        if order in (CascadeOrder.HARD, CascadeOrder.CHECK):
            reply = await self._slow_reply(AttemptRole.ESCALATION)
            if reply is not None:
                return self._live(reply, self._check if order is CascadeOrder.CHECK else None)
            if order is CascadeOrder.HARD:
                self._ask_fast(AttemptRole.FALLBACK)

        draft = await self._read_draft()
        if draft is None:  # the fast model failed
            reply = await self._slow_reply(AttemptRole.FALLBACK)
            if reply is None:
                raise self._errors.most_useful()
            return self._live(reply)
        second = await self._read_second()
        verdict = await self.cascade.panel.judge_draft(self._request, draft.answer, second)
        if verdict.decision.accept:
            return self._serve(draft, FAST_MARK)
        return await self._escalate(draft, verdict)

    async def _escalate(self, draft: Draft, verdict: DraftVerdict) -> Reply:
        """Ask the strong model, because the draft was rejected. The panel learns from its answer.

        If the strong model fails, too, a draft that is only doubtful is the answer.
        """

        async def teach(strong: Completion) -> None:
            self.cascade.panel.learn(self._request, draft.answer, verdict, strong)

        assert self._draft is not None
        serves_draft = False
        try:
            reply = await self._slow_reply(AttemptRole.ESCALATION)
            if reply is not None:
                return self._live(reply, teach)
            serves_draft = verdict.only_doubtful
        finally:
            if not serves_draft:  # also if the client leaves while the strong model is asked
                self._set_outcome(self._draft, AttemptOutcome.REJECTED)
        if serves_draft:
            # Others must not get it, because they may get the strong model's answer.
            return self._serve(draft, DRAFT_MARK, storable=False)
        raise self._errors.most_useful()

    async def close(self, error: BaseException | None = None) -> None:
        """Close the served call, abort all others, and wait for the end of all."""
        try:
            await close_calls(self._tasks, self._served, error)
        finally:
            self._set_outcomes_of_others()

    # --- asking --------------------------------------------------------------------------

    def _ask_fast(self, role: AttemptRole) -> None:
        call = readable(self.call)
        field = self.dialect.logprobs_field
        if field is not None and self._may_ask_logprobs():
            call = asking_logprobs(call, field)
        self._draft = self._ask(self.cascade.fast, call, role, whole=True)
        if self.cascade.panel.compares and role is AttemptRole.DRAFT:
            self._second = self._ask(self.cascade.fast, call, AttemptRole.JUDGE, whole=True)

    def _asks_logprobs(self, task: CallTask) -> bool:
        """Tell whether a call asks for log-probabilities that its client did not ask for."""
        return task.call.request is not self._request

    def _may_ask_logprobs(self) -> bool:
        request = self._request
        return (
            self.cascade.panel.reads_logprobs
            and self.call.editable
            and not request.logprobs
            and request.model not in self.cascade.refusing_logprobs
        )

    def _ask_slow(self, role: AttemptRole) -> None:
        # A stream can be stopped early. This helps only if a draft, which may win, is under way.
        draft_may_win = self.order is CascadeOrder.BOTH
        streamed = draft_may_win and self.call.editable and not self._request.stream
        call = msgspec.structs.replace(
            self.call, streamed_upstream=self.call.streamed_upstream or streamed
        )
        self._slow = self._ask(self.cascade.slow, call, role)

    def _ask(
        self, member: Candidate, call: Call, role: AttemptRole, *, whole: bool = False
    ) -> CallTask:
        asked = msgspec.structs.replace(call, role=role, log=call.log.branch())
        # A whole draft is closed as soon as it was read.
        changed = CallTask.release if whole else None
        self._tasks.append(CallTask(member, asked, changed, whole=whole))
        return self._tasks[-1]

    # --- reading -------------------------------------------------------------------------

    async def _slow_reply(self, role: AttemptRole) -> Reply | None:
        """Return the strong model's answer at its first content, or None if it failed."""
        if self._slow is None:
            self._ask_slow(role)
        assert self._slow is not None
        try:
            return await self._slow.answer()
        except HeadstartError as error:
            self._note_error(_SLOW, error)
            return None

    async def _read_draft(self) -> Draft | None:
        """Return the whole draft, or None if it failed."""
        assert self._draft is not None
        try:
            return await read_draft(await self._draft.answer(), self.cascade.clock())
        except HeadstartError as error:
            refused = isinstance(error, UpstreamRefused) and error.status in (400, 422)
            if self._asks_logprobs(self._draft) and (refused or isinstance(error, InvalidRequest)):
                # The model may refuse the field that we added.
                self.cascade.refusing_logprobs.add(self._request.model)
                self._ask_fast(AttemptRole(self._draft.call.role))
                return await self._read_draft()
            self._note_error(_FAST, error)
            return None

    async def _read_second(self) -> Completion | None:
        """Return the second draft, with which the first is compared, or None."""
        if self._second is None:
            return None
        try:
            second = await read_draft(await self._second.answer(), self.cascade.clock())
        except HeadstartError:
            return None
        return second.answer

    def _note_error(self, member: int, error: HeadstartError) -> None:
        failure = classify_failure(error, self.cascade.clock())
        blames_caller = not (failure.fail_over or failure.retry_here)
        self._errors.add(member, error, blames_caller=blames_caller)

    # --- answering -----------------------------------------------------------------------

    def _serve(self, draft: Draft, mark: str, *, storable: bool = True) -> Reply:
        """Answer with a draft, and cancel the strong model's call."""
        assert self._draft is not None
        self._serve_only(self._draft)
        if self._asks_logprobs(self._draft):
            draft = strip_logprobs(draft, self.call, self.dialect)
        reply = _add_mark(draft.reply, mark, storable=storable)
        # The request is booked when its answer ends, so the other calls have to end before that.
        reply.filter(_yield_draft(draft, self._give_up_others))
        reply.closing = self.close
        return reply

    def _live(self, reply: Reply, teach: _Teach | None = None) -> Reply:
        """Answer with the strong model's stream. At its end, ``teach`` learns from it."""
        assert self._slow is not None
        if self.order is CascadeOrder.CHECK:
            self._served = self._slow
        else:
            self._serve_only(self._slow)
        _add_mark(self._slow.hand_on(self.close), SLOW_MARK)
        if teach is not None and self.cascade.panel.scores:
            reply.filter(self._teach_after(reply, reply.pieces, teach))
        return reply

    def _serve_only(self, task: CallTask) -> None:
        """Let this call answer, and cancel all others."""
        self._served = task
        self._set_outcomes_of_others()
        for other in self._others:
            other.cancel()

    async def _teach_after(
        self, reply: Reply, pieces: AsyncIterator[Piece], teach: _Teach
    ) -> AsyncGenerator[Piece]:
        async for piece in pieces:
            yield piece
        strong = finished_answer(reply.transcript, self.cascade.clock())
        if strong is not None:
            await teach(strong)

    async def _check(self, strong: Completion) -> None:
        """Compare the draft of a checked call with the strong answer, if the draft came first."""
        self._set_outcomes_of_others()
        if not all(each.reply is not None for each in self._others):
            await self._give_up_others()
            return
        draft, second = await self._read_draft(), await self._read_second()
        if draft is None:
            return
        panel = self.cascade.panel
        hard = panel.finds_hard(self._request)
        verdict = await panel.judge_draft(self._request, draft.answer, second)
        compared_only_here = hard or verdict.decision.accept
        weight = _CHECKED_WEIGHT if compared_only_here else 1.0
        panel.learn(self._request, draft.answer, verdict, strong, weight=weight)

    @property
    def _others(self) -> list[CallTask]:
        return [task for task in self._tasks if task is not self._served]

    async def _give_up_others(self) -> None:
        for task in self._others:
            task.cancel()
            await task.ended()

    def _set_outcomes_of_others(self) -> None:
        """Set the outcome of each call whose answer the client does not get."""
        for task in self._others:
            if self._served is None:
                outcome = AttemptOutcome.ABANDONED
            elif task is self._draft:
                outcome = AttemptOutcome.REJECTED
            else:
                outcome = AttemptOutcome.LOST
            self._set_outcome(task, outcome)

    def _set_outcome(self, task: CallTask, outcome: AttemptOutcome) -> None:
        if task.call.log.ruling is None:
            task.call.log.rule(outcome)


# --- drafts ---------------------------------------------------------------------------------------


class Draft(NamedTuple):
    """An answer that was read to its end."""

    reply: Reply
    pieces: Sequence[Piece]
    answer: Completion | None
    """The decoded answer, or None if it cannot be read, for example because it is compressed."""


async def read_draft(reply: Reply, now: float) -> Draft:
    """Read a draft to its end. ``now`` is in Unix seconds.

    Raises UpstreamError, also if the draft is too long to be kept.
    """
    pieces, is_whole = await read_up_to(reply, HELD_BYTES)
    if not is_whole:
        raise UpstreamProtocolError(f"the draft of upstream {reply.upstream} is too long")
    return Draft(reply, pieces, finished_answer(reply.transcript, now))


def finished_answer(transcript: Transcript, now: float) -> Completion | None:
    """Return the answer of a body that has ended, or None if the answer is not whole.

    It is whole after its terminal event, or if each choice has its finish reason.
    """
    if transcript.finished and not transcript.ended:
        transcript.feed((Ended(),))
    return transcript.completion(now)


def _add_mark(reply: Reply, mark: str, *, storable: bool = True) -> Reply:
    """Note in the transforms of an answer which model gave it."""
    reply.transforms = (*reply.transforms, mark)
    reply.storable = reply.storable and storable
    return reply


async def _yield_draft(draft: Draft, after: Callable[[], Awaitable[None]]) -> AsyncGenerator[Piece]:
    """Yield a draft unchanged, byte for byte. ``after`` is awaited at its end."""
    for piece in draft.pieces:
        yield piece
    await after()


def readable(call: Call) -> Call:
    """Return a call that asks for an uncompressed answer, so that the answer can be judged."""
    kept = tuple(pair for pair in call.headers if pair[0] != _IDENTITY[0])
    return msgspec.structs.replace(call, headers=(*kept, _IDENTITY))


def asking_logprobs(call: Call, field: str) -> Call:
    """Return a call that asks for log-probabilities, in a boolean field of its dialect."""
    request = call.request
    assert request is not None
    body = msgspec.json.decode(call.body, type=dict[str, msgspec.Raw])
    body[field] = msgspec.Raw(b"true")
    asked = msgspec.structs.replace(
        request, document={**request.document, field: True}, logprobs=True
    )
    return msgspec.structs.replace(call, body=msgspec.json.encode(body), request=asked)


def strip_logprobs(draft: Draft, call: Call, dialect: Dialect) -> Draft:
    """Return a draft rewritten without log-probabilities that the caller did not ask for."""
    answer, request = draft.answer, call.request
    events = tuple(
        event
        for piece in draft.pieces
        for event in piece.events
        if not isinstance(event, LogprobsDelta)
    )
    if answer is None or request is None:
        return draft
    plain = without_logprobs(answer)
    ids = (event.id for event in events if isinstance(event, Started))
    id = next((each for each in ids if each), None) or dialect.new_id()
    if request.stream:
        rendered = dialect.render(plain)
        echo = None if dialect.echo is None else dialect.echo(request.document)
        data = rendered.sse(id, plain.created, echo, include_usage=request.include_usage)
    else:
        data = dialect.write_body(plain, id, plain.created)
    reply, piece = _add_mark(draft.reply, "logprobs"), Piece(data, events)
    reply.headers = tuple([pair for pair in reply.headers if pair[0] != b"content-length"])
    reply.transcript = Transcript()
    reply.transcript.add(piece)
    return Draft(reply, (piece,), plain)


def without_logprobs(answer: Completion) -> Completion:
    """Return an answer without log-probabilities."""
    choices = tuple(msgspec.structs.replace(each, logprobs=None) for each in answer.choices)
    return msgspec.structs.replace(answer, choices=choices)


# --- judges ---------------------------------------------------------------------------------------


class DraftVerdict(NamedTuple):
    """The verdict on a draft, and its reason."""

    decision: DraftDecision
    score: Score | None

    @property
    def only_doubtful(self) -> bool:
        """Whether the draft has no known fault, so that it is better than no answer."""
        return self.decision.reason in _DOUBTS


class _SavedCalibrations(msgspec.Struct, frozen=True):
    version: int
    scores: dict[ScoreBasis, Calibration]
    acceptance: Calibration


class JudgePanel:
    """The judges of one cascade. ``own`` has the user's judges, which are asked in order.

    A draft passes if no judge vetoes it and, if a judge gives a score, if drafts with such a score
    are good with the probability ``min_confidence``. A truncated draft passes only if the caller's
    own limit cut it. An error of the user's judge counts as a veto.
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
        self._acceptance = CALIBRATION_PRIORS[ScoreBasis.PROMPT]

    @property
    def scores(self) -> bool:
        """Whether there is a score that can be calibrated."""
        return bool(self._names & _SCORING or self._own)

    @property
    def reads_logprobs(self) -> bool:
        return "logprob" in self._names

    @property
    def compares(self) -> bool:
        """Whether a second draft is needed, to be compared with the first."""
        return "agreement" in self._names

    def finds_hard(self, request: ChatRequest) -> bool:
        """Tell from the prompt alone, before a draft, whether the strong model is needed."""
        if "prompt" not in self._names:
            return False
        score = score_prompt(request)
        if score is None:
            return False
        return self._scores[score.basis].probability(score.value) < self._min_confidence

    def expects_failure(self, request: ChatRequest) -> bool:
        """Tell whether a draft will probably be rejected."""
        return start_both(score_prompt(request), self._acceptance)

    def failure_rate(self, request: ChatRequest) -> float:
        """Return the probability that a draft for this prompt will be rejected."""
        score = score_prompt(request)
        return 0.5 if score is None else 1.0 - self._acceptance.probability(score.value)

    async def judge_draft(
        self, request: ChatRequest, draft: Completion | None, second: Completion | None
    ) -> DraftVerdict:
        """Return the verdict on a finished draft, and learn how often drafts are accepted.

        ``draft`` is None if it cannot be read. ``second`` is a second draft, to be compared.
        """
        verdict = await self._judge(request, draft, second)
        prompt = score_prompt(request)
        if prompt is not None:
            self._acceptance = self._acceptance.learn(prompt.value, good=verdict.decision.accept)
        return verdict

    def learn(
        self,
        request: ChatRequest,
        draft: Completion | None,
        verdict: DraftVerdict,
        strong: Completion,
        *,
        weight: float = 1.0,
    ) -> None:
        """Learn from the strong model's answer whether a scored draft is good.

        If the comparison is unsure, nothing is learned.
        """
        score = verdict.score
        if draft is None or score is None:
            return
        same = judge(strong, draft, [request.question or request.query], None).same
        if same is not None:
            known = self._scores[score.basis]
            self._scores[score.basis] = known.learn(score.value, good=same, weight=weight)

    def saved(self) -> bytes:
        """Return the learned state."""
        return msgspec.json.encode(_SavedCalibrations(_VERSION, self._scores, self._acceptance))

    def load(self, data: bytes) -> None:
        """Load what ``saved`` returned. Data of another version is ignored."""
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

    async def _judge(
        self, request: ChatRequest, draft: Completion | None, second: Completion | None
    ) -> DraftVerdict:
        if draft is None:
            return DraftVerdict(DraftDecision(accept=False, reason="unjudged"), None)
        names = self._names
        veto = veto_draft(request, draft, refusals="refusal" in names, formats="format" in names)
        own_score = None
        if veto is None:
            veto, own_score = await self._ask_own(request, draft)
        if veto is not None:
            return DraftVerdict(DraftDecision(accept=False, reason=veto), None)
        if own_score is None and not names & _SCORING:
            return DraftVerdict(DraftDecision(accept=True, reason="passed"), None)
        read = draft if self.reads_logprobs else without_logprobs(draft)
        score = own_score or score_draft(request, read, second)
        calibration = None if score is None else self._scores[score.basis]
        return DraftVerdict(decide_draft(score, calibration, self._min_confidence), score)

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
            except Exception as error:  # noqa: BLE001 - it is the user's code
                # Only the type's name is logged, because the message may quote a prompt.
                logger.warning("a cascade's own judge failed: %s", type(error).__name__)
                return "caller", None
            if said is False:
                return "caller", None
            if said is not True:
                values.append(value)
        return None, Score(basis=ScoreBasis.CALLER, value=min(values)) if values else None

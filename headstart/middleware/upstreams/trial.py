"""One call's way through a cascade: its draft, what the judges say, and who answers."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.attempts import AttemptOutcome, AttemptRole
from headstart.errors import HeadstartError, InvalidRequest, UpstreamRefused
from headstart.middleware.collect import Collector
from headstart.middleware.upstreams.branches import Branch
from headstart.middleware.upstreams.drafts import (
    AnswerReply,
    asking_logprobs,
    finished_answer,
    read_draft,
    readable,
    replayed,
    stripped,
)
from headstart.middleware.upstreams.losses import Losses
from headstart.middleware.upstreams.opening import judge

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import TypeAlias

    from headstart.interfaces import Candidate, Chunk, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.drafts import Draft
    from headstart.middleware.upstreams.jury import Jury, Ruling
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.types import Call, Completion

    _Teach: TypeAlias = Callable[[Completion], Awaitable[None]]

_FAST, _SLOW = 0, 1
_CHECKED_WEIGHT = 5.0
"""Of a checked draft whose kind is else never compared. It stands for fifty or more, but at that
weight the first one would outweigh all that is known (``docs/cascade.md``)."""
FAST_MARK, SLOW_MARK, DRAFT_MARK = "cascade:fast", "cascade:slow", "cascade:draft"


class Course(Enum):
    """In what order the two models are asked."""

    DRAFT = "draft"
    """The strong one only where the draft does not pass."""
    BOTH = "both"
    """The strong one at once, as the draft will probably not pass."""
    HARD = "hard"
    """The strong one; a draft only where it fails."""
    CHECK = "check"
    """The strong one answers, and the draft teaches what its score is worth."""


class Parties(NamedTuple):
    """What a cascade's calls share."""

    fast: Candidate
    slow: Candidate
    jury: Jury
    ledger: Ledger
    clock: Callable[[], float]
    silent: set[str]
    """Models whose log-probabilities were refused."""


class Trial:
    """Makes the calls of one request, each a branch in a task of ``group``."""

    def __init__(
        self, parties: Parties, call: Call, dialect: Dialect, course: Course,
        group: asyncio.TaskGroup,
    ) -> None:  # fmt: skip
        self._parties = parties
        self._call = call
        self._dialect = dialect
        self._course = course
        self._group = group
        assert call.request is not None
        self._request = call.request
        self._losses = Losses((_SLOW, _FAST))
        self._branches: list[Branch] = []
        self._draft: Branch | None = None
        self._second: Branch | None = None
        self._slow: Branch | None = None
        self._served: Branch | None = None

    @property
    def escalated(self) -> bool:
        """The strong model answers."""
        return self._served is not None and self._served is self._slow

    async def answer(self) -> UpstreamReply:
        """Ask, judge and return the answer. Raises what is most useful if nobody answers."""
        if self._course is not Course.HARD:
            self._ask_fast(AttemptRole.DRAFT)
        if self._course is not Course.DRAFT:
            self._ask_slow(AttemptRole.ESCALATION)
        if self._course in (Course.HARD, Course.CHECK):
            reply = await self._slow_reply(AttemptRole.ESCALATION)
            if reply is not None:
                return self._live(reply, self._check if self._course is Course.CHECK else None)
            if self._course is Course.HARD:
                self._ask_fast(AttemptRole.FALLBACK)
        draft = await self._read_draft()
        if draft is None:
            reply = await self._slow_reply(AttemptRole.FALLBACK)
            if reply is None:
                raise self._losses.most_useful()
            return self._live(reply)
        second = await self._read_second()
        ruling = await self._parties.jury.rule(self._request, draft.answer, second)
        if ruling.decision.accept:
            return self._serve(draft, FAST_MARK)
        return await self._escalated(draft, ruling)

    async def _escalated(self, draft: Draft, ruling: Ruling) -> UpstreamReply:
        async def teach(strong: Completion) -> None:
            self._parties.jury.learn(self._request, draft.answer, ruling, strong)

        assert self._draft is not None
        passes = False
        try:
            reply = await self._slow_reply(AttemptRole.ESCALATION)
            if reply is not None:
                return self._live(reply, teach)
            passes = ruling.soft
        finally:
            if not passes:
                self._rule(self._draft, AttemptOutcome.REJECTED)
        if passes:
            # Not for others: they may have the strong model's answer.
            return self._serve(draft, DRAFT_MARK, storable=False)
        raise self._losses.most_useful()

    def end(self, *, in_order: bool) -> None:
        """The answer was read, or else was given up: leave it, and abort all others."""
        for branch in self._branches:
            branch.end(in_order=in_order and branch is self._served)

    def settle(self) -> None:
        """Rule on what nobody waited for, and forget the rulings: all calls have ended."""
        self._rule_others()
        for branch in self._branches:
            self._parties.ledger.settle(branch.call.id, branch.call.branch)

    # --- asking --------------------------------------------------------------------------

    def _ask_fast(self, role: AttemptRole) -> None:
        call = readable(self._call)
        if self._may_ask_logprobs():
            call = asking_logprobs(call)
        self._draft = self._ask(self._parties.fast, call, role, whole=True)
        if self._parties.jury.compares and role is AttemptRole.DRAFT:
            self._second = self._ask(self._parties.fast, call, AttemptRole.JUDGE, whole=True)

    def _may_ask_logprobs(self) -> bool:
        request = self._request
        return (
            self._parties.jury.reads_logprobs
            and self._call.editable
            and self._dialect.name == "openai-chat"
            and not request.logprobs
            and request.model not in self._parties.silent
        )

    def _ask_slow(self, role: AttemptRole) -> None:
        # Only beside a draft may it have to stop early.
        fold = self._course is Course.BOTH and self._call.editable and not self._request.stream
        call = msgspec.structs.replace(self._call, fold=self._call.fold or fold)
        self._slow = self._ask(self._parties.slow, call, role)

    def _ask(
        self, member: Candidate, call: Call, role: AttemptRole, *, whole: bool = False
    ) -> Branch:
        branch = f"{call.branch}.{len(self._branches)}"
        asked = msgspec.structs.replace(call, role=role, branch=branch)
        self._branches.append(Branch(self._group, member, asked, whole=whole))
        return self._branches[-1]

    # --- reading -------------------------------------------------------------------------

    async def _slow_reply(self, role: AttemptRole) -> UpstreamReply | None:
        """Return the strong model's answer at its first content, or None: it failed."""
        if self._slow is None:
            self._ask_slow(role)
        assert self._slow is not None
        try:
            return await self._slow.reply()
        except HeadstartError as error:
            self._lost(_SLOW, error)
            return None

    async def _read_draft(self) -> Draft | None:
        """Return the whole draft, or None: it failed."""
        assert self._draft is not None
        try:
            return await read_draft(await self._draft.reply(), self._parties.clock())
        except HeadstartError as error:
            if self._draft.asks_logprobs(self._call) and _is_refusal(error):
                # It may be what we added that it does not take.
                self._parties.silent.add(self._request.model)
                self._ask_fast(AttemptRole(self._draft.call.role))
                return await self._read_draft()
            self._lost(_FAST, error)
            return None

    async def _read_second(self) -> Completion | None:
        """Return the answer that the draft is compared with, or None."""
        if self._second is None:
            return None
        try:
            second = await read_draft(await self._second.reply(), self._parties.clock())
        except HeadstartError:
            return None
        return second.answer

    def _lost(self, member: int, error: HeadstartError) -> None:
        failure = judge(error, self._parties.clock())
        blames_caller = not (failure.fail_over or failure.retry_here)
        self._losses.add(member, error, blames_caller=blames_caller)

    # --- answering -----------------------------------------------------------------------

    def _serve(self, draft: Draft, mark: str, *, storable: bool = True) -> UpstreamReply:
        """Answer with a draft; the strong model stops."""
        assert self._draft is not None
        self._served = self._draft
        self._rule_others()
        for other in self._others:
            other.end(in_order=False)
        if self._draft.asks_logprobs(self._call):
            draft = stripped(draft, self._call, self._dialect)
        # Books are closed when an answer ends, and a draft is sent in no time.
        return replayed(draft, mark, self._give_up_others, storable=storable)

    def _live(self, reply: UpstreamReply, teach: _Teach | None = None) -> UpstreamReply:
        """Answer with the strong model's stream, which teaches at its end."""
        self._served = self._slow
        if self._course is not Course.CHECK:
            self._rule_others()
            for other in self._others:
                other.end(in_order=False)

        async def chunks() -> AsyncIterator[Chunk]:
            collector = Collector()
            async for piece in reply.chunks():
                collector.feed(piece.events)
                yield piece
            strong = finished_answer(collector, self._parties.clock())
            if strong is not None and teach is not None:
                await teach(strong)

        teaches = teach is not None and self._parties.jury.scores
        return AnswerReply(reply, SLOW_MARK, chunks if teaches else None)

    async def _check(self, strong: Completion) -> None:
        """Compare the draft of a checked call, if it was the faster one."""
        self._rule_others()
        if not all(each.answered for each in self._others):
            await self._give_up_others()
            return
        draft, second = await self._read_draft(), await self._read_second()
        if draft is None:
            return
        jury = self._parties.jury
        hard = jury.finds_hard(self._request)
        ruling = await jury.rule(self._request, draft.answer, second)
        rare = hard or ruling.decision.accept
        weight = _CHECKED_WEIGHT if rare else 1.0
        jury.learn(self._request, draft.answer, ruling, strong, weight=weight)

    @property
    def _others(self) -> list[Branch]:
        return [branch for branch in self._branches if branch is not self._served]

    async def _give_up_others(self) -> None:
        for branch in self._others:
            await branch.give_up()

    def _rule_others(self) -> None:
        """Say what becomes of the calls whose answer the client does not get."""
        for branch in self._others:
            if self._served is None:
                outcome = AttemptOutcome.ABANDONED
            elif branch is self._draft:
                outcome = AttemptOutcome.REJECTED
            else:
                outcome = AttemptOutcome.LOST
            self._rule(branch, outcome)

    def _rule(self, branch: Branch, outcome: AttemptOutcome) -> None:
        ledger, call = self._parties.ledger, branch.call
        if ledger.ruling(call.id, call.branch) is None:
            ledger.rule(call.id, call.branch, outcome)


def _is_refusal(error: HeadstartError) -> bool:
    if isinstance(error, UpstreamRefused):
        return error.status in (400, 422)
    return isinstance(error, InvalidRequest)

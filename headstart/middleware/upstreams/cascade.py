"""Cascade: a cheap, fast model drafts; a strong one answers where the draft does not pass.

``docs/cascade.md`` explains the judges. Nothing of a draft is shown before it is judged, and an
answer is one model's throughout.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headstart.attempts import AttemptRole, Outlook
from headstart.errors import UpstreamUnavailable
from headstart.middleware.upstreams.drafts import AnswerReply
from headstart.middleware.upstreams.holding import tended
from headstart.middleware.upstreams.jury import Jury
from headstart.middleware.upstreams.trial import (
    DRAFT_MARK,
    SLOW_MARK,
    Course,
    Parties,
    Trial,
)
from headstart.policies.cascade.checks import CHECKED, Escalations, check_share

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from headstart.interfaces import Candidate, DraftJudge, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.jury import JudgeName
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.types import Call


@dataclass(frozen=True)
class CascadeOptions:
    """Who judges; ``docs/configuration.md`` has the settings of these names."""

    judge: tuple[JudgeName, ...] = ("refusal", "format")
    min_confidence: float = 0.5
    escalate_early: bool = False
    checked: float = CHECKED
    """Largest share of calls that both models answer, so that scores are checked; the strong one's
    answer is served. Nothing is checked where no judge scores."""
    extra_cost: float = 0.05
    """What checks may cost, as a share of what the other calls cost: see ``check_share``."""


class Cascade:
    """Asks ``fast``, judges its whole draft, and asks ``slow`` where the draft does not pass.

    Entering ``stream`` waits for an accepted draft, or for the first content of ``slow``. Where
    ``slow`` fails, a draft that was only doubted is served, marked ``cascade:draft`` and not
    storable. ``clock`` gives Unix seconds, ``draw`` random numbers in [0, 1). ``judges`` are the
    user's own, asked as ``Jury`` says; nobody knows them by a name that lasts, so what they let
    pass is shared under this cascade's own ``name`` alone.
    """

    def __init__(
        self,
        name: str,
        fast: Candidate,
        slow: Candidate,
        options: CascadeOptions,
        *,
        ledger: Ledger,
        dialects: Mapping[str, Dialect],
        draw: Callable[[], float],
        clock: Callable[[], float],
        judges: Sequence[DraftJudge] = (),
    ) -> None:
        self.name = name
        # What one cascade let pass is nothing that a stricter one may serve.
        named = (*sorted(options.judge), *([f"own@{name}"] if judges else []))
        terms = f"{'+'.join(named)}>={options.min_confidence:g}"
        self.identity = f"cascade({fast.identity},{slow.identity},{terms})"
        self.names = fast.names | slow.names
        self.jury = Jury(options.judge, options.min_confidence, judges)
        self._fast = fast
        self._slow = slow
        self._options = options
        self._dialects = dialects
        self._draw = draw
        self._escalations = Escalations()
        self._parties = Parties(
            fast,
            slow,
            self.jury,
            ledger,
            clock,
            silent=set(),
        )

    def outlook(self, call: Call) -> Outlook:
        """Return what to expect: a whole draft, and the strong model as often as it is needed."""
        fast, slow = self._fast.outlook(call), self._slow.outlook(call)
        share = 1.0 if call.request is None else self.jury.failure_rate(call.request)
        drafted_s, cost_usd = fast.completion_s, fast.cost_usd
        return Outlook(
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

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[UpstreamReply]:
        """Answer the call; entering waits until it is known who answers."""
        alone = self._alone(call)
        if alone is not None:
            member, asked, mark = alone
            async with member.stream(asked) as reply:
                yield AnswerReply(reply, mark, storable=mark == SLOW_MARK)
            return
        dialect, course = self._dialects[call.dialect], self._course(call)
        async with tended(partial(Trial, self._parties, call, dialect, course)) as trial:
            reply = await trial.answer()
            if course in (Course.DRAFT, Course.BOTH):
                self._escalations = self._escalations.after(escalated=trial.escalated)
            yield reply

    def _alone(self, call: Call) -> tuple[Candidate, Call, str] | None:
        """Return who alone may answer this call, how it is asked, and the mark of its answer.

        A rescue goes on with the strong model, as nobody else's answer can break off.
        """
        if call.role == AttemptRole.RESCUE and self._slow.names <= call.avoid:
            call = msgspec.structs.replace(call, avoid=call.avoid - self._slow.names)
        if self._slow.names <= call.avoid:
            if self._fast.names <= call.avoid:
                raise UpstreamUnavailable("no upstream is left to ask")
            return self._fast, call, DRAFT_MARK
        unread = call.request is None or call.dialect not in self._dialects
        if unread or call.role == AttemptRole.RESCUE or self._fast.names <= call.avoid:
            return self._slow, call, SLOW_MARK
        return None

    def _course(self, call: Call) -> Course:
        jury, request = self.jury, call.request
        assert request is not None
        hard = jury.finds_hard(request)
        if jury.scores and self._checks(call, hard=hard):
            return Course.CHECK
        if hard:
            return Course.HARD
        early = self._options.escalate_early and jury.expects_failure(request)
        return Course.BOTH if early else Course.DRAFT

    def _checks(self, call: Call, *, hard: bool) -> bool:
        drawn, options = self._draw(), self._options
        if drawn >= options.checked:
            return False
        fast_usd = self._fast.outlook(call).cost_usd or 0.0
        slow_usd = self._slow.outlook(call).cost_usd or 0.0
        drafted_usd = fast_usd + self._escalations.share * slow_usd
        call_usd, check_usd = (slow_usd, fast_usd) if hard else (drafted_usd, slow_usd)
        return drawn < check_share(
            call_usd, check_usd, checked=options.checked, extra_cost=options.extra_cost
        )


def _sum(one: float | None, other: float | None, share: float) -> float | None:
    return None if one is None or other is None else one + share * other

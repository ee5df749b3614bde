"""A second opinion on answers, from a language model of an upstream, within a budget."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headstart.decisions import Outcome
from headstart.errors import UpstreamProtocolError
from headstart.observe import Served
from headstart.policies.agreement.answers import answer_text
from headstart.policies.agreement.judge import judge_request, read_verdict
from headstart.transcript import Transcript
from headstart.types import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.dialects.dialect import Dialect
    from headstart.interfaces import Upstream
    from headstart.middleware.learning.audits import CallBudget
    from headstart.observe import Observer
    from headstart.policies.cost import Price
    from headstart.types import Completion, RawResponse

PATH = b"/v1/chat/completions"
MOST_CHARACTERS = 64 * 1024
"""A longer answer is no verdict."""


@dataclass(slots=True, eq=False)
class ModelJudge:
    """Asks ``model`` of ``upstream`` whether two answers agree. Each call is booked as an audit."""

    upstream: Upstream
    dialect: Dialect
    model: str
    allowance: CallBudget
    price: Callable[[str], Price | None]
    clock: Callable[[], float]
    new_id: Callable[[], str]
    observer: Observer

    async def same(
        self, question: str, cached: Completion | RawResponse, fresh: Completion | RawResponse
    ) -> bool | None:
        """Return the judgement; None: unsure, or no budget is left. Raises UpstreamError."""
        if not self.allowance.take():
            return None
        asked = judge_request(question, answer_text(cached), answer_text(fresh), self.model)
        body = msgspec.json.encode(asked)
        call = Call(
            id=self.new_id(),
            method="POST",
            path=PATH,
            query_string=b"",
            headers=((b"content-type", b"application/json"),),
            body=body,
            dialect=self.dialect.name,
            endpoint="judge",
            request=self.dialect.parse_request(body),
        )
        began = time.perf_counter()
        transcript, status = Transcript(), 0
        try:
            async with await self.upstream.send(call) as reply:
                transcript, status = reply.transcript, reply.status
                async for _ in reply.pieces:
                    pass
        finally:
            self._book(call, transcript, status, time.perf_counter() - began)
        verdict = transcript.completion(self.clock())
        if status != 200 or verdict is None or transcript.characters > MOST_CHARACTERS:
            raise UpstreamProtocolError(f"the judge {self.model!r} did not answer")
        return read_verdict(answer_text(verdict))

    def _book(self, call: Call, transcript: Transcript, status: int, total_s: float) -> None:
        tokens = self.dialect.tokens(transcript.usage or {})
        price = self.price(self.model)
        cost_usd = None if price is None else price.cost_usd(tokens)
        self.allowance.pay(cost_usd or 0.0)
        self.observer.notify(
            Served(
                id=call.id,
                at=self.clock() - total_s,
                endpoint=call.endpoint,
                outcome=Outcome.AUDIT,
                status=status,
                stream=False,
                total_s=total_s,
                model=self.model,
                upstream=self.upstream.name,
                reason="judge",
                prompt_tokens=tokens.prompt,
                completion_tokens=tokens.completion,
                cost_usd=cost_usd,
                error=None if status == 200 else "judge-failed",
            )
        )

"""A second opinion on answers from a language model, through a configured upstream, capped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from headstart.decisions import Outcome
from headstart.errors import UpstreamProtocolError
from headstart.middleware.collect import Collector
from headstart.observe import Served
from headstart.policies.agreement.answers import answer_text
from headstart.policies.agreement.prompt import judge_request, read_verdict
from headstart.types import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.interfaces import Observer, Upstream
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.learning.allowance import Allowance
    from headstart.policies.cost import Price
    from headstart.types import Completion, RawResponse

PATH = b"/v1/chat/completions"


class ModelJudge:
    """Asks ``model`` of ``upstream`` whether two answers agree. Each call is booked as an audit."""

    def __init__(
        self,
        upstream: Upstream,
        dialect: Dialect,
        model: str,
        allowance: Allowance,
        *,
        price: Callable[[str], Price | None],
        clock: Callable[[], float],
        new_id: Callable[[], str],
        observer: Observer,
    ) -> None:
        self._upstream = upstream
        self._dialect = dialect
        self._model = model
        self._allowance = allowance
        self._price = price
        self._clock = clock
        self._new_id = new_id
        self._observer = observer

    async def same(
        self, question: str, cached: Completion | RawResponse, fresh: Completion | RawResponse
    ) -> bool | None:
        """Return its word; None: unsure, or the allowance is spent. Raises UpstreamError."""
        if not self._allowance.take():
            return None
        asked = judge_request(question, answer_text(cached), answer_text(fresh), self._model)
        body = msgspec.json.encode(asked)
        call = Call(
            id=self._new_id(),
            method="POST",
            path=PATH,
            query_string=b"",
            headers=((b"content-type", b"application/json"),),
            body=body,
            dialect=self._dialect.name,
            endpoint="judge",
            request=self._dialect.parse_request(body),
        )
        began = time.perf_counter()
        collector, status = Collector(max_bytes=64 * 1024), 0
        try:
            async with self._upstream.stream(call) as reply:
                status = reply.status
                async for piece in reply.chunks():
                    collector.feed(piece.events)
        finally:
            self._book(call, collector, status, time.perf_counter() - began)
        verdict = collector.completion(self._clock())
        if status != 200 or verdict is None:
            raise UpstreamProtocolError(f"the judge {self._model!r} did not answer")
        return read_verdict(answer_text(verdict))

    def _book(self, call: Call, collector: Collector, status: int, total_s: float) -> None:
        tokens = self._dialect.tokens(collector.usage or {})
        price = self._price(self._model)
        cost_usd = None if price is None else price.cost_usd(tokens)
        self._allowance.pay(cost_usd or 0.0)
        self._observer.notify(
            Served(
                id=call.id,
                at=self._clock() - total_s,
                endpoint=call.endpoint,
                outcome=Outcome.AUDIT,
                status=status,
                stream=False,
                total_s=total_s,
                model=self._model,
                upstream=self._upstream.name,
                reason="judge",
                prompt_tokens=tokens.prompt,
                completion_tokens=tokens.completion,
                cost_usd=cost_usd,
                error=None if status == 200 else "judge-failed",
            )
        )

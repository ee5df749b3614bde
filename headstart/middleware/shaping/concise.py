"""Models asked for short answers, and the share of the conversations that shows what it brings."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.errors import InvalidRequest
from headstart.middleware.router import conversation
from headstart.middleware.shaping.measured import Length, MeasuredReply
from headstart.middleware.shaping.shaper import Shaper, plain, with_document
from headstart.observe import HELD_OUT, Shaped
from headstart.policies.output.concise import (
    concise_transform,
    directive,
    refuse_concise,
    with_directive,
)
from headstart.policies.output.experiment import arm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from headstart.interfaces import Candidate, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.types import Call

CONCISE = "concise"


@dataclass(frozen=True)
class ConciseOptions:
    """How briefly a route's answers are asked for."""

    level: int
    """1 to 3."""
    examples: bool = False
    """Also show two short answers."""
    holdout: float = 0.1
    """Share of the conversations that are left alone, to measure what is saved."""


class Concise(Shaper):
    """Sends calls on with a wish for a short answer. Answers to them bear ``concise:LEVEL``.

    The cache's key is that of the request as it came; ``refuses_concise`` keeps the answers from
    routes that did not ask for them.
    """

    def __init__(
        self,
        inner: Candidate,
        options: ConciseOptions,
        dialects: Mapping[str, Dialect],
        ledger: Ledger,
    ) -> None:
        super().__init__(inner)
        self._options = options
        self._words = directive(options.level, examples=options.examples)
        self._dialects = dialects
        self._ledger = ledger

    def stream(self, call: Call) -> AbstractAsyncContextManager[UpstreamReply]:
        """Send the call. Raises UpstreamError."""
        dialect = self._dialects.get(call.dialect)
        wishing = None if dialect is None else self._wishing(call, dialect)
        if dialect is None or wishing is None:
            return self._inner.stream(call)
        assert call.request is not None
        side = arm(CONCISE, conversation("", call.request), self._options.holdout)
        return self._send(call if side.endswith(HELD_OUT) else wishing, side, dialect)

    def _wishing(self, call: Call, dialect: Dialect) -> Call | None:
        """Return the call with the wish in it; None where it has no place."""
        request = call.request
        if request is None or not plain(call):
            return None
        try:
            if refuse_concise(dialect.read_request(request)) is not None:
                return None
        except InvalidRequest:
            return None
        document = with_directive(request.document, call.dialect, self._words)
        return None if document is None else with_document(call, document)

    @asynccontextmanager
    async def _send(self, call: Call, side: str, dialect: Dialect) -> AsyncIterator[UpstreamReply]:
        def ended(length: Length) -> None:
            row = Shaped(
                kind=side,
                tokens_before=length.tokens,
                tokens_after=length.tokens,
                estimated=length.estimated,
            )
            self._ledger.shape(call.id, row)

        transforms = () if side.endswith(HELD_OUT) else (concise_transform(self._options.level),)
        async with self.pass_on(call, *transforms) as reply:
            yield MeasuredReply(reply, dialect, ended)

"""Predicted outputs: what an answer may look like, told to providers that write it faster then."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from headstart.attempts import AttemptRole
from headstart.errors import UpstreamRefused
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.middleware.shaping.shaper import ShapedReply, Shaper, plain, with_document
from headstart.observe import Shaped
from headstart.policies.output.predictions import may_predict, predicted_tokens, with_prediction
from headstart.types import UsageReported

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from headstart.interfaces import Candidate, Chunk, UpstreamReply
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.types import Call

MOST_MODELS = 1000
"""Models that are remembered for refusing predictions."""
_OBJECTIONS = (400, 422)


class Predicting(Shaper):
    """Stands around one target whose provider takes predictions, and sends ``Call.prediction``.

    Its answers bear the transform ``prediction``. A model that refuses is called without, and is
    not sent another: few of a provider's models take them.
    """

    def __init__(self, inner: Candidate, ledger: Ledger) -> None:
        super().__init__(inner)
        self._ledger = ledger
        self._refusing: set[str] = set()

    def stream(self, call: Call) -> AbstractAsyncContextManager[UpstreamReply]:
        """Send the call. Raises UpstreamError."""
        request = call.request
        if (
            request is None
            or call.dialect != OpenAIChat.name
            or not plain(call)
            or request.model in self._refusing
            or not may_predict(request.document, call.prediction)
        ):
            return self._inner.stream(call)
        return self._predict(call, request.model)

    @asynccontextmanager
    async def _predict(self, call: Call, model: str) -> AsyncIterator[UpstreamReply]:
        assert call.request is not None
        predicted = with_document(call, with_prediction(call.request.document, call.prediction))
        async with AsyncExitStack() as stack:
            reply: UpstreamReply
            try:
                reply = await stack.enter_async_context(self.pass_on(predicted, "prediction"))
            except UpstreamRefused as error:
                if error.status not in _OBJECTIONS:
                    raise
                plainly = msgspec.structs.replace(call, role=AttemptRole.RETRY)
                reply = await stack.enter_async_context(self._inner.stream(plainly))
                if len(self._refusing) < MOST_MODELS:  # it was the prediction that it refused
                    self._refusing.add(model)
            else:
                reply = _PredictedReply(reply, self._ledger, call.id)
            yield reply


class _PredictedReply(ShapedReply):
    """An answer that passes as it is. What became of the prediction is booked at its end."""

    def __init__(self, inner: UpstreamReply, ledger: Ledger, call_id: str) -> None:
        super().__init__(inner)
        self._ledger = ledger
        self._call_id = call_id

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the body as it arrives. Raises UpstreamError when it breaks off."""
        counts: tuple[int, int] | None = None
        async for piece in self._inner.chunks():
            for event in piece.events:
                if type(event) is UsageReported:
                    counts = predicted_tokens(event.usage) or counts
            yield piece
        if counts is not None and any(counts):
            accepted, rejected = counts
            row = Shaped(
                kind="prediction",
                tokens_before=accepted + rejected,
                tokens_after=rejected,
                estimated=False,
            )
            self._ledger.shape(self._call_id, row)

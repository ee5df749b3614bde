"""Whether a fresh answer agrees with a cached one: texts to vectors, then the pure judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from headstart.errors import EncoderError, HeadstartError
from headstart.observe import StageFailed
from headstart.policies.agreement.judge import Agreement, judge, texts_to_encode

if TYPE_CHECKING:
    from headstart.embeddings.similar import PromptEncoder
    from headstart.interfaces import Observer
    from headstart.types import Completion, Entry, RawResponse


class SecondOpinion(Protocol):
    """Asked where the answers' texts do not settle it."""

    async def same(
        self, question: str, cached: Completion | RawResponse, fresh: Completion | RawResponse
    ) -> bool | None:
        """Return its word, or None when it is unsure or its allowance is spent."""


class AnswerJudge:
    """Compares answers; ``second`` is asked about the unsure ones. Never raises."""

    def __init__(
        self,
        encoder: PromptEncoder | None,
        observer: Observer,
        second: SecondOpinion | None = None,
    ) -> None:
        self._encoder = encoder
        self._observer = observer
        self._second = second

    async def compare(
        self, entry: Entry, question: str, fresh: Completion | RawResponse
    ) -> Agreement:
        """Judge a fresh answer to ``question`` against an entry's to (nearly) the same."""
        cached = entry.answer
        cosine = await self._cosine(texts_to_encode(cached, fresh))
        agreement = judge(cached, fresh, (question, entry.key.query), cosine)
        if agreement.same is not None or self._second is None:
            return agreement
        try:
            same = await self._second.same(question, cached, fresh)
        except HeadstartError as error:
            self._observer.notify(StageFailed(stage="judge", error=type(error).__name__))
            return agreement
        return msgspec.structs.replace(agreement, same=same)

    async def _cosine(self, texts: tuple[str, ...]) -> float | None:
        if len(texts) != 2 or self._encoder is None:
            return None
        try:
            one = await self._encoder.encode(texts[0], background=True)
            other = await self._encoder.encode(texts[1], background=True)
        except EncoderError as error:
            self._observer.notify(StageFailed(stage="encoder", error=type(error).__name__))
            return None
        return float(one.sentence @ other.sentence)

"""Whether a fresh answer agrees with a cached one: texts to vectors, then the pure judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio
import msgspec
from anyio import to_thread

from headstart.errors import EncoderError, HeadstartError
from headstart.observe import StageFailed
from headstart.policies.agreement.judge import Agreement, judge, texts_to_encode
from headstart.types import RawResponse, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.embeddings.similar import PromptEncoder
    from headstart.interfaces import Observer
    from headstart.types import Completion, Entry

T = TypeVar("T")

OPINION_S = 60.0
"""Longest wait for a second opinion; then the answers stay unsure."""
LONG = 16_384
"""Characters of both answers from which they are judged off the loop: a megabyte of JSON takes
150 ms. Shorter ones take less than handing them over would keep the loop from its work."""


class SecondOpinion(Protocol):
    """Asked where the answers' texts do not settle it."""

    async def same(
        self, question: str, cached: Completion | RawResponse, fresh: Completion | RawResponse
    ) -> bool | None:
        """Return its word, or None when it is unsure or its allowance is spent."""


class AnswerJudge:
    """Compares answers; ``second`` is asked about the unsure ones. Raises no HeadstartError."""

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
        long = answer_size(cached) + answer_size(fresh) > LONG
        cosine = await self._cosine(await _run(texts_to_encode, cached, fresh, off_loop=long))
        questions = question, entry.key.query
        agreement = await _run(judge, cached, fresh, questions, cosine, off_loop=long)
        if agreement.same is not None or self._second is None:
            return agreement
        try:
            with anyio.fail_after(OPINION_S):
                same = await self._second.same(question, cached, fresh)
        except (HeadstartError, TimeoutError) as error:
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


def answer_size(answer: Completion | RawResponse) -> int:
    """Return about how many characters an answer has."""
    if isinstance(answer, RawResponse):
        return len(answer.body)
    parts = (part for choice in answer.choices for part in choice.parts)
    return sum(len(part.arguments if isinstance(part, ToolCall) else part.text) for part in parts)


async def _run(function: Callable[..., T], *args: object, off_loop: bool) -> T:
    return await to_thread.run_sync(function, *args) if off_loop else function(*args)

"""Whether a fresh answer agrees with a cached one: texts to vectors, then the pure judge."""

from __future__ import annotations

from collections import OrderedDict
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

    import numpy as np
    from numpy.typing import NDArray

    from headstart.embeddings.similar import PromptEncoder
    from headstart.interfaces import Observer
    from headstart.types import Completion, Entry

T = TypeVar("T")

CLEAR = (0.02, 0.95)
"""Probabilities by words alone beyond which no vector is asked for. On people's judgements they
settle three of four unrelated answers and a third of the equal ones, 0.4 % of these wrongly; an
encoding is the dearest part of a comparison."""
MOST_VECTORS = 2048
"""Answers whose vectors are kept: 3 MB."""
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
        self._vectors: OrderedDict[int, NDArray[np.float32]] = OrderedDict()

    async def compare(
        self, entry: Entry, question: str, fresh: Completion | RawResponse
    ) -> Agreement:
        """Judge a fresh answer to ``question`` against an entry's to (nearly) the same."""
        cached = entry.answer
        agreement = await self._judge(cached, fresh, (question, entry.key.query))
        if agreement.same is not None or self._second is None:
            return agreement
        try:
            with anyio.fail_after(OPINION_S):
                same = await self._second.same(question, cached, fresh)
        except (HeadstartError, TimeoutError) as error:
            self._observer.notify(StageFailed(stage="judge", error=type(error).__name__))
            return agreement
        return msgspec.structs.replace(agreement, same=same)

    async def _judge(
        self,
        cached: Completion | RawResponse,
        fresh: Completion | RawResponse,
        questions: tuple[str, str | None],
    ) -> Agreement:
        """Judge by words, and encode the answers only where those leave room for doubt."""
        long = answer_size(cached) + answer_size(fresh) > LONG
        agreement: Agreement = await _run(judge, cached, fresh, questions, None, off_loop=long)
        if not CLEAR[0] < agreement.probability < CLEAR[1]:
            return agreement
        cosine = await self._cosine(await _run(texts_to_encode, cached, fresh, off_loop=long))
        if cosine is None:
            return agreement
        return await _run(judge, cached, fresh, questions, cosine, off_loop=long)

    async def _cosine(self, texts: tuple[str, ...]) -> float | None:
        if len(texts) != 2 or self._encoder is None:
            return None
        try:
            one, other = [await self._vector(self._encoder, text) for text in texts]
        except EncoderError as error:
            self._observer.notify(StageFailed(stage="encoder", error=type(error).__name__))
            return None
        return float(one @ other)

    async def _vector(self, encoder: PromptEncoder, text: str) -> NDArray[np.float32]:
        """Encode an answer, unless it was lately: what is fresh now is a neighbour's soon."""
        known = self._vectors.pop(hash(text), None)
        if known is None:
            known = (await encoder.encode(text, background=True)).sentence
        self._vectors[hash(text)] = known
        if len(self._vectors) > MOST_VECTORS:
            self._vectors.popitem(last=False)
        return known


def answer_size(answer: Completion | RawResponse) -> int:
    """Return about how many characters an answer has."""
    if isinstance(answer, RawResponse):
        return len(answer.body)
    parts = (part for choice in answer.choices for part in choice.parts)
    return sum(len(part.arguments if isinstance(part, ToolCall) else part.text) for part in parts)


async def _run(function: Callable[..., T], *args: object, off_loop: bool) -> T:
    return await to_thread.run_sync(function, *args) if off_loop else function(*args)

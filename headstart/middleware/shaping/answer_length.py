"""Steps that keep answers short: an instruction in the prompt, and limits that no client notices.

``AskBriefly`` adds the instruction. ``LimitAnswers`` sets a limit (``max_tokens``) that the client
has not set. For example, 99 % of the answers of a route have at most 400 tokens, so that ``guard``
allows 600. An answer that reaches this limit is continued by a further call:

1. ``Lengths`` has learned the limit from earlier answers of the same route and model. While it
   knows too few, calls have no limit and only teach their length (``send_freely``).
2. ``_LimitedCall.send`` makes the call with the limit. If the upstream refuses limits, it makes the
   call again without one.
3. ``_LimitedAnswer.pieces`` passes the answer on. Its end waits until it is known whether our limit
   caused it.
4. If it did, ``_continuation`` makes further calls for the rest, and ``_ContinuedAnswer`` finds the
   new text in each answer, without the words that the model repeats.

So a limit may cost the client time, but never text, and what the client has of an answer is never
changed. ``docs/output.md`` says which requests are limited, and why.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from headstart.attempts import AttemptRole
from headstart.dialects.registry import DIALECTS
from headstart.errors import HeadstartError, UpstreamProtocolError, UpstreamRefused
from headstart.middleware.router import conversation
from headstart.middleware.shaping.steps import (
    answer_writer,
    ending_of,
    length_of,
    was_cut,
    when_measured,
    with_document,
)
from headstart.observe import HELD_OUT, StageFailed
from headstart.policies.output.answer_limits import (
    MOST_CONTINUATIONS,
    LengthKey,
    concise_transform,
    directive,
    experiment_arm,
    mentions_context,
    next_limit,
    refuse_concise,
    refuse_limit,
    refuses_limits,
    refuses_size,
)
from headstart.policies.output.continuation import Prefill, TextJoin, continuing
from headstart.reply import AnswerWithheld, Reply, Transcript
from headstart.types import (
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from headstart.dialects.dialect import Dialect
    from headstart.middleware.shaping.steps import AnswerLength, RestOfSteps, Send, StepContext
    from headstart.policies.output.answer_limits import Lengths
    from headstart.settings import OutputSettings
    from headstart.types import Call, ChatRequest, Piece, StreamEvent

CONCISE = "concise"
TIGHT = "tight"
GUARD = "guard"
_ENDINGS = (Finished, UsageReported, Ended)
"""The last events of a call. An answer of several calls has its own."""
_JOINABLE = (Started, TextDelta, ReasoningDelta, ExtraDelta, *_ENDINGS)
"""The events of an answer that another call can continue."""


@dataclass(frozen=True)
class AskBriefly:
    """Adds an instruction for a short answer to the prompt.

    Answers have the transform ``concise:LEVEL``.

    The cache key is made of the request without the instruction; ``refuses_concise`` keeps such
    answers from routes that did not ask for short answers.
    """

    stage: ClassVar[str] = "output"
    output: OutputSettings
    """``concise``, ``concise_examples`` and ``holdout``: the share of the conversations without the
    instruction, with which the saving is measured."""

    def __call__(self, call: Call, request: ChatRequest, context: StepContext) -> Send | None:
        """Return the function that sends the call.

        None if the instruction would harm its answer.
        """
        asked = context.read(call, request)
        if asked is None or refuse_concise(asked) is not None:
            return None
        words = directive(self.output.concise, examples=self.output.concise_examples)
        dialect = DIALECTS[call.dialect]
        document = dialect.form.with_system_text(request.document, words)
        if document is None:
            return None
        arm = experiment_arm(CONCISE, conversation("", request), self.output.holdout)

        async def send(rest: RestOfSteps) -> Reply:
            if arm.endswith(HELD_OUT):
                reply = await rest.send(call)
            else:
                brief = with_document(call, document)
                reply = await rest.send(brief, concise_transform(self.output.concise))
            when_measured(
                reply, dialect, lambda length: call.log.shaped.append(length.as_shaped(arm))
            )
            return reply

        return send


@dataclass(frozen=True)
class LimitAnswers:
    """Limits answers to requests that name no limit, with the transform ``guard`` or ``tight``.

    ``guard`` stops endless answers, ``tight`` keeps all answers short. Lengths are learned from
    answers. If an upstream refuses a limit, the call is made without one, and later calls of the
    same route and model get none.
    """

    stage: ClassVar[str] = "output"
    route: str
    """The route's name, under which lengths are learned."""
    lengths: Lengths
    output: OutputSettings
    """``max_tokens``, and for ``tight`` ``holdout``: the share of the conversations without a
    limit, with which the saving is measured."""
    prefill: Mapping[str, Prefill] = field(default_factory=dict)
    """For the names of upstreams: how they continue a last assistant message. Other upstreams
    cannot."""

    def __call__(self, call: Call, request: ChatRequest, context: StepContext) -> Send | None:
        """Return the function that sends the call.

        None if its answer cannot be limited and continued.
        """
        if request.max_tokens is not None or DIALECTS[call.dialect].form.always_limited:
            return None
        asked = context.read(call, request)
        if asked is None or refuse_limit(asked) is not None:
            return None
        key, kind = LengthKey(self.route, request.model), GUARD
        limit = self.lengths.limit(key, self.output.max_tokens)
        if self.output.max_tokens == TIGHT and limit is not None:
            kind = experiment_arm(TIGHT, conversation("", request), self.output.holdout)
            limit = None if kind.endswith(HELD_OUT) else limit
        limited = _LimitedCall(self, call, request, context, key, kind)
        return limited.send_freely if limit is None else partial(limited.send, limit)


class _LimitedCall(NamedTuple):
    """A call whose answer may have a limit."""

    step: LimitAnswers
    call: Call
    request: ChatRequest
    context: StepContext
    key: LengthKey
    kind: str
    """``guard`` or ``tight``; for ``tight`` also the arm of the experiment that measures it."""

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.call.dialect]

    async def send_freely(self, rest: RestOfSteps) -> Reply:
        """Return an answer without a limit, and learn its length."""
        reply = await rest.send(self.call)
        when_measured(reply, self.dialect, self.learn)
        return reply

    async def send(self, limit: int, rest: RestOfSteps) -> Reply:
        """Return an answer with a limit, or without one if the upstream accepts none."""
        try:
            reply = await rest.send(self.limit(self.call, limit), self.kind)
        except AnswerWithheld as withheld:
            # A model with hidden reasoning may reach the limit before its first text.
            reply = withheld.reply
        except UpstreamRefused as error:
            if not refuses_limits(error.status, error.body):
                raise
            return await self._send_again(rest, takes_limits=mentions_context(error.body))
        if not reply.is_plain:
            return await self._send_again(rest, takes_limits=False)
        limited = _LimitedAnswer(self, limit, rest, reply, reply.pieces, [reply.transcript])
        reply.rewrite(limited.pieces())
        return reply

    async def _send_again(self, rest: RestOfSteps, *, takes_limits: bool) -> Reply:
        """Return an answer without a limit, in place of an unusable one."""
        await rest.leave()
        reply = await self._replace(kind=GUARD).send_freely(rest)
        # This is noted only after a success: if the request is also refused without a limit, the
        # limit is not the reason.
        if not takes_limits:
            self.step.lengths.refuse(self.key)
            self.context.observer.notify(StageFailed(stage="output", error="LimitRefused"))
        return reply

    def limit(self, call: Call, tokens: int) -> Call:
        """Return this call, or one that continues it, with a limit."""
        assert call.request is not None
        document = self.dialect.form.with_limit(call.request.document, tokens)
        return with_document(call, document, max_tokens=tokens)

    def learn(self, length: AnswerLength) -> None:
        """Learn the length of an answer, and book the effect of the limit."""
        if not length.cut:
            self.step.lengths.add(self.key, length.tokens)
        if length.parts > 1 or self.kind != GUARD:
            self.call.log.shaped.append(length.as_shaped(self.kind))


@dataclass(frozen=True)
class _LimitedAnswer:
    """A limited answer, and its continuation if the limit cut it."""

    asked: _LimitedCall
    limit: int
    rest: RestOfSteps
    reply: Reply
    source: AsyncIterator[Piece]
    """The pieces of the first part."""
    parts: list[Transcript]

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Yield the answer.

        The end of the first part waits until it is known whether our limit caused it. Raises
        UpstreamProtocolError if the answer cannot be continued: it is never cut silently.
        """
        asked, shown = self.asked, Transcript()
        held: list[Piece] = []
        async for piece in self.source:
            if held or _must_wait(piece, asked.request):
                held.append(piece)
            else:
                shown.add(piece)
                yield piece
        (first,) = self.parts
        if not was_cut(first, asked.dialect, self.limit):
            for piece in held:
                yield piece
            if first.whole and first.error is None:
                asked.learn(self._length)
            return
        self.reply.transforms, self.reply.storable = (*self.reply.transforms, "continued"), False
        try:
            async with aclosing(self._continuation(shown, held)) as more:
                async for piece in more:
                    yield piece
        except HeadstartError as error:
            asked.learn(self._length._replace(cut=True))
            raise UpstreamProtocolError(
                f"our limit of {self.limit} tokens cut the answer, and it could not be continued: "
                f"{error}"
            ) from error
        asked.learn(self._length)

    @property
    def _length(self) -> AnswerLength:
        return length_of(self.parts, self.asked.dialect)

    async def _continuation(
        self, shown: Transcript, held: Sequence[Piece]
    ) -> AsyncGenerator[Piece]:
        """Yield the pieces after those that the client has. Raises HeadstartError."""
        asked, dialect, upstream = self.asked, self.asked.dialect, self.reply.upstream
        prefill = asked.step.prefill.get(upstream, "no") if dialect.form.prefills else "no"
        answer = _ContinuedAnswer(shown, [event for piece in held for event in piece.events])
        now, start = asked.context.clock(), self.parts[0].start
        write = answer_writer(asked.call, self.reply.transforms, now, start, shown.events)
        if answer.unshown:
            yield write(answer.unshown)
        for number in range(1, MOST_CONTINUATIONS + 1):
            last = asked.step.lengths.last_limit(asked.key)
            limit = next_limit(number, self.limit, last, answer.text)
            answer.begin(prefilled=prefill != "no")
            reply, limit = await self._send_next(limit, answer.text, prefill)
            async with reply:
                self.parts.append(reply.transcript)
                async for piece in reply.pieces:
                    if news := answer.take(piece.events):
                        yield write(news)
            rest = answer.rest()
            if not was_cut(self.parts[-1], dialect, limit):
                yield write([*rest, *ending_of(self.parts, dialect)])
                return
            if rest:
                yield write(rest)
        raise UpstreamProtocolError("it does not end, or repeats itself")

    async def _send_next(
        self, limit: int | None, text: str, prefill: Prefill
    ) -> tuple[Reply, int | None]:
        """Return the answer to the next call, and the limit that this call had.

        If a limit above the first one is refused, the call is made without a limit. The lower limit
        of an answer that repeats itself stays: without it, the answer might never end.
        """
        try:
            return await self.rest.send(self._next_call(limit, text, prefill)), limit
        except UpstreamRefused as error:
            if limit is None or limit < self.limit or not refuses_size(error.status, error.body):
                raise
        return await self.rest.send(self._next_call(None, text, prefill)), None

    def _next_call(self, limit: int | None, text: str, prefill: Prefill) -> Call:
        """Return the call for the missing part; ``text`` is the answer's text so far."""
        asked, call = self.asked, self.asked.call
        if text:
            document = continuing(asked.request.document, asked.dialect.form, text, prefill)
            call = with_document(call, document)
            if prefill != "no":
                avoid = call.avoid | self.rest.names - {self.reply.upstream}
                call = msgspec.structs.replace(call, avoid=avoid)
        call = msgspec.structs.replace(call, role=AttemptRole.CONTINUE, log=call.log.branch())
        return call if limit is None else asked.limit(call, limit)


def _must_wait(piece: Piece, request: ChatRequest) -> bool:
    """Tell whether a piece must wait: a part of a body, or an end that may be our limit's."""
    return not request.stream or any(
        isinstance(event, Finished) and event.reason == "length" for event in piece.events
    )


class _ContinuedAnswer:
    """Joins the text of an answer so far with the text of its next part."""

    def __init__(self, shown: Transcript, held: Sequence[StreamEvent]) -> None:
        """Raise UpstreamProtocolError for an answer that cannot be continued."""
        events = [*shown.events, *held]
        texts = [event for event in events if isinstance(event, TextDelta) and event.text]
        joinable = shown.is_continuable and all(isinstance(event, _JOINABLE) for event in events)
        if not (joinable or shown.is_empty):
            raise UpstreamProtocolError("it is not plain text")
        self._starts_over = shown.is_empty and not (joinable and texts)
        """The client has nothing, and no text can be kept, so the next part is the whole answer."""
        self.text = ""
        self.unshown: list[StreamEvent] = []
        """Events of the first part that the client does not have yet."""
        self._block: int | None = None
        if not self._starts_over:
            self.text = "".join(each.text for each in texts)
            self.unshown = [event for event in held if not isinstance(event, _ENDINGS)]
            self._block = texts[-1].block if texts else None
        self._join = TextJoin("", prefilled=False)

    def begin(self, *, prefilled: bool) -> None:
        """Start to read the next part."""
        self._join = TextJoin(self.text, prefilled=prefilled)

    def take(self, events: Sequence[StreamEvent]) -> list[StreamEvent]:
        """Return the new events of a piece of the part. Raises UpstreamProtocolError."""
        news: list[StreamEvent] = []
        for event in events:
            match event:
                case ErrorReported():
                    raise UpstreamProtocolError(event.message)
                case TextDelta():
                    news += self._add(self._join.feed(event.text))
                case _ if isinstance(event, _ENDINGS):
                    continue
                case _ if self._starts_over:
                    news.append(event)
                case Started() | ReasoningDelta() | ExtraDelta():
                    continue  # the client has these events of the first part
                case _:
                    raise UpstreamProtocolError("its continuation is not plain text")
        return news

    def rest(self) -> list[StreamEvent]:
        """Return the text that was held back at the end of a part."""
        return self._add(self._join.end())

    def _add(self, text: str) -> list[StreamEvent]:
        self.text += text
        return [TextDelta(text=text, block=self._block)] if text else []

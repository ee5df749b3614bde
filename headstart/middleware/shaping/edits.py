"""Documents changed by search/replace blocks: the model writes the changes, we the document.

Nothing is shown before the whole answer was read and every block found its one place: an answer
that leaves a doubt is thrown away and asked for again in the caller's own words.
``docs/output-edits.md`` tells what that costs, and why nothing is streamed ahead of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from headstart.attempts import AttemptOutcome, AttemptRole
from headstart.compression.tokens import estimate_tokens
from headstart.errors import InvalidRequest, UpstreamRefused
from headstart.middleware.dialects.gemini_generate import GeminiGenerate
from headstart.middleware.shaping.edited import EditAnswer, EditedReply, with_text
from headstart.middleware.shaping.shaper import Shaper, plain, with_document
from headstart.middleware.shaping.writing import BodyWriter, StreamWriter, named
from headstart.middleware.upstreams.opening import AnswerWithheld
from headstart.observe import Shaped
from headstart.policies.output.edit_intent import MIN_TOKENS, find_edit, may_edit
from headstart.policies.output.worth import Worth
from headstart.types import Ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from headstart.interfaces import Candidate, Chunk, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.policies.output.edit_intent import EditRequest
    from headstart.types import Call, ChatRequest, StreamEvent

Way: TypeAlias = Literal["blocks", "prediction"]

INSTRUCTION = """\
Answer with edit blocks instead of the whole document. For each place to change, in the order of \
the document, write one of these:

<<<<<<< SEARCH
lines exactly as they stand in the document, from an unchanged line before the change to an \
unchanged line after it: enough of them to be found only once
=======
the lines that take their place, the unchanged ones included
>>>>>>> REPLACE

Leave nothing out of a block, and write no other part of the document. If a changed document is \
not what was asked for, answer as usual."""

APPLIED = "edits"
WHOLE = "edits:whole"
AGAIN = "edits:again"
_OBJECTIONS = (400, 413, 422)
"""Statuses with which an upstream may object to what we added."""


class Editing(Shaper):
    """Asks for search/replace blocks where one document is to be changed.

    Answers bear ``edits``: blocks were applied; ``edits:whole``: the model wrote the document
    after all, and it passed as it came; or ``edits:again``: the blocks left a doubt. A model with
    which that does not pay is let be (``policies.output.worth``). With
    ``by="prediction"`` the document is handed on as a prediction of the answer instead.
    """

    def __init__(
        self,
        inner: Candidate,
        dialects: Mapping[str, Dialect],
        ledger: Ledger,
        clock: Callable[[], float],
        *,
        by: Way = "blocks",
        min_tokens: int = MIN_TOKENS,
    ) -> None:
        super().__init__(inner)
        self._dialects = dialects
        self._ledger = ledger
        self._clock = clock
        self._by = by
        self._min_tokens = min_tokens
        self._worth = Worth()

    def stream(self, call: Call) -> AbstractAsyncContextManager[UpstreamReply]:
        """Send the call; where blocks are asked for, entering waits for all of them."""
        dialect = self._dialects.get(call.dialect)
        edit = None if dialect is None else self._find(call, dialect)
        if dialect is None or edit is None:
            return self._inner.stream(call)
        if self._by == "prediction":
            content = edit.bordered(edit.document) or ""
            return self._inner.stream(msgspec.structs.replace(call, prediction=content))
        if call.request is None or not self._worth.pays(call.request.model):
            return self._inner.stream(call)
        return self._edit(call, edit, dialect)

    def _find(self, call: Call, dialect: Dialect) -> EditRequest | None:
        request = call.request
        if request is None or not request.query or not plain(call):
            return None
        edit = find_edit(request.query, min_tokens=self._min_tokens)
        try:
            if edit is None or not may_edit(dialect.read_request(request), edit):
                return None
        except InvalidRequest:
            return None
        return edit

    @asynccontextmanager
    async def _edit(
        self, call: Call, edit: EditRequest, dialect: Dialect
    ) -> AsyncIterator[UpstreamReply]:
        async with AsyncExitStack() as stack:
            reply = await self._ask_for_blocks(call, edit, dialect, stack)
            if reply is None:
                again = msgspec.structs.replace(call, role=AttemptRole.RETRY)
                reply = await stack.enter_async_context(self.pass_on(again, AGAIN))
            yield reply

    async def _ask_for_blocks(
        self, call: Call, edit: EditRequest, dialect: Dialect, stack: AsyncExitStack
    ) -> UpstreamReply | None:
        """Return the answer for the client; None where the call must be made anew."""
        asked = _with_instruction(call)
        if asked is None:
            return None
        async with AsyncExitStack() as attempt:
            try:
                reply = await attempt.enter_async_context(self._inner.stream(asked))
            except UpstreamRefused as error:
                if error.status not in _OBJECTIONS:
                    raise
                return None
            except AnswerWithheld:
                return None
            source = reply.chunks()
            if isinstance(source, AsyncGenerator):
                await attempt.enter_async_context(aclosing(source))
            answer = EditAnswer(edit)
            await answer.read(source)
            made = self._made(call, answer, reply, dialect, source)
            self._book(call, answer, edit)
            if made is not None:
                await stack.enter_async_context(attempt.pop_all())
                return made
        # A branch of its own, which is over: what it cost is booked, as a draft that did not pass.
        self._ledger.rule(call.id, asked.branch, AttemptOutcome.REJECTED)
        self._ledger.settle(call.id, asked.branch)
        return None

    def _made(
        self,
        call: Call,
        answer: EditAnswer,
        reply: UpstreamReply,
        dialect: Dialect,
        source: AsyncIterator[Chunk],
    ) -> UpstreamReply | None:
        if not answer.reader.begun:
            return EditedReply(reply, WHOLE, answer.pieces, source)
        text = answer.text
        if text is None or call.request is None:
            return None
        events = with_text(answer.events, text)
        if not answer.progress.ended:
            events.append(Ended())
        piece = _write(dialect, call.request, events, self._clock())
        return EditedReply(reply, APPLIED, [piece])

    def _book(self, call: Call, answer: EditAnswer, edit: EditRequest) -> None:
        assert call.request is not None
        model, text = call.request.model, answer.text
        said = estimate_tokens("".join(answer.said), model).tokens
        if not answer.reader.begun:
            self._worth.add(model, said, said)
            return
        whole = estimate_tokens(edit.document if text is None else text, model).tokens
        spent = said if text is not None else said + whole
        self._worth.add(model, whole, spent)
        row = Shaped(kind="edits", tokens_before=whole, tokens_after=spent, own_s=answer.own_s)
        self._ledger.shape(call.id, row)


def _with_instruction(call: Call) -> Call | None:
    """Return the call with our words after the caller's own, in the last message.

    There, not in the system text: that stands before all the conversation, and a provider's cache
    of it would be lost to a wish that comes and goes.
    """
    assert call.request is not None
    document = call.request.document
    field, inner = "messages", "content"
    block: dict[str, Any] = {"type": "text", "text": INSTRUCTION}
    if call.dialect == GeminiGenerate.name:
        field, inner, block = "contents", "parts", {"text": INSTRUCTION}
    *before, last = document[field]
    match last.get(inner):
        case str(text):
            content: Any = f"{text}\n\n{INSTRUCTION}"
        case list(blocks):
            content = [*blocks, block]
        case _:
            return None
    changed = with_document(call, {**document, field: [*before, {**last, inner: content}]})
    return msgspec.structs.replace(changed, prediction="", branch=f"{call.branch}.edits")


def _write(
    dialect: Dialect, request: ChatRequest, events: Sequence[StreamEvent], now: float
) -> Chunk:
    """Return a whole answer in the form that the client asked for."""
    if not request.stream:
        return BodyWriter(dialect, now).write(events)
    return StreamWriter(dialect, request, (), named(events), now).write(events)

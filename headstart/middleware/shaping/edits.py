"""Edits of a document by search/replace blocks: the model writes changes, we write the document.

For example, a client sends a long file and asks for another timeout. We ask the model for blocks
(``INSTRUCTION``), and it writes only this::

    <<<<<<< SEARCH
    timeout = 10
    =======
    timeout = 30
    >>>>>>> REPLACE

The client gets the whole file with ``timeout = 30``, as if the model had written it.

1. ``AskForEdits`` finds the document in the prompt, and decides whether blocks may pay.
2. ``_EditCall.send`` makes the call with our instruction, and ``_read`` reads the whole answer.
3. ``_EditCall._change`` puts the edited document in the place of the blocks.

The client gets the answer only when it was read to its end and every block has exactly one place in
the document. In case of doubt the answer is discarded, and the call is made again without our
instruction. ``docs/output-edits.md`` describes the costs, and why nothing is streamed earlier. The
document may also be sent as a *predicted output*, with which some providers write faster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from headstart.attempts import AttemptOutcome, AttemptRole, ShapingEffect
from headstart.compression.tokens import estimate_tokens
from headstart.dialects.registry import DIALECTS
from headstart.errors import UpstreamRefused
from headstart.middleware.shaping.steps import (
    answer_writer,
    when_read,
    with_document,
)
from headstart.policies.output.answer_limits import SavingsByModel
from headstart.policies.output.document_edits import (
    EditReader,
    find_edit,
    may_edit,
    may_predict,
    predicted_tokens,
    with_prediction,
)
from headstart.reply import HELD_BYTES, AnswerWithheld, Reply, Transcript, replayed
from headstart.types import Ended, RefusalDelta, TextDelta, ToolCallDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.middleware.shaping.steps import RestOfSteps, Send, StepContext
    from headstart.policies.output.document_edits import EditRequest
    from headstart.settings import EditMode
    from headstart.types import Call, ChatRequest, Piece, StreamEvent


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
"""The transforms of answers, as in ``AskForEdits``."""
MOST_REFUSING_MODELS = 1000
"""Number of models that are remembered for refusing predictions."""
_EDITS_REFUSED = (400, 413, 422)
"""Statuses with which an upstream may object to our instruction."""
_PREDICTION_REFUSED = (400, 422)
"""Statuses with which an upstream may object to a prediction."""
_DELTA_CHARS = 2000
"""The length of the pieces in which a document is written."""


@dataclass(frozen=True)
class AskForEdits:
    """Asks for search/replace blocks where one document is to be changed.

    Answers have a transform. ``edits``: blocks were applied; ``edits:whole``: the model wrote the
    whole document, which passed unchanged; or ``edits:again``: the blocks left a doubt. Models with
    which blocks do not pay (``SavingsByModel``) are not asked for them. With ``by="prediction"``
    the document becomes the call's prediction instead.
    """

    stage: ClassVar[str] = "output"
    by: EditMode = "blocks"
    savings: SavingsByModel = field(default_factory=SavingsByModel)

    def __call__(self, call: Call, request: ChatRequest, context: StepContext) -> Send | None:
        """Return the function that sends the call. Its answer starts after all blocks were read."""
        edit = find_edit(request.query) if request.query else None
        if edit is None:
            return None
        asked = context.read(call, request)
        if asked is None or not may_edit(asked, edit):
            return None
        if self.by == "prediction":
            content = edit.bordered(edit.document) or ""
            predicting = msgspec.structs.replace(call, prediction=content)
            return lambda rest: rest.send(predicting)
        if not self.savings.pays(request.model):
            return None
        return _EditCall(self, call, request, context, edit).send


@dataclass(frozen=True)
class _EditCall:
    """A call that asks for blocks."""

    step: AskForEdits
    call: Call
    request: ChatRequest
    context: StepContext
    edit: EditRequest

    async def send(self, rest: RestOfSteps) -> Reply:
        """Return an answer made of blocks, or the answer to the unchanged call."""
        asked = _with_instruction(self.call, self.request)
        reply = None if asked is None else await self._ask_for_blocks(asked, rest)
        if reply is None:
            again = msgspec.structs.replace(self.call, role=AttemptRole.RETRY)
            reply = await rest.send(again, AGAIN)
        return reply

    async def _ask_for_blocks(self, asked: Call, rest: RestOfSteps) -> Reply | None:
        """Return the answer for the client; None if the call must be made again."""
        try:
            reply = await rest.send(asked)
        except UpstreamRefused as error:
            if error.status not in _EDITS_REFUSED:
                raise
            return None
        except AnswerWithheld:
            return None
        answer = await _read(reply, self.edit)
        self._book(answer, reply.transcript)
        if self._change(reply, answer):
            return reply
        await rest.leave()
        # The cost of this call is booked like the cost of a rejected draft.
        asked.log.rule(AttemptOutcome.REJECTED)
        return None

    def _change(self, reply: Reply, answer: _ReadAnswer) -> bool:
        """Make the client's answer from the events that were read; return False in doubt."""
        if not answer.begun:
            reply.transforms = (WHOLE, *reply.transforms)
            reply.filter(replayed(answer.pieces, reply.pieces))
            return True
        if answer.text is None:
            return False
        transcript = reply.transcript
        events = _with_text(transcript.events, answer.text)
        if not transcript.ended:
            events.append(Ended())
        write = answer_writer(self.call, reply.transforms, self.context.clock(), transcript.start)
        reply.transforms = (APPLIED, *reply.transforms)
        reply.rewrite(replayed([write(events)]))
        return True

    def _book(self, answer: _ReadAnswer, transcript: Transcript) -> None:
        model, text = self.request.model, answer.text
        written = estimate_tokens(transcript.text, model).tokens
        if not answer.begun:
            self.step.savings.add(model, written, written)
            return
        whole = estimate_tokens(self.edit.document if text is None else text, model).tokens
        spent = written if text is not None else written + whole
        self.step.savings.add(model, whole, spent)
        row = ShapingEffect(
            kind="edits", tokens_before=whole, tokens_after=spent, own_s=answer.own_s
        )
        self.call.log.shaped.append(row)


class _ReadAnswer(NamedTuple):
    """An answer to a call that asked for blocks, read to its end or to its first doubt."""

    pieces: list[Piece]
    begun: bool
    """Whether a block has come, or a text that resembles one."""
    text: str | None
    """The text for the client; None: the blocks made no document."""
    own_s: float


async def _read(reply: Reply, edit: EditRequest) -> _ReadAnswer:
    """Read an answer, up to the size that may be kept in memory. Raises UpstreamError."""
    reader, text = EditReader(edit.document), None
    pieces: list[Piece] = []
    size, own_s = 0, 0.0
    async for piece in reply.pieces:
        began = time.perf_counter()
        pieces.append(piece)
        for event in piece.events:
            if isinstance(event, TextDelta):
                reader.feed(event.text)
        own_s += time.perf_counter() - began
        size += len(piece.data)
        if reader.doubt is not None or size > HELD_BYTES:
            return _ReadAnswer(pieces, reader.begun, None, own_s)
    began = time.perf_counter()
    edited = reader.end()
    if edited is not None and _is_plain_text(reply.transcript):
        document = edit.bordered(edited.document)
        parts = (edited.before, document, edited.after)
        text = None if document is None else "\n\n".join(part for part in parts if part)
    return _ReadAnswer(pieces, reader.begun, text, own_s + time.perf_counter() - began)


def _is_plain_text(transcript: Transcript) -> bool:
    """Tell whether an answer ended by itself and has only text."""
    return (
        transcript.finish is not None
        and transcript.finish.reason == "stop"
        and transcript.error is None
        and not any(isinstance(event, ToolCallDelta | RefusalDelta) for event in transcript.events)
    )


def _with_text(events: Sequence[StreamEvent], text: str) -> list[StreamEvent]:
    """Return the events with another text."""
    kept: list[StreamEvent] = []
    replaced = False
    for event in events:
        if not isinstance(event, TextDelta):
            kept.append(event)
        elif event.text and not replaced:
            replaced = True
            kept += [
                msgspec.structs.replace(event, text=text[at : at + _DELTA_CHARS])
                for at in range(0, len(text), _DELTA_CHARS)
            ]
    return kept


def _with_instruction(call: Call, request: ChatRequest) -> Call | None:
    """Return the call with our instruction after the caller's words, in the last message.

    The system text comes before the conversation. An instruction there that changes from call to
    call would invalidate the provider's cache of the conversation.
    """
    document = DIALECTS[call.dialect].form.with_last_text(request.document, INSTRUCTION)
    if document is None:
        return None
    changed = with_document(call, document)
    return msgspec.structs.replace(changed, prediction="", log=call.log.branch())


@dataclass(frozen=True)
class SendPrediction:
    """Sends ``Call.prediction`` to one target whose provider takes predictions.

    Such answers have the transform ``prediction``. Only a few models of a provider take
    predictions. A model that refuses one is called without it, and gets no further ones.
    """

    stage: ClassVar[str] = "output"
    refusing: set[str] = field(default_factory=set)
    """Models that refused a prediction."""

    def __call__(self, call: Call, request: ChatRequest, _: StepContext) -> Send | None:
        """Return the function that sends the call.

        None if it has no prediction, or must not have one.
        """
        if (
            not DIALECTS[call.dialect].form.takes_prediction
            or request.model in self.refusing
            or not may_predict(request.document, call.prediction)
        ):
            return None

        async def send(rest: RestOfSteps) -> Reply:
            predicted = with_document(call, with_prediction(request.document, call.prediction))
            try:
                reply = await rest.send(predicted, "prediction")
            except UpstreamRefused as error:
                if error.status not in _PREDICTION_REFUSED:
                    raise
                reply = await rest.send(msgspec.structs.replace(call, role=AttemptRole.RETRY))
                # The same call was accepted without the prediction, so the provider refused the
                # prediction.
                if len(self.refusing) < MOST_REFUSING_MODELS:
                    self.refusing.add(request.model)
            else:
                when_read(reply, partial(_book_prediction, call))
            return reply

        return send


def _book_prediction(call: Call, transcript: Transcript) -> None:
    """Book the accepted share of the prediction, if the provider reports it."""
    counts = None if transcript.usage is None else predicted_tokens(transcript.usage)
    if counts is None or not any(counts):
        return
    accepted, rejected = counts
    row = ShapingEffect(
        kind="prediction",
        tokens_before=accepted + rejected,
        tokens_after=rejected,
        estimated=False,
    )
    call.log.shaped.append(row)

"""Steps that change a prompt or its answer, and the candidate that runs them.

A step gets a call. It returns None if it has nothing to change. Otherwise it returns a function
that sends the changed call to the next steps and returns the answer for the client. For example, a
step that asks for short answers::

    def __call__(self, call, request, context):
        async def send(rest):  # ``rest``: the next steps, and then the upstream
            return await rest.send(with_document(call, shorter), "concise:brief")

        return send if fits(request) else None

``ShapedCandidate`` runs the steps in their order. The later parts of this file join the answers of
several calls (``answer_writer``), and edit JSON bodies (``with_document``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import msgspec

from headstart.attempts import RoutingEstimate, ShapingEffect, Tokens, sum_tokens
from headstart.dialects.registry import DIALECTS, FORMS, is_translated
from headstart.errors import HeadstartError, InvalidRequest, UpstreamProtocolError
from headstart.middleware.request_context import BYTES_PER_TOKEN
from headstart.middleware.translated_reading import StreamWriter, with_usage
from headstart.observe import Observer, StageFailed
from headstart.policies.output.answer_limits import cut_by
from headstart.reply import AnswerWithheld, Reply, Transcript
from headstart.types import Call, ChatRequest, Ended, Piece, Started, StreamEvent, UsageReported

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from headstart.canonical_request import CanonicalRequest
    from headstart.dialects.dialect import Dialect
    from headstart.interfaces import Candidate

    WriteEvents: TypeAlias = Callable[[Sequence[StreamEvent]], Piece]


@dataclass(frozen=True)
class StepContext:
    """The services that steps use."""

    observer: Observer
    clock: Callable[[], float]

    def read(self, call: Call, request: ChatRequest) -> CanonicalRequest | None:
        """Return the request in the common form; None if it cannot be read."""
        try:
            return DIALECTS[call.dialect].read_request(request)
        except InvalidRequest:
            return None

    def note_failure(self, stage: str, error: Exception) -> None:
        """Count a failure by the type of its error, because its text may contain the prompt."""
        self.observer.notify(StageFailed(stage=stage, error=type(error).__name__))


class Step(Protocol):
    """A change of a prompt or of its answer."""

    @property
    def stage(self) -> str:
        """The name under which failures of the step are counted."""

    def __call__(self, call: Call, request: ChatRequest, context: StepContext, /) -> Send | None:
        """Return the function that sends the call; None if the step does not apply to it."""


class ShapedCandidate:
    """Sends calls to ``inner`` through steps. The first step sees the call first.

    A call that must pass unchanged goes straight to ``inner``. If a step itself fails, the call is
    sent without this step.
    """

    def __init__(self, inner: Candidate, steps: Sequence[Step], context: StepContext) -> None:
        self.name = inner.name
        self.names = inner.names
        self.identity = inner.identity
        self._inner = inner
        self._steps = steps
        self._context = context

    def estimate(self, call: Call) -> RoutingEstimate:
        """Return the present estimate of this call."""
        return self._inner.estimate(call)

    async def send(self, call: Call, first: int = 0) -> Reply:
        """Send the call through the steps from number ``first`` on. Raises UpstreamError."""
        request = call.request
        if request is None or not is_editable(call):
            return await self._inner.send(call)
        for number in range(first, len(self._steps)):
            step = self._steps[number]
            try:
                send = step(call, request, self._context)
            except HeadstartError:
                raise
            except Exception as error:  # noqa: BLE001 - the call is sent without this step
                self._context.note_failure(step.stage, error)
                continue
            if send is not None:
                return await self._send_through(call, send, number)
        return await self._inner.send(call)

    async def _send_through(self, call: Call, send: Send, number: int) -> Reply:
        rest = RestOfSteps(self, number + 1)
        try:
            return await send(rest)
        except Exception as error:
            await rest.leave(error)
            if isinstance(error, HeadstartError) or error is rest.error:
                raise
            self._context.note_failure(self._steps[number].stage, error)
        except BaseException as error:
            await rest.leave(error)
            raise
        return await self.send(call, number + 1)


class RestOfSteps:
    """The next steps after one step, and the candidate. They answer the calls of this step."""

    def __init__(self, candidate: ShapedCandidate, first: int) -> None:
        self.names = candidate.names
        self._candidate = candidate
        self._first = first
        self._reply: Reply | None = None
        """The last answer that the step got."""
        self.error: Exception | None = None
        """An error that a call raised."""

    async def send(self, call: Call, *transforms: str) -> Reply:
        """Return the answer to a call, with these transforms added, also if it is withheld.

        Raises UpstreamError.
        """
        try:
            reply = await self._candidate.send(call, self._first)
        except Exception as error:
            self.error = error
            if isinstance(error, AnswerWithheld):
                error.reply.transforms = (*transforms, *error.reply.transforms)
            raise
        self._reply = reply
        reply.transforms = (*transforms, *reply.transforms)
        return reply

    async def leave(self, error: BaseException | None = None) -> None:
        """Close the last answer, so that another one can follow."""
        reply, self._reply = self._reply, None
        if reply is not None:
            await reply.aclose(error)


Send: TypeAlias = "Callable[[RestOfSteps], Awaitable[Reply]]"
"""Sends a call through the rest of the steps. It may send several calls, one after the other."""


def is_editable(call: Call) -> bool:
    """Tell whether a call may be changed: it was read, is unambiguous, and may be cached."""
    request = call.request
    return (
        request is not None
        and call.editable
        and call.dialect in DIALECTS
        and DIALECTS[call.dialect].is_chat
        and not request.duplicate_keys
    )


class AnswerLength(NamedTuple):
    """The length of a whole answer in tokens, reasoning included."""

    tokens: int
    estimated: bool = False
    """The upstream did not report it."""
    cut: bool = False
    """The model was stopped before the end of its answer."""
    parts: int = 1
    """The number of calls that the answer took."""

    def as_shaped(self, kind: str) -> ShapingEffect:
        """Return the observation of an experiment, which has only one length."""
        return ShapingEffect(
            kind=kind,
            tokens_before=self.tokens,
            tokens_after=self.tokens,
            estimated=self.estimated,
        )


def length_of(parts: Sequence[Transcript], dialect: Dialect) -> AnswerLength:
    """Return the length of an answer in several parts, each from another call."""
    tokens, estimated = 0, False
    for part in parts:
        used = _tokens_of(part, dialect)
        reported = 0 if used is None else used.completion
        tokens += reported or part.estimated_tokens
        estimated |= not reported
    finish = parts[-1].finish
    cut = finish is not None and finish.reason == "length"
    return AnswerLength(tokens, estimated, cut, len(parts))


def was_cut(part: Transcript, dialect: Dialect, limit: int | None) -> bool:
    """Tell whether our limit ended a part."""
    used = _tokens_of(part, dialect)
    length = None if used is None else used.completion
    return limit is not None and cut_by(limit, part.finish, length)


def ending_of(parts: Sequence[Transcript], dialect: Dialect) -> list[StreamEvent]:
    """Return the last events of an answer in several parts. Raises UpstreamProtocolError."""
    finish = parts[-1].finish
    if finish is None:
        raise UpstreamProtocolError("its continuation did not come to an end")
    reported = [used for part in parts if (used := _tokens_of(part, dialect)) is not None]
    if len(reported) < len(parts):
        return [finish, Ended()]
    return [finish, UsageReported(usage=dialect.usage(sum_tokens(reported))), Ended()]


def _tokens_of(part: Transcript, dialect: Dialect) -> Tokens | None:
    return None if part.usage is None else dialect.tokens(part.usage)


def when_measured(reply: Reply, dialect: Dialect, ended: Callable[[AnswerLength], None]) -> None:
    """Call ``ended`` with the length of an answer, if the answer ends cleanly."""

    def then(transcript: Transcript) -> None:
        if transcript.whole and transcript.error is None:
            ended(length_of([transcript], dialect))

    when_read(reply, then)


def when_read(reply: Reply, then: Callable[[Transcript], None]) -> None:
    """Call ``then`` with the transcript of an answer, after its last piece was read."""
    reply.filter(_call_after(reply.pieces, reply.transcript, then))


async def _call_after(
    pieces: AsyncIterator[Piece], transcript: Transcript, then: Callable[[Transcript], None]
) -> AsyncGenerator[Piece]:
    async for piece in pieces:
        yield piece
    then(transcript)


def answer_writer(
    call: Call,
    transforms: Sequence[str],
    now: float,
    start: Started,
    shown: Sequence[StreamEvent] = (),
) -> WriteEvents:
    """Return a function that writes the rest of an answer: a stream, or a body at the end.

    The answer has ``transforms``, and the client has the events ``shown``. ``start`` names a
    stream. The function returns the bytes for the next events, of which ``Ended`` is the last. It
    raises UpstreamProtocolError.
    """
    dialect, request = DIALECTS[call.dialect], call.request
    prompt_tokens = call.prompt_tokens if is_translated(transforms) else None
    if request is None or not request.stream:
        return partial(_write_body, Transcript(), dialect, now, prompt_tokens)
    id, created = start.id or dialect.new_id(), start.created or int(now)
    encoder = dialect.encoder(id, created, include_usage=request.include_usage)
    if prompt_tokens is not None:
        encoder = StreamWriter(encoder, dialect, prompt_tokens)
    # The encoder must know where the client's part ends.
    encoder.feed(shown)
    return lambda events: Piece(encoder.feed(events), tuple(events))


def _write_body(
    transcript: Transcript,
    dialect: Dialect,
    now: float,
    prompt_tokens: int | None,
    events: Sequence[StreamEvent],
) -> Piece:
    transcript.feed(events)
    body = b""
    if transcript.ended:
        completion = transcript.completion(now)
        if completion is None:
            raise UpstreamProtocolError("the answer did not come to an end")
        if prompt_tokens is not None:
            completion = with_usage(completion, transcript, dialect, prompt_tokens)
        id = transcript.start.id or dialect.new_id()
        body = dialect.write_body(completion, id, completion.created)
    return Piece(body, tuple(events))


# --- edits of a JSON body that keep all other bytes -----------------------------------------------


def with_document(call: Call, document: dict[str, Any], *, max_tokens: int | None = None) -> Call:
    """Return the call with another document in its place; the rest of the request is kept.

    An object that is identical (``is``) to the object in the call's own document keeps its bytes.
    So build ``document`` from copies of the changed objects and from the other objects themselves.
    ``max_tokens`` is the new limit of the answer, if the document changes it.
    """
    request = call.request
    if request is None:
        raise ValueError("a call that was not read has no document")
    old, new = request.document, document
    if not DIALECTS[call.dialect].form.names_model:
        old, new = ({k: v for k, v in each.items() if k != "model"} for each in (old, new))
    body = bytes(_edit(old, new, msgspec.Raw(call.body)))
    limit = request.max_tokens if max_tokens is None else max_tokens
    longer = (len(body) - len(call.body)) // BYTES_PER_TOKEN
    return msgspec.structs.replace(
        call,
        body=body,
        request=msgspec.structs.replace(request, document=document, max_tokens=limit),
        prompt_tokens=max(0, call.prompt_tokens + longer),
    )


_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def limited_body(request: ChatRequest, tokens: int) -> bytes:
    """Return the body of a chat request with another limit on its answer."""
    document = request.document
    own = {name: tokens for name in _LIMITS if document.get(name) is not None}
    if own:
        return msgspec.json.encode({**document, **own})
    if "contents" in document:  # Gemini's limit is in an object that may be missing
        document = {"generationConfig": {}, **document}
    return msgspec.json.encode(FORMS[request.dialect].with_limit(document, tokens))


def _edit(old: Any, new: Any, raw: msgspec.Raw | None) -> msgspec.Raw:
    """Return ``new`` as JSON. ``raw`` has the bytes of ``old``; None: it was not in the body."""
    if raw is not None:
        if new is old:
            return raw
        if isinstance(old, dict) and isinstance(new, dict):
            return _edit_members(old, new, raw)
        if isinstance(old, list) and isinstance(new, list):
            return _edit_items(old, new, raw)
    return msgspec.Raw(msgspec.json.encode(new))


def _edit_members(old: dict[str, Any], new: dict[str, Any], raw: msgspec.Raw) -> msgspec.Raw:
    members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    if not members.keys() <= old.keys():  # Gemini's names, in the spelling that was not read
        return msgspec.Raw(msgspec.json.encode(new))
    for name in old.keys() - new.keys():
        members.pop(name, None)
    for name, value in new.items():
        if name not in old:
            members[name] = msgspec.Raw(msgspec.json.encode(value))
        elif value is not old[name]:
            members[name] = _edit(old[name], value, members.get(name))
    return msgspec.Raw(msgspec.json.encode(members))


def _edit_items(old: list[Any], new: list[Any], raw: msgspec.Raw) -> msgspec.Raw:
    written = msgspec.json.decode(raw, type=list[msgspec.Raw])
    by_identity = {id(item): its for item, its in zip(old, written, strict=True)}
    same_places = len(old) == len(new)
    items = []
    for place, item in enumerate(new):
        if id(item) in by_identity:
            items.append(by_identity[id(item)])
        elif same_places:
            items.append(_edit(old[place], item, written[place]))
        else:
            items.append(msgspec.Raw(msgspec.json.encode(item)))
    return msgspec.Raw(msgspec.json.encode(items))

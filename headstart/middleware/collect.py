"""Folds the events of an answer into the Completion that is stored, and unfolds it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.middleware.collect_choice import ChoiceBuilder, merge_fields
from headstart.types import (
    Completion,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    LogprobsDelta,
    Reasoning,
    ReasoningDelta,
    Refusal,
    RefusalDelta,
    Started,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.middleware.collect_choice import TextLike
    from headstart.types import Choice, StreamEvent


_UNNAMED = Started()
_LEAST, _MOST = -(2**63), 2**63 - 1
_encode = msgspec.msgpack.Encoder().encode


class Collector:
    """Collects one answer while it passes by. Never raises, and never grows past ``max_bytes``.

    An answer is whole when its terminal event came (``ended``). Some providers close the body
    without one: such an answer is whole for the client too, and may be kept only if every choice
    that began has a finish reason (``finished``) and the body itself ended as announced. Whoever
    knows that feeds an ``Ended`` then.
    """

    def __init__(self, max_bytes: int = 8 * 2**20) -> None:
        self.content_started = False
        """Something that a reader would see has come: not a role, a comment or a fingerprint."""
        self.ended = False
        self.error: ErrorReported | None = None
        self.usage: dict[str, Any] | None = None
        self.overflowed = False
        """The answer exceeded ``max_bytes``; what was collected of it is gone."""
        self.failure: Exception | None = None
        """An event that could not be taken in. What came before and after it is of no use."""
        self._room = max_bytes
        self._start = _UNNAMED
        self._choices: dict[int, ChoiceBuilder] = {}
        self._extra: dict[str, Any] = {}

    def feed(self, events: Sequence[StreamEvent]) -> None:
        """Take in the events of one frame, in order."""
        for event in events:
            try:
                match event:
                    case TextDelta() | ReasoningDelta() | RefusalDelta():
                        self._add_text(event)
                    case ToolCallDelta():
                        self._add_call(event)
                    case LogprobsDelta():
                        self._add_logprobs(event)
                    case ExtraDelta():
                        self._add_extra(event)
                    case Finished(choice=choice):
                        self._choice(choice).finish = event
                    case UsageReported(usage=usage):
                        self.usage = usage
                    case Started():
                        self._start = _merge_starts(self._start, event)
                    case ErrorReported():
                        self.error = self.error or event
                    case Ended():
                        self.ended = True
            except Exception as error:  # noqa: BLE001 - the answer passes all the same
                self.failure = error

    def has_finished(self, choices: int) -> bool:
        """Tell whether so many choices have their finish reasons, and no other one began."""
        return len(self._choices) >= choices and self.finished

    @property
    def finished(self) -> bool:
        """At least one choice began, and each that began has a finish reason."""
        return bool(self._choices) and all(choice.finish for choice in self._choices.values())

    def completion(self, now: float) -> Completion | None:
        """Return the answer, or None unless it ended cleanly, whole and within bounds.

        ``now`` (Unix seconds) stands in for a creation time that the upstream did not give.
        """
        if not (self.ended and self._choices) or self.error or self.overflowed or self.failure:
            return None
        choices = []
        for index, builder in sorted(self._choices.items()):
            if builder.finish is None:
                return None
            choices.append(builder.build(index, builder.finish))
        return Completion(
            model=self._start.model or "",
            choices=tuple(choices),
            created=self._start.created or int(now),
            usage=self.usage,
            fingerprint=self._start.fingerprint,
            tier=self._start.tier,
            extra=self._extra,
        )

    def _add_text(self, event: TextLike) -> None:
        choice = self._choices.get(event.choice) or self._choice(event.choice)
        if event.text or (type(event) is ReasoningDelta and event.signature):
            self.content_started = True
            if self._fits(event.text):
                choice.add_text(event)

    def _add_call(self, event: ToolCallDelta) -> None:
        choice = self._choice(event.choice)
        self.content_started = True
        if self._fits(event.arguments, event.extra):
            choice.add_call(event)

    def _add_logprobs(self, event: LogprobsDelta) -> None:
        if self._fits("", event.value):
            self._choice(event.choice).add_logprobs(event.value)

    def _add_extra(self, event: ExtraDelta) -> None:
        if event.choice is None:
            if self._fits("", event.fields):
                _fill_in(self._extra, event.fields)
            return
        choice = self._choice(event.choice)
        if not event.beside:
            self.content_started |= any(event.fields.values())
        if self._fits("", event.fields):
            merge_fields(choice.beside if event.beside else choice.extra, event.fields)

    def _choice(self, index: int) -> ChoiceBuilder:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = ChoiceBuilder()
        return choice

    def _fits(self, text: str, fields: dict[str, Any] | None = None) -> bool:
        """Account for what is about to be kept; past the bound, let go of everything."""
        self._room -= len(text) if text.isascii() else len(text.encode())
        if fields:
            self._room -= len(msgspec.json.encode(fields))
        if self._room < 0 and not self.overflowed:
            self.overflowed = True
            self._extra = {}
            for choice in self._choices.values():
                choice.drop_content()
        return not self.overflowed


def storable(completion: Completion) -> Completion | None:
    """Return the answer with all its integers within 64 bits; None if no store could keep it.

    A provider may send any number, in its usage or in fields that are yet unknown.
    """
    try:
        _encode(completion)
    except OverflowError:
        return msgspec.convert(_bounded(msgspec.to_builtins(completion)), Completion)
    except RecursionError:
        return None
    return completion


def _bounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _bounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(each) for each in value]
    if type(value) is int:
        return max(_LEAST, min(value, _MOST))
    return value


def events_of(completion: Completion) -> tuple[StreamEvent, ...]:
    """Return events that a Collector folds into ``completion`` again."""
    return tuple(_unfold(completion))


def _unfold(completion: Completion) -> Iterator[StreamEvent]:
    yield Started(
        model=completion.model,
        created=completion.created,
        fingerprint=completion.fingerprint,
        tier=completion.tier,
    )
    for choice in completion.choices:
        yield from _unfold_choice(choice)
    if completion.extra:
        yield ExtraDelta(fields=completion.extra, choice=None)
    if completion.usage is not None:
        yield UsageReported(usage=completion.usage)
    yield Ended()


def _unfold_choice(choice: Choice) -> Iterator[StreamEvent]:
    index = choice.index
    calls = 0
    for block, part in enumerate(choice.parts):
        match part:
            case Text(text=text):
                yield TextDelta(text=text, choice=index, block=block)
            case Reasoning(text=text, field=field, signature=signature):
                yield ReasoningDelta(
                    text=text, choice=index, field=field, signature=signature, block=block
                )
            case Refusal(text=text):
                yield RefusalDelta(text=text, choice=index)
            case ToolCall(id=id, name=name, arguments=arguments, kind=kind, extra=extra):
                yield ToolCallDelta(
                    index=calls,
                    choice=index,
                    id=id or None,
                    name=name or None,
                    arguments=arguments,
                    kind=kind,
                    extra=extra,
                )
                calls += 1
    if choice.logprobs is not None:
        yield LogprobsDelta(value=choice.logprobs, choice=index)
    if choice.extra:
        yield ExtraDelta(fields=choice.extra, choice=index)
    if choice.beside:
        yield ExtraDelta(fields=choice.beside, choice=index, beside=True)
    yield Finished(reason=choice.finish, choice=index, native=choice.native_finish)


def _merge_starts(known: Started, news: Started) -> Started:
    """Later chunks may name what the first did not; what they leave out stands."""
    if known is _UNNAMED:
        return news
    return Started(
        id=news.id or known.id,
        model=news.model or known.model,
        created=known.created or news.created,
        fingerprint=news.fingerprint or known.fingerprint,
        tier=news.tier or known.tier,
    )


def _fill_in(into: dict[str, Any], fields: dict[str, Any]) -> None:
    """Add a chunk's own fields, which chunks repeat whole: the latest stands, objects add up."""
    for name, value in fields.items():
        known = into.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            into[name] = {**known, **value}
        else:
            into[name] = value

"""One choice of an answer in the making: fragments in order of arrival, joined at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from headstart.types import (
    Choice,
    Reasoning,
    ReasoningDelta,
    Refusal,
    RefusalDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)

if TYPE_CHECKING:
    from headstart.types import Finished, Part, StreamEvent

TextLike: TypeAlias = TextDelta | ReasoningDelta | RefusalDelta

_FRAGMENTS = frozenset({"text", "summary"})
"""Texts of an indexed item that arrive in pieces, as its lists do; others repeat or come once."""


class _Run:
    """One part in the making: fragments of one kind, in order."""

    __slots__ = ("block", "extra", "field", "fragments", "id", "kind", "name", "signature", "type")

    def __init__(
        self,
        type_: type[StreamEvent],
        field: str = "",
        kind: str = "",
        block: int | None = None,
    ) -> None:
        self.type = type_
        self.field = field
        self.block = block
        self.kind = kind
        self.fragments: list[str] = []
        self.signature: str | None = None
        self.id = ""
        self.name = ""
        self.extra: dict[str, Any] = {}

    def build(self) -> Part:
        text = "".join(self.fragments)
        if self.type is TextDelta:
            return Text(text=text)
        if self.type is ReasoningDelta:
            return Reasoning(text=text, field=self.field, signature=self.signature)
        if self.type is RefusalDelta:
            return Refusal(text=text)
        return ToolCall(
            id=self.id, name=self.name, arguments=text, kind=self.kind, extra=self.extra
        )


class ChoiceBuilder:
    """One choice in the making."""

    def __init__(self) -> None:
        self.finish: Finished | None = None
        self.drop_content()

    def drop_content(self) -> None:
        self.extra: dict[str, Any] = {}
        self.beside: dict[str, Any] = {}
        self._logprobs: dict[str, Any] | None = None
        self._runs: list[_Run] = []
        self._calls: dict[int, _Run] = {}

    def add_text(self, event: TextLike) -> None:
        last = self._runs[-1] if self._runs else None
        if last is not None and last.type is type(event) is TextDelta and last.block == event.block:
            last.fragments.append(event.text)
            return
        field = event.field if isinstance(event, ReasoningDelta) else ""
        block = None if isinstance(event, RefusalDelta) else event.block
        run = self._open_run(type(event), field, block)
        if run is None:
            run = _Run(type(event), field, block=block)
            self._runs.append(run)
        run.fragments.append(event.text)
        if isinstance(event, ReasoningDelta) and event.signature:
            run.signature = event.signature

    def add_call(self, event: ToolCallDelta) -> None:
        run = self._calls.get(event.index)
        if run is None:
            run = self._calls[event.index] = _Run(ToolCallDelta, kind=event.kind)
            self._runs.append(run)
        run.id = run.id or event.id or ""
        run.name = run.name or event.name or ""
        run.fragments.append(event.arguments)
        run.extra.update(event.extra)

    def add_logprobs(self, value: dict[str, Any]) -> None:
        if self._logprobs is None:
            self._logprobs = {}
        merge_fields(self._logprobs, value)

    def build(self, index: int, finish: Finished) -> Choice:
        return Choice(
            index=index,
            parts=tuple(run.build() for run in self._runs),
            finish=finish.reason,
            native_finish=finish.native,
            logprobs=self._logprobs,
            extra=self.extra,
            beside=self.beside,
        )

    def _open_run(self, type_: type[StreamEvent], field: str, block: int | None) -> _Run | None:
        """Return the run that a delta continues.

        Some providers send reasoning under two names at once, so those runs may interleave.
        """
        for run in reversed(self._runs):
            if run.type is type_ and run.field == field and run.block == block:
                return run
            if not (run.type is type_ is ReasoningDelta):
                return None
        return None


def merge_fields(into: dict[str, Any], fields: dict[str, Any]) -> None:
    """Add a delta's fields: lists grow, objects add up, null says nothing, the rest replaces.

    ``into`` owns its lists, so growing them is linear.
    """
    for name, value in fields.items():
        known = into.get(name)
        if value is None:
            into.setdefault(name, None)
        elif isinstance(value, list):
            if not isinstance(known, list):
                known = into[name] = []
            for item in value:
                _merge_item(known, item)
        elif isinstance(value, dict) and isinstance(known, dict):
            into[name] = {**known, **value}
        else:
            into[name] = value


def _merge_item(known: list[Any], item: Any) -> None:
    """Append an item, unless it goes on with one already there.

    Fragments carry the index of their item, as in OpenRouter's ``reasoning_details``.
    """
    if not isinstance(item, dict) or "index" not in item:
        known.append(item)
        return
    identity = (item["index"], item.get("type"))
    for whole in known:
        if isinstance(whole, dict) and (whole.get("index"), whole.get("type")) == identity:
            break
    else:
        known.append(
            {n: [*value] if isinstance(value, list) else value for n, value in item.items()}
        )
        return
    for name, value in item.items():
        held = whole.get(name)
        if name in _FRAGMENTS and isinstance(value, str) and isinstance(held, str):
            whole[name] = held + value
        elif isinstance(value, list) and isinstance(held, list):
            held.extend(value)
        elif value is not None:
            whole[name] = value

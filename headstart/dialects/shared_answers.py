"""Stored answers that serve another dialect than the one they were asked for in.

Requests of two dialects may have one cache key (``KeyForm.shared``). The answer to one of them then
serves the other one, if that loses nothing: it is text, and says nothing beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from headstart.dialects.registry import DIALECTS
from headstart.types import Choice, Completion, Text

if TYPE_CHECKING:
    from headstart.types import ChatRequest, Entry

TRANSLATED = "translated:"
"""The beginning of the transform of an answer whose provider speaks another dialect."""
_ENDINGS = frozenset({"stop", "length"})
"""The reasons to finish that every dialect can say."""


def refuse_in_dialect(request: ChatRequest, entry: Entry) -> str | None:
    """Return why an entry cannot be told in the dialect of a request, or None."""
    answer, target = entry.answer, DIALECTS.get(request.dialect)
    if target is None or entry.dialect == target.name or not isinstance(answer, Completion):
        return None
    source = DIALECTS.get(entry.dialect)
    if source is None:  # it was stored when dialects shared no keys
        return None if target.key.shared is None else "other-api:unknown"
    lost = source.beside_text(answer)
    if any(name.startswith(TRANSLATED) for name in entry.transforms):
        lost = "translated"  # it may have lost something then
    if lost is None and answer.usage and source.tokens(answer.usage).reasoning:
        lost = "reasoning"  # only some dialects tell it
    if lost is None:
        lost = _beside_one_text(answer)
    return None if lost is None else f"other-api:{lost}"


def _beside_one_text(answer: Completion) -> str | None:
    if len(answer.choices) != 1:
        return "choices"
    choice = answer.choices[0]
    if choice.logprobs:
        return "logprobs"
    if choice.finish not in _ENDINGS or choice.native_finish not in (None, choice.finish):
        return "finish-reason"
    if any(choice.extra.values()) or any(choice.beside.values()):
        return "fields"
    return None if [*map(type, choice.parts)] == [Text] else "parts"


def in_dialect(entry: Entry, name: str) -> Completion:
    """Return the answer of an entry for clients of a dialect, if ``refuse_in_dialect`` allows it.

    Raises TypeError for a raw answer.
    """
    answer = entry.answer
    if not isinstance(answer, Completion):
        raise TypeError(f"entry {entry.id} holds a raw answer, which is sent as it is")
    if entry.dialect in ("", name):
        return answer
    source, target, choice = DIALECTS[entry.dialect], DIALECTS[name], answer.choices[0]
    usage = None if answer.usage is None else target.usage(source.tokens(answer.usage))
    plain = Choice(index=0, parts=choice.parts, finish=choice.finish)
    return replace(answer, choices=(plain,), usage=usage, fingerprint=None, extra={})

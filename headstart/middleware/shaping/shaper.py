"""What shapers share: candidates that change a prompt on its way up, or an answer on its way down.

A shaper changes only what it may (``plain``), edits the body where it must (``with_document``),
and names what it did in the answer's ``transforms`` (``Shaper.pass_on``).
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from headstart.middleware.dialects.gemini_generate import GeminiGenerate
from headstart.middleware.upstreams.opening import AnswerWithheld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from headstart.attempts import Outlook
    from headstart.interfaces import Candidate, Chunk, UpstreamReply
    from headstart.types import Call, Headers

_BYTES_PER_TOKEN = 4


class _Unset(Enum):
    UNSET = 0


Unset: TypeAlias = Literal[_Unset.UNSET]
UNSET: Final = _Unset.UNSET


class Shaper:
    """A candidate that passes calls on to another. Subclasses override ``stream``."""

    def __init__(self, inner: Candidate) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def names(self) -> frozenset[str]:
        return self._inner.names

    @property
    def identity(self) -> str:
        return self._inner.identity

    def outlook(self, call: Call) -> Outlook:
        """Return what to expect of this call, now."""
        return self._inner.outlook(call)

    def stream(self, call: Call) -> AbstractAsyncContextManager[UpstreamReply]:
        """Send the call. Raises UpstreamError."""
        return self._inner.stream(call)

    @asynccontextmanager
    async def pass_on(self, call: Call, *transforms: str) -> AsyncIterator[UpstreamReply]:
        """Send a changed call; its answer bears these names, also one that is withheld."""
        async with AsyncExitStack() as stack:
            try:
                reply = await stack.enter_async_context(self._inner.stream(call))
            except AnswerWithheld as withheld:
                withheld.reply = ShapedReply(withheld.reply, *transforms)
                raise
            yield ShapedReply(reply, *transforms)


class ShapedReply:
    """An answer with more transforms to its name. Subclasses override ``chunks``."""

    def __init__(self, inner: UpstreamReply, *transforms: str) -> None:
        self._inner = inner
        self._transforms = transforms

    @property
    def upstream(self) -> str:
        return self._inner.upstream

    @property
    def status(self) -> int:
        return self._inner.status

    @property
    def headers(self) -> Headers:
        return self._inner.headers

    @property
    def transforms(self) -> tuple[str, ...]:
        return (*self._transforms, *self._inner.transforms)

    @property
    def storable(self) -> bool:
        return self._inner.storable

    def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the body as it arrives. Raises UpstreamError when it breaks off."""
        return self._inner.chunks()


def plain(call: Call) -> bool:
    """May this call be shaped at all: was it read, by one meaning, and does it not bypass us?"""
    request = call.request
    return (
        request is not None and call.editable and call.dialect != "" and not request.duplicate_keys
    )


def with_document(
    call: Call, document: dict[str, Any], *, max_tokens: int | Unset | None = UNSET
) -> Call:
    """Return the call with another document in its place; the rest of the request is kept.

    What is the same object as in the call's own document keeps its bytes, so build ``document``
    from copies of what changes and from the very objects of what does not. ``max_tokens`` is the
    request's new limit, where the document's changed.
    """
    request = call.request
    if request is None:
        raise ValueError("a call that was not read has no document")
    old, new = request.document, document
    if call.dialect == GeminiGenerate.name:  # the model stands in the path, not in the body
        old, new = ({k: v for k, v in each.items() if k != "model"} for each in (old, new))
    body = bytes(_edit(old, new, msgspec.Raw(call.body)))
    limit = request.max_tokens if max_tokens is UNSET else max_tokens
    longer = (len(body) - len(call.body)) // _BYTES_PER_TOKEN
    return msgspec.structs.replace(
        call,
        body=body,
        request=msgspec.structs.replace(request, document=document, max_tokens=limit),
        prompt_tokens=max(0, call.prompt_tokens + longer),
    )


def _edit(old: Any, new: Any, raw: msgspec.Raw | None) -> msgspec.Raw:
    """Return ``new`` as JSON; ``raw`` is ``old`` as it was written, None if it was not."""
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
    items = []
    for place, item in enumerate(new):
        if id(item) in by_identity:
            items.append(by_identity[id(item)])
        elif place < len(old):
            items.append(_edit(old[place], item, written[place]))
        else:
            items.append(msgspec.Raw(msgspec.json.encode(item)))
    return msgspec.Raw(msgspec.json.encode(items))

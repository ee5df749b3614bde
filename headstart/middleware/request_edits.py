"""Edits of a call's JSON body that keep the bytes of everything that they do not change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.dialects.registry import DIALECTS, form_of

if TYPE_CHECKING:
    from headstart.types import Call, ChatRequest

_BYTES_PER_TOKEN = 4


def with_document(call: Call, document: dict[str, Any], *, max_tokens: int | None = None) -> Call:
    """Return the call with another document in its place; the rest of the request is kept.

    An object that is the very one of the call's own document keeps its bytes. So build ``document``
    from copies of the objects that change, and from the other objects as they are. ``max_tokens``
    is the new limit of the answer, where the document changes it.
    """
    request = call.request
    if request is None:
        raise ValueError("a call that was not read has no document")
    old, new = request.document, document
    if not DIALECTS[call.dialect].form.names_model:
        old, new = ({k: v for k, v in each.items() if k != "model"} for each in (old, new))
    body = bytes(_edit(old, new, msgspec.Raw(call.body)))
    limit = request.max_tokens if max_tokens is None else max_tokens
    longer = (len(body) - len(call.body)) // _BYTES_PER_TOKEN
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
    if "contents" in document:  # Gemini's limit stands in an object that may be missing
        document = {"generationConfig": {}, **document}
    return msgspec.json.encode(form_of(request).with_limit(document, tokens))


def _edit(old: Any, new: Any, raw: msgspec.Raw | None) -> msgspec.Raw:
    """Return ``new`` as JSON. ``raw`` holds the bytes of ``old``; None: nobody wrote it yet."""
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

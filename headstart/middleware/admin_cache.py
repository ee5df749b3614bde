"""The cache's contents over the admin API: list, inspect, invalidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from litestar import delete, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException, ValidationException
from litestar.params import FromPath, QueryParameter, SkipValidation

from headstart.middleware.admin_state import AdminState, EngineParts
from headstart.types import Delete, Entry, Frozen, RawResponse, Text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

Admin: TypeAlias = NamedDependency[SkipValidation[AdminState]]
Engine: TypeAlias = NamedDependency[SkipValidation[EngineParts]]
Tag = Annotated[str | None, QueryParameter(description="Only entries with this tag.", min_length=1)]
Partition = Annotated[
    str | None,
    QueryParameter(description="The first hex digits of a partition.", pattern="^[0-9a-f]{8,64}$"),
]
Caller = Annotated[
    str | None,
    QueryParameter(
        name="scope", description="The first hex digits of a scope.", pattern="^[0-9a-f]{8,64}$"
    ),
]
Texts = Annotated[bool, QueryParameter(description="Show question and answer too.")]
Limit = Annotated[int, QueryParameter(ge=1, le=1000)]

AT_ONCE = 256
"""Ids in one deletion."""


class EntryView(Frozen, omit_defaults=False):
    """An entry as the API shows it. ``bytes`` counts it encoded, without its vector."""

    id: str
    created: float
    age_s: float
    expires: float | None
    scope: str
    """Who may share it: the ``scope`` that ``explain`` shows of a caller's requests."""
    partition: str
    model: str
    upstream: str
    tags: tuple[str, ...]
    transforms: tuple[str, ...]
    bytes: int
    prompt_tokens: int
    completion_tokens: int
    question: str | msgspec.UnsetType | None = msgspec.UNSET
    """With ``texts`` alone, as ``answer``."""
    answer: str | msgspec.UnsetType = msgspec.UNSET


class EntryList(Frozen, omit_defaults=False):
    """``entries`` are the oldest that were asked for; ``more`` says that others exist."""

    entries: list[EntryView]
    more: bool


class Deleted(Frozen):
    """How many entries left."""

    deleted: int


@get("/cache")
async def list_entries(
    *,
    admin: Admin,
    engine: Engine,
    tag: Tag = None,
    partition: Partition = None,
    caller: Caller = None,
    limit: Limit = 100,
    texts: Texts = False,
) -> EntryList:
    """List entries, oldest first."""
    now = admin.clock()
    views: list[EntryView] = []
    async for entry in _matching(engine, tag, partition, caller):
        if len(views) == limit:
            return EntryList(entries=views, more=True)
        views.append(view_entry(entry, now, texts=texts))
    return EntryList(entries=views, more=False)


@get("/cache/{id:str}")
async def inspect_entry(
    id: FromPath[str], admin: Admin, engine: Engine, *, texts: Texts = False
) -> EntryView:
    """Show one entry."""
    return view_entry(await _load(engine, id), admin.clock(), texts=texts)


@delete("/cache/{id:str}", status_code=200)
async def delete_entry(id: FromPath[str], engine: Engine) -> Deleted:
    """Delete one entry, here and in the store."""
    entry = await _load(engine, id)
    await _invalidate(engine, [entry.id])
    return Deleted(deleted=1)


@delete("/cache", status_code=200)
async def delete_entries(
    engine: Engine, tag: Tag = None, partition: Partition = None, caller: Caller = None
) -> Deleted:
    """Delete the entries with a tag, or of the partitions or scopes that begin so; of all given."""
    if tag is None and partition is None and caller is None:
        raise ValidationException("say which entries: ?tag=…, ?partition=… or ?scope=…")
    ids = [entry.id async for entry in _matching(engine, tag, partition, caller)]
    for start in range(0, len(ids), AT_ONCE):
        await _invalidate(engine, ids[start : start + AT_ONCE])
    return Deleted(deleted=len(ids))


ENTRY_HANDLERS: tuple[Any, ...] = (list_entries, inspect_entry, delete_entry, delete_entries)


def view_entry(entry: Entry, now: float, *, texts: bool) -> EntryView:
    """Return what is shown of an entry; question and answer with ``texts`` alone."""
    view = EntryView(
        id=entry.id,
        created=entry.created,
        age_s=now - entry.created,
        expires=entry.expires,
        scope=entry.key.scope,
        partition=entry.key.partition,
        model=entry.origin.model,
        upstream=entry.origin.upstream,
        tags=entry.tags,
        transforms=entry.transforms,
        bytes=len(msgspec.msgpack.encode(entry)),
        prompt_tokens=entry.origin.prompt_tokens,
        completion_tokens=entry.origin.completion_tokens,
    )
    if not texts:
        return view
    return msgspec.structs.replace(view, question=entry.key.query, answer=answer_text(entry))


def answer_text(entry: Entry) -> str:
    """Return an answer as a person reads it."""
    answer = entry.answer
    if isinstance(answer, RawResponse):
        return answer.body.decode("utf-8", "replace")
    parts = (part for choice in answer.choices for part in choice.parts)
    return "\n".join(part.text for part in parts if isinstance(part, Text))


async def _matching(
    engine: EngineParts, tag: str | None, partition: str | None, scope: str | None
) -> AsyncIterator[Entry]:
    async for entries in engine.store.entries():
        for entry in entries:
            if (
                (tag is None or tag in entry.tags)
                and entry.key.partition.startswith(partition or "")
                and entry.key.scope.startswith(scope or "")
            ):
                yield entry


async def _load(engine: EngineParts, id: str) -> Entry:
    (entry,) = await engine.store.load([id])
    if entry is None:
        raise NotFoundException("no entry has this id")
    return entry


async def _invalidate(engine: EngineParts, ids: Sequence[str]) -> None:
    if engine.cache is not None:
        await engine.cache.invalidate(ids)
    else:
        await engine.store.append([Delete(ids=tuple(ids))])

"""Keeps answers of OpenAI's Responses API, and writes out requests that refer to them by id.

For example, a caller asks "Name a city", and gets the answer "Paris" with the id ``resp_1``. Its
next request is::

    {"previous_response_id": "resp_1", "input": "And a river there?"}

No other upstream, and no cache key, knows what ``resp_1`` is. So the request becomes::

    {"input": ["Name a city", "Paris", "And a river there?"]}      (each as an item of the API)

The steps of a request:

1. ``Conversations.open`` finds the kept answers (``KeptTurn``) that the request refers to, also by
   the id of a single output item. It refuses the ids of other callers. A request that refers to
   nothing takes the short way, ``begin``. Both return a ``Chain``.
2. ``Chain.whole`` is the body with everything written out. ``Chain.sent`` decides whether an
   upstream gets this body, or the one with the ids because it has stored the conversation itself.
3. ``Chain.keeping`` copies the answer while it is sent to the client. It is parsed later, many
   answers together (``keep_unread``), because that is faster.
4. ``keep`` puts the turn into memory (``TurnMemory``, within bounds), and soon afterwards into the
   durable store, for other processes and after a restart. For items of the turn, the store also
   gets *pointers*: each is an empty turn with the id of the item, which names the answer. What the
   store did not take is written again when it works, if memory still has it.
5. ``reread`` follows the store: a turn that it has no longer, or that another process has deleted,
   leaves this memory, too.

A turn belongs to the caller that got the answer, its *owner*.
"""

from __future__ import annotations

import asyncio
from dataclasses import KW_ONLY, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.dialects.responses_chains import (
    StreamTail,
    as_array,
    is_own,
    item_ids,
    portable,
    read_answer,
    read_asked,
    read_raws,
    response_in,
    write_whole,
)
from headstart.errors import AnswersUnavailable, InvalidRequest, StoreError, UnknownReference
from headstart.middleware.kept_turns import KeptTurn, TurnMemory
from headstart.middleware.prepare import ANY_VALUES, ValueLimit
from headstart.observe import Observer, StageFailed
from headstart.reply import form_of_body
from headstart.types import CacheKey, Entry, Message, Origin, Put, RawResponse, Send, new_ulid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headstart.dialects.responses_chains import ChainedRequest
    from headstart.errors import HeadstartError
    from headstart.interfaces import Store
    from headstart.middleware.concurrency import Spawn
    from headstart.settings import ConversationSettings

TAG = "conversation"
"""The tag of the entries in the store that contain kept answers."""
MOST_UNREAD = 64
"""The most answers that wait to be parsed."""
MOST_UNREAD_BYTES = 1024 * 1024
"""The most bytes of these answers and their requests. To parse many together takes a third of the
time of parsing each alone."""
WRITE_EVERY_S = 0.05
"""Seconds between two writes to the store. All answers that came meanwhile are written together."""
WAITS_S = (WRITE_EVERY_S, 2 * WRITE_EVERY_S)
"""The waits, in seconds, before an id of ours counts as unknown: another process may have sent the
answer a moment ago, and not have written it yet."""
MOST_AT_ONCE = 256
"""The most turns that are written again together, after the store had failed."""


_TurnsByCaller = dict[str, KeptTurn]
"""The turns with one id, of all callers that got an answer with it."""
_read_turns = msgspec.msgpack.Decoder(_TurnsByCaller).decode


def refuse_compressed(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise InvalidRequest for a body whose ids cannot be read."""
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise InvalidRequest(
                "content-encoding: send the body uncompressed, so that Headstart can check whose "
                "answers it names, or switch server.conversations off"
            )


@dataclass(eq=False, repr=False)
class Conversations:
    """The kept answers by caller (``owner``) and id.

    ``store`` is None if nothing is kept durably. ``touch`` tells it which of its entries are used,
    so that it evicts others first. ``one_account``: a provider gets the calls of all
    callers with one key, so it would show a caller the answers of others. ``shared``: other
    processes use the store at the same time. ``values`` bounds the bodies that are read.
    """

    limits: ConversationSettings
    _: KW_ONLY
    clock: Callable[[], float]
    store: Store | None
    spawn: Spawn
    observer: Observer
    touch: Callable[[Iterable[str]], None] = lambda _: None
    one_account: bool = False
    shared: bool = False
    values: ValueLimit = ANY_VALUES
    _memory: TurnMemory = field(init=False)
    _unread: list[_Unread] = field(default_factory=list)
    """Answers that were sent, and are parsed when an id is asked for."""
    _unread_size: int = 0
    _waiting: list[_WaitingTurn] = field(default_factory=list)
    """Turns that the store does not have yet."""
    _writer: asyncio.Task[None] | None = None
    _next_write: float = 0.0
    """The earliest time of the next write, by the clock of the event loop."""
    _unwritten: dict[tuple[str, str], None] = field(default_factory=dict)
    """The callers and ids of turns in memory that the store did not take."""
    _to_reread: dict[str, None] = field(default_factory=dict)
    """The ids of turns in memory that the store may have changed."""
    _reader: asyncio.Task[None] | None = None
    _changes: int = 0
    """The number of calls of ``reread``. If it has grown since a turn was read from the store, or
    written, the store may have changed it since."""

    def __post_init__(self) -> None:
        self._memory = TurnMemory(self.limits)

    @property
    def most_bytes(self) -> int:
        """The most bytes of the answers of one caller."""
        return self._memory.callers_bytes

    async def aclose(self) -> None:
        """Wait until the store has all turns, or fails."""
        if self._writer is not None:
            await asyncio.wait((self._writer,))

    async def find(self, owner: str, id: str) -> KeptTurn | None:
        """Return a caller's turn, or None. The turn may be marked as deleted."""
        turn = self._known(owner, id)
        if turn is not None:
            self.touch(self._memory.entries_of(id))
        elif self.store is not None:
            changes = self._changes
            stored = await self._load_soon(owner, id) or _NOT_STORED
            turn = stored.turns.get(owner)
            if turn is not None and turn.is_pointer:
                return None
            if turn is not None:
                self._memory.put(owner, turn)
                self._note_entry(id, stored.entry, changes)
        return turn if turn is not None and self._lives(turn) else None

    def holds(self, owner: str, id: str) -> bool:
        """Tell whether memory has a caller's turn."""
        turn = self._known(owner, id)
        return turn is not None and not turn.deleted and self._lives(turn)

    def _known(self, owner: str, id: str) -> KeptTurn | None:
        """Return a caller's turn from memory. It may be deleted, or too old."""
        self._parse_unread()
        return self._memory.find(owner, id)

    def _lives(self, turn: KeptTurn) -> bool:
        return self.clock() < turn.created + self.limits.ttl_s

    async def may_ask_provider(self, owner: str | None, id: str) -> bool:
        """Tell whether the provider may answer for an id that the caller does not have.

        It may not if the id is ours, or if another caller has it, even if it has expired. Raises
        AnswersUnavailable if the store fails and only the store can tell.
        """
        if self._others_have(owner, id):
            return False
        is_ours = is_own(id)
        if self.store is not None:
            stored = await self._load(id)
            if stored is not None:
                return not is_ours and stored.turns.keys() <= {owner}
            if self.one_account or is_ours:
                raise AnswersUnavailable(
                    f"'{id}' cannot be looked up now: the store (cache.store) fails"
                )
        return not is_ours

    def _others_have(self, owner: str | None, id: str) -> bool:
        self._parse_unread()
        return not self._memory.holders(id) <= {owner}

    def find_item(self, owner: str, id: str) -> tuple[KeptTurn, msgspec.Raw] | None:
        """Return an output item by its id, and its turn, from memory."""
        self._parse_unread()
        turn = self._memory.find_by_item(owner, id)
        if turn is None or turn.deleted or not self._lives(turn):
            return None
        self.touch((*self._memory.entries_of(turn.id), *self._memory.entries_of(id)))
        answer = read_answer(turn.response)
        items = {} if answer is None else dict(zip(item_ids(answer), answer.output, strict=True))
        return (turn, items[id]) if id in items else None

    def keep(self, owner: str, turn: KeptTurn, *, fresh: bool = False) -> None:
        """Keep a turn, unless the caller has it already.

        ``fresh``: the provider has just made its id. If the caller has a turn with this id all the
        same, the provider uses ids more than once, and the last answer is kept.
        """
        if self.holds(owner, turn.id) and not (turn.deleted or fresh):
            return
        self._memory.put(owner, turn)
        if self.store is not None:
            self._wait(owner, turn, fresh=fresh)

    def keep_unread(self, unread: _Unread) -> None:
        """Keep an answer that was sent, and parse it later."""
        self._unread.append(unread)
        self._unread_size += len(unread.answer) + len(unread.chain.whole)
        if len(self._unread) >= MOST_UNREAD or self._unread_size >= MOST_UNREAD_BYTES:
            self._parse_unread()
        self._write_soon()

    def _parse_unread(self) -> None:
        """Parse the waiting answers."""
        unread, self._unread, self._unread_size = self._unread, [], 0
        for each in unread:
            turn = each.chain.turn(each)
            if turn is not None:
                self.keep(each.owner, turn, fresh=each.source.asked)

    def _write_soon(self) -> None:
        if self.store is not None and (self._writer is None or self._writer.done()):
            self._writer = self.spawn(self._write, self.store)

    async def delete(self, owner: str, turn: KeptTurn) -> None:
        """Delete the content of a turn. Its id stays known to the caller as deleted.

        Raises AnswersUnavailable, and the caller has the turn again, if the store fails: after a
        restart it would show what was deleted.
        """
        empty = msgspec.structs.replace(turn, input=b"[]", response=b"", items=(), deleted=True)
        self.keep(owner, empty)
        if self._writer is None:  # there is no store
            return
        written = self._waiting[-1].written
        await asyncio.wait((written, self._writer), return_when=asyncio.FIRST_COMPLETED)
        if not (written.done() and written.result()):
            self._memory.put(owner, turn)
            raise AnswersUnavailable(
                f"'{turn.id}' cannot be deleted now: the store (cache.store) fails"
            )

    async def turns_up_to(self, owner: str, id: str) -> list[KeptTurn] | None:
        """Return the turns up to an answer, the first one first; None if one is missing."""
        turns: list[KeptTurn] = []
        next_id: str | None = id
        while next_id is not None:
            turn = await self.find(owner, next_id)
            if turn is None or turn.deleted or len(turns) >= self._memory.callers_answers:
                return None
            turns.append(turn)
            next_id = turn.previous
        turns.reverse()
        return turns

    async def open(self, owner: str | None, body: bytes) -> Chain | None:
        """Return the kept answers that a request refers to; None if only the provider has them.

        ``owner`` is None if the caller is not known. Raises UnknownReference for ids of ours, and
        of other callers, that this caller does not have, AnswersUnavailable, and RequestTooLarge.
        """
        self.values.check(body)
        asked = read_asked(body)
        if asked is None:
            return None
        turns: list[KeptTurn] = []
        if asked.previous is not None:
            turns = await self._previous(owner, asked.previous) or []
        named, whole = await self._resolve(owner, asked, turns)
        if owner is None or (asked.previous is not None and not turns):
            return None  # the provider may know the id
        return Chain(self, body, asked if whole else None, named)

    def begin(self, body: bytes) -> Chain:
        """Return the chain of a request that refers to nothing (``may_refer``)."""
        return Chain(self, body, None, _NOTHING, reads_later=True)

    async def _previous(self, owner: str | None, id: str) -> list[KeptTurn] | None:
        """Return the turns up to an answer; None if perhaps the provider has it."""
        turn = None if owner is None else await self.find(owner, id)
        if owner is not None and turn is not None and not turn.deleted:
            turns = await self.turns_up_to(owner, id)
            if turns is None and not turn.own:  # no provider has the earlier turns
                if self.store is not None and await self._load(id) is None:
                    raise AnswersUnavailable(
                        f"the turns before '{id}' cannot be read now: the store (cache.store) fails"
                    )
                raise no_previous(id)
            return turns
        if turn is not None or not await self.may_ask_provider(owner, id):
            raise no_previous(id)
        return None

    async def _resolve(
        self, owner: str | None, asked: ChainedRequest, turns: list[KeptTurn]
    ) -> tuple[_NamedTurns, bool]:
        """Return the items of a request with those that it refers to.

        False: some references stay, because the provider may know them.
        """
        await self._fetch_items(owner, filter(None, asked.references))
        items: list[tuple[msgspec.Raw, KeptTurn | None]] = []
        whole = True
        for raw, reference in zip(asked.items, asked.references, strict=True):
            if reference is None:
                items.append((raw, None))
                continue
            found = None if owner is None else self.find_item(owner, reference)
            if found is not None:
                turn, item = found
                items.append((item, turn))
                continue
            if is_own(reference) or self._others_have(owner, reference):
                raise _no_item(reference)
            items.append((raw, None))
            whole = False
        return _NamedTurns(tuple(turns), tuple(items)), whole

    # --- the durable store ---

    async def _fetch_items(self, owner: str | None, ids: Iterable[str]) -> None:
        """Bring the turns with these items from the store into memory.

        Raises UnknownReference and AnswersUnavailable.
        """
        if self.store is None:
            return
        self._parse_unread()
        missing = {
            id
            for id in ids
            if self._is_pointed_to(id)
            and (owner is None or self._memory.find_by_item(owner, id) is None)
        }
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._fetch_item(owner, id)) for id in missing]
        for task in tasks:
            error = task.result()
            if error is not None:
                raise error

    async def _fetch_item(self, owner: str | None, id: str) -> HeadstartError | None:
        """Bring the turn with an item into memory. Return the error if the caller may not have it.

        Without an error, the item is in memory, or perhaps the provider has it.
        """
        unavailable = AnswersUnavailable(
            f"item '{id}' cannot be looked up now: the store (cache.store) fails"
        )
        stored = await self._load_soon(owner, id)
        if stored is None:
            return unavailable if is_own(id) or self.one_account else None
        pointer = None if owner is None else stored.turns.get(owner)
        if owner is None or pointer is None or pointer.previous is None:
            return _no_item(id) if is_own(id) or stored.turns else None
        answer = pointer.previous
        if await self.find(owner, answer) is None and await self._load(answer) is None:
            return unavailable
        self._memory.note_entry(id, stored.entry)
        return None

    def _is_pointed_to(self, id: str) -> bool:
        """Tell whether the store gets pointers to items with such ids.

        A single process does without those of the provider's items: it rarely needs them, and
        to write one takes 75 us of CPU.
        """
        return self.shared or is_own(id)

    async def _load_soon(self, owner: str | None, id: str) -> _StoredTurns | None:
        """Load a caller's turn. If it may be written soon, wait for it a moment."""
        stored = await self._load(id)
        for wait_s in WAITS_S if is_own(id) else ():
            if stored is None or owner in stored.turns:
                break
            await asyncio.sleep(wait_s)
            stored = await self._load(id)
        return stored

    async def _load(self, id: str) -> _StoredTurns | None:
        """Return the store's turns with an id; None: the store has failed."""
        assert self.store is not None
        try:
            entry = await self.store.find(_exact(id))
        except StoreError as error:
            self._note(error)
            return None
        if entry is None or not isinstance(entry.answer, RawResponse):
            return _NOT_STORED
        try:
            return _StoredTurns(entry.id, _read_turns(entry.answer.body))
        except msgspec.DecodeError:
            return _NOT_STORED

    def reread(self, entries: Iterable[str] | None) -> None:
        """Read turns again whose entries the store has deleted or replaced; None: perhaps any."""
        self._changes += 1
        self._reread_soon(self._memory.ids_of(entries))
        if entries is None:
            self._wait_again()

    def _note_entry(self, id: str, entry: str, changes: int) -> None:
        """Note where the store has the turns with an id; ``changes``: the value before it did."""
        self._memory.note_entry(id, entry)
        if changes != self._changes:
            self._reread_soon((id,))

    def _reread_soon(self, ids: Iterable[str]) -> None:
        self._to_reread.update(dict.fromkeys(ids))
        if self._to_reread and (self._reader is None or self._reader.done()):
            self._reader = self.spawn(self._reread)

    async def _reread(self) -> None:
        while self._to_reread:
            id = next(iter(self._to_reread))
            del self._to_reread[id]
            changes = self._changes
            stored = await self._load(id)
            if stored is None:
                continue  # the store fails, so nobody knows whether the turns are gone
            for owner in self._memory.holders(id):
                known, turn = self._memory.find(owner, id), stored.turns.get(owner)
                if turn is None:
                    self._memory.drop(owner, id)
                elif known is not None and known.order < turn.order:  # else it waits to be written
                    self._memory.put(owner, turn)
            if stored.turns:
                self._note_entry(id, stored.entry, changes)

    async def _write(self, store: Store) -> None:
        """Write the turns that wait, in their order, until none is left."""
        loop = asyncio.get_running_loop()
        while self._unread or self._waiting:
            await asyncio.sleep(self._next_write - loop.time())
            self._next_write = loop.time() + WRITE_EVERY_S
            self._parse_unread()
            waiting, self._waiting = self._waiting, []
            merged = await self._merge(waiting)
            is_written = await self._append(store, merged)
            for each in waiting:
                each.written.set_result(is_written and each.turn.id in merged)
            failed = [each for each in waiting if not each.written.result()]
            turns = [(each.owner, each.turn.id) for each in failed if not each.turn.is_pointer]
            self._unwritten.update(dict.fromkeys(turns))
            while len(self._unwritten) > self.limits.max_answers:
                del self._unwritten[next(iter(self._unwritten))]
            if not failed:
                self._wait_again()

    def _wait_again(self) -> None:
        """Let turns wait that the store did not take, because it works again."""
        for owner, id in [*self._unwritten][:MOST_AT_ONCE]:
            del self._unwritten[owner, id]
            turn = self._memory.find(owner, id)
            if turn is not None:
                # Meanwhile other callers may have got a turn with this id, so it is not fresh.
                self._wait(owner, turn, fresh=False)

    def _wait(self, owner: str, turn: KeptTurn, *, fresh: bool) -> None:
        future = asyncio.get_running_loop().create_future
        pointers = [_pointer(item, turn) for item in turn.items if self._is_pointed_to(item)]
        self._waiting += [_WaitingTurn(owner, each, fresh, future()) for each in (*pointers, turn)]
        self._write_soon()

    async def _append(self, store: Store, merged: dict[str, _TurnsByCaller]) -> bool:
        """Write turns by their ids; return whether the store has them."""
        if not merged:
            return False  # a write of nothing would look like a store that can write again
        puts = [self._put(id, turns) for id, turns in merged.items()]
        changes = self._changes
        try:
            await store.append(puts)
        except StoreError as error:
            self._note(error)
            return False
        for id, put in zip(merged, puts, strict=True):
            self._note_entry(id, put.entry.id, changes)
        return True

    async def _merge(self, waiting: Sequence[_WaitingTurn]) -> dict[str, _TurnsByCaller]:
        """Add turns to those that the store has under their ids; return the result by id.

        An id is left out if the store fails to say which turns it has: the new turn alone would
        replace the turns of other callers.
        """
        merged: dict[str, _TurnsByCaller] = {}
        is_readable = True
        for owner, turn, fresh, _ in waiting:
            if turn.id not in merged and fresh:
                merged[turn.id] = {}
            elif turn.id not in merged and is_readable:  # each failure may take a timeout
                stored = await self._load(turn.id)
                is_readable = stored is not None
                if stored is not None:
                    merged[turn.id] = dict(stored.turns)
            if turn.id in merged:
                merged[turn.id][owner] = turn
        return merged

    def _put(self, id: str, turns: _TurnsByCaller) -> Put:
        turn = next(reversed(turns.values()))
        exact = _exact(id)
        entry = Entry(
            id=new_ulid(self.clock),
            key=CacheKey(scope="", partition=exact, exact=exact),
            answer=RawResponse(headers=(), body=msgspec.msgpack.encode(turns)),
            origin=Origin(model="", upstream=turn.upstream, ttft_s=0.0, total_s=0.0),
            created=turn.created,
            expires=turn.created + self.limits.ttl_s,
            tags=(TAG,),
        )
        return Put(entry=entry, vector=None)

    def _note(self, error: StoreError) -> None:
        self.observer.notify(StageFailed.of("conversations", error))


class _StoredTurns(NamedTuple):
    """The turns with one id in the store."""

    entry: str
    """The id of their entry."""
    turns: _TurnsByCaller


_NOT_STORED = _StoredTurns("", {})


class _NamedTurns(NamedTuple):
    """The kept turns and items to which a request refers."""

    turns: tuple[KeptTurn, ...] = ()
    """The turns before it."""
    items: tuple[tuple[msgspec.Raw, KeptTurn | None], ...] = ()
    """The request's own items, and the turns of the items that it refers to."""


_NOTHING = _NamedTurns()


class _Unread(NamedTuple):
    """An answer in the form in which it was sent."""

    chain: Chain
    owner: str
    source: AnswerSource
    answer: bytes
    """The whole body, or the terminal event of a stream (``streamed``)."""
    streamed: bool
    sent: float


class _WaitingTurn(NamedTuple):
    """A turn that is to be written to the store."""

    owner: str
    turn: KeptTurn
    fresh: bool
    """As in ``Conversations.keep``: no other caller can have a turn with this id."""
    written: asyncio.Future[bool]
    """Whether the store has it."""


class AnswerSource(NamedTuple):
    """Where an answer came from."""

    upstream: str
    asked: bool
    """Whether the upstream was asked for this request, and not for another one."""
    composed: bool
    """Whether several calls made it, so that no provider has stored it whole."""

    @property
    def made_it(self) -> bool:
        """Whether the upstream gave this whole answer to this request."""
        return self.asked and not self.composed


@dataclass(eq=False, repr=False)
class Chain:
    """A request of the Responses API, with the turns that it follows. It also keeps the answer."""

    conversations: Conversations
    body: bytes
    """The body as the client sent it."""
    asked: ChainedRequest | None
    """The request as it was read. None: it is read with the answer (``reads_later``), or the answer
    cannot be kept, because the request has references that only the provider knows."""
    named: _NamedTurns
    _: KW_ONLY
    reads_later: bool = False
    """The request refers to nothing. So it need not be read before its answer is."""
    _accounts: set[str] = field(default_factory=set)
    """The upstreams that gave the answers to which the request refers."""
    _stored: bool = True
    """Whether they have stored all of these answers."""

    def __post_init__(self) -> None:
        self.whole = self.body
        """The body with everything written out, which any upstream accepts. The cache key is made
        from this body, so equal conversations have equal keys, whatever ids they use."""
        if self.reads_later:
            return
        named = self.named
        turns = (*named.turns, *[turn for _, turn in named.items if turn is not None])
        if turns:
            self._accounts = {turn.upstream for turn in turns}
            self._stored = all(turn.own for turn in turns)
            self.whole = self._written(same_account=False)

    @property
    def previous(self) -> str | None:
        """The id that the request names as the answer before."""
        return None if self.asked is None else self.asked.previous

    @property
    def refers(self) -> bool:
        """Whether the request refers to something that is kept here."""
        return bool(self._accounts)

    def sent(self, upstreams: frozenset[str]) -> bytes:
        """Return the body for these upstreams.

        If there is only one upstream and it has stored the whole conversation, it gets the request
        unchanged.
        """
        if len(self._accounts) != 1 or self._accounts != upstreams:
            return self.whole
        return self.body if self._stored else self._written(same_account=True)

    def _written(self, *, same_account: bool) -> bytes:
        items: list[msgspec.Raw] = []
        for turn in self.named.turns:
            items += portable(read_raws(turn.input), from_model=False, same_account=same_account)
            answer = read_answer(turn.response)
            output = () if answer is None else answer.output
            items += portable(output, from_model=True, same_account=same_account)
        for raw, source in self.named.items:
            if source is None:
                items.append(raw)
            else:
                items += portable((raw,), from_model=True, same_account=same_account)
        return write_whole(self.body, items)

    def keeping(self, send: Send, owner: str, source: Callable[[], AnswerSource]) -> Send:
        """Return a ``send`` that keeps a whole answer before it sends the last bytes.

        At that moment ``source`` is called.
        """
        if not owner or not (self.reads_later or (self.asked and self.asked.keeps)):
            return send
        copy = _AnswerCopy(self.conversations.most_bytes)

        async def sending(message: Message) -> None:
            answer = copy.take(message)
            if answer is not None:
                self._keep(source(), owner, answer, streamed=copy.is_stream)
            await send(message)

        return sending

    def _keep(self, source: AnswerSource, owner: str, answer: bytes, *, streamed: bool) -> None:
        kept = self.conversations
        kept.keep_unread(_Unread(self, owner, source, answer, streamed, kept.clock()))

    def turn(self, unread: _Unread) -> KeptTurn | None:
        """Parse an answer; None if it is not to be kept."""
        response = response_in(unread.answer) if unread.streamed else unread.answer
        answer = None if response is None else read_answer(response)
        asked = read_asked(self.body) if self.reads_later else self.asked
        if response is None or answer is None or asked is None or not asked.keeps:
            return None
        items = asked.items if self.reads_later else [raw for raw, _ in self.named.items]
        # Some servers, such as Ollama, store nothing, whatever the request says.
        stored = answer.store is not False and not is_own(answer.id)
        return KeptTurn(
            id=answer.id,
            previous=asked.previous,
            input=bytes(as_array(items)),
            response=response,
            created=unread.sent,
            upstream=unread.source.upstream,
            own=stored and unread.source.made_it,
            items=tuple([id for id in item_ids(answer) if id is not None]),
        )


class _AnswerCopy:
    """A copy of an answer that is being sent, without answers of more than ``most_bytes``."""

    def __init__(self, most_bytes: int) -> None:
        self.is_stream = False
        self._most_bytes = most_bytes
        self._tail: StreamTail | None = None
        """Finds the terminal event of a stream, which has the whole answer."""
        self._parts: list[bytes] | None = None
        """The body so far. If this and ``_tail`` are None, nothing of the answer is kept."""
        self._size = 0

    def take(self, message: Message) -> bytes | None:
        """Take a message to the client. Return the body or the terminal event when it is whole."""
        if message["type"] == "http.response.start":
            self._begin(message)
            return None
        data: bytes = message.get("body", b"")
        if self._tail is not None:
            found = self._tail.feed(data)
            self._tail = self._tail if found is None else None
            return found
        if self._parts is None:
            return None
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._most_bytes:
            self._parts = None
        elif not message.get("more_body", False):
            return b"".join(self._parts)
        return None

    def _begin(self, message: Message) -> None:
        self.is_stream, is_plain = form_of_body(tuple(message["headers"]))
        if message["status"] == 200 and is_plain:
            self._tail = StreamTail(self._most_bytes) if self.is_stream else None
            self._parts = None if self.is_stream else []


def no_previous(id: str) -> UnknownReference:
    """Return the API's error for an answer that the caller does not have."""
    return UnknownReference(
        f"Previous response with id '{id}' not found.",
        status=400,
        param="previous_response_id",
        code="previous_response_not_found",
    )


def _no_item(id: str) -> UnknownReference:
    return UnknownReference(f"Item with id '{id}' not found.", status=404, param="input")


def _pointer(item: str, turn: KeptTurn) -> KeptTurn:
    """Return the empty turn from which the store tells that an item is in this turn."""
    return msgspec.structs.replace(
        turn, id=item, previous=turn.id, input=b"[]", response=b"", items=()
    )


def _exact(id: str) -> str:
    return sha256(b"headstart conversation\0" + id.encode()).hexdigest()

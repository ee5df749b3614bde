"""Kept answers: bounds, owners, lifetimes, and a store that fails."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.dialects.responses_chains import OWN
from headstart.embeddings.stores.memory import MemoryStore
from headstart.errors import AnswersUnavailable, StoreError, UnknownReference
from headstart.middleware.conversations import (
    MOST_UNREAD,
    MOST_UNREAD_BYTES,
    AnswerSource,
    Conversations,
)
from headstart.middleware.kept_turns import KeptTurn
from headstart.observe import StageFailed
from headstart.settings import ConversationSettings
from headstart.types import Delete
from support.fakes import FaultyStore, Recorder

if TYPE_CHECKING:
    from headstart.interfaces import Store
    from headstart.middleware.concurrency import Supervisor

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


def memory(now: float = 1000.0) -> MemoryStore:
    return MemoryStore(clock=lambda: now)


class Kept:
    """Conversations whose clock stands."""

    def __init__(
        self,
        supervisor: Supervisor,
        store: Store | None = None,
        *,
        one_account: bool = False,
        shared: bool = True,
        **limits: Any,
    ) -> None:
        self.now = 1000.0
        self.observer = Recorder()
        self.conversations = Conversations(
            ConversationSettings(**limits),
            clock=lambda: self.now,
            store=store,
            spawn=supervisor.spawn,
            observer=self.observer,
            one_account=one_account,
            shared=shared,
        )

    def keep(self, owner: str, id: str, previous: str | None = None, **fields: Any) -> KeptTurn:
        said = {"id": f"msg_{id}", "type": "message", "role": "assistant", "content": id}
        response = {"id": id, "status": "completed", "output": [said]}
        asked = [{"role": "user", "content": f"about {id}"}]
        described: dict[str, Any] = {
            "id": id,
            "previous": previous,
            "input": json.dumps(asked).encode(),
            "response": json.dumps(response).encode(),
            "created": self.now,
            "upstream": "up",
            "own": False,
            "items": (f"msg_{id}",),
        }
        turn = KeptTurn(**(described | fields))
        self.conversations.keep(owner, turn)
        return turn

    async def send(
        self, owner: str, id: str, text: str = "hello", *, stream: bool = False, asked: str = ""
    ) -> None:
        """Send an answer through the tap that keeps it."""
        said = [{"id": f"msg_{id}", "type": "message", "role": "assistant", "content": text}]
        response = {"id": id, "status": "completed", "output": said}
        body, kind = json.dumps(response).encode(), b"application/json"
        if stream:
            body, kind = b'data: {"type":"response.completed","response":%b}\n\n' % body, EVENTS
        chain = self.conversations.begin(json.dumps({"input": f"about {id}{asked}"}).encode())
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        keeping = chain.keeping(send, owner, lambda: AnswerSource("up", asked=True, composed=False))
        headers = [(b"content-type", kind)]
        await keeping({"type": "http.response.start", "status": 200, "headers": headers})
        await keeping({"type": "http.response.body", "body": body, "more_body": False})
        assert sent[-1]["body"] == body

    async def written_out(self, owner: str, item: str) -> list[str] | None:
        """Return the texts for which a reference to an item stands; None: the provider knows."""
        chain = await self.conversations.open(owner, reference(item))
        assert chain is not None
        if not chain.refers:
            return None
        return [each["content"] for each in json.loads(chain.whole)["input"]]

    async def has(self, owner: str, id: str) -> bool:
        return await self.conversations.find(owner, id) is not None


EVENTS = b"text/event-stream"


def reference(item: str) -> bytes:
    return json.dumps({"input": [{"type": "item_reference", "id": item}]}).encode()


def response_with(item: str) -> bytes:
    said = {"id": item, "type": "message", "role": "assistant", "content": "hello"}
    return json.dumps({"id": "r1", "status": "completed", "output": [said]}).encode()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_there_as_soon_as_it_was_sent(
    supervisor: Supervisor, stream: bool
) -> None:
    kept = Kept(supervisor)
    await kept.send("a", "resp_1", stream=stream)
    turn = await kept.conversations.find("a", "resp_1")
    assert turn is not None
    assert turn.own
    assert json.loads(turn.input) == [{"role": "user", "content": "about resp_1"}]
    assert await kept.written_out("a", "msg_resp_1") == ["hello"]
    await kept.send("a", "resp_2", stream=stream)
    assert kept.conversations.holds("a", "resp_2")
    await kept.send("a", "resp_3", stream=stream)
    assert not await kept.conversations.may_ask_provider("b", "resp_3")


async def test_answers_that_nobody_names_are_bounded_like_all_others(
    supervisor: Supervisor,
) -> None:
    kept = Kept(supervisor, max_answers=40)
    for number in range(MOST_UNREAD):
        await kept.send("a", f"resp_{number}")
    assert len(kept.conversations._unread) == 0
    assert kept.conversations._memory._count == 10
    await kept.send("a", "long", "x" * MOST_UNREAD_BYTES)
    assert len(kept.conversations._unread) == 0
    await kept.send("a", "asked", asked="x" * MOST_UNREAD_BYTES)
    assert len(kept.conversations._unread) == 0


async def test_the_store_gets_the_answers_of_a_moment_at_once(supervisor: Supervisor) -> None:
    store = FaultyStore()
    kept = Kept(supervisor, store)
    for number in range(20):
        await kept.send("a", f"resp_{number}")
    await kept.conversations.aclose()
    assert store.calls.count("append") == 1


async def test_one_caller_has_at_most_a_quarter_and_takes_nothing_from_others(
    supervisor: Supervisor,
) -> None:
    kept = Kept(supervisor, max_answers=8)
    kept.keep("a", "old")
    for number in range(20):
        kept.keep("b", f"b{number}")
    assert await kept.has("a", "old")
    assert [await kept.has("b", f"b{number}") for number in (17, 18, 19)] == [False, True, True]


async def test_above_the_bound_the_caller_that_was_silent_longest_loses_first(
    supervisor: Supervisor,
) -> None:
    kept = Kept(supervisor, max_answers=4)
    for owner in "abcd":
        kept.keep(owner, "x")
    kept.keep("a", "y")
    kept.keep("e", "x")
    assert [await kept.has(owner, "x") for owner in "bcde"] == [False, True, True, True]
    assert await kept.has("a", "y")


async def test_bytes_are_bounded_and_an_answer_beyond_its_share_is_not_kept(
    supervisor: Supervisor,
) -> None:
    kept = Kept(supervisor, max_bytes=40_000)
    kept.keep("a", "huge", response=b"x" * 10_001)
    assert not await kept.has("a", "huge")
    for number in range(10):
        kept.keep("a", f"a{number}", input=b"[" + b" " * 3_000 + b"]")
    held = [await kept.has("a", f"a{number}") for number in range(10)]
    assert held[-1]
    assert held.count(True) == 2


async def test_dropped_answers_leave_nothing_behind(supervisor: Supervisor) -> None:
    kept = Kept(supervisor, max_answers=4)
    for number in range(50):
        kept.keep(f"caller{number}", f"r{number}")
    assert await kept.conversations.may_ask_provider(None, "r0")
    assert len(kept.conversations._memory._callers) == 4
    assert len(kept.conversations._memory._holders) == 8


async def test_a_chain_with_a_missing_link_is_refused_unless_its_provider_has_it(
    supervisor: Supervisor,
) -> None:
    kept = Kept(supervisor)
    kept.keep("a", "two", previous="one")
    kept.keep("a", "its", previous="one", own=True)
    with pytest.raises(UnknownReference):
        await kept.conversations.open("a", b'{"model":"m","previous_response_id":"two"}')
    body = b'{"model":"m","previous_response_id":"its"}'
    assert await kept.conversations.open("a", body) is None


async def test_a_chain_that_bites_its_tail_ends(supervisor: Supervisor) -> None:
    kept = Kept(supervisor, max_answers=40)
    kept.keep("a", "one", previous="two")
    kept.keep("a", "two", previous="one")
    assert await kept.conversations.turns_up_to("a", "one") is None


async def test_an_unknown_caller_has_no_answers_of_ours(supervisor: Supervisor) -> None:
    kept = Kept(supervisor)
    body = b'{"model":"m","previous_response_id":"resp_hs1"}'
    with pytest.raises(UnknownReference):
        await kept.conversations.open(None, body)
    assert await kept.conversations.open(None, body.replace(b"resp_hs1", b"resp_1")) is None


async def test_an_unknown_caller_cannot_refer_to_the_answers_of_others(
    supervisor: Supervisor,
) -> None:
    kept = Kept(supervisor)
    kept.keep("a", "resp_1", own=True)
    for body in (
        b'{"model":"m","previous_response_id":"resp_1"}',
        b'{"model":"m","input":[{"type":"item_reference","id":"msg_resp_1"}]}',
    ):
        with pytest.raises(UnknownReference):
            await kept.conversations.open(None, body)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_providers_id_that_is_too_old_here_goes_up(
    supervisor: Supervisor, durable: bool
) -> None:
    kept = Kept(supervisor, memory() if durable else None, ttl_s=100)
    kept.keep("a", "resp_1", own=True)
    await kept.conversations.aclose()
    kept.now += 101
    previous = b'{"model":"m","previous_response_id":"resp_1"}'
    reference = b'{"model":"m","input":[{"type":"item_reference","id":"msg_resp_1"}]}'
    assert await kept.conversations.open("a", previous) is None
    chain = await kept.conversations.open("a", reference)
    assert chain is not None
    assert not chain.refers
    for body in (previous, reference):
        with pytest.raises(UnknownReference):
            await kept.conversations.open("b", body)


async def test_the_last_answer_under_an_id_counts(supervisor: Supervisor) -> None:
    kept = Kept(supervisor)
    first = kept.keep("a", "r1")
    last = msgspec.structs.replace(first, input=b'[{"role":"user","content":"else"}]')
    kept.conversations.keep("a", last, fresh=True)
    assert await kept.conversations.find("a", "r1") == last


class FailingStore(MemoryStore):
    async def find(self, exact: str) -> Any:
        raise StoreError("away")

    async def append(self, records: Any) -> str:
        raise StoreError("away")


async def test_a_store_that_fails_costs_only_its_own_answers(supervisor: Supervisor) -> None:
    kept = Kept(supervisor, FailingStore())
    kept.keep("a", "one")
    await kept.conversations.aclose()
    assert await kept.has("a", "one")
    assert not await kept.has("a", "other")
    failed = [seen for seen in kept.observer.seen if isinstance(seen, StageFailed)]
    assert {seen.stage for seen in failed} == {"conversations"}
    assert len(failed) == 2


async def test_nothing_is_written_if_the_store_showed_nothing(supervisor: Supervisor) -> None:
    store = FaultyStore()
    kept = Kept(supervisor, store)
    store.failing = {"find"}
    kept.keep("a", "r1")
    await kept.conversations.aclose()
    assert "find" in store.calls
    assert "append" not in store.calls  # its success would end the report of a failed write


class SwitchedStore(MemoryStore):
    """A store that cannot always be read or written."""

    is_readable = True
    is_writable = True

    async def find(self, exact: str) -> Any:
        if not self.is_readable:
            raise StoreError("away")
        return await super().find(exact)

    async def append(self, records: Any) -> str:
        if not self.is_writable:
            raise StoreError("full")
        return await super().append(records)


@pytest.mark.parametrize("owner", ["b", None])
async def test_no_provider_with_one_account_is_asked_while_the_holder_of_an_id_is_unknown(
    supervisor: Supervisor, owner: str | None
) -> None:
    store = SwitchedStore(clock=lambda: 1000.0)
    first = Kept(supervisor, store)
    first.keep("a", "r1", own=True)
    await first.conversations.aclose()
    restarted = Kept(supervisor, store, one_account=True)
    body = b'{"input": "and then?", "previous_response_id": "r1"}'
    store.is_readable = False
    with pytest.raises(AnswersUnavailable, match=r"'r1'.*cache\.store"):
        await restarted.conversations.open(owner, body)
    store.is_readable = True
    with pytest.raises(UnknownReference):
        await restarted.conversations.open(owner, body)


async def test_a_provider_that_tells_callers_apart_decides_while_the_store_fails(
    supervisor: Supervisor,
) -> None:
    kept = Kept(supervisor, FailingStore())
    assert await kept.conversations.may_ask_provider("a", "r1")
    with pytest.raises(AnswersUnavailable):  # no provider knows an id of ours
        await kept.conversations.may_ask_provider("a", f"{OWN}1")


async def test_a_conversation_is_not_called_gone_while_the_store_fails(
    supervisor: Supervisor,
) -> None:
    store = SwitchedStore(clock=lambda: 1000.0)
    first = Kept(supervisor, store)
    first.keep("a", "r1")
    first.keep("a", "r2", previous="r1")
    await first.conversations.aclose()
    restarted = Kept(supervisor, store)
    assert await restarted.has("a", "r2")  # now in memory, without the turn before
    body = b'{"input": "and then?", "previous_response_id": "r2"}'
    store.is_readable = False
    with pytest.raises(AnswersUnavailable, match=r"before 'r2'.*cache\.store"):
        await restarted.conversations.open("a", body)
    store.is_readable = True
    assert await restarted.conversations.open("a", body) is not None


async def test_a_turn_never_replaces_turns_that_the_store_failed_to_show(
    supervisor: Supervisor,
) -> None:
    store = SwitchedStore(clock=lambda: 1000.0)
    kept = Kept(supervisor, store)
    first = kept.keep("a", "r1")
    await kept.conversations.aclose()
    store.is_readable = False
    kept.keep("b", "r1")
    await kept.conversations.aclose()
    store.is_readable = True
    other = Kept(supervisor, store)
    assert await other.conversations.find("a", "r1") == first
    assert not await other.has("b", "r1")


@pytest.mark.parametrize("fault", ["is_readable", "is_writable"])
async def test_an_answer_is_not_called_deleted_while_the_store_keeps_it(
    supervisor: Supervisor, fault: str
) -> None:
    store = SwitchedStore(clock=lambda: 1000.0)
    kept = Kept(supervisor, store)
    turn = kept.keep("a", "r1")
    await kept.conversations.aclose()
    setattr(store, fault, False)
    with pytest.raises(AnswersUnavailable, match=r"'r1'.*cache\.store"):
        await kept.conversations.delete("a", turn)
    assert await kept.conversations.find("a", "r1") == turn
    setattr(store, fault, True)
    await kept.conversations.delete("a", turn)
    found = await Kept(supervisor, store).conversations.find("a", "r1")
    assert found is not None
    assert found.deleted


async def test_another_process_finds_what_one_has_kept(supervisor: Supervisor) -> None:
    store = memory()
    one, other = Kept(supervisor, store), Kept(supervisor, store)
    first = one.keep("a", "r1")
    one.keep("b", "r1")
    two = one.keep("a", "r2", previous="r1")
    await one.conversations.aclose()
    assert await other.conversations.turns_up_to("a", "r2") == [first, two]
    assert not await other.conversations.may_ask_provider("b", "r2")
    await one.conversations.delete("a", first)
    await one.conversations.aclose()
    third = Kept(supervisor, store)
    found = await third.conversations.find("a", "r1")
    assert found is not None
    assert found.deleted
    assert found.response == b""
    theirs = await third.conversations.find("b", "r1")
    assert theirs is not None
    assert not theirs.deleted


OWN_ITEM = "msg_hs" + "0" * 34


@pytest.mark.parametrize("item", [OWN_ITEM, "msg_theirs"], ids=["ours", "the provider's"])
async def test_another_process_finds_the_items_of_its_callers(
    supervisor: Supervisor, item: str
) -> None:
    store = memory()
    one = Kept(supervisor, store)
    turn = one.keep("a", "r1", items=(item,), response=response_with(item))
    await one.conversations.aclose()
    assert await Kept(supervisor, store).written_out("a", item) == ["hello"]
    stranger = Kept(supervisor, store)
    with pytest.raises(UnknownReference, match="Item with id"):
        await stranger.written_out("b", item)
    with pytest.raises(UnknownReference, match="Item with id"):
        await stranger.conversations.open(None, reference(item))
    one.keep("b", "r2", items=(item,), response=response_with(item))  # an equal answer
    await one.conversations.aclose()
    for owner in ("a", "b"):
        assert await Kept(supervisor, store).written_out(owner, item) == ["hello"]
    await one.conversations.delete("a", turn)
    gone = Kept(supervisor, store)
    if item == OWN_ITEM:
        with pytest.raises(UnknownReference, match="Item with id"):
            await gone.written_out("a", item)
    else:
        assert await gone.written_out("a", item) is None


async def test_a_single_process_writes_no_pointers_to_items_of_the_provider(
    supervisor: Supervisor,
) -> None:
    store = memory()
    kept = Kept(supervisor, store, shared=False)
    kept.keep("a", "r1", items=("msg_theirs",), response=response_with("msg_theirs"))
    await kept.conversations.aclose()
    assert len([entry async for some in store.entries() for entry in some]) == 1
    assert await Kept(supervisor, store, shared=False).written_out("a", "msg_theirs") is None


async def test_the_id_of_an_item_is_not_the_id_of_an_answer(supervisor: Supervisor) -> None:
    store = memory()
    one, other = Kept(supervisor, store), Kept(supervisor, store)
    one.keep("a", "r1", items=(OWN_ITEM,), response=response_with(OWN_ITEM))
    await one.conversations.aclose()
    assert await other.conversations.find("a", OWN_ITEM) is None
    with pytest.raises(UnknownReference, match="Previous response"):
        await other.conversations.open("a", json.dumps({"previous_response_id": OWN_ITEM}).encode())
    assert await other.written_out("a", OWN_ITEM) == ["hello"]


@pytest.mark.parametrize("item", [OWN_ITEM, "msg_theirs"], ids=["ours", "the provider's"])
async def test_an_item_is_not_called_unknown_while_the_store_fails(
    supervisor: Supervisor, item: str
) -> None:
    store = FaultyStore()
    store.failing.add("find")
    kept = Kept(supervisor, store, one_account=True)
    with pytest.raises(AnswersUnavailable, match="cannot be looked up now"):
        await kept.written_out("a", item)
    store.failing.clear()
    if item == OWN_ITEM:
        with pytest.raises(UnknownReference):
            await kept.written_out("a", item)
    else:
        assert await kept.written_out("a", item) is None


async def test_an_id_of_ours_may_be_written_a_moment_after_it_is_named(
    supervisor: Supervisor,
) -> None:
    store = memory()
    one = Kept(supervisor, store)
    id = OWN + "1" * 32
    one.keep("a", "r1")
    await one.conversations.aclose()
    turn = one.keep("a", id, items=(OWN_ITEM,), response=response_with(OWN_ITEM))
    assert await Kept(supervisor, store).conversations.find("a", id) == turn
    assert await Kept(supervisor, store).written_out("a", OWN_ITEM) == ["hello"]


async def test_memory_forgets_nothing_if_the_store_drops_the_pointer_to_an_item(
    supervisor: Supervisor,
) -> None:
    store, used = memory(), set[str]()
    kept = Kept(supervisor, store)
    kept.conversations.touch = used.update
    kept.keep("a", "r1", items=(OWN_ITEM,), response=response_with(OWN_ITEM))
    await kept.conversations.aclose()
    entries = [entry.id async for some in store.entries() for entry in some]
    assert await kept.written_out("a", OWN_ITEM) == ["hello"]
    assert used == set(entries)
    await store.append([Delete(ids=(entries[0],))])
    kept.conversations.reread(entries)
    await supervisor.ended()
    assert await kept.written_out("a", OWN_ITEM) == ["hello"]
    assert await kept.has("a", "r1")


async def test_an_answer_after_a_pause_is_written_at_once(supervisor: Supervisor) -> None:
    store = memory()
    kept, loop = Kept(supervisor, store), asyncio.get_running_loop()
    for _ in range(3):
        began = loop.time()
        await kept.send("a", "r1")
        await kept.conversations.aclose()
        assert loop.time() - began < 0.001
        await asyncio.sleep(1.0)


async def test_a_lifetime_ends_in_memory_and_in_the_store(supervisor: Supervisor) -> None:
    store = memory()
    kept = Kept(supervisor, store, ttl_s=10.0)
    kept.keep("a", "r1")
    await kept.conversations.aclose()
    kept.now += 11
    assert not await kept.has("a", "r1")
    other = Kept(supervisor, store, ttl_s=10.0)
    other.now = kept.now
    assert not await other.has("a", "r1")
    kept.keep("a", "r1")  # an equal call may bring it back
    assert await kept.has("a", "r1")


async def test_many_answers_at_once_are_written_in_their_order(supervisor: Supervisor) -> None:
    store = memory()
    kept = Kept(supervisor, store)
    turns = [kept.keep("a", f"r{number}") for number in range(30)]
    async with asyncio.TaskGroup() as group:
        for turn in turns[:2]:
            group.create_task(kept.conversations.delete("a", turn))
    other = Kept(supervisor, store)
    found = [await other.conversations.find("a", turn.id) for turn in turns]
    assert [each.deleted for each in found if each is not None] == [True, True] + [False] * 28


async def test_turns_that_the_store_refused_are_written_when_it_works_again(
    supervisor: Supervisor,
) -> None:
    store = SwitchedStore(clock=lambda: 1000.0)
    kept = Kept(supervisor, store, max_answers=40)
    store.is_writable = False
    turns = [kept.keep("a", f"r{number}") for number in range(12)]  # memory has room for ten
    await kept.conversations.aclose()
    assert not await Kept(supervisor, store).has("a", "r11")
    store.is_writable = True
    kept.keep("b", "last")
    await kept.conversations.aclose()
    other = Kept(supervisor, store)
    found = [await other.conversations.find("a", turn.id) for turn in turns]
    assert found == [None, None, *turns[2:]]


async def test_turns_are_written_when_the_log_of_the_store_is_read_again(
    supervisor: Supervisor,
) -> None:
    store = SwitchedStore(clock=lambda: 1000.0)
    kept = Kept(supervisor, store)
    store.is_writable = False
    turn = kept.keep("a", "r1")
    await kept.conversations.aclose()
    store.is_writable = True
    kept.conversations.reread(None)
    await kept.conversations.aclose()
    assert await kept.conversations.find("a", "r1") == turn
    assert await Kept(supervisor, store).conversations.find("a", "r1") == turn


async def test_an_answer_that_comes_during_a_write_is_written_after_it(
    supervisor: Supervisor,
) -> None:
    class SlowStore(MemoryStore):
        async def append(self, records: Any) -> str:
            await asyncio.sleep(1.0)
            return await super().append(records)

    store = SlowStore(clock=lambda: 1000.0)
    kept = Kept(supervisor, store)
    await kept.send("a", "r1")
    await asyncio.sleep(0.5)
    await kept.send("a", "r2")
    await kept.conversations.aclose()
    assert await Kept(supervisor, store).has("a", "r2")


async def test_a_turn_in_memory_is_marked_as_used_in_the_store(supervisor: Supervisor) -> None:
    store, used = memory(), set[str]()
    kept = Kept(supervisor, store)
    kept.conversations.touch = used.update
    kept.keep("a", "r1", items=())
    assert await kept.has("a", "r1")
    assert not used
    await kept.conversations.aclose()
    assert await kept.has("a", "r1")
    entries = [entry.id async for some in store.entries() for entry in some]
    assert used == set(entries)


async def test_a_turn_that_waits_to_be_written_is_newer_than_the_stores(
    supervisor: Supervisor,
) -> None:
    store = SwitchedStore(clock=lambda: 1000.0)
    kept = Kept(supervisor, store)
    turn = kept.keep("a", "r1")
    await kept.conversations.aclose()
    async with asyncio.TaskGroup() as group:
        group.create_task(kept.conversations.delete("a", turn))
        await asyncio.sleep(0)
        kept.conversations.reread(None)
    found = await kept.conversations.find("a", "r1")
    assert found is not None
    assert found.deleted


async def test_memory_drops_what_the_store_has_dropped(supervisor: Supervisor) -> None:
    store = memory()
    kept = Kept(supervisor, store)
    kept.keep("a", "r1", items=())
    kept.keep("b", "r2", items=())
    await kept.conversations.aclose()
    entries = [entry.id async for some in store.entries() for entry in some]
    await store.append([Delete(ids=(entries[0],))])
    kept.conversations.reread(entries)
    await supervisor.ended()
    assert [await kept.has("a", "r1"), await kept.has("b", "r2")] == [False, True]
    assert kept.conversations._memory.ids_of(entries) == ["r2"]

"""The promises of every Store (``headstart.interfaces.Store``), tested on all three kinds."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from headstart.embeddings.stores.records import LOG_ROWS
from headstart.errors import StoreError
from headstart.observe import Committed
from headstart.types import Delete, Entry, Logged, Put, StoreStats, VectorRow
from support.booked import served
from support.entries import NOW, SKETCH, entry, full_entry, put, raw_entry, row, vector
from support.stores import Stores, follow, scan

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("stored", [full_entry(), raw_entry()], ids=["completion", "raw"])
async def test_an_entry_is_found_as_it_was_stored(stores: Stores, stored: Entry) -> None:
    store = await stores.open()
    await store.append([Put(entry=stored, vector=vector())])
    assert await store.find(stored.key.exact) == stored
    assert await store.load([stored.id]) == [stored]


async def test_load_keeps_the_order_asked_for(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("a"), put("b")])
    assert await store.load(["b", "unknown", "a", "b"]) == [
        entry("b"),
        None,
        entry("a"),
        entry("b"),
    ]
    assert await store.load([]) == []


async def test_an_unknown_exact_key_is_not_found(stores: Stores) -> None:
    store = await stores.open()
    assert await store.find("unknown") is None


async def test_an_entry_under_the_same_exact_key_replaces_the_old_one(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("old", exact="key")])
    await store.append([put("new", exact="key")])
    assert await store.find("key") == entry("new", exact="key")
    assert await store.load(["old"]) == [None]
    assert await store.stats() == StoreStats(entries=1, bytes=stores.size(put("new", exact="key")))


async def test_an_entry_with_the_same_id_replaces_the_old_one(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("id", exact="before", text="short")])
    await store.append([put("id", exact="after", text="a longer answer")])
    assert await store.find("before") is None
    assert await store.find("after") == entry("id", exact="after", text="a longer answer")
    assert (await store.stats()).entries == 1
    assert await scan(store) == ["id"]


async def test_deleted_entries_are_gone(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("a"), put("b"), put("c")])
    await store.append([Delete(ids=("a", "unknown", "c"))])
    assert await store.load(["a", "b", "c"]) == [None, entry("b"), None]
    assert await store.find("exact-a") is None
    assert await scan(store) == ["b"]
    assert await store.stats() == StoreStats(entries=1, bytes=stores.size(put("b")))


async def test_records_of_one_append_apply_in_order(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("a"), Delete(ids=("a",)), put("b"), put("a", exact="exact-b")])
    assert await store.find("exact-b") == entry("a", exact="exact-b")
    assert await store.load(["b"]) == [None]


async def test_each_stored_entry_is_acknowledged_once(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("a"), Delete(ids=("a",)), put("b")])
    assert stores.committed == [
        Committed(id="a", bytes=stores.size(put("a"))),
        Committed(id="b", bytes=stores.size(put("b"))),
    ]


async def test_an_append_with_an_entry_that_cannot_be_stored_writes_nothing(
    stores: Stores,
) -> None:
    store = await stores.open(max_bytes=2 * stores.size(put("a")))
    with pytest.raises(StoreError, match="max_bytes"):
        await store.append([put("a"), put("b", text="long" * 1000)])
    assert await store.stats() == StoreStats(entries=0, bytes=0)
    assert stores.committed == []


# --- expiry and eviction -----------------------------------------------------------------------


async def test_an_expired_entry_is_never_returned(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("brief", expires=NOW + 60), put("lasting")])
    stores.clock.now = NOW + 59.9
    assert await store.find("exact-brief") is not None
    assert await scan(store) == ["brief", "lasting"]
    stores.clock.now = NOW + 60
    assert await store.find("exact-brief") is None
    assert await store.load(["brief", "lasting"]) == [None, entry("lasting")]
    assert await scan(store) == ["lasting"]


async def test_expired_entries_leave_with_the_next_append(stores: Stores) -> None:
    store = await stores.open()
    cursor = await store.append([put("brief", expires=NOW + 60)])
    await stores.pass_to(store, NOW + 61)
    await store.append([put("next")])
    assert await store.stats() == StoreStats(entries=1, bytes=stores.size(put("next")))
    assert [logged.record for logged in await follow(store, cursor, 2)] == [
        Delete(ids=("brief",)),
        row("next"),
    ]


async def test_a_clock_that_is_ahead_for_a_moment_deletes_nothing(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("brief", expires=NOW + 60)])
    stores.clock.now = NOW + 86_400
    await store.append([put("next", expires=NOW + 90_000)])
    assert await store.find("exact-brief") is None
    await store.append([put("another")])
    stores.clock.now = NOW + 1
    assert await store.find("exact-brief") == entry("brief", expires=NOW + 60)
    await stores.pass_to(store, NOW + 61)
    await store.append([put("last")])
    assert (await store.stats()).entries == 3


async def test_a_start_whose_clock_is_ahead_deletes_nothing(
    stores: Stores, durable_url: str
) -> None:
    assert durable_url == stores.url
    first = await stores.open()
    await first.append([put("brief", expires=NOW + 60)])
    await first.aclose()
    stores.clock.now = NOW + 86_400
    ahead = await stores.open()
    await ahead.append([put("next", expires=NOW + 90_000)])
    assert await ahead.find("exact-brief") is None
    await ahead.aclose()
    stores.clock.now = NOW + 1
    assert await (await stores.open()).find("exact-brief") == entry("brief", expires=NOW + 60)


async def test_a_renewed_entry_outlives_its_old_end(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("id", expires=NOW + 60)])
    await store.append([put("id", expires=NOW + 600)])
    stores.clock.now = NOW + 61
    await store.append([put("other")])
    assert await store.load(["id"]) == [entry("id", expires=NOW + 600)]


async def test_entries_live_for_the_default_time(stores: Stores) -> None:
    store = await stores.open(ttl_s=30)
    await store.append([put("dated", expires=NOW + 90), put("plain")])
    assert await store.load(["plain"]) == [entry("plain", expires=NOW + 30)]
    stores.clock.now = NOW + 31
    assert await store.load(["dated", "plain"]) == [entry("dated", expires=NOW + 90), None]


async def test_the_least_recently_used_entry_leaves_first(stores: Stores) -> None:
    store = await stores.open(max_entries=2)
    for id in ("a", "b"):
        stores.clock.now += 1
        await store.append([put(id)])
    stores.clock.now += 1
    await store.touch(["a", "unknown"])
    stores.clock.now += 1
    await store.append([put("c")])
    assert await store.load(["a", "b", "c"]) == [entry("a"), None, entry("c")]
    assert await store.find("exact-b") is None
    assert await scan(store) == ["a", "c"]
    assert await store.stats() == StoreStats(
        entries=2, bytes=stores.size(put("a")) + stores.size(put("c"))
    )


async def test_entries_leave_until_max_bytes_holds(stores: Stores) -> None:
    large = put("large", text="x" * 1000)
    store = await stores.open(max_bytes=stores.size(large) + stores.size(put("a")))
    for id in ("a", "b", "c"):
        stores.clock.now += 1
        await store.append([put(id)])
    stores.clock.now += 1
    await store.append([large])
    assert await store.load(["a", "b", "c", "large"]) == [None, None, entry("c"), large.entry]
    assert await store.stats() == StoreStats(
        entries=2, bytes=stores.size(large) + stores.size(put("c"))
    )


async def test_one_append_beyond_max_entries_keeps_its_last(stores: Stores) -> None:
    store = await stores.open(max_entries=3)
    await store.append([put(f"{number:02}") for number in range(10)])
    assert await scan(store) == ["07", "08", "09"]


# --- log and scan ------------------------------------------------------------------------------


async def test_scan_yields_vectors_oldest_first_in_batches(stores: Stores) -> None:
    store = await stores.open()
    vectors = {f"{number}": vector(number / 8) for number in range(5)}
    await store.append(
        [Put(entry=entry(id, encoder="e5"), vector=row) for id, row in vectors.items()]
    )
    await store.append([Put(entry=entry("exact only"))])
    await store.append([put("2", exact="exact-2")])
    batches = [rows async for rows in store.scan(2)]
    assert [len(rows) for rows in batches] == [2, 2, 1]
    assert [row.id for rows in batches for row in rows] == ["0", "1", "3", "4", "2"]
    assert batches[0][1] == VectorRow(
        id="1", partitions=("partition",), encoder="e5", vector=vectors["1"]
    )


async def test_followers_do_not_see_an_entry_without_a_vector_until_it_leaves(
    stores: Stores,
) -> None:
    store = await stores.open()
    cursor = await store.cursor()
    await store.append([Put(entry=entry("exact only")), put("a")])
    await store.append([Delete(ids=("exact only",))])
    assert [logged.record for logged in await follow(store, cursor, 2)] == [
        row("a"),
        Delete(ids=("exact only",)),
    ]


async def test_a_follower_sees_all_that_was_appended_in_order(stores: Stores) -> None:
    store = await stores.open()
    beside = await stores.open_beside(store)
    cursor = await beside.cursor()
    await store.append([put("a"), put("b")])
    await beside.append([put("c")])
    end = await store.append([Delete(ids=("c",))])
    await store.append([Put(entry=entry("c"), vector=vector(1.0))])
    for reader in (store, beside):
        logged = await follow(reader, cursor, 4)
        # The first "c" had left again; its id names what is there now.
        assert [seen.record for seen in logged] == [
            row("a"), row("b"), row("c", 1.0), Delete(ids=("c",)),
        ]  # fmt: skip
        assert logged[-1].cursor == end
        (last,) = await follow(reader, end, 1)
        assert last.record == row("c", 1.0)


async def test_a_put_that_has_left_since_is_skipped(stores: Stores) -> None:
    store = await stores.open()
    cursor = await store.cursor()
    await store.append([put("a"), put("b")])
    await store.append([Delete(ids=("a",))])
    assert [logged.record for logged in await follow(store, cursor, 2)] == [
        row("b"),
        Delete(ids=("a",)),
    ]


async def test_replacement_and_eviction_show_in_the_log(stores: Stores) -> None:
    store = await stores.open(max_entries=2)
    await store.append([put("old", exact="key")])
    stores.clock.now += 1
    cursor = await store.append([put("a")])
    stores.clock.now += 1
    await store.append([put("new", exact="key")])
    stores.clock.now += 1
    await store.append([put("b")])
    assert [logged.record for logged in await follow(store, cursor, 4)] == [
        Delete(ids=("old",)),
        row("new"),
        row("b"),
        Delete(ids=("a",)),
    ]


async def test_a_follower_waits_for_what_comes(stores: Stores) -> None:
    store = await stores.open()
    beside = await stores.open_beside(store)
    cursor = await store.cursor()

    async def append_later() -> None:
        await anyio.lowlevel.checkpoint()
        await beside.append([put("later")])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(append_later)
        (logged,) = await follow(store, cursor, 1)
    assert logged.record == row("later")


async def test_following_from_now_on_leaves_out_what_was(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("before")])
    seen: list[Logged] = []

    async def append_until_seen() -> None:
        number = 0
        while not seen:
            number += 1
            await store.append([put(f"after-{number}")])
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(append_until_seen)
        seen += await follow(store, "", 1)
    (logged,) = seen
    assert isinstance(logged.record, VectorRow)
    assert logged.record.id.startswith("after-")


async def test_a_cursor_that_the_log_does_not_reach_is_an_error(stores: Stores) -> None:
    store = await stores.open()
    end = await store.append([put("a")])
    beyond = "9" * 15 + ("-1" if "-" in end else "")
    with pytest.raises(StoreError, match="no longer reaches"):
        await follow(store, beyond, 1)


async def test_appending_nothing_returns_the_cursor(stores: Stores) -> None:
    store = await stores.open()
    end = await store.append([put("a")])
    assert await store.append([]) == end == await store.cursor()


async def test_concurrent_appends_are_all_stored(stores: Stores) -> None:
    store = await stores.open()
    async with anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(store.append, [put(f"{number:03}")])
    assert sorted(await scan(store)) == [f"{number:03}" for number in range(200)]
    assert (await store.stats()).entries == 200


async def test_the_entry_of_a_conversation_is_in_two_partitions(stores: Stores) -> None:
    store = await stores.open()
    cursor = await store.cursor()
    spoken = entry("a")
    spoken = msgspec.structs.replace(
        spoken, key=msgspec.structs.replace(spoken.key, conversation="group")
    )
    await store.append([Put(entry=spoken, vector=vector())])
    expected = msgspec.structs.replace(row("a"), partitions=("group", "partition"))
    assert [rows async for rows in store.scan()] == [[expected]]
    assert [logged.record for logged in await follow(store, cursor, 1)] == [expected]


# --- sketches and amended entries --------------------------------------------------------------


async def test_an_entry_with_a_sketch_alone_is_scanned_and_followed(stores: Stores) -> None:
    store = await stores.open()
    cursor = await store.cursor()
    await store.append([Put(entry=entry("a"), sketch=SKETCH), put("b")])
    sketched = VectorRow(id="a", partitions=("partition",), encoder="", sketch=SKETCH)
    assert [rows async for rows in store.scan()] == [[sketched, row("b")]]
    assert [logged.record for logged in await follow(store, cursor, 2)] == [sketched, row("b")]


async def test_an_amended_entry_keeps_its_place_and_is_seen_again(stores: Stores) -> None:
    store = await stores.open(max_entries=3)
    beside = await stores.open_beside(store)
    for id in ("a", "b", "c"):
        stores.clock.now += 1
        await store.append([Put(entry=entry(id), sketch=SKETCH)])
    cursor = await store.cursor()
    amended = Put(
        entry=entry("a", evidence=b"parse", encoder="e5"),
        vector=vector(),
        sketch=SKETCH,
        amends=True,
    )
    stores.clock.now += 1
    await beside.append([amended])
    now = VectorRow(id="a", partitions=("partition",), encoder="e5", vector=vector(), sketch=SKETCH)
    assert [logged.record for logged in await follow(store, cursor, 1)] == [now]
    assert await store.find("exact-a") == amended.entry
    assert await scan(store) == ["a", "b", "c"]
    sizes = [
        stores.size(amended),
        *(stores.size(Put(entry=entry(id), sketch=SKETCH)) for id in "bc"),
    ]
    assert await store.stats() == StoreStats(entries=3, bytes=sum(sizes))
    assert [seen.id for seen in stores.committed] == ["a", "b", "c"]
    stores.clock.now += 1
    await store.append([put("d")])
    assert await scan(store) == ["b", "c", "d"]
    assert (await store.stats()).bytes == sum(sizes[1:]) + stores.size(put("d"))


async def test_an_entry_may_lose_its_vector_and_its_sketch(stores: Stores) -> None:
    store = await stores.open()
    await store.append([Put(entry=entry("a"), vector=vector(), sketch=SKETCH)])
    await store.append([Put(entry=entry("a"), amends=True)])
    assert await scan(store) == []
    assert await store.stats() == StoreStats(entries=1, bytes=stores.size(Put(entry=entry("a"))))


async def test_an_entry_that_is_gone_is_not_amended(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("old", exact="key"), put("deleted"), put("brief", expires=NOW + 60)])
    await store.append([put("new", exact="key"), Delete(ids=("deleted",))])
    await stores.pass_to(store, NOW + 61)
    before = await store.append([])
    gone = ("old", "key"), ("deleted", ""), ("brief", "")
    late = [Put(entry=entry(id, exact=exact), vector=vector(), amends=True) for id, exact in gone]
    assert await store.append(late) == before
    assert await store.find("key") == entry("new", exact="key")
    assert await scan(store) == ["new"]


async def test_an_amended_entry_still_ends_when_it_should(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("a", expires=NOW + 60)])
    ending = entry("a", expires=NOW + 60, evidence=b"parse")
    await store.append([Put(entry=ending, vector=vector(), amends=True)])
    assert await store.find("exact-a") == ending
    await stores.pass_to(store, NOW + 61)
    await store.append([put("next")])
    assert await store.stats() == StoreStats(entries=1, bytes=stores.size(put("next")))


async def test_a_sketch_is_there_after_reopening(durable_url: str, stores: Stores) -> None:
    store = await stores.open()
    await store.append([Put(entry=entry("a"), vector=vector(), sketch=SKETCH)])
    await store.aclose()
    again = await stores.open()
    assert [rows async for rows in again.scan()] == [[row("a", sketch=SKETCH)]]


# --- secret, books, reopening ------------------------------------------------------------------


async def test_the_secret_is_random_and_the_same_for_all(stores: Stores) -> None:
    store = await stores.open()
    beside = await stores.open_beside(store)
    secret = await store.secret()
    assert len(secret) == 32
    assert secret != bytes(32)
    assert await beside.secret() == secret


async def test_books_keep_their_order_and_begin_where_asked(stores: Stores) -> None:
    store = await stores.open()
    await store.add_to_books([served(id="a", at=NOW), served(id="b", at=NOW + 2)])
    await store.add_to_books([served(id="c", at=NOW + 1)])
    assert [served.id async for served in store.read_books()] == ["a", "b", "c"]
    assert [served async for served in store.read_books(NOW + 1)] == [
        served(id="b", at=NOW + 2),
        served(id="c", at=NOW + 1),
    ]


async def test_long_books_are_read_to_their_end(stores: Stores) -> None:
    store = await stores.open()
    rows = [served(id=str(number), at=NOW + number) for number in range(2500)]
    await store.add_to_books(rows)
    assert [served async for served in store.read_books()] == rows


async def test_stored_entries_are_there_after_reopening(durable_url: str, stores: Stores) -> None:
    store = await stores.open()
    secret = await store.secret()
    await store.append([Put(entry=full_entry(), vector=vector()), put("a")])
    await store.append([Delete(ids=("a",))])
    await store.add_to_books([served(id="r", at=NOW)])
    kept, end = await store.stats(), await store.cursor()
    await store.aclose()
    again = await stores.open()
    assert await again.find("exact-full") == full_entry()
    assert await scan(again) == ["full"]
    assert await again.stats() == kept
    assert await again.cursor() == end
    assert await again.secret() == secret
    assert [served.id async for served in again.read_books()] == ["r"]


async def test_closing_twice_is_harmless(stores: Stores) -> None:
    store = await stores.open()
    await store.aclose()
    await store.aclose()


async def test_a_follower_that_was_overtaken_is_told(stores: Stores) -> None:
    store = await stores.open()
    cursor = await store.cursor()
    rewrites = LOG_ROWS // 2 // 128 + 8  # each logs a deletion and a put; Redis prunes roughly
    for _ in range(128):  # a larger batch takes a busy Redis longer than its timeout
        await store.append([put("a")] * rewrites)
    with pytest.raises(StoreError, match="no longer reaches"):
        await follow(store, cursor, 1)

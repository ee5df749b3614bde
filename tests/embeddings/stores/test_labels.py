"""Labels and documents: the promises of every store, tested on all three kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from headstart.embeddings.stores import records
from headstart.embeddings.stores.memory import MemoryStore
from headstart.embeddings.stores.records import encode
from headstart.errors import StoreError
from support.labels import full_label, label, labelled, last_cursor, read_labels
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.interfaces import Store
    from support.stores import Stores

pytestmark = pytest.mark.anyio


def bound(monkeypatch: pytest.MonkeyPatch, stores: Stores, name: str, count: int) -> None:
    """Lower a bound of the stores that ``stores`` will open."""
    scheme = stores.url.partition(":")[0]
    module = "redis" if scheme.startswith("redis") else scheme
    monkeypatch.setattr(f"headstart.embeddings.stores.{module}.{name}", count)


# --- labels ------------------------------------------------------------------------------------


async def test_labels_come_back_as_they_were_in_order(stores: Stores) -> None:
    store = await stores.open()
    beside = await stores.open_beside(store)
    appended = [full_label(), label("a", same=False), label("b")]
    await store.add_labels(appended[:2])
    await beside.add_labels(appended[2:])
    for reader in (store, beside):
        assert [read for _, read in await reader.read_labels()] == appended


async def test_a_store_without_labels_has_no_last_one(stores: Stores) -> None:
    store = await stores.open()
    await store.add_labels([])
    assert await store.read_labels() == []
    assert await last_cursor(store) == ""


async def test_reading_goes_on_after_any_cursor(stores: Stores) -> None:
    store = await stores.open()
    await store.add_labels([label(f"{number:02}") for number in range(25)])
    whole = await read_labels(store, limit=4)
    assert [read.id for _, read in whole] == [f"{number:02}" for number in range(25)]
    for place, (cursor, _) in enumerate(whole):
        assert await store.read_labels(cursor) == whole[place + 1 :]


async def test_cursors_compare_as_strings(stores: Stores) -> None:
    store = await stores.open()
    seen = [await last_cursor(store)]
    for _ in range(3):  # numbers of one digit and of two follow each other, at once and later
        await store.add_labels([label("a")] * 60)
        seen += [cursor for cursor, _ in await store.read_labels(seen[-1])]
        assert seen[-1] == await last_cursor(store)
    assert seen == sorted(set(seen))


async def test_a_domain_has_its_own_labels_under_the_same_cursors(stores: Stores) -> None:
    store = await stores.open()
    await store.add_labels([label(f"{number}", domain="ab"[number % 2]) for number in range(10)])
    whole = await store.read_labels()
    of_b = await read_labels(store, limit=2, domain="b")
    assert of_b == whole[1::2]
    assert await store.read_labels(whole[4][0], domain="b") == whole[5::2]
    assert await store.read_labels(of_b[-1][0], domain="b") == []
    assert await store.read_labels(domain="unknown") == []


async def test_all_see_one_order_of_what_is_appended_at_once(stores: Stores) -> None:
    writers = [await stores.open()]
    writers += [await stores.open_beside(writers[0]) for _ in range(2)]
    reader = await stores.open_beside(writers[0])
    followed: list[str] = []

    async def write(number: int, store: Store) -> None:
        for turn in range(20):
            await store.add_labels([label(f"{number}-{turn}-{part}") for part in "ab"])
            await anyio.lowlevel.checkpoint()

    async def follow() -> None:
        after = ""
        while len(followed) < 6 * 20 * 2:
            page = await reader.read_labels(after, 7)
            followed.extend(read.id for _, read in page)
            after = page[-1][0] if page else after
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for number, store in enumerate(writers * 2):
                tasks.start_soon(write, number, store)
    assert len(set(followed)) == len(followed)
    for store in writers:
        assert await labelled(store) == followed
    for number in range(6):
        own = [id for id in followed if id.startswith(f"{number}-")]
        assert own == [f"{number}-{turn}-{part}" for turn in range(20) for part in "ab"]


async def test_the_oldest_labels_leave(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, stores, "LABEL_ROWS", 200)
    store = await stores.open()
    await store.add_labels([label("first", domain="early")])
    early = await last_cursor(store)
    for batch in range(3):
        domain = "late" if batch else "early"
        await store.add_labels([label(f"{batch}-{number}", domain=domain) for number in range(150)])
    kept = [f"1-{number}" for number in range(100, 150)] + [f"2-{number}" for number in range(150)]
    assert await labelled(store) == kept
    assert await labelled(store, early) == kept
    assert await labelled(store, domain="late") == kept
    assert await labelled(store, domain="early") == []
    await store.add_labels([label(f"3-{number}", domain="early") for number in range(300)])
    assert await labelled(store) == [f"3-{number}" for number in range(100, 300)]
    assert await labelled(store, domain="early") == await labelled(store)


async def test_labels_that_a_newer_version_wrote_are_passed(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await stores.open()
    await store.add_labels([label("a")])
    with monkeypatch.context() as newer:
        newer.setattr(records, "VERSION", b"\x7f")
        await store.add_labels([label(f"newer-{number}") for number in range(5)])
    assert await labelled(store, limit=2) == ["a"]
    assert await labelled(store, await last_cursor(store)) == []
    await store.add_labels([label("b")])
    for domain in (None, "domain"):
        assert await labelled(store, limit=2, domain=domain) == ["a", "b"]


async def test_labels_of_which_one_cannot_be_stored_are_not_stored(stores: Stores) -> None:
    store = await stores.open()
    with pytest.raises(StoreError, match="cannot be stored"):
        await store.add_labels([label("a"), label("\ud800")])
    assert await store.read_labels() == []


async def test_an_invalid_cursor_is_an_error(stores: Stores) -> None:
    store = await stores.open()
    with pytest.raises(StoreError):
        await store.read_labels("no cursor")


# --- documents ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "", "with spaces/and:signs*", "añ🙂", "nul\x00l", "x" * 300])
@pytest.mark.parametrize("value", [b"", b"\x00\xff"])
async def test_a_document_is_kept_under_any_name(stores: Stores, name: str, value: bytes) -> None:
    store = await stores.open()
    beside = await stores.open_beside(store)
    assert await beside.load_document(name) is None
    await store.save_document(name, value)
    assert await beside.load_document(name) == value
    assert await beside.load_document(name + "x") is None


async def test_a_document_replaces_its_names(stores: Stores) -> None:
    store = await stores.open()
    large = bytes(range(256)) * 16 * 1024
    await store.save_document("a", b"before")
    await store.save_document("b", b"other")
    await store.save_document("a", large)
    assert await store.load_document("a") == large
    assert await store.load_document("b") == b"other"


async def test_the_least_recently_written_documents_leave(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, stores, "DOCUMENTS", 3)
    store = await stores.open()
    for name in "abcadbe":
        await store.save_document(name, name.encode())
    assert [await store.load_document(name) for name in "abcde"] == [None, b"b", None, b"d", b"e"]


async def test_labels_and_documents_are_there_after_reopening(
    durable_url: str, stores: Stores
) -> None:
    store = await stores.open()
    await store.add_labels([full_label(), label("a")])
    await store.save_document("snapshot", b"learned")
    whole, end = await store.read_labels(), await last_cursor(store)
    await store.aclose()
    again = await stores.open()
    assert await again.read_labels() == whole
    assert await last_cursor(again) == end
    assert await again.load_document("snapshot") == b"learned"
    await again.add_labels([label("b")])
    assert await labelled(again, end) == ["b"]


# --- the reader behind all three ---------------------------------------------------------------


async def test_labels_that_cannot_be_read_are_read_once() -> None:
    rows = [("1", encode(label("a"))), ("2", b"\x7f"), ("3", b"\x7f"), ("4", b"\x7f")]
    asked: list[str] = []

    class Newer(MemoryStore):
        async def _label_rows(
            self, after: str, limit: int, domain: str | None
        ) -> Sequence[tuple[str, bytes]]:
            asked.append(after)
            return [row for row in rows if row[0] > after][:limit]

    store = Newer()
    assert [cursor for cursor, _ in await store.read_labels("", 2)] == ["1"]
    for _ in range(3):
        assert await store.read_labels("1", 2) == []
    assert asked == ["", "1", "3", "4", "4", "4"]
    assert await store.read_labels("1", 2, domain="a domain") == []
    rows.append(("5", encode(label("b"))))
    assert await store.read_labels("1", 2, domain="a domain") == [("5", label("b"))]
    assert await store.read_labels("1", 2) == [("5", label("b"))]

"""Files that an earlier version of the store made."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import astuple

from headstart.embeddings.stores.records import StoreLimits, encode_put
from headstart.embeddings.stores.sqlite import SCHEMA_VERSION, SQLiteStore
from headstart.types import Put
from support.entries import NOW, SKETCH, entry, put, row, vector
from support.labels import label, labelled
from support.stores import Clock, follow, scan

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

SECRET = b"s" * 32
FIRST_SCHEMA = """
PRAGMA application_id = 0x48656164;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, exact TEXT NOT NULL UNIQUE,
    partition TEXT NOT NULL, scope TEXT NOT NULL, encoder TEXT NOT NULL,
    created REAL NOT NULL, expires REAL, used REAL NOT NULL,
    bytes INTEGER NOT NULL, value BLOB NOT NULL);
CREATE INDEX entries_used ON entries (used);
CREATE INDEX entries_expires ON entries (expires) WHERE expires IS NOT NULL;
CREATE TABLE vectors (seq INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE log (seq INTEGER PRIMARY KEY, deleted INTEGER NOT NULL, id TEXT NOT NULL);
INSERT INTO log (deleted, id) VALUES (1, '');
CREATE TABLE books (seq INTEGER PRIMARY KEY, at REAL NOT NULL, value BLOB NOT NULL);
CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TABLE secret (value BLOB NOT NULL);
CREATE TRIGGER entry_stored AFTER INSERT ON entries BEGIN
    UPDATE totals SET entries = entries + 1, bytes = bytes + NEW.bytes;
    INSERT INTO log (deleted, id) VALUES (0, NEW.id);
END;
CREATE TRIGGER entry_gone AFTER DELETE ON entries BEGIN
    UPDATE totals SET entries = entries - 1, bytes = bytes - OLD.bytes;
    DELETE FROM vectors WHERE seq = OLD.seq;
    INSERT INTO log (deleted, id) VALUES (1, OLD.id);
END;
"""


def make_first_schema(path: Path) -> None:
    """Make a file by the statements of schema 1, with the entry ``a`` in it."""
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(FIRST_SCHEMA)
        file.execute("INSERT INTO secret VALUES (?)", (SECRET,))
        sealed = encode_put(put("a"), StoreLimits())
        row = (1, *astuple(sealed)[:7], NOW, sealed.size, sealed.value)
        file.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        file.execute("INSERT INTO vectors VALUES (1, ?)", (sealed.vector,))


async def open_store(path: Path) -> SQLiteStore:
    store = SQLiteStore(path, clock=Clock())
    await store.open()
    return store


def schema_version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as file:
        (version,) = file.execute("PRAGMA user_version").fetchone()
    return int(version)


async def test_a_file_of_the_first_schema_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make_first_schema(path)
    for life in ("first", "second"):
        store = await open_store(path)
        assert await store.find("exact-a") == entry("a")
        assert await scan(store) == ["a"]
        assert await store.secret() == SECRET
        await store.add_labels([label(life)])
        await store.save_document("name", life.encode())
        await store.aclose()
        assert schema_version(path) == SCHEMA_VERSION
    store = await open_store(path)
    assert await labelled(store) == ["first", "second"]
    assert await store.load_document("name") == b"second"
    cursor = await store.append([put("b")])
    assert await follow(store, str(int(cursor) - 1), 1)
    before = await store.stats()
    await store.append([Put(entry=entry("a"), vector=vector(), sketch=SKETCH, amends=True)])
    assert [rows async for rows in store.scan()] == [[row("a", sketch=SKETCH), row("b")]]
    assert (await store.stats()).bytes == before.bytes + len(SKETCH.row)
    await store.aclose()


async def test_a_version_set_back_by_an_older_process_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await open_store(path)
    await store.add_labels([label("a")])
    await store.save_document("name", b"value")
    await store.aclose()
    with closing(sqlite3.connect(path)) as older:
        older.execute("PRAGMA user_version = 1")
    again = await open_store(path)
    assert await labelled(again) == ["a"]
    assert await again.load_document("name") == b"value"
    assert schema_version(path) == SCHEMA_VERSION
    await again.aclose()

"""A store and a configuration that an earlier version wrote.

``earlier_store.sql`` is the dump of a SQLite store of schema 2. ``headstart serve`` of commit
6b6657d wrote it, with ``CONFIGURATION`` and a simulated provider, and the four questions below.
Its answers live for a hundred years.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import anyio
import pytest

from headstart.config.loading import load_settings
from headstart.embeddings.stores.sqlite import SCHEMA_VERSION, SQLiteStore
from headstart.middleware.asgi import not_found
from headstart.middleware.observers import Observers
from headstart.mount import build_gateway
from support.patience import PATIENCE_S
from support.proxied import CHAT, Reply, reply_of
from support.serving import serving
from support.stores import Clock

if TYPE_CHECKING:
    from headstart.settings import Settings

pytestmark = pytest.mark.anyio

CONFIGURATION = """
[server]
port = 18090
[cache]
store = "sqlite:///{store}"
ttl_s = 3153600000.0
[[upstream]]
name = "sim"
base_url = "http://127.0.0.1:19091/v1"
"""
REPEATED = "What is the capital of France?"
QUESTIONS = (REPEATED, REPEATED, "How do I reset my password?", "Which planet is the largest?")
REWORDED = "How can I reset my password?"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(Path(__file__).with_name("earlier_store.sql").read_text("utf-8"))
    return path


def row_of(path: Path, query: str) -> tuple[object, ...]:
    with closing(sqlite3.connect(path)) as file:
        row: tuple[object, ...] = file.execute(query).fetchone()
    return row


def configured(path: Path, store: Path) -> Settings:
    path.write_text(CONFIGURATION.format(store=store), "utf-8")
    # Rewordings are hits without labels.
    return load_settings(path, {}, {"cache.match": "static"})


async def ask(session: aiohttp.ClientSession, url: str, question: str) -> Reply:
    body = {
        "model": "gpt-4o-mini",
        "temperature": 0,
        "messages": [{"role": "user", "content": question}],
    }
    headers = {"authorization": "Bearer sk-old"}
    async with session.post(url + CHAT, json=body, headers=headers) as response:
        return await reply_of(response)


async def test_answers_of_an_earlier_version_are_hits(store: Path, tmp_path: Path) -> None:
    settings = await asyncio.to_thread(configured, tmp_path / "headstart.toml", store)
    gateway = build_gateway(settings, not_found, observers=Observers([]))
    async with serving(gateway) as url, aiohttp.ClientSession() as session:
        replies = [await ask(session, url, question) for question in QUESTIONS]
        with anyio.fail_after(PATIENCE_S):
            reworded = await ask(session, url, REWORDED)
            while reworded.status != 200:  # entries of that version get their sketches in idle time
                await anyio.sleep(0.05)
                reworded = await ask(session, url, REWORDED)
        replies.append(reworded)
    details = [reply.verdict.rpartition("=")[2] for reply in replies]
    assert details == [*["exact"] * len(QUESTIONS), "semantic"]
    for reply in replies:
        assert json.loads(reply.body)["choices"][0]["message"]["content"]
    assert replies[-1].headers["x-headstart-similarity"] > "0.9"


async def test_its_books_and_its_secret_are_kept(store: Path) -> None:
    (secret,) = await asyncio.to_thread(row_of, store, "SELECT value FROM secret")
    opened = SQLiteStore(store, clock=Clock())
    await opened.open()
    assert await opened.secret() == secret
    assert len([row async for row in opened.read_books()]) == len(QUESTIONS)
    await opened.aclose()
    assert await asyncio.to_thread(row_of, store, "PRAGMA user_version") == (SCHEMA_VERSION,)

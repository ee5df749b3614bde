"""Conversations of equal meaning: earlier turns decide whether an answer may be shared."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from anyio import to_thread

from headstart.decisions import Lookup, MatchContext, Outcome
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.embeddings.cache import SemanticCache
from headstart.embeddings.encoder import OnnxEncoder
from headstart.embeddings.encoder_worker import EncoderWorker
from headstart.embeddings.index import FaissIndex
from headstart.embeddings.semantic_search import MOST_JUDGED
from headstart.embeddings.sketch import load_sketcher
from headstart.embeddings.stores.memory import MemoryStore
from headstart.embeddings.stores.sqlite import SQLiteStore
from headstart.middleware.observers import Observers
from headstart.policies.key import KeyContext, chat_key, variant
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import ErrorLimit
from headstart.policies.match import StaticMatch, VerifiedMatch
from support.fakes import make_entry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from headstart.interfaces import Store
    from headstart.types import CacheKey

pytestmark = pytest.mark.anyio

CONTEXT = KeyContext(dialect="openai-chat", path=b"/v1/chat/completions", upstream="up")
ERROR_LIMIT = ErrorLimit(max_error=0.05)


def key_of(*texts: str, **fields: Any) -> CacheKey:
    """The key of user and assistant speaking in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    body = {"model": "m", "messages": messages, **fields}
    request = OPENAI_CHAT.parse_request(json.dumps(body).encode())
    return chat_key(request, scope="s", context=CONTEXT)


@asynccontextmanager
async def warmed(
    store: Store | None = None, *, sketches: bool = False, threshold: float | None = None
) -> AsyncIterator[SemanticCache]:
    domain = Domain(ERROR_LIMIT)
    worker = EncoderWorker(await to_thread.run_sync(OnnxEncoder), observer=Observers())
    sketcher = await to_thread.run_sync(load_sketcher) if sketches else None
    learned = VerifiedMatch(ERROR_LIMIT, lambda _: domain)
    cache = SemanticCache(
        MemoryStore() if store is None else store,
        FaissIndex(worker.dimension if sketcher is None else sketcher.dimension),
        worker,
        learned if threshold is None else StaticMatch(threshold),
        sketcher=sketcher,
        hot_bytes=1 << 20,
        outage_ttl_s=30.0,
        max_wait_s=60.0,
        clock=lambda: 1000.0,
        observers=Observers(),
    )
    await cache.open()
    try:
        yield cache
    finally:
        await cache.aclose()
        await worker.aclose()


REWORDED = "So, how much does it cost?"
TENT = ("I need a tent for four people.", "We have the Alpine Dome.", "How much does it cost?")


async def ask(cache: SemanticCache, *texts: str, max_error: float | None = None) -> Lookup:
    return await cache.find_semantic(
        key_of(*texts), lambda _: None, MatchContext(domain="d", max_error=max_error)
    )


async def stored(cache: SemanticCache, *texts: str, id: str = "first") -> None:
    key = key_of(*texts)
    await cache.put(msgspec.structs.replace(make_entry(id), key=key), key.query)


async def crowd(cache: SemanticCache, question: str = REWORDED) -> None:
    """Store the same last question in many other conversations."""
    for number in range(2 * MOST_JUDGED):
        begin = f"I need a stove of type {number}.", f"We have the number {number}."
        await stored(cache, *begin, question, id=f"stove {number}")


async def test_courtesies_case_and_spaces_do_not_part_histories() -> None:
    async with warmed() as cache:
        await stored(cache, *TENT)
        chatty = ("Hello!", "Hi there.", "i need a  tent for four people", *TENT[1:])
        lookup = await ask(cache, *chatty)
    assert lookup.outcome is Outcome.SEMANTIC


@pytest.mark.parametrize(
    "other",
    [
        ("I need a stove for four people.", *TENT[1:]),
        ("I need a tent for six people.", *TENT[1:]),
        ("I don't need a tent for four people.", *TENT[1:]),
        (TENT[0], "We have the Lowland Duo.", TENT[2]),
        (TENT[2],),
    ],
    ids=["thing", "number", "negation", "answer", "no history"],
)
async def test_another_history_never_shares(other: tuple[str, ...]) -> None:
    async with warmed() as cache:
        await stored(cache, *TENT)
        lookup = await ask(cache, *other)
    assert lookup.entry is None
    assert lookup.pair is None


async def test_one_side_may_have_said_more_only_under_a_lax_target() -> None:
    async with warmed() as cache:
        await stored(cache, *TENT)
        more = ("My neighbour likes camping.", "Lovely.", *TENT)
        lax = await ask(cache, *more)
        strict = await ask(cache, *more, max_error=0.01)
    assert lax.outcome is Outcome.SEMANTIC
    assert (strict.entry, strict.veto) == (None, "history")


async def test_orders_need_an_equal_history() -> None:
    async with warmed() as cache:
        await stored(cache, TENT[0], "Shall I order it?", "Yes, order it")
        lookup = await ask(cache, "Hi!", "Hello.", TENT[0], "Shall I order it?", "Yes, order it")
    assert lookup.entry is None


@pytest.mark.parametrize("sketches", [False, True])
async def test_a_crowd_of_other_histories_does_not_hide_an_equal_one(*, sketches: bool) -> None:
    async with warmed(sketches=sketches, threshold=0.8) as cache:
        await stored(cache, *TENT)
        await crowd(cache)
        lookup = await ask(cache, *TENT[:2], REWORDED)
    assert (lookup.outcome, lookup.entry and lookup.entry.id) == (Outcome.SEMANTIC, "first")


async def test_a_crowd_of_other_histories_does_not_change_how_an_equal_one_is_judged() -> None:
    async with warmed() as cache:
        await stored(cache, *TENT)
        alone = await ask(cache, *TENT[:2], REWORDED)
        await crowd(cache)
        crowded = await ask(cache, *TENT[:2], REWORDED)
    assert alone.pair is not None
    assert crowded.pair is not None
    assert crowded.pair.verdict == alone.pair.verdict


async def test_a_vetoed_entry_of_an_equal_history_is_reported_and_gives_a_label() -> None:
    asked = "How much does it cost for 3 nights?"
    async with warmed() as cache:
        await stored(cache, *TENT[:2], "How much does it cost for 2 nights?")
        await crowd(cache, asked)
        lookup = await ask(cache, *TENT[:2], asked)
    assert (lookup.veto, lookup.pair and lookup.pair.entry.id) == ("number", "first")


async def test_an_entry_of_an_equal_history_that_is_refused_is_the_one_that_is_reported() -> None:
    async with warmed() as cache:
        await stored(cache, *TENT)
        await crowd(cache)
        lookup = await ask(cache, *TENT[:2], "And how much would it cost?")
    assert (lookup.reason, lookup.veto) == ("below-threshold", "threshold")
    assert lookup.similarity is not None
    assert lookup.similarity < 0.95


async def test_an_equal_history_is_found_after_a_restart_and_not_after_its_deletion(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cache.db"
    async with warmed(SQLiteStore(path), sketches=True, threshold=0.8) as cache:
        await stored(cache, *TENT)
        await crowd(cache)
    async with warmed(SQLiteStore(path), sketches=True, threshold=0.8) as cache:
        found = await ask(cache, *TENT[:2], REWORDED)
        await cache.invalidate(["first"])
        gone = await ask(cache, *TENT[:2], REWORDED)
    assert found.entry is not None
    assert (gone.entry, gone.pair) == (None, None)


async def test_an_order_and_a_question_meet_in_an_equal_history_alone() -> None:
    order = "Tell me how much it costs."
    assert key_of(*TENT[:2], order).conversation is None
    async with warmed() as cache:
        await stored(cache, *TENT)
        equal = await ask(cache, *TENT[:2], order)
        other = await ask(cache, "I need a stove.", TENT[1], order)
    assert equal.pair is not None
    assert (other.pair, other.reason) == (None, "empty-partition")


async def test_system_texts_tools_and_parameters_part_conversations() -> None:
    plain = key_of(*TENT)
    assert plain.conversation is not None
    assert plain.conversation == key_of("Hello!", "Hi.", *TENT).conversation
    others = [key_of(*TENT, temperature=0.5), key_of(*TENT, tools=[{"type": "function"}])]
    assert plain.conversation not in {other.conversation for other in others}
    assert variant(plain, 1).conversation != plain.conversation


async def test_a_single_question_is_no_conversation() -> None:
    key = key_of(TENT[2])
    assert (key.conversation, key.history, key.group) == (None, (), key.partition)

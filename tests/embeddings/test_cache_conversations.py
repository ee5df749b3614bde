"""Conversations of equal meaning: what was said before decides whether an answer may be shared."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from anyio import to_thread

from headstart.decisions import MatchContext, Outcome
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.embeddings.cache import SemanticCache
from headstart.embeddings.encoder import OnnxEncoder
from headstart.embeddings.encoder_worker import EncoderWorker
from headstart.embeddings.index import FaissIndex
from headstart.embeddings.stores.memory import MemoryStore
from headstart.observe import Observers
from headstart.policies.key import KeyContext, chat_key, variant
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import ErrorLimit
from headstart.policies.match import VerifiedMatch
from support.fakes import make_entry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.decisions import Lookup
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
async def warmed() -> AsyncIterator[SemanticCache]:
    domain = Domain(ERROR_LIMIT)
    worker = EncoderWorker(await to_thread.run_sync(OnnxEncoder), observer=Observers())
    cache = SemanticCache(
        MemoryStore(),
        FaissIndex(worker.dimension),
        worker,
        VerifiedMatch(ERROR_LIMIT, lambda _: domain),
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


TENT = ("I need a tent for four people.", "We have the Alpine Dome.", "How much does it cost?")


async def ask(cache: SemanticCache, *texts: str, max_error: float | None = None) -> Lookup:
    return await cache.find_semantic(
        key_of(*texts), lambda _: None, MatchContext(domain="d", max_error=max_error)
    )


async def stored(cache: SemanticCache, *texts: str) -> None:
    key = key_of(*texts)
    await cache.put(msgspec.structs.replace(make_entry("first"), key=key), key.query)


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

"""Chains of Responses by ids, with OpenAI's own client: kept, hit, refused, deleted."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from headstart.config.loading import load_settings
from headstart.embeddings.stores.sqlite import SQLiteStore
from headstart.lab.simulator import Simulator
from headstart.middleware.asgi import not_found
from headstart.middleware.conversations import TAG
from headstart.middleware.observers import Observers
from headstart.mount import build_gateway
from headstart.observe import Served
from headstart.types import Delete
from support.fakes import Recorder
from support.leaks import requests_leave_memory
from support.redis_server import redis_server
from support.responses_provider import ResponsesProvider
from support.serving import serving
from support.simulated import simulated
from support.stores import Clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from support.redis_server import RedisServer

pytestmark = pytest.mark.anyio


class Chained:
    """A gateway before providers, and clients with keys of their own."""

    def __init__(self, url: str, recorder: Recorder, app: Any, stack: Any) -> None:
        self.url, self.recorder, self.app = url, recorder, app
        self._stack = stack
        self._clients: dict[str, openai.AsyncOpenAI] = {}

    def client(self, key: str = "one") -> openai.AsyncOpenAI:
        if key not in self._clients:
            client = openai.AsyncOpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0)
            self._stack.push_async_callback(client.close)
            self._clients[key] = client
        return self._clients[key]

    @property
    def outcomes(self) -> list[str]:
        served = [row for row in self.recorder.seen if isinstance(row, Served)]
        return [row.outcome.value for row in served if row.reason != "held"]

    async def ask(
        self, text: Any, previous: str | None = None, *, key: str = "one", stream: bool = False,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Return a whole response, however it came."""
        asked: dict[str, Any] = {"model": "m", "input": text, **options}
        if previous is not None:
            asked["previous_response_id"] = previous
        responses = self.client(key).responses
        if not stream:
            return await responses.create(**asked)
        whole = None
        async for event in await responses.create(**asked, stream=True):
            if event.type == "response.completed":
                whole = event.response
        assert whole is not None
        return whole


@contextlib.asynccontextmanager
async def chained(
    *providers: Any,
    dialects: Sequence[str] = (),
    own_key: bool = False,
    route: Any = None,
    **dotted: Any,
) -> AsyncIterator[Chained]:
    async with contextlib.AsyncExitStack() as stack:
        upstreams: list[dict[str, Any]] = []
        for number, provider in enumerate(providers):
            dialect = dialects[number] if number < len(dialects) else "responses"
            base = provider
            if not isinstance(provider, str):
                start = simulated if isinstance(provider, Simulator) else serving
                base = await stack.enter_async_context(start(provider))
            each: dict[str, Any] = {"name": f"up{number}", "base_url": base, "dialect": dialect}
            if dialect == "responses":  # as OpenAI does
                each |= {"dialect": "openai", "also_speaks": ["responses"]}
            upstreams.append({**each, "api_key_env": "PATH"} if own_key else each)
        settings = {"cache.store": "memory:", "cache.mode": "exact-only"}
        settings |= {name.replace("__", "."): value for name, value in dotted.items()}
        settings["upstream"] = upstreams  # type: ignore[assignment]
        settings["route"] = [] if route is None else [route]  # type: ignore[assignment]
        loaded = await asyncio.to_thread(load_settings, None, {}, settings)
        recorder = Recorder()
        app = build_gateway(loaded, not_found, observers=Observers([recorder]))
        url = await stack.enter_async_context(serving(app))
        yield Chained(url, recorder, app, stack)


async def talk(gate: Chained, words: str = "abc", **options: Any) -> list[Any]:
    """Hold a conversation of one turn for each letter."""
    turns: list[Any] = []
    for word in words:
        turns.append(await gate.ask(word, turns[-1].id if turns else None, **options))
    return turns


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_hit_repeats_the_request_that_it_answers(*, stream: bool) -> None:
    async with chained(ResponsesProvider()) as gate:
        first = await gate.ask("a")
        again = await gate.ask("a", metadata={"job": "2"}, store=False, stream=stream)
        assert (again.metadata, again.store) == ({"job": "2"}, False)
        await gate.ask("b", first.id, metadata={"job": "3"}, user="ann")
        repeat = await gate.ask("b", first.id, user="ann", stream=stream)
        assert gate.outcomes == ["miss", "exact", "miss", "exact"]
        assert (repeat.previous_response_id, repeat.metadata) == (first.id, {})
        assert (repeat.user, repeat.store) == ("ann", True)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_translated_answer_repeats_its_request(*, stream: bool) -> None:
    asked: dict[str, Any] = {"metadata": {"job": "2"}, "user": "ann", "store": False}
    async with chained(Simulator(), dialects=("anthropic",)) as gate:
        for _ in range(2):
            answer = await gate.ask("a", stream=stream, **asked)
            assert {name: getattr(answer, name) for name in asked} == asked
        assert gate.outcomes == ["miss", "exact"]


async def test_a_request_leaves_memory_at_its_end_and_needs_no_collector() -> None:
    async with chained(ResponsesProvider()) as gate:
        await gate.ask("first")
        with requests_leave_memory():
            await talk(gate)
            await asyncio.sleep(0.1)  # until it is booked


SAID = ["said 1: a", "said 3: b", "said 5: c"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chain_of_three_turns_goes_up_as_it_came_and_its_repeat_is_all_hits(
    stream: bool,
) -> None:
    provider = ResponsesProvider()
    async with chained(provider) as gate:
        first = await talk(gate, stream=stream)
        again = await talk(gate, stream=stream)
    assert [turn.output_text for turn in first] == SAID
    assert [turn.output_text for turn in again] == SAID
    assert gate.outcomes == ["miss"] * 3 + ["exact"] * 3
    # the account that stored the answers gets only what is new
    assert [asked.get("previous_response_id") for asked in provider.asked] == [
        None, first[0].id, first[1].id,
    ]  # fmt: skip
    assert [turn.id for turn in again] == [turn.id for turn in first]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_that_says_that_it_stores_nothing_gets_the_whole_chain(
    stream: bool,
) -> None:
    async with chained(ResponsesProvider(forgets=True)) as gate:
        turns = await talk(gate, stream=stream)
    assert [turn.output_text for turn in turns] == SAID


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chain_behind_a_hit_goes_on(stream: bool) -> None:
    provider = ResponsesProvider()
    async with chained(provider) as gate:
        await talk(gate, "a", stream=not stream)
        turns = await talk(gate, "abc", stream=stream)
    assert [turn.output_text for turn in turns] == SAID
    assert gate.outcomes == ["miss", "exact", "miss", "miss"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini", "cohere"])
async def test_a_chain_goes_on_with_an_upstream_of_any_dialect(dialect: str, stream: bool) -> None:
    simulator = Simulator()
    async with chained(simulator, dialects=[dialect]) as gate:
        first = await talk(gate, stream=stream)
        again = await talk(gate, stream=stream)
    assert gate.outcomes == ["miss"] * 3 + ["exact"] * 3
    assert [turn.output_text for turn in again] == [turn.output_text for turn in first]
    assert all(turn.id.startswith("resp_hs") for turn in (*first, *again))


async def test_the_same_words_in_another_conversation_are_no_hit() -> None:
    provider = ResponsesProvider()
    async with chained(provider) as gate:
        one = await talk(gate, "ac")
        other = await talk(gate, "bc")
        alone = await gate.ask("c")
    assert gate.outcomes == ["miss"] * 5
    assert [one[1].output_text, other[1].output_text] == ["said 3: c"] * 2
    assert alone.output_text == "said 1: c"


async def test_a_conversation_sent_whole_is_a_hit_of_the_chained_one() -> None:
    provider = ResponsesProvider()
    async with chained(provider) as gate:
        turns = await talk(gate, "ab")
        said = {"type": "output_text", "text": "said 1: a", "annotations": []}
        whole: list[Any] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [said]},
            {"role": "user", "content": "b"},
        ]  # fmt: skip
        answer = await gate.ask(whole)
    assert gate.outcomes == ["miss", "miss", "exact"]
    assert answer.output_text == turns[1].output_text


async def test_a_chain_moves_to_another_upstream_with_all_of_its_turns() -> None:
    one, other = ResponsesProvider(reasons=True), ResponsesProvider()
    route = {"name": "r", "strategy": "fallback", "upstreams": ["up0", "up1"]}
    async with chained(one, other, route=route) as gate:
        first = await gate.ask("a")
        one.status = 503
        second = await gate.ask("b", first.id)
        one.status = 200
        other.status = 503
        third = await gate.ask("c", second.id)
    assert [turn.output_text for turn in (first, second, third)] == SAID
    [moved] = other.asked[:1]
    assert "previous_response_id" not in moved
    assert [item.get("type", "message") for item in moved["input"]] == ["message"] * 3
    assert not any("id" in item for item in moved["input"])


async def test_encrypted_reasoning_stays_with_the_account_that_made_it() -> None:
    """A hit is no answer that the upstream stored, but its account can read the reasoning."""
    provider = ResponsesProvider(reasons=True)
    async with chained(provider) as gate:
        first = await gate.ask("a", store=False, include=["reasoning.encrypted_content"])
        hit = await gate.ask("a", include=["reasoning.encrypted_content"])
        await gate.ask("b", hit.id)
    sealed = [item for item in provider.asked[-1]["input"] if item.get("type") == "reasoning"]
    assert gate.outcomes == ["miss", "exact", "miss"]
    assert [item["encrypted_content"] for item in sealed] == [first.output[0].encrypted_content]


async def test_a_chain_goes_on_behind_an_answer_that_was_rescued() -> None:
    """No provider has stored such an answer, so its id does not go up."""
    provider = ResponsesProvider()
    provider.breaks = 1
    async with chained(provider, route={"name": "r", "upstreams": ["up0"]}) as gate:
        turns = await talk(gate, stream=True)
    assert [turn.output_text for turn in turns] == SAID
    assert len(provider.asked) == 4
    assert "previous_response_id" not in provider.asked[2]


async def test_a_hit_by_meaning_has_an_id_of_its_own_for_its_own_words() -> None:
    provider = ResponsesProvider()
    near: Any = {"cache__mode": "serve", "cache__threshold": 0.6, "encoder__max_wait_ms": 20_000}
    async with chained(provider, **near) as gate:
        first = await gate.ask("How can I sign up for ChatGPT?")
        hit = await gate.ask("I want to sign up for ChatGPT")
        assert gate.outcomes == ["miss", "semantic"]
        assert hit.id.startswith("resp_hs")
        await gate.ask("b", first.id)
        await gate.ask("b", hit.id)
        listed = [item async for item in gate.client().responses.input_items.list(hit.id)]
    asked = [json.dumps(each["input"]) for each in provider.asked[-2:]]
    assert provider.asked[-2]["previous_response_id"] == first.id
    assert "I want to sign up" in asked[1]
    assert listed[0].content[0].text == "I want to sign up for ChatGPT"  # type: ignore[union-attr, index]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_goes_on_behind_a_tool_call(stream: bool) -> None:
    provider = ResponsesProvider(reasons=True)
    provider.calls = 1
    tools: Any = [
        {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
    ]
    async with chained(provider, ResponsesProvider(), route={
        "name": "r", "strategy": "fallback", "upstreams": ["up0", "up1"],
    }) as gate:  # fmt: skip
        asking = await gate.ask("a", tools=tools, stream=stream)
        [call] = [item for item in asking.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "found"}
        answer = await gate.ask([result], asking.id, tools=tools, stream=stream)
    assert answer.output_text == "said 2: found"


async def test_another_callers_id_is_refused_in_the_apis_own_words() -> None:
    provider = ResponsesProvider()
    async with chained(provider, own_key=True) as gate:
        mine = await gate.ask("a", key="one")
        with pytest.raises(openai.BadRequestError) as refused:
            await gate.ask("b", mine.id, key="other")
        with pytest.raises(openai.NotFoundError):
            await gate.client("other").responses.retrieve(mine.id)
        with pytest.raises(openai.NotFoundError):
            await gate.client("other").responses.delete(mine.id)
        reference: Any = {"type": "item_reference", "id": mine.output[0].id}
        with pytest.raises(openai.NotFoundError):
            await gate.ask([reference, {"role": "user", "content": "b"}], key="other")
        assert (await gate.ask("b", mine.id, key="one")).output_text == "said 3: b"
    body: Any = refused.value.body
    assert body["code"] == "previous_response_not_found"
    assert body["param"] == "previous_response_id"
    assert body["message"] == f"Previous response with id '{mine.id}' not found."
    assert len(provider.asked) == 2


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("HEAD", "/v1/responses/{}"),
        ("GET", "/v1/responses/{}/"),
        ("GET", "/v1/responses/{}/input_items/"),
        ("GET", "/v1/responses//{}"),
        ("GET", "/v1//responses/{}"),
        ("GET", "/v1/Responses/{}"),
        ("DELETE", "/v1/responses/{}/"),
        ("POST", "/v1/responses/{}/cancel"),
    ],
)
async def test_no_path_with_another_callers_id_goes_up(method: str, path: str) -> None:
    provider = ResponsesProvider()
    async with chained(provider, own_key=True) as gate, httpx.AsyncClient() as client:
        mine = await gate.ask("a", key="one")
        url = gate.url + path.format(mine.id)
        asked = await client.request(method, url, headers={"authorization": "Bearer other"})
    assert asked.status_code == 404
    assert provider.paths == [("POST", "/v1/responses")]


@pytest.mark.parametrize("path", ["", "/", "/compact", "/input_tokens"])
@pytest.mark.parametrize("packed", [False, True])
async def test_no_body_with_another_callers_id_goes_up(path: str, packed: bool) -> None:
    provider = ResponsesProvider()
    async with chained(provider, own_key=True) as gate, httpx.AsyncClient() as client:
        mine = await gate.ask("a", key="one")
        said = {"model": "m", "input": "b", "previous_response_id": mine.id}
        body = json.dumps(said).encode()
        headers = {"authorization": "Bearer other", "content-type": "application/json"}
        if packed:
            body, headers = gzip.compress(body), {**headers, "content-encoding": "gzip"}
        url = f"{gate.url}/v1/responses{path}"
        asked = await client.post(url, content=body, headers=headers)
        assert asked.status_code == 400
        assert (b"content-encoding" in asked.content) is packed
        if path and not packed:
            own = await client.post(url, json=said, headers={"authorization": "Bearer one"})
            assert own.status_code == 200
    assert len(provider.paths) == (2 if path and not packed else 1)


async def test_callers_that_share_answers_do_not_share_ids() -> None:
    provider = ResponsesProvider()
    async with chained(provider, own_key=True, cache__scope="shared") as gate:
        mine = await gate.ask("a", key="one")
        theirs = await gate.ask("a", key="other")
        assert gate.outcomes == ["miss", "exact"]
        assert (await gate.ask("b", theirs.id, key="other")).output_text == "said 3: b"
        await gate.client("other").responses.delete(theirs.id)
        assert (await gate.client("one").responses.retrieve(mine.id)).id == mine.id
        with pytest.raises(openai.NotFoundError):
            await gate.client("other").responses.retrieve(theirs.id)


async def test_an_unknown_id_of_ours_is_refused_and_one_of_the_providers_goes_up() -> None:
    provider = ResponsesProvider()
    async with chained(provider) as gate:
        with pytest.raises(openai.BadRequestError) as ours:
            await gate.ask("b", "resp_hs" + "0" * 32)
        assert provider.asked == []
        with pytest.raises(openai.BadRequestError) as its:
            await gate.ask("b", "resp_" + "0" * 48)
        assert len(provider.asked) == 1
    for refused in (ours, its):
        body: Any = refused.value.body
        assert body["code"] == "previous_response_not_found"


async def test_an_answer_from_elsewhere_is_continued_by_its_provider() -> None:
    provider = ResponsesProvider()
    async with serving(provider) as direct, chained(provider) as gate:
        async with openai.AsyncOpenAI(base_url=direct + "/v1", api_key="one") as alone:
            first = await alone.responses.create(model="m", input="a")
        second = await gate.ask("b", first.id)
        third = await gate.ask("c", second.id)
    assert [second.output_text, third.output_text] == ["said 3: b", "said 5: c"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["responses", "openai"])
async def test_references_to_items_are_resolved(dialect: str, stream: bool) -> None:
    """The Vercel AI SDK sends them in place of the model's turns."""
    provider: Any = ResponsesProvider() if dialect == "responses" else Simulator()
    async with chained(provider, dialects=[dialect]) as gate:

        async def turns() -> list[Any]:
            first = await gate.ask([{"role": "user", "content": "a"}], stream=stream)
            return [first, await gate.ask(referring(first), stream=stream)]

        once, again = await turns(), await turns()
    assert gate.outcomes == ["miss", "miss", "exact", "exact"]
    assert [turn.output_text for turn in once] == [turn.output_text for turn in again]
    if dialect == "responses":
        assert once[1].output_text == "said 3: b"


def referring(first: Any) -> list[dict[str, Any]]:
    """Return the input of the turn after ``first``, as the Vercel AI SDK sends it."""
    return [
        {"role": "user", "content": "a"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "b"},
    ]


async def test_a_reference_that_we_do_not_know_goes_up_if_it_may_be_the_providers() -> None:
    provider = ResponsesProvider()
    async with chained(provider) as gate:
        with pytest.raises(openai.NotFoundError):
            await gate.ask([{"type": "item_reference", "id": "msg_" + "0" * 48}])
        assert len(provider.asked) == 1
        with pytest.raises(openai.NotFoundError, match="Item with id"):
            await gate.ask([{"type": "item_reference", "id": "msg_hs" + "0" * 34}])
    assert len(provider.asked) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_right_after_an_answer_may_reach_another_process(
    tmp_path: Path, stream: bool
) -> None:
    """As with a balancer, or with several workers and an SDK that opens connections."""
    options: Any = {"dialects": ["openai"], "cache__store": f"sqlite:///{tmp_path}/kept.db"}
    async with chained(Simulator(), **options) as one, chained(Simulator(), **options) as two:
        turns: list[Any] = []
        for number in range(12):
            gate = (one, two)[number % 2]
            previous = turns[-1].id if turns else None
            turns.append(await gate.ask(f"turn {number}", previous, stream=stream))
            first = await gate.ask([{"role": "user", "content": f"{number}"}], stream=stream)
            await (two, one)[number % 2].ask(referring(first))


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


async def test_references_go_on_at_another_node_with_another_upstream(redis: RedisServer) -> None:
    options: Any = {"cache__store": redis.url}
    provider = ResponsesProvider()
    async with (
        chained(provider, **options) as one,
        chained(Simulator(), dialects=["openai"], **options) as two,
    ):
        first = await one.ask([{"role": "user", "content": "a"}])
        async with asyncio.timeout(10):
            while True:  # until the store has the answer
                with contextlib.suppress(openai.NotFoundError):
                    await two.client().responses.retrieve(first.id)
                    break
        assert (await two.ask(referring(first))).output_text
        with pytest.raises(openai.NotFoundError, match="Item with id"):
            await two.ask(referring(first), key="other")


async def test_references_to_items_are_resolved_after_a_restart(tmp_path: Path) -> None:
    options: Any = {"dialects": ["openai"], "cache__store": f"sqlite:///{tmp_path}/kept.db"}
    async with simulated(Simulator()) as provider:
        async with chained(provider, **options) as gate:
            first = await gate.ask([{"role": "user", "content": "a"}])
            second = await gate.ask(referring(first))
        async with chained(provider, **options) as gate:
            assert (await gate.ask(referring(first))).output_text == second.output_text
            hit = await gate.ask([{"role": "user", "content": "a"}])
        async with chained(provider, **options) as later:
            assert (await later.ask(referring(hit))).output_text == second.output_text
    assert gate.outcomes == ["exact", "exact"]
    assert later.outcomes == ["exact"]


async def test_held_answers_are_retrieved_listed_and_deleted() -> None:
    provider = ResponsesProvider()
    async with chained(provider) as gate:
        turns = await talk(gate, "ab")
        responses = gate.client().responses
        found = await responses.retrieve(turns[1].id)
        assert found.output_text == "said 3: b"
        listed = [item async for item in responses.input_items.list(turns[1].id, order="asc")]
        assert [item.role for item in listed] == ["user", "assistant", "user"]  # type: ignore[union-attr]
        newest = await responses.input_items.list(turns[1].id, limit=1)
        assert newest.has_more
        assert newest.data[0].content[0].text == "b"  # type: ignore[union-attr, index]
        after = await responses.input_items.list(turns[1].id, limit=2, after=newest.data[0].id)
        assert len(after.data) == 2
        assert not after.has_more
        with pytest.raises(openai.BadRequestError):
            await responses.input_items.list(turns[1].id, limit=1000)
        await responses.delete(turns[0].id)
        with pytest.raises(openai.NotFoundError):
            await responses.retrieve(turns[0].id)
        with pytest.raises(openai.BadRequestError):
            await gate.ask("c", turns[0].id)
        rows = [row for row in gate.recorder.seen if isinstance(row, Served)]
        held = [(row.endpoint, row.status) for row in rows if row.reason == "held"]
        assert held == [("/v1/responses", status) for status in (200, 200, 200, 200, 400, 200, 404)]
    assert [path for path in provider.paths if path[0] != "POST"] == []


@contextlib.asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(folder / "kept.db", clock=Clock())
    await store.open()
    async with contextlib.aclosing(store):
        yield store


async def stored_answers(folder: Path, count: int) -> tuple[str, ...]:
    """Wait until the store has this many kept answers, and return the ids of their entries.

    Each answer has two entries: of the answer, and of its one item.
    """
    async with open_store(folder) as store, asyncio.timeout(10):
        while True:
            entries = [entry async for some in store.entries() for entry in some]
            ids = tuple(entry.id for entry in entries if TAG in entry.tags)
            if len(ids) == 2 * count:
                return ids
            await asyncio.sleep(0.05)


async def eventually_not_found(gate: Chained, id: str) -> None:
    responses = gate.client().responses
    async with asyncio.timeout(10):
        with contextlib.suppress(openai.NotFoundError):
            while (await responses.retrieve(id)).id:
                await asyncio.sleep(0.05)


async def test_a_delete_reaches_the_other_processes_that_have_the_answer(tmp_path: Path) -> None:
    options: Any = {"dialects": ["openai"], "cache__store": f"sqlite:///{tmp_path}/kept.db"}
    async with chained(Simulator(), **options) as one, chained(Simulator(), **options) as two:
        kept, deleted, again = [await one.ask(word) for word in "abc"]
        await stored_answers(tmp_path, 3)
        for turn in (kept, deleted, again):  # now both processes have them in memory
            await two.client().responses.retrieve(turn.id)
        await two.client().responses.delete(deleted.id)
        await eventually_not_found(one, deleted.id)
        await one.client().responses.delete(again.id)
        await eventually_not_found(two, again.id)
        for gate in (one, two):
            assert (await gate.client().responses.retrieve(kept.id)).id == kept.id
            with pytest.raises(openai.BadRequestError):
                await gate.ask("d", deleted.id)


async def test_an_operator_deletes_answers_that_are_in_memory(tmp_path: Path) -> None:
    options: Any = {"dialects": ["openai"], "cache__store": f"sqlite:///{tmp_path}/kept.db"}
    async with chained(Simulator(), **options) as gate:
        first = await gate.ask("a")
        ids = await stored_answers(tmp_path, 1)
        async with open_store(tmp_path) as store:
            await store.append([Delete(ids=ids)])
        await eventually_not_found(gate, first.id)


async def test_ids_that_we_do_not_hold_are_relayed() -> None:
    provider = ResponsesProvider()
    async with serving(provider) as direct, chained(provider) as gate:
        async with openai.AsyncOpenAI(base_url=direct + "/v1", api_key="one") as alone:
            first = await alone.responses.create(model="m", input="a")
        assert (await gate.client().responses.retrieve(first.id)).id == first.id
        with pytest.raises(openai.NotFoundError):
            await gate.client().responses.retrieve("resp_hs" + "0" * 32)
    assert provider.paths[-1] == ("GET", f"/v1/responses/{first.id}")


async def test_a_wrong_key_gets_no_held_answer() -> None:
    provider = ResponsesProvider()
    async with chained(provider, own_key=True, server__client_keys=["one"]) as gate:
        mine = await gate.ask("a")
        with pytest.raises(openai.AuthenticationError):
            await gate.client("other").responses.retrieve(mine.id)


@pytest.mark.parametrize("dialect", ["responses", "openai"])
async def test_an_answer_that_was_not_to_be_stored_is_not_kept(dialect: str) -> None:
    provider: Any = ResponsesProvider() if dialect == "responses" else Simulator()
    async with chained(provider, dialects=[dialect]) as gate:
        first = await gate.ask("a", store=False)
        with pytest.raises(openai.BadRequestError):
            await gate.ask("b", first.id)
        with pytest.raises(openai.NotFoundError):
            await gate.client().responses.retrieve(first.id)


async def test_an_answer_is_kept_for_its_lifetime() -> None:
    provider = Simulator()
    async with chained(provider, dialects=["openai"], server__conversations__ttl_s=2.0) as gate:
        first = await gate.ask("a")
        assert (await gate.client().responses.retrieve(first.id)).id == first.id
        await asyncio.sleep(2.1)
        with pytest.raises(openai.BadRequestError):
            await gate.ask("b", first.id)


async def test_bounds_drop_the_oldest_answers_of_the_caller_that_has_too_many() -> None:
    provider = Simulator()
    bounds: Any = {"server__conversations__max_answers": 8}
    async with chained(provider, dialects=["openai"], **bounds) as gate:
        other = await gate.ask("z", key="other")
        kept = [await gate.ask(word) for word in "abc"]
        with pytest.raises(openai.NotFoundError):
            await gate.client().responses.retrieve(kept[0].id)
        for turn in kept[1:]:
            await gate.client().responses.retrieve(turn.id)
        await gate.client("other").responses.retrieve(other.id)


async def test_callers_of_a_joined_call_may_all_go_on() -> None:
    provider = ResponsesProvider()
    async with chained(provider) as gate:
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(gate.ask("a", stream=n % 2 == 0)) for n in range(4)]
        firsts = [task.result() for task in asking]
        seconds = [await gate.ask("b", first.id) for first in firsts]
    assert {turn.output_text for turn in seconds} == {"said 3: b"}


async def test_a_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    options: Any = {"dialects": ["openai"], "cache__store": f"sqlite:///{tmp_path}/kept.db"}
    async with simulated(Simulator()) as provider:
        async with chained(provider, **options) as gate:
            turns = await talk(gate, "ab")
        async with chained(provider, **options) as gate:
            assert (await gate.client().responses.retrieve(turns[1].id)).id == turns[1].id
            third = await gate.ask("c", turns[1].id)
            again = await talk(gate, "abc")
            with pytest.raises(openai.BadRequestError):
                await gate.ask("c", turns[1].id, key="other")
            await gate.client().responses.delete(turns[1].id)
        assert gate.outcomes[:4] == ["miss", "exact", "exact", "exact"]
        assert again[2].output_text == third.output_text
        async with chained(provider, **options) as gate:
            with pytest.raises(openai.NotFoundError):
                await gate.client().responses.retrieve(turns[1].id)


async def test_switched_off_ids_are_the_providers_affair() -> None:
    provider = ResponsesProvider()
    async with chained(provider, server__conversations__enabled=False) as gate:
        turns = await talk(gate)
        await gate.client().responses.retrieve(turns[0].id)
    assert [turn.output_text for turn in turns] == SAID
    assert gate.outcomes[:3] == ["miss", "bypass", "bypass"]
    assert provider.paths[-1][0] == "GET"

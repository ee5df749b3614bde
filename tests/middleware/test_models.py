"""``GET /v1/models``: which models it lists, in which form, also while an upstream is down."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

import pytest

from headstart.dialects.dialect import ListedModel
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import UpstreamUnreachable
from headstart.middleware.router import FRESH_S, RETRY_S, ListSource, ModelLists, Provider, Router
from headstart.reply import Reply
from headstart.types import Call, Piece
from support.fakes import Recorder
from support.patience import PATIENCE_S
from support.raw_upstream import RawUpstream, raw_upstream
from support.relaying import relay_to, says

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from headstart.interfaces import Candidate
    from headstart.middleware.concurrency import Spawn

pytestmark = pytest.mark.anyio

KEYED: tuple[dict[str, Any], ...] = ({"api_key_env": "KEY"}, {"api_key_env": "KEY"})
MINE = "Authorization: Bearer mine\r\n"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "operators")


def listing(*ids: str, **fields: Any) -> bytes:
    items = [{"id": id, "object": "model", "created": 7, "owned_by": "x", **fields} for id in ids]
    return says("200 OK", json.dumps({"object": "list", "data": items}).encode())


async def owners(gate: Any, headers: str = "") -> dict[str, str]:
    status, _, body = await gate.ask("/v1/models", b"", headers, "GET")
    assert status == 200
    document = json.loads(body)
    assert document["object"] == "list"
    assert {each["object"] for each in document["data"]} <= {"model"}
    return {each["id"]: each["owned_by"] for each in document["data"]}


async def test_the_list_has_the_upstreams_models_aliases_and_names_of_routes() -> None:
    first, second = RawUpstream(listing("big", "small")), RawUpstream(listing("other", "embed-1"))
    routes = (
        {"name": "r", "match": {"model": "assistant"}, "upstreams": ["b"]},
        {"name": "e", "match": {"model": "embed-*"}, "upstreams": ["b"]},
    )
    options = ({**KEYED[0], "models": {"fast": "small"}}, KEYED[1])
    async with relay_to(first, second, routes=routes, options=options) as gate:
        found = await owners(gate, MINE)
        assert found == {"assistant": "b", "fast": "a", "big": "a", "small": "a", "embed-1": "b"}
    # "other" is left out: a request for it would go to the first upstream, which has no such model.
    assert first.header(b"authorization") == [b"Bearer operators"]
    assert first.targets == [b"/v1/models"]


async def test_the_list_is_answered_while_an_upstream_is_down_and_says_its_age() -> None:
    first, second = RawUpstream(listing("big")), RawUpstream(listing("small"))
    options = (KEYED[0], {**KEYED[1], "models": {"fast": "small"}})
    async with relay_to(first, second, routes=(), options=options) as gate:
        before = await owners(gate)
        first.answer = second.answer = says("500 Oops")
        status, headers, _ = await gate.ask("/v1/models", b"", "", "GET")
        assert (status, headers["age"]) == (200, "0")
        assert headers["cache-status"] == "headstart; hit; detail=models"
        assert await owners(gate) == before == {"big": "a", "fast": "b"}
    assert len(first.requests) == len(second.requests) == 1


@pytest.mark.parametrize("listed", ["mine", "openai/gpt-oss-20b"])
async def test_the_list_of_an_own_server_tells_which_models_of_its_preset_it_has(
    listed: str,
) -> None:
    options = ({"preset": "vllm", "models": {"fast": "mine"}}, KEYED[1])
    own, other = RawUpstream(listing(listed)), RawUpstream(listing("small"))
    async with relay_to(own, other, routes=(), options=options) as gate:
        found = [name for name, owner in (await owners(gate)).items() if owner == "a"]
    named = {"gpt-oss-20b", listed} if "oss" in listed else {listed}
    assert {"fast", *named} <= set(found)
    assert "llama-3.3-70b" not in found


async def test_an_upstream_that_never_answered_is_listed_by_its_settings() -> None:
    options = ({**KEYED[0], "models": {"fast": "small"}}, KEYED[1])
    async with relay_to(None, RawUpstream(None), routes=(), options=options) as gate:
        assert await owners(gate) == {"fast": "a"}


async def test_the_lists_are_kept_in_the_store(tmp_path: Path) -> None:
    store: dict[str, Any] = {"cache.store": f"sqlite:///{tmp_path / 'store.db'}"}
    upstream = RawUpstream(listing("big"))
    async with relay_to(upstream, routes=(), options=KEYED, **store) as gate:
        assert await owners(gate) == {"big": "a"}
    async with relay_to(upstream, routes=(), options=KEYED, **store) as gate:
        kept = await gate.parts[0].store.load_document("model-lists")
    assert kept is not None
    assert b"big" in kept


async def test_lists_of_an_earlier_run_count_for_the_same_address_alone() -> None:
    lists, _, _ = make_lists(Listing([]))
    lists.load(b'{"a": {"base_url": "https://other.test", "at": 9e9, "models": [{"id": "old"}]}}')
    assert await names(lists) == []
    lists.load(b'{"a": {"base_url": "https://a.test", "at": 9e9, "models": [{"id": "old"}]}}')
    assert await names(lists) == ["old"]
    lists.load(b"nonsense")
    again, _, _ = make_lists(Listing([]))
    again.load(lists.saved())
    assert await names(again) == ["old"]


async def test_a_saved_list_is_small() -> None:
    upstream = Listing(["one"])
    lists, _, _ = make_lists(upstream)
    assert await names(lists) == ["one"]
    assert b"owned_by" not in lists.saved()  # a description may have kilobytes


async def test_clients_of_anthropic_get_its_form() -> None:
    claude = {
        "type": "model",
        "id": "claude",
        "display_name": "C",
        "created_at": "2026-01-02T00:00:00Z",
    }
    document = {"data": [claude], "has_more": False, "first_id": "claude", "last_id": "claude"}
    first = RawUpstream(says("200 OK", json.dumps(document).encode()))
    second = RawUpstream(listing("gpt"))
    claude_is = {"dialect": "anthropic", "models": {"claude": "claude"}}
    options = ({**KEYED[0], **claude_is}, {**KEYED[1], "models": {"gpt": "gpt"}})
    async with relay_to(first, second, routes=(), options=options) as gate:
        version = "anthropic-version: 2023-06-01\r\n"
        _, _, body = await gate.ask("/v1/models", b"", version, "GET")
        _, _, one = await gate.ask("/v1/models/claude", b"", version, "GET")
        _, _, plain = await gate.ask("/v1/models/claude", b"", "", "GET")
    found = json.loads(body)
    assert (found["first_id"], found["last_id"], found["has_more"]) == ("claude", "gpt", False)
    assert found["data"][0] == {**claude, "owned_by": "a"}
    assert found["data"][1]["created_at"] == "1970-01-01T00:00:07Z"
    assert json.loads(one) == {**claude, "owned_by": "a"}
    assert json.loads(plain) == {
        "id": "claude", "object": "model", "created": 1767312000, "owned_by": "a"
    }  # fmt: skip
    assert first.targets == [b"/v1/models?limit=1000"]
    assert first.header(b"anthropic-version") == [b"2023-06-01"]


async def test_clients_of_gemini_get_its_form() -> None:
    gemini = {"name": "models/flash", "displayName": "Flash", "inputTokenLimit": 9}
    first = RawUpstream(says("200 OK", json.dumps({"models": [gemini]}).encode()))
    second = RawUpstream(listing("gpt"))
    options = ({**KEYED[0], "dialect": "gemini"}, {**KEYED[1], "models": {"gpt": "gpt"}})
    async with relay_to(first, second, routes=(), options=options) as gate:
        _, _, body = await gate.ask("/v1beta/models?pageSize=1", b"", "", "GET")
        _, _, one = await gate.ask("/v1/models/gpt", b"", "x-goog-api-key: k\r\n", "GET")
    flash, gpt = json.loads(body)["models"]
    assert flash["name"] == "models/flash"
    assert (flash["inputTokenLimit"], flash["description"]) == (9, "Answered by a.")
    assert gpt == json.loads(one)
    assert (gpt["name"], gpt["description"]) == ("models/gpt", "Answered by b.")
    assert "generateContent" in gpt["supportedGenerationMethods"]


@pytest.mark.parametrize("path", ["/v1/models/org/m:7b", "/v1/models/org%2Fm%3A7b"])
async def test_one_model_is_answered_by_its_name(path: str) -> None:
    first = RawUpstream(listing("org/m:7b", context_window=8000))
    async with relay_to(first, RawUpstream(listing("x")), routes=(), options=KEYED) as gate:
        await owners(gate)
        first.answer = says("500 Oops")
        status, _, body = await gate.ask(path, b"", "", "GET")
    assert status == 200
    assert json.loads(body) == {
        "id": "org/m:7b", "object": "model", "created": 7, "owned_by": "a", "context_window": 8000
    }  # fmt: skip


async def test_an_unknown_model_and_all_other_methods_are_the_upstreams_to_answer() -> None:
    first = RawUpstream(listing("big"))
    async with relay_to(first, RawUpstream(listing("x")), routes=(), options=KEYED) as gate:
        await owners(gate)
        first.answer = says("404 Not Found", b'{"error":{"message":"no"}}')
        status, headers, body = await gate.ask("/v1/models/none", b"", "", "GET")
        assert (status, body) == (404, b'{"error":{"message":"no"}}')
        assert headers["x-headstart-upstream"] == "a"
        assert (await gate.ask("/v1/models/big", b"", "", "DELETE"))[0] == 404
    assert first.targets[1:] == [b"/v1/models/none", b"/v1/models/big"]


async def test_a_single_upstream_with_callers_keys_answers_itself() -> None:
    answer = listing("theirs")
    upstream = RawUpstream(answer)
    options = ({"models": {"fast": "m"}},)
    async with relay_to(upstream, routes=(), options=options) as gate:
        _, headers, body = await gate.ask("/v1/models?x=1", b"", MINE, "GET")
    assert body == answer.partition(b"\r\n\r\n")[2]
    assert headers["x-headstart-upstream"] == "a"
    assert upstream.targets == [b"/v1/models?x=1"]
    assert upstream.header(b"authorization") == [b"Bearer mine"]


CLAUDE = {
    "type": "model",
    "id": "claude",
    "display_name": "C",
    "created_at": "2026-01-02T00:00:00Z",
}


async def test_a_list_is_translated_for_a_caller_whose_key_an_upstream_of_another_api_takes() -> (
    None
):
    upstream = RawUpstream(says("200 OK", json.dumps({"data": [CLAUDE]}).encode()))
    async with relay_to(upstream, routes=(), options=({"dialect": "anthropic"},)) as gate:
        assert await owners(gate, MINE) == {"claude": "a"}
        status, _, body = await gate.ask("/v1/models/claude", b"", MINE, "GET")
        assert (status, json.loads(body)["created"]) == (200, 1767312000)
        status, _, body = await gate.ask("/v1/models/none", b"", MINE, "GET")
        assert (status, json.loads(body)["error"]["code"]) == (404, "no_upstream")
        upstream.answer = says("401 Unauthorized", b'{"type":"error","error":{"message":"bad"}}')
        status, headers, body = await gate.ask("/v1/models", b"", MINE, "GET")
        assert (status, headers["x-headstart-upstream"]) == (401, "a")
        assert "401" in json.loads(body)["error"]["message"]
        upstream.answer = says("200 OK", b"<html>")
        status, _, body = await gate.ask("/v1/models", b"", MINE, "GET")
        assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_protocol_error")
    assert upstream.targets == [b"/v1/models?limit=1000"] * 5
    assert upstream.header(b"x-api-key") == [b"mine"]
    assert upstream.header(b"anthropic-version") == [b"2023-06-01"]
    assert upstream.header(b"authorization") == []


async def test_clients_of_anthropic_and_gemini_get_the_list_of_an_openai_upstream() -> None:
    upstream = RawUpstream(listing("gpt"))
    async with relay_to(upstream, routes=()) as gate:
        anthropic = "anthropic-version: 2023-06-01\r\nx-api-key: mine\r\n"
        _, _, body = await gate.ask("/v1/models", b"", anthropic, "GET")
        assert [each["type"] for each in json.loads(body)["data"]] == ["model"]
        _, _, body = await gate.ask("/v1beta/models?key=mine", b"", "", "GET")
        assert [each["name"] for each in json.loads(body)["models"]] == ["models/gpt"]
    assert upstream.targets == [b"/v1/models"] * 2
    assert upstream.header(b"authorization") == [b"Bearer mine"]
    assert upstream.header(b"x-api-key") == []


async def test_a_translated_list_has_the_names_that_the_operator_gave() -> None:
    upstream = RawUpstream(says("200 OK", json.dumps({"data": [CLAUDE]}).encode()))
    option = {"dialect": "anthropic", "models": {"mine": "claude", "unlisted": "claude-new"}}
    async with relay_to(upstream, routes=(), options=(option,)) as gate:
        found = await owners(gate, MINE)
        assert found == {"claude": "a", "mine": "a", "unlisted": "a"}
        status, _, body = await gate.ask("/v1/models/mine", b"", MINE, "GET")
    shown = json.loads(body)
    assert (status, shown["id"], shown["created"]) == (200, "mine", 1767312000)


async def test_a_caller_whose_list_is_refused_is_told_when_to_ask_again() -> None:
    refusal = b"HTTP/1.1 429 Too Many\r\nretry-after: 7\r\nx-other: 1\r\ncontent-length: 0\r\n\r\n"
    upstream = RawUpstream(refusal)
    async with relay_to(upstream, routes=(), options=({"dialect": "anthropic"},)) as gate:
        status, headers, body = await gate.ask("/v1/models", b"", MINE, "GET")
    assert (status, headers["retry-after"]) == (429, "7")
    assert "x-other" not in headers
    assert json.loads(body)["error"]["message"]


async def test_a_translated_list_has_the_limits_of_relayed_requests() -> None:
    upstream = RawUpstream(None)
    options, server = ({"dialect": "anthropic"},), {"server.max_relays": 1, "server.max_queue": 0}
    async with relay_to(upstream, routes=(), options=options, **server) as gate:
        async with asyncio.TaskGroup() as tasks:
            leaver = tasks.create_task(gate.ask("/v1/models", b"", MINE, "GET"))
            while not upstream.requests:
                await asyncio.sleep(0.01)
            status, _, body = await gate.ask("/v1/models", b"", MINE, "GET")
            assert (status, json.loads(body)["error"]["code"]) == (429, "overloaded")
            leaver.cancel()
        async with asyncio.timeout(PATIENCE_S):
            while upstream.open:  # the upstream is not asked for a caller that has left
                await asyncio.sleep(0.01)
        in_time = "X-Headstart-Deadline-Ms: 200\r\n"
        status, _, body = await gate.ask("/v1/models", b"", MINE + in_time, "GET")
        assert (status, json.loads(body)["error"]["code"]) == (504, "upstream_timeout")
        assert "X-Headstart-Deadline-Ms" in json.loads(body)["error"]["message"]
    assert len(upstream.requests) == 2


async def test_a_callers_key_goes_to_the_upstream_of_its_route_or_model_for_the_list() -> None:
    both = first, second = [RawUpstream(listing(name)) for name in ("big", "small")]
    routes = (
        {"name": "tenant", "match": {"header": {"x-tenant": "b"}}, "upstreams": ["b"]},
        {"name": "named", "match": {"path": "/none"}, "upstreams": ["b"]},
    )
    key = "x-api-key: mine\r\nanthropic-version: 2023-06-01\r\n"
    async with AsyncExitStack() as stack:
        options = []
        for each in both:
            url = await stack.enter_async_context(raw_upstream(each))
            # Upstreams on this machine would be asked without a key.
            options.append({"base_url": url.replace("127.0.0.1", "0.0.0.0")})
        options[1]["models"] = {"small": "small"}  # type: ignore[assignment]
        gate = await stack.enter_async_context(
            relay_to(None, None, routes=routes, options=tuple(options))
        )
        assert (await gate.ask("/v1/models", b"", key, "GET"))[0] == 200
        assert [len(each.requests) for each in both] == [1, 0]
        for target, headers in (
            ("/v1/models", "X-Tenant: b\r\n"),
            ("/v1/models", "X-Headstart-Route: named\r\n"),
            ("/v1/models/small", ""),
        ):
            status, _, body = await gate.ask(target, b"", key + headers, "GET")
            assert (status, b'"small"' in body) == (200, True)
        status, _, _ = await gate.ask("/v1/models", b"", f"{key}X-Headstart-Route: x\r\n", "GET")
        assert status == 400
    assert [len(each.requests) for each in both] == [1, 3]
    assert first.header(b"authorization") == second.header(b"authorization") == [b"Bearer mine"]


async def test_a_key_that_no_header_can_hold_is_refused() -> None:
    upstream = RawUpstream(listing("gpt"))
    async with relay_to(upstream, routes=()) as gate:
        for key in ("a%0d%0ax-evil:%201", "a%00b"):
            status, _, body = await gate.ask(f"/v1beta/models?key={key}", b"", "", "GET")
            assert status == 400
            assert "control character" in json.loads(body)["error"]["message"]
            target = f"/v1beta/models/gpt:generateContent?key={key}"
            assert (await gate.ask(target, b'{"contents":[{"parts":[{"text":"Hi"}]}]}'))[0] == 400
    assert upstream.requests == []


async def test_no_callers_key_goes_to_an_upstream_for_the_list() -> None:
    first, second = RawUpstream(listing("big")), RawUpstream(listing("small"))
    async with relay_to(first, second, routes=()) as gate:  # both on this machine, without keys
        assert await owners(gate, MINE) == {"big": "a"}
    assert first.header(b"authorization") == second.header(b"authorization") == []


async def test_the_list_is_that_of_the_route_that_the_caller_takes() -> None:
    first, second = RawUpstream(listing("big")), RawUpstream(listing("small"))
    routes = (
        {"name": "tenant", "match": {"header": {"x-tenant": "b"}}, "upstreams": ["b"]},
        {"name": "named", "match": {"path": "/none"}, "upstreams": ["b"]},
    )
    async with relay_to(first, second, routes=routes, options=KEYED) as gate:
        assert await owners(gate) == {"big": "a"}
        assert await owners(gate, "X-Tenant: b\r\n") == {"small": "b"}
        assert await owners(gate, "X-Headstart-Route: named\r\n") == {"small": "b"}
        status, _, _ = await gate.ask("/v1/models", b"", "X-Headstart-Route: nobody\r\n", "GET")
    assert status == 400


async def test_the_list_needs_the_operators_leave_as_all_paths_do() -> None:
    both = (RawUpstream(listing("big")), RawUpstream(listing("small")))
    server = {"server.relay_paths": ["/v1/files"], "server.client_keys": ["c"]}
    async with relay_to(*both, routes=(), options=KEYED, **server) as gate:
        assert (await gate.ask("/v1/models", b"", "", "GET"))[0] == 401
        assert (await gate.ask("/v1/models", b"", "Authorization: Bearer c\r\n", "GET"))[0] == 403


# --- when lists are asked for ------------------------------------------------------------------


class Listing:
    """An upstream that lists some models, or fails."""

    def __init__(self, ids: list[str]) -> None:
        self.name, self.ids, self.asked = "a", ids, 0
        self.hold: asyncio.Event | None = None
        self.body = b""

    async def send(self, call: Call) -> Reply:
        self.asked += 1
        if self.hold is not None:
            await self.hold.wait()
        if not self.ids:
            raise UpstreamUnreachable("down")
        body = self.body or listing(*self.ids).partition(b"\r\n\r\n")[2]

        async def pieces() -> AsyncGenerator[Piece]:
            yield Piece(body)

        return Reply("a", 200, (), pieces())


class _Candidate:
    name = identity = "a"
    names = frozenset({"a"})


def make_lists(upstream: Listing) -> tuple[ModelLists, list[float], Recorder]:
    now, recorder, tasks = [1e6], Recorder(), set[asyncio.Task[None]]()
    candidate = cast("Candidate", _Candidate())
    provider = Provider(
        name="a",
        base_url="https://a.test",
        dialect=OPENAI_CHAT.name,
        models={},
        named=frozenset(),
        known=frozenset(),
        candidates={"": candidate},
        relay=candidate,
    )

    def spawn(function: Any, *args: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(function(*args))  # noqa: TID251 - a stand-in
        tasks.add(task)
        return task

    assert OPENAI_CHAT.models is not None
    lists = ModelLists(
        Router([provider], {}),
        (),
        [ListSource("a", "https://a.test", OPENAI_CHAT, OPENAI_CHAT.models, upstream)],
        spawn=cast("Spawn", spawn),
        clock=lambda: now[0],
        new_id=lambda: "id",
        observer=recorder,
    )
    return lists, now, recorder


async def names(lists: ModelLists) -> list[str]:
    call = Call(
        id="1", method="GET", path=b"/v1/models", query_string=b"", headers=(), body=b"",
        dialect=OPENAI_CHAT.name, endpoint="relay",
    )  # fmt: skip
    answer = await lists.answer(call)
    assert answer is not None
    return [each["id"] for each in json.loads(answer.body)["data"]]


@pytest.mark.virtual_clock
async def test_an_old_list_is_served_at_once_and_renewed_in_the_background() -> None:
    upstream = Listing(["one"])
    lists, now, _ = make_lists(upstream)
    assert [await names(lists), await names(lists)] == [["one"], ["one"]]
    assert upstream.asked == 1
    now[0] += FRESH_S
    upstream.ids, upstream.hold = ["two"], asyncio.Event()
    assert [await names(lists), await names(lists)] == [["one"], ["one"]]
    upstream.hold.set()
    await asyncio.sleep(0.01)
    assert await names(lists) == ["two"]
    assert upstream.asked == 2


@pytest.mark.virtual_clock
@pytest.mark.parametrize("fails", [False, True])
async def test_a_list_is_renewed_although_the_clock_was_put_back(*, fails: bool) -> None:
    upstream = Listing([] if fails else ["one"])
    lists, now, _ = make_lists(upstream)
    await names(lists)
    now[0] -= 500_000
    upstream.ids = ["two"]
    await names(lists)
    await asyncio.sleep(0.01)
    assert await names(lists) == ["two"]


@pytest.mark.parametrize(
    ("ids", "body"), [([], b""), (["one"], b"<html>"), (["one"], b'{"data": [{"id": "\xff"}]}')]
)
async def test_a_list_that_could_not_be_had_is_asked_for_again_later_and_told_of(
    ids: list[str], body: bytes
) -> None:
    upstream = Listing(ids)
    upstream.body = body
    lists, now, recorder = make_lists(upstream)
    assert await names(lists) == []
    assert await names(lists) == []
    assert upstream.asked == 1
    upstream.ids, upstream.body = ["one"], b""
    now[0] += RETRY_S
    assert await names(lists) == ["one"]
    (failed,) = recorder.seen
    assert "upstream a" in str(failed)


async def test_the_list_of_a_provider_is_read_leniently() -> None:
    form = OPENAI_CHAT.models
    assert form is not None
    odd = [{"id": "a", "name": "A"}, {"id": 3}, "x", {}, {"id": "b", "created": "no"}]
    found = [ListedModel(id="a", title="A"), ListedModel(id="b")]
    for document in (odd, {"data": odd}):  # some providers send the bare list
        read = form.read(document)
        assert [(each.id, each.title, each.created) for each in read] == [
            (each.id, each.title, each.created) for each in found
        ]
    assert form.read({"data": {}}) == form.read("x") == form.read(None) == []

"""Live drafts on real sockets: drafts are looked up and answered before the request is sent."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import openai
import pytest

from headstart.clients import LiveDraft
from headstart.config.checks import checked
from headstart.decisions import Outcome
from headstart.errors import ConfigError, HeadstartError
from headstart.lab.simulator.faults import Status
from headstart.middleware import live_drafts
from headstart.policies.live_drafts import PLACEHOLDER
from headstart.report.accounts import Accounts
from headstart.settings import (
    CacheSettings,
    LiveSettings,
    PriceSettings,
    ServerSettings,
    Settings,
    UpstreamSettings,
)
from headstart.sidecar import build_sidecar
from support.patience import until
from support.serving import serving
from support.sidecar import Provider, Sidecar, headers_of, sidecar
from support.simulated import chat, simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from headstart.observe import Served
    from support.proxied import Reply

pytestmark = pytest.mark.anyio
PRICE = {"m": {"input_per_million": 1.0, "output_per_million": 4.0, "cached_per_million": 0.1}}
LIVE = {"enabled": True, "stages": ["lookup", "answer"], "max_extra_cost": 1.0}
QUESTION = "Which river is the longest one?"


class Asked(Provider):
    """Counts chat calls: a connection is opened early with a HEAD request."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.chats = 0
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await super().__call__(scope, receive, send)
        self.chats += 1

        async def reading() -> Any:
            message = await receive()
            self.bodies.append(message.get("body", b""))
            return message

        return await super().__call__(scope, reading, send)


@contextlib.asynccontextmanager
async def live(provider: Asked | None = None, **settings: Any) -> AsyncIterator[Sidecar]:
    provider = provider or Asked()
    price = settings.pop("price", PRICE)
    keys = settings.pop("server", {})
    async with sidecar(
        provider, upstream={"price": price}, live={**LIVE, **settings}, server=keys
    ) as running:
        yield running


def chats(running: Sidecar) -> int:
    assert isinstance(running.provider, Asked)
    return running.provider.chats


def rows(running: Sidecar, outcome: Outcome) -> list[Served]:
    return [row for row in running.served if row.outcome is outcome]


async def booked(running: Sidecar, outcome: Outcome, count: int = 1) -> list[Served]:
    await until(lambda: len(rows(running, outcome)) == count)
    return rows(running, outcome)


def text_of(reply: Reply) -> str:
    answer = json.loads(reply.body)
    return str(answer["choices"][0]["message"]["content"])


class Typist:
    """A client that gives a draft over HTTP."""

    def __init__(self, running: Sidecar, **options: Any) -> None:
        self.running = running
        self.options = options
        self.id = ""
        self.rev = 0

    async def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        url = self.running.url + "/v1/live" + path
        async with self.running.session.request(
            method, url, data=data, headers=headers_of(None, headers)
        ) as response:
            read = await response.read()
            return response.status, json.loads(read) if read else None

    async def begin(self, **fields: Any) -> dict[str, Any]:
        opening = {"request": chat(PLACEHOLDER, **fields), **self.options}
        status, state = await self.send("POST", "", opening)
        assert status == 201, state
        self.id = state["id"]
        return state  # type: ignore[no-any-return]

    async def type(self, text: str) -> dict[str, Any]:
        self.rev += 1
        status, state = await self.send("PUT", f"/{self.id}", {"rev": self.rev, "text": text})
        assert status == 202, state
        return state  # type: ignore[no-any-return]

    async def state(self) -> dict[str, Any]:
        status, state = await self.send("GET", f"/{self.id}")
        assert status == 200, state
        return state  # type: ignore[no-any-return]

    async def until(self, **expected: Any) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                state = await self.state()
                if all(state[name] == value for name, value in expected.items()):
                    return state
                await asyncio.sleep(0.01)

    async def submit(self, text: str, **fields: Any) -> Any:
        return await self.running.ask(text, headers={"x-headstart-live": self.id}, **fields)


async def test_the_final_call_gets_the_answer_that_was_made_while_typing() -> None:
    async with live() as running:
        typist = Typist(running)
        await typist.begin()
        await typist.type("Which river is")
        await typist.type(QUESTION)
        await typist.until(answer="done")
        assert chats(running) == 1
        reply = await typist.submit(QUESTION)
        assert reply.status == 200
        assert "detail=live-draft" in reply.headers["cache-status"]
        assert chats(running) == 1
        # It is an ordinary answer from now on.
        again = await running.ask(QUESTION)
        assert "hit; " in again.headers["cache-status"]
        assert text_of(again) == text_of(reply)
        [drafted] = await booked(running, Outcome.DRAFT)
        [joined] = await booked(running, Outcome.JOINED)
        assert drafted.reason == "used"
        assert drafted.cost_usd == pytest.approx(joined.saved_usd)
        assert joined.cost_usd == 0.0
        assert (await typist.send("GET", f"/{typist.id}"))[0] == 404


@pytest.mark.parametrize("typed", ["Which river is the longest one", QUESTION + " \n"])
async def test_space_and_a_final_mark_do_not_matter(typed: str) -> None:
    async with live(pause_s=0.21) as running:
        typist = Typist(running)
        await typist.begin()
        await typist.type(typed)
        await typist.until(answer="done")
        reply = await typist.submit(QUESTION)
        assert "detail=live-draft" in reply.headers["cache-status"]
        assert chats(running) == 1
        # The answer to other words is not stored under these.
        again = await running.ask(QUESTION)
        assert "hit" not in again.headers["cache-status"]


@pytest.mark.parametrize(
    ("begun", "asked"),
    [
        ({}, {"temperature": 0.2}),
        ({}, {"model": "m2"}),
        ({}, {"stream": True}),
        ({"temperature": 0.2}, {"temperature": 0.3}),
        ({}, {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
        ({}, {"user": "somebody"}),
    ],
)
async def test_another_request_gets_a_call_of_its_own(
    begun: dict[str, Any], asked: dict[str, Any]
) -> None:
    async with live() as running:
        typist = Typist(running)
        await typist.begin(**begun)
        await typist.type(QUESTION)
        await typist.until(answer="done")
        reply = await typist.submit(QUESTION, **asked)
        assert reply.status == 200
        assert "live-draft" not in reply.headers["cache-status"]
        [drafted] = await booked(running, Outcome.DRAFT)
        assert drafted.reason == "unused"
        assert drafted.would_have_cost_usd == 0.0
        assert (drafted.cost_usd or 0.0) > 0.0


async def test_another_text_gets_a_call_of_its_own() -> None:
    async with live() as running:
        typist = Typist(running)
        await typist.begin()
        await typist.type(QUESTION)
        await typist.until(answer="done")
        reply = await typist.submit("Which river is the shortest one?")
        assert "live-draft" not in reply.headers["cache-status"]
        assert chats(running) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_in_flight_is_taken_over(stream: bool) -> None:
    provider = Asked(profile="openai", speed=4)
    async with live(provider) as running:
        typist = Typist(running)
        await typist.begin(stream=stream)
        await typist.type(QUESTION)
        await typist.until(answer="running")
        async with openai.AsyncOpenAI(
            base_url=running.url + "/v1", api_key="sk-test", max_retries=0
        ) as client:
            ask = client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": QUESTION}],
                stream=stream,
                extra_headers={"x-headstart-live": typist.id},
            )
            answer: Any = await ask
            if stream:
                text = "".join(
                    [c.choices[0].delta.content or "" async for c in answer if c.choices]
                )
            else:
                text = answer.choices[0].message.content
        assert chats(running) == 1
        plain = await running.ask(QUESTION, headers={"cache-control": "no-cache"})
        assert text_of(plain) == text


async def test_a_new_revision_cancels_the_call_for_the_old_one() -> None:
    provider = Asked(profile="openai", speed=4)
    async with live(provider) as running:
        typist = Typist(running)
        await typist.begin(stream=True)
        await typist.type(QUESTION)
        await typist.until(answer="running")
        await until(lambda: chats(running) == 1)
        await typist.type(QUESTION + " And where")
        [drafted] = await booked(running, Outcome.DRAFT)
        assert drafted.reason == "unused"
        assert [each.outcome for each in drafted.attempts] == ["abandoned"]
        await until(lambda: running.provider.stats.snapshot().cancelled == 1)


async def test_an_older_revision_changes_nothing() -> None:
    async with live(stages=["lookup"]) as running:
        typist = Typist(running)
        await typist.begin()
        await typist.type("one?")
        typist.rev = -5
        state = await typist.type("two?")
        assert state["rev"] == 1


async def test_a_draft_belongs_to_its_caller() -> None:
    async with live() as running:
        typist = Typist(running)
        await typist.begin()
        await typist.type(QUESTION)
        await typist.until(answer="done")
        other = {"authorization": "Bearer sk-other"}
        for method in ("GET", "PUT", "DELETE"):
            body = {"rev": 9, "text": "x"} if method == "PUT" else None
            status, _ = await typist.send(method, f"/{typist.id}", body, other)
            assert status == 404
        reply = await running.ask(QUESTION, headers={**other, "x-headstart-live": typist.id})
        assert "live-draft" not in reply.headers["cache-status"]
        assert (await typist.state())["answer"] == "done"  # it is still there for its owner


async def test_a_known_answer_needs_no_call() -> None:
    async with live() as running:
        await running.ask(QUESTION)
        typist = Typist(running)
        await typist.begin()
        await typist.type(QUESTION)
        state = await typist.until(cache="hit")
        assert state["answer"] == "none"
        reply = await typist.submit(QUESTION)
        assert "hit; " in reply.headers["cache-status"]
        assert chats(running) == 1


async def test_a_refused_draft_does_not_fail_the_final_call() -> None:
    async with live() as running:
        typist = Typist(running)
        await typist.begin()
        running.provider.open.clear()
        await typist.type(QUESTION)
        await typist.until(answer="running")
        await running.in_flight(0)
        asking = asyncio.create_task(typist.submit(QUESTION))  # noqa: TID251
        await asyncio.sleep(0.05)
        running.provider.open.set()
        reply = await asking
        assert reply.status == 200


@pytest.mark.parametrize("status", [429, 500])
async def test_a_provider_that_refuses_the_draft(status: int) -> None:
    fault = Status(status=status)
    async with live() as running:
        typist = Typist(running)
        opening = {"request": chat(PLACEHOLDER)}
        _, state = await typist.send("POST", "", opening, {"x-sim-fault": fault.header()})
        typist.id = state["id"]
        await typist.type(QUESTION)
        await typist.until(answer="failed")
        reply = await typist.submit(QUESTION)
        assert reply.status == 200


async def test_budgets_and_unknown_prices_keep_drafts_from_providers() -> None:
    async with live(price={}) as running:
        typist = Typist(running)
        await typist.begin()
        await typist.type(QUESTION)
        await typist.until(answer="unknown-price")
    async with live(answer_usd=1e-7) as running:
        typist = Typist(running)
        await typist.begin()
        await typist.type(QUESTION)
        await typist.until(answer="budget")
    async with live(max_calls=1) as running:
        typist = Typist(running)
        await typist.begin()
        await typist.type("Who?")
        await typist.until(answer="done")
        await typist.type("Who? Where?")
        await typist.until(answer="max-calls")
        assert chats(running) == 1


async def test_the_budget_of_the_client_counts() -> None:
    async with live() as running:
        typist = Typist(running, budget_usd=1e-9)
        await typist.begin()
        await typist.type(QUESTION)
        await typist.until(answer="budget")
        assert chats(running) == 0


async def test_a_draft_ends_by_itself() -> None:
    async with live(ttl_s=0.3) as running:
        typist = Typist(running)
        await typist.begin()
        await typist.type(QUESTION)
        [drafted] = await booked(running, Outcome.DRAFT)
        assert drafted.reason == "unused"
        assert (await typist.send("GET", f"/{typist.id}"))[0] == 404


async def test_the_number_of_drafts_is_bounded() -> None:
    async with live(max_drafts=1) as running:
        typist = Typist(running)
        await typist.begin()
        status, error = await typist.send("POST", "", {"request": chat(PLACEHOLDER)})
        assert status == 429
        assert "live.max_drafts" in error["error"]["message"]
        assert (await typist.send("DELETE", f"/{typist.id}"))[0] == 204
        await typist.begin()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"request": chat("no placeholder")}, PLACEHOLDER),
        ({"request": chat(PLACEHOLDER * 2)}, PLACEHOLDER),
        ({"request": {"model": "m"}}, PLACEHOLDER),
        ({"request": chat(PLACEHOLDER), "path": "/v1/files"}, "path"),
        ({"request": chat(PLACEHOLDER), "stages": ["guess"]}, "stages"),
        ({}, "request"),
        ([], "object"),
    ],
)
async def test_a_wrong_opening_is_told(body: Any, said: str) -> None:
    async with live() as running:
        status, error = await Typist(running).send("POST", "", body)
        assert status == 400
        assert said in error["error"]["message"]


async def test_without_the_setting_the_path_goes_to_the_provider() -> None:
    async with live(enabled=False) as running:
        status, _ = await Typist(running).send("POST", "", {"request": chat(PLACEHOLDER)})
        assert status == 404
        reply = await running.ask(QUESTION, headers={"x-headstart-live": "nothing"})
        assert reply.status == 200


async def test_a_websocket_tells_each_state() -> None:
    async with live() as running:
        async with running.session.ws_connect(
            running.url + "/v1/live", headers=headers_of()
        ) as socket:
            await socket.send_json({"type": "open", "request": chat(PLACEHOLDER)})
            opened = await socket.receive_json()
            await socket.send_json({"type": "draft", "rev": 1, "text": QUESTION})
            state = opened
            while state["answer"] != "done":
                state = await socket.receive_json(timeout=20)
            assert state["cache"] == "miss"
            reply = await running.ask(QUESTION, headers={"x-headstart-live": state["id"]})
            assert "detail=live-draft" in reply.headers["cache-status"]
        assert chats(running) == 1


async def test_a_websocket_that_closes_ends_its_draft() -> None:
    async with live() as running:
        async with running.session.ws_connect(
            running.url + "/v1/live", headers=headers_of()
        ) as socket:
            await socket.send_json({"type": "open", "request": chat(PLACEHOLDER)})
            await socket.send_json({"type": "draft", "rev": 1, "text": QUESTION})
            state = await socket.receive_json()
            while state["answer"] != "done":
                state = await socket.receive_json(timeout=20)
        [drafted] = await booked(running, Outcome.DRAFT)
        assert drafted.reason == "unused"


async def test_websockets_of_drafts_have_the_limits_of_all_websockets() -> None:
    limits = {"max_websockets": 2, "websocket_idle_s": 0.3, "websocket_deadline_s": 0.8}
    async with live(server=limits) as running:
        url, ends = running.url + "/v1/live", []
        open_draft = {"type": "open", "request": chat(PLACEHOLDER)}
        async with (
            running.session.ws_connect(url, headers=headers_of()) as idle,
            running.session.ws_connect(url, headers=headers_of()) as busy,
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await running.session.ws_connect(url, headers=headers_of())
            assert refused.value.status == 429
            await busy.send_json(open_draft)
            for rev in range(20):
                message = await busy.receive(timeout=5)
                if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED):
                    break
                await busy.send_json({"type": "draft", "rev": rev, "text": "What" + "a" * rev})
                await asyncio.sleep(0.1)
            ends = [(await idle.receive(timeout=5)).data, busy.close_code]
        assert ends == [1001, 1001]
        async with running.session.ws_connect(url, headers=headers_of()) as again:
            await again.send_json(open_draft)
            assert (await again.receive_json(timeout=5))["rev"] == -1


async def test_a_websocket_with_a_wrong_key_gets_the_status_of_a_request() -> None:
    async with live(server={"client_keys": ["right"]}) as running:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await running.session.ws_connect(running.url + "/v1/live", headers=headers_of())
        assert refused.value.status == 401


async def test_the_requests_of_all_drafts_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_drafts, "MOST_BYTES", 1000)
    async with live() as running:
        first, second = Typist(running), Typist(running)
        system = {"role": "system", "content": "a" * 600}
        messages = [system, {"role": "user", "content": PLACEHOLDER}]
        await first.begin(messages=messages)
        path = f"{running.url}/v1/live"
        body = {"request": {"model": "m", "messages": messages}}
        async with running.session.post(path, json=body, headers=headers_of()) as response:
            assert response.status == 429
        await first.type("What?")
        await first.submit("What?", messages=[system, {"role": "user", "content": "What?"}])
        await second.begin(messages=messages)


async def test_deep_nesting_and_broken_utf_8_are_refused() -> None:
    async with live() as running:
        path, deep = f"{running.url}/v1/live", "[" * 5000
        for body in (deep, f'{{"request":{deep}"{PLACEHOLDER}"{"]" * 5000}}}', b'{"\xff": 1}'):
            async with running.session.post(path, data=body, headers=headers_of()) as response:
                assert response.status == 400
        async with running.session.ws_connect(path, headers=headers_of()) as socket:
            await socket.send_str(deep)
            error = await socket.receive_json(timeout=5)
            assert error["error"]["code"] == "invalid_request"


async def test_the_prompt_cache_is_filled_once() -> None:
    context = "The report. " + "A line of a long report that everybody asks about. " * 200
    provider = Asked(profile="openai", speed=20)
    async with live(provider, stages=["lookup", "warm"]) as running:
        typist = Typist(running)
        system = {"role": "system", "content": context}
        draft = {"role": "user", "content": PLACEHOLDER}
        await typist.begin(messages=[system, draft])
        for text in ("What", "What does", "What does it say?"):
            await typist.type(text)
        await typist.until(warm="done")
        asked = {"role": "user", "content": "What does it say?"}
        reply = await typist.submit("", messages=[system, asked])
        assert reply.status == 200
        assert chats(running) == 2
        [warm] = await booked(running, Outcome.DRAFT)
        assert warm.reason == "warm"
        assert warm.completion_tokens <= 16
        [asked_row] = await booked(running, Outcome.MISS)
        assert asked_row.attempts[0].cached_tokens > 1024


async def test_nothing_of_a_draft_that_was_not_sent_is_kept() -> None:
    async with live() as running:
        typist = Typist(running)
        await typist.begin()
        await typist.type("My secret is 4711. Is it safe?")
        await typist.until(answer="done")
        await typist.send("DELETE", f"/{typist.id}")
        await booked(running, Outcome.DRAFT)
        cache = running.parts[0].cache
        assert cache is not None
        assert (await cache.stats()).entries == 0
        assert all("4711" not in repr(each) for each in running.recorder.seen)


NODE = shutil.which("node")
SCRIPT = """
const { readFileSync } = await import("node:fs");
const [url, question] = process.argv.slice(2);
const source = await (await fetch(url + "/_headstart/live.js")).text();
new Function(source)();
const headers = { authorization: "Bearer sk-test" };
const request = { model: "m", messages: [{ role: "user", content: "{{draft}}" }] };
const draft = await HeadstartLiveDraft.begin({ url, request, headers });
for (let n = 1; n <= question.length; n++) {
  draft.write(question.slice(0, n));
  await new Promise((resolve) => setTimeout(resolve, 5));
}
while (draft.state.answer !== "done") {
  await new Promise((resolve) => setTimeout(resolve, 20));
  draft.state = await (await fetch(`${draft.url}/${draft.id}`, { headers })).json();
}
const body = JSON.stringify({ ...request, messages: [{ role: "user", content: question }] });
const answer = await fetch(url + "/v1/chat/completions", {
  method: "POST", body,
  headers: { ...headers, "content-type": "application/json", ...draft.headers },
});
console.log(answer.headers.get("cache-status"));
"""


@pytest.mark.skipif(NODE is None, reason="node is not here")
async def test_the_script_for_browsers_sends_drafts(tmp_path: Path) -> None:
    program = tmp_path / "draft.mjs"
    program.write_text(SCRIPT)
    price = {"default": PriceSettings(**PRICE["m"])}
    async with simulated(Asked()) as base, contextlib.AsyncExitStack() as stack:
        settings = Settings(
            cache=CacheSettings(store="memory:", mode="exact-only"),
            upstream=(UpstreamSettings(name="sim", base_url=f"{base}/v1", price=price),),
            live=LiveSettings(enabled=True, stages=("lookup", "answer"), max_extra_cost=1.0),
        )
        url = await stack.enter_async_context(serving(build_sidecar(checked(settings))))
        done = await anyio.run_process(["node", str(program), url, QUESTION])
    assert "detail=live-draft" in done.stdout.decode()


async def test_the_python_client_sends_drafts() -> None:
    async with live() as running:
        headers = {"authorization": "Bearer sk-test"}
        async with LiveDraft(running.url + "/v1", chat(PLACEHOLDER), headers=headers) as draft:
            for end in range(1, len(QUESTION) + 1):
                draft.write(QUESTION[:end])
                await asyncio.sleep(0.003)
            async with asyncio.timeout(20):
                for spaces in itertools.cycle((1, 0)):
                    if draft.state["answer"] == "done":
                        break
                    draft.write(QUESTION + " " * spaces)  # each text is answered with the state
                    await asyncio.sleep(0.15)
            reply = await running.ask(QUESTION, headers=draft.call_headers)
        assert "detail=live-draft" in reply.headers["cache-status"]


async def test_the_python_client_says_why_a_draft_is_refused() -> None:
    async with live() as running:
        with pytest.raises(HeadstartError, match="exactly one text"):
            async with LiveDraft(running.url, chat("no place")):
                pass
    with pytest.raises(HeadstartError, match="did not begin"):
        async with LiveDraft(running.url, chat(PLACEHOLDER)):
            pass


async def test_the_python_client_says_what_a_server_without_live_drafts_lacks() -> None:
    async with simulated(Asked()) as base, contextlib.AsyncExitStack() as stack:
        settings = Settings(
            cache=CacheSettings(store="memory:", mode="exact-only"),
            upstream=(UpstreamSettings(name="sim", base_url=f"{base}/v1"),),
        )
        url = await stack.enter_async_context(serving(build_sidecar(checked(settings))))
        with pytest.raises(HeadstartError, match=r"is live.enabled set on the server\?"):
            async with LiveDraft(url, chat(PLACEHOLDER)):
                pass


async def test_workers_and_live_drafts_exclude_each_other() -> None:
    upstream = (UpstreamSettings(name="sim", base_url="http://127.0.0.1:1/v1"),)
    server = ServerSettings(workers=2)
    with pytest.raises(ConfigError, match=r"live.enabled.*server.workers = 1"):
        checked(Settings(upstream=upstream, server=server, live=LiveSettings(enabled=True)))


async def test_the_report_has_wasted_calls_in_its_sum() -> None:
    async with live() as running:
        for question in ("Who is it?", "Where is it?"):
            typist = Typist(running)
            await typist.begin()
            await typist.type(question)
            await typist.until(answer="done")
            await typist.submit(question if question.startswith("Who") else "When was it?")
        await booked(running, Outcome.DRAFT, 2)
        await booked(running, Outcome.MISS)
    account = Accounts()
    for row in running.served:
        account.add(row)
    savings = account.report().overall.savings
    lines = {line.name: line for line in savings.lines}
    drafts, answers = lines["calls of live drafts"], lines["answers of live drafts"]
    assert (drafts.requests, answers.requests) == (2, 1)
    assert (answers.usd or 0.0) + (drafts.usd or 0.0) < 0.0  # one of two was wasted


STORY = (
    "A train leaves at nine with 240 passengers on board. At the first stop 35 people leave it and "
    "12 get on. At the second stop half of all passengers leave. Nobody gets on there. The third "
    "stop is in the mountains, where the train waits for ten minutes. Then 20 more people get on. "
    "How many passengers are on the train now?"
)


async def test_a_long_prompt_is_worked_out_while_it_is_written() -> None:
    async with live(stages=["lookup", "infer"]) as running:
        typist = Typist(running)
        await typist.begin()
        for end in range(60, len(STORY), 60):
            await typist.type(STORY[:end])
            await asyncio.sleep(0.25)
        await typist.type(STORY)
        await until(lambda: len(rows(running, Outcome.DRAFT)) >= 2)
        reply = await typist.submit(STORY)
        assert reply.status == 200
        assert "detail=live-inferences" in reply.headers["cache-status"]
        assert "stored" not in reply.headers["cache-status"]
        drafts = rows(running, Outcome.DRAFT)
        assert {row.reason for row in drafts} == {"inference"}
        assert all(row.completion_tokens <= 160 for row in drafts)
        assert isinstance(running.provider, Asked)
        final = json.loads(running.provider.bodies[-1])["messages"][-1]["content"]
        assert final.startswith(STORY)
        assert "Worked out already" in final
        # It is no answer to the prompt itself.
        again = await running.ask(STORY)
        assert "hit" not in again.headers["cache-status"]


async def test_inferences_keep_their_budget() -> None:
    async with live(stages=["infer"], infer_usd=1e-9) as running:
        typist = Typist(running)
        await typist.begin()
        await typist.type(STORY)
        await asyncio.sleep(0.4)
        reply = await typist.submit(STORY)
        assert "live-inferences" not in reply.headers["cache-status"]
        assert chats(running) == 1

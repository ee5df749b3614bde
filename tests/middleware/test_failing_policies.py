"""When a policy raises, the request goes on without the cache: the app is called once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from headstart import Endpoint, HeadstartMiddleware
from headstart.middleware import prepare, pump
from headstart.middleware.lookup import Finder
from headstart.middleware.respond import RenderedAnswers
from headstart.observe import Observation, StageFailed
from headstart.policies.admission import Admission
from headstart.policies.freshness import Lifetimes
from headstart.reply import Transcript
from support.proxied import CHAT, Reply, proxied, reply_of
from support.serving import serving

if TYPE_CHECKING:
    from headstart.types import Receive, Scope, Send

pytestmark = pytest.mark.anyio

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Why?"}]}
ME = {"authorization": "Bearer me"}
SAID = {
    "id": "a-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Because."},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


class Broken(Exception):
    """What no code of ours expects."""


def breaks(*_: Any, **__: Any) -> Any:
    raise Broken("a secret of the prompt")


# What decides about a request, by the stage that it belongs to.
PREPARE = [
    (prepare, "parse_directives"),
    (prepare, "keyed_headers"),
    (prepare, "find_question"),
    (prepare, "chat_key"),
    (prepare, "first_rule"),
    (prepare, "match_context"),
    (Lifetimes, "of"),
    (Admission, "variants"),
    (Admission, "refuse_lookup"),
    (Admission, "refuse_semantic"),
]
NEEDED = {
    "find_question": {"x-headstart-query": "Why"},
    "first_rule": {"x-headstart-route": "any"},
}
"""Headers without which a function is not called, as there is nothing to decide."""
LOOKUP = [(Admission, "refuse_serve")]
REPLAY = [(RenderedAnswers, "rendered")]
ADMISSION = [
    (Admission, "refuse_store"),
    (Transcript, "completion"),
    (pump, "judge_response"),
]
"""What decides about an answer that has come."""


class App:
    """An app with a chat path of its own, which counts how often it is asked."""

    def __init__(self, *, stream: bool = False, extra: bytes = b"") -> None:
        self.calls = 0
        self.failed: set[str] = set()
        self.stream = stream
        self.body = json.dumps(SAID).encode()
        if stream:
            delta = {"index": 0, "delta": {"content": "Because."}, "finish_reason": "stop"}
            chunk = {**SAID, "object": "chat.completion.chunk", "choices": [delta]}
            self.body = b"data: %b\n\n%bdata: [DONE]\n\n" % (json.dumps(chunk).encode(), extra)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        self.calls += 1
        kind = b"text/event-stream" if self.stream else b"application/json"
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})

    def notify(self, observation: Observation) -> None:
        if isinstance(observation, StageFailed):
            assert observation.error == "Broken"
            assert not observation.detail
            self.failed.add(observation.stage)


async def ask(session: aiohttp.ClientSession, url: str, **headers: str) -> Reply:
    async with session.post(url, json=ASKED, headers={**ME, **headers}) as response:
        return await reply_of(response)


@pytest.mark.parametrize("path", [CHAT, "/ask"])
@pytest.mark.parametrize(
    ("place", "name", "stage"),
    [
        *[(*each, "prepare") for each in PREPARE],
        *[(*each, "lookup") for each in LOOKUP],
        *[(*each, "replay") for each in REPLAY],
    ],
)
async def test_the_apps_answer_passes_and_the_app_is_asked_once_a_request(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, stage: str, path: str
) -> None:
    app = App()
    endpoints = [Endpoint("/ask", prompt="messages.0.content")]
    wrapped = HeadstartMiddleware(app, endpoints=endpoints, observers=[app])
    async with serving(wrapped) as url, aiohttp.ClientSession() as session:
        first = await ask(session, url + path)
        assert (await ask(session, url + path)).headers["x-cache"] == "HIT"
        assert app.calls == 1
        monkeypatch.setattr(place, name, breaks)
        # What was understood of an equal request is remembered.
        other = {"cache-control": "max-age=99"} if stage == "prepare" else {}
        reply = await ask(session, url + path, **other, **NEEDED.get(name, {}))
    assert (reply.status, reply.body) == (200, first.body)
    if path == "/ask" and not app.failed:  # what only chat requests are asked
        assert place in (Admission, RenderedAnswers) or name == "chat_key"
        return
    assert app.failed == {stage}
    assert f"detail={stage}-error" in reply.verdict
    assert app.calls == 2


@pytest.mark.parametrize("path", [CHAT, "/ask"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("place", "name"), ADMISSION)
async def test_an_answer_passes_whole_though_it_cannot_be_judged(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, path: str, *, stream: bool
) -> None:
    app = App(stream=stream)
    endpoints = [Endpoint("/ask", prompt="messages.0.content")]
    wrapped = HeadstartMiddleware(app, endpoints=endpoints, observers=[app], mode="exact-only")
    monkeypatch.setattr(place, name, breaks)
    async with serving(wrapped) as url, aiohttp.ClientSession() as session:
        replies = [await ask(session, url + path) for _ in range(2)]
    assert {(reply.status, reply.body) for reply in replies} == {(200, app.body)}
    if path == "/ask" and place in (Admission, Transcript):  # what only chat requests are asked
        return
    assert app.calls == 2
    assert app.failed == {"admission"}
    if not stream or name == "judge_response":
        assert {reply.verdict.partition("not-stored:")[2] for reply in replies} == {
            "admission-error"
        }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_providers_answer_passes_whole_though_it_cannot_be_judged(
    monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    async with proxied() as proxy:
        whole = await proxy.ask("first", stream=stream)
        monkeypatch.setattr(Admission, "refuse_store", breaks)
        for _ in range(2):
            reply = await proxy.ask("other", stream=stream)
            assert (reply.status, reply.body) == (200, whole.body)
        await proxy.until(StageFailed, 2)
        assert len(proxy.upstream.calls) == 3
        assert {row.not_stored for row in proxy.served[1:]} == {"admission-error"}


async def test_a_frame_that_cannot_be_read_passes_as_the_app_sent_it() -> None:
    app = App(stream=True, extra=b"data: " + b"x" * (9 << 20) + b"\n\n")
    wrapped = HeadstartMiddleware(app, observers=[app], mode="exact-only")
    async with serving(wrapped) as url, aiohttp.ClientSession() as session:
        replies = [await ask(session, url + CHAT) for _ in range(2)]
    assert {reply.body for reply in replies} == {app.body}
    assert app.calls == 2


async def test_a_providers_answer_passes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (*PREPARE, (Finder, "find"))
    async with proxied(cache={"mode": "serve"}) as proxy:
        for number, (place, name) in enumerate(asked):
            with monkeypatch.context() as patched:
                patched.setattr(place, name, breaks)
                headers = {"x-headstart-tags": str(number), **NEEDED.get(name, {})}
                reply = await proxy.ask(str(number), headers=headers)
            assert reply.status == 200, name
            assert json.loads(reply.body)["choices"][0]["message"]["content"]
        assert len(proxy.upstream.calls) == len(asked)
        await proxy.until(StageFailed, len(asked))


async def test_a_wrong_key_is_refused_though_nothing_else_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with proxied(server={"client_keys": ["good"]}) as proxy:
        for place, name in PREPARE:
            with monkeypatch.context() as patched:
                patched.setattr(place, name, breaks)
                reply = await proxy.ask(name, headers={"authorization": "Bearer bad"})
            assert reply.status == 401
        assert proxy.upstream.calls == []

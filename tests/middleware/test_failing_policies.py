"""A policy that raises costs a request the cache and nothing else: the app is asked once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from headstart import Endpoint, HeadstartMiddleware
from headstart.middleware import prepare
from headstart.middleware.replay import Replays
from headstart.observe import StageFailed
from headstart.policies.admission import Admission
from support.proxied import CHAT, Reply, proxied, reply_of
from support.serving import serving

if TYPE_CHECKING:
    from headstart.middleware.asgi_types import Receive, Scope, Send
    from headstart.observe import Observation

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
    (prepare, "terms_of"),
    (Admission, "refuse_lookup"),
    (Admission, "refuse_semantic"),
]
LOOKUP = [(Admission, "variants"), (Admission, "refuse_serve")]
REPLAY = [(Replays, "rendered")]


class App:
    """An app with a chat path of its own, which counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0
        self.failed: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        self.calls += 1
        body = json.dumps(SAID).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

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
        reply = await ask(session, url + path, **other)
    assert (reply.status, reply.body) == (200, first.body)
    if path == "/ask" and not app.failed:  # what only chat requests are asked
        assert place in (Admission, Replays) or name == "chat_key"
        return
    assert app.failed == {stage}
    assert f"detail={stage}-error" in reply.verdict
    assert app.calls == 2


async def test_a_providers_answer_passes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (*PREPARE, LOOKUP[0])
    async with proxied(cache={"mode": "serve"}) as proxy:
        for number, (place, name) in enumerate(asked):
            with monkeypatch.context() as patched:
                patched.setattr(place, name, breaks)
                reply = await proxy.ask(str(number), headers={"x-headstart-tags": str(number)})
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

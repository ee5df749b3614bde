"""SDKs, httpx and LangChain through Headstart in their own process."""

from __future__ import annotations

import _thread
import asyncio
import gc
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import uvicorn
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from starlette.applications import Starlette

import headstart
from headstart.clients import LocalServer
from headstart.errors import ConfigError, HeadstartError
from headstart.httpx_transport import HeadstartTransport
from headstart.lab.simulator import Simulator
from headstart.lab.simulator.faults import Stall
from headstart.langchain_cache import HeadstartCache
from headstart.middleware.asgi import not_found
from headstart.settings import EncoderSettings, Settings, UpstreamSettings
from support.patience import PATIENCE_S
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headstart.types import Receive, Scope, Send

ASKED: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def simulator() -> Simulator:
    return Simulator()


@pytest.fixture
def provider(simulator: Simulator) -> Iterator[str]:
    with serving_in_thread(simulator, lifespan="off") as url:
        yield url


@pytest.fixture
def deep_provider(simulator: Simulator) -> Iterator[str]:
    """Where a provider has Anthropic's API beside another, as DeepSeek does."""
    prefix = "/anthropic"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        inside = scope["path"].startswith(f"{prefix}/v1/")
        path = scope["path"].removeprefix(prefix) if inside else "/nowhere"
        await simulator({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    with serving_in_thread(app, lifespan="off") as url:
        yield url + prefix


def calls(simulator: Simulator) -> int:
    return simulator.stats.snapshot().calls


def servers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "headstart-server"]


@pytest.fixture(autouse=True)
def no_server_is_left() -> Iterator[None]:
    yield
    assert_stops()


def assert_stops() -> None:
    """Wait for the servers whose clients are gone."""
    gc.collect()
    for each in servers():
        each.join(PATIENCE_S)
    assert not servers()


def test_a_wrapped_openai_client_gets_repeats_from_the_cache(
    provider: str, simulator: Simulator
) -> None:
    own = openai.OpenAI(base_url=f"{provider}/v1", api_key="k", max_retries=0)
    client = headstart.wrap(own, mode="exact-only")
    said = [
        client.chat.completions.create(model="m", messages=ASKED).choices[0].message.content
        for _ in range(2)
    ]
    assert said[0] == said[1]
    assert calls(simulator) == 1
    with client.chat.completions.create(model="m", messages=ASKED, stream=True) as stream:
        pieces = [each.choices[0].delta.content or "" for each in stream if each.choices]
    assert "".join(pieces) == said[0]
    assert calls(simulator) == 1
    assert str(own.base_url) == f"{provider}/v1/", "the client itself stays as it was"
    assert len(servers()) == 1
    client.close()
    del client, stream
    assert_stops()


@pytest.mark.anyio
async def test_a_wrapped_anthropic_client_works_async(provider: str, simulator: Simulator) -> None:
    async with anthropic.AsyncAnthropic(base_url=provider, api_key="k", max_retries=0) as own:
        client = await asyncio.to_thread(headstart.wrap, own, mode="exact-only")
        for _ in range(2):
            answer = await client.messages.create(model="m", max_tokens=2000, messages=ASKED)
            assert answer.content
        assert calls(simulator) == 1
        del client
        await asyncio.to_thread(assert_stops)


def test_an_anthropic_client_keeps_the_path_of_its_address(
    deep_provider: str, simulator: Simulator
) -> None:
    own = anthropic.Anthropic(base_url=deep_provider, api_key="k", max_retries=0)
    client = headstart.wrap(own, mode="exact-only")
    transport = HeadstartTransport(deep_provider, dialect="anthropic", mode="exact-only")
    with httpx2.Client(transport=transport) as http_client:
        for each in (client, own.with_options(http_client=http_client)):
            before = calls(simulator)
            for _ in range(2):
                assert each.messages.create(model="m", max_tokens=2000, messages=ASKED).content
            assert calls(simulator) == before + 1


def test_a_client_inside_the_class_of_a_tool_is_known(
    deep_provider: str, simulator: Simulator
) -> None:
    """As Braintrust's ``wrap_anthropic`` returns it."""

    class Traced:
        def __init__(self, inner: anthropic.Anthropic) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    own = anthropic.Anthropic(base_url=deep_provider, api_key="k", max_retries=0)
    client: Any = headstart.wrap(Traced(own), mode="exact-only")
    assert client.messages.create(model="m", max_tokens=2000, messages=ASKED).content
    assert calls(simulator) == 1


def test_an_address_with_a_version_keeps_one(provider: str, simulator: Simulator) -> None:
    """As that of the client for Vertex, whose paths have none."""
    own = anthropic.Anthropic(base_url=f"{provider}/v1", api_key="k", max_retries=0)
    answer = headstart.wrap(own, mode="exact-only").get("/models", cast_to=object)
    assert answer == own.get("/models", cast_to=object)


def test_an_openai_client_may_name_no_version(provider: str, simulator: Simulator) -> None:
    """As LiteLLM's documentation has it."""
    own = openai.OpenAI(base_url=provider, api_key="k", max_retries=0)
    client = headstart.wrap(own, mode="exact-only")
    assert client.chat.completions.create(model="m", messages=ASKED).choices
    assert calls(simulator) == 1


def test_settings_with_upstreams_decide_where_calls_go(provider: str, simulator: Simulator) -> None:
    upstream = headstart.UpstreamSettings(base_url=f"{provider}/v1")
    settings = headstart.Settings(upstream=(upstream,))
    own = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    client = headstart.wrap(own, settings, store="memory:", mode="exact-only")
    assert client.chat.completions.create(model="m", messages=ASKED).choices
    assert calls(simulator) == 1


PROGRAM = """
import sys, threading, time, headstart, openai
client = headstart.wrap(
    openai.OpenAI(base_url=sys.argv[1], api_key="k"), "r.toml", mode="exact-only", store="memory:"
)
def ask(text):
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
def ask_late():
    threading.main_thread().join()
    ask("Hi " * 400_000)  # a thread pool parses so large a body
threading.Thread(target=ask_late).start()
ask("Hi")
"""


def test_a_program_ends_whole_with_its_last_threads_and_the_record(
    provider: str, tmp_path: Path
) -> None:
    (tmp_path / "r.toml").write_text(
        "[record]\nenabled = true\npath = 'r.jsonl'\n[compression]\nmode = 'off'\n"
    )
    command = [sys.executable, "-c", PROGRAM, f"{provider}/v1"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    [record] = tmp_path.glob("r-*.jsonl")
    assert len(record.read_text().splitlines()) == 2


STREAMING = """
import sys, headstart, openai
client = headstart.wrap(openai.OpenAI(base_url=sys.argv[1], api_key="k"), mode="exact-only")
asked = [{"role": "user", "content": "Hi"}]
next(iter(client.chat.completions.create(model="m", messages=asked, stream=True)))
"""


def test_a_program_may_end_within_a_stream(tmp_path: Path) -> None:
    with serving_in_thread(Simulator(fault=Stall(after=5)), lifespan="off") as url:
        command = [sys.executable, "-c", STREAMING, f"{url}/v1"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_server_that_ends_with_the_interpreter_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    run = uvicorn.Server.run

    def ends_late(self: uvicorn.Server, sockets: Any = None) -> None:
        run(self, sockets)
        raise RuntimeError("can't create new thread at interpreter shutdown")  # of Python 3.12

    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(uvicorn.Server, "run", ends_late)
    LocalServer(Starlette()).close()
    assert not failed


def test_a_client_of_no_known_sdk_is_refused() -> None:
    with pytest.raises(ConfigError, match="not dict"):
        headstart.wrap({})  # type: ignore[type-var]

    class Groq:
        """Another SDK of the same maker has the same methods, but other paths."""

        base_url = "https://api.groq.com"

        def with_options(self, *, base_url: str = base_url) -> Groq:
            return self

    with pytest.raises(ConfigError, match="not Groq"):
        headstart.wrap(Groq())


def start_thread_of(module: str) -> Callable[..., int]:
    """Return a function that starts threads as one of this module would."""

    def start(*args: Any, original: Callable[..., int] = _thread.start_new_thread) -> int:
        return original(*args)

    start.__module__ = module
    return start


@pytest.mark.parametrize("module", ["gevent.thread", "eventlet.green.thread"])
def test_green_threads_are_refused(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Gevent and eventlet replace the function that starts threads: an event loop would hang."""
    monkeypatch.setattr(_thread, "start_new_thread", start_thread_of(module))
    with pytest.raises(ConfigError, match="start headstart serve"):
        headstart.wrap(openai.OpenAI(api_key="x"))


def test_threads_of_a_debugger_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start = start_thread_of("_pydev_bundle.pydev_monkey")
    monkeypatch.setattr(_thread, "start_new_thread", start)
    LocalServer(not_found).close()


def test_an_app_that_does_not_start_is_an_error() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(HeadstartError, match="did not start"):
        LocalServer(fails)
    assert not servers()


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_client_goes_through_the_transport(
    library: Any, provider: str, simulator: Simulator
) -> None:
    transport = HeadstartTransport(f"{provider}/v1", mode="exact-only")
    with library.Client(transport=transport) as client:
        body = {"model": "m", "messages": ASKED}
        url, headers = f"{provider}/v1/chat/completions", {"authorization": "Bearer k"}
        replies = [client.post(url, json=body, headers=headers) for _ in range(2)]
        assert [each.status_code for each in replies] == [200, 200]
        assert "hit" in replies[1].headers["cache-status"]
        assert str(replies[1].url) == url
        assert calls(simulator) == 1
        assert client.get(f"{provider}/_sim/stats").status_code == 200, "not below the base URL"
    assert not servers()


def test_a_request_keeps_the_beta_version_of_its_address() -> None:
    asked = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        await not_found(scope, receive, send)

    with serving_in_thread(app, lifespan="off") as url:
        upstream = UpstreamSettings(base_url=url, dialect="gemini", api_key_env=())
        transport = HeadstartTransport(f"{url}/v1beta", Settings(upstream=(upstream,)))
        with httpx.Client(transport=transport) as client:
            client.get(f"{url}/v1beta/files/a", headers={"x-goog-api-key": "k"})
    assert asked == ["/v1beta/files/a"]


@pytest.mark.anyio
@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_an_async_client_goes_through_the_transport(library: Any, provider: str) -> None:
    transport = await asyncio.to_thread(HeadstartTransport, f"{provider}/v1", mode="exact-only")
    async with library.AsyncClient(transport=transport) as client:
        body = {"model": "m", "messages": ASKED, "stream": True}
        url, headers = f"{provider}/v1/chat/completions", {"authorization": "Bearer k"}
        for _ in range(2):
            async with client.stream("POST", url, json=body, headers=headers) as reply:
                lines = [line async for line in reply.aiter_lines() if line]
            assert lines[-1] == "data: [DONE]"
    assert not servers()


def test_the_sdks_of_providers_take_a_client_with_the_transport(
    provider: str, simulator: Simulator
) -> None:
    """Anthropic's takes clients of httpx2 alone; OpenAI's takes both."""
    at = HeadstartTransport(f"{provider}/v1", mode="exact-only")
    taken: list[Any] = [httpx.Client(transport=at), httpx2.Client(transport=at)]
    for client in taken:
        sdk = openai.OpenAI(base_url=f"{provider}/v1", api_key="k", http_client=client)
        assert sdk.chat.completions.create(model="m", messages=ASKED).choices
    assert calls(simulator) == 1
    at.close()
    root = HeadstartTransport(provider, dialect="anthropic", mode="exact-only")
    with httpx2.Client(transport=root) as client:
        claude = anthropic.Anthropic(base_url=provider, api_key="k", http_client=client)
        asked: Any = {"model": "m", "max_tokens": 1000, "messages": ASKED}
        (block,) = claude.messages.create(**asked).content
        with claude.messages.stream(**asked) as stream:
            assert stream.get_final_text() == block.text
    assert calls(simulator) == 2
    assert not servers()


@pytest.fixture
def cache() -> Iterator[HeadstartCache]:
    kept = HeadstartCache(mode="exact-only")
    yield kept
    kept.close()


def test_langchain_gets_repeats_from_the_cache(cache: HeadstartCache) -> None:
    model = FakeListChatModel(responses=["Paris.", "Rome."], cache=cache)
    question = [SystemMessage("Be brief."), HumanMessage("What is the capital of France?")]
    first, again = model.invoke(question), model.invoke(question)
    assert (first.content, again.content) == ("Paris.", "Paris.")
    other = FakeListChatModel(responses=["Lyon."], cache=cache, metadata={"x": 1}, name="other")
    assert model.invoke("Another question?").content == "Rome."
    assert other.invoke("A third question?").content == "Lyon."
    cache.clear()
    assert model.invoke(question).content == "Paris.", "asked anew"


def test_langchain_is_told_of_no_hit_for_another_model_or_answer_with_tools(
    cache: HeadstartCache,
) -> None:
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, Generation

    cache.update("plain text", "llm one", [Generation(text="kept")])
    assert cache.lookup("plain text", "llm one") == [Generation(text="kept")]
    assert cache.lookup("plain text", "llm two") is None
    call: dict[str, Any] = {"name": "find", "args": {}, "id": "c"}
    answer = ChatGeneration(message=AIMessage(content="x", tool_calls=[call]))
    cache.update("with tools", "llm one", [answer])
    assert cache.lookup("with tools", "llm one") is None
    cache.update("two", "llm one", [Generation(text="a"), Generation(text="b")])
    assert cache.lookup("two", "llm one") is None


def test_langchain_gets_the_newest_answer(cache: HeadstartCache) -> None:
    from langchain_core.outputs import Generation

    for text in ("old", "new"):
        cache.update("question", "llm", [Generation(text=text)])
    assert cache.lookup("question", "llm") == [Generation(text="new")]


def test_langchain_gets_the_answer_to_a_reworded_prompt() -> None:
    from langchain_core.outputs import Generation

    patient = headstart.Settings(encoder=EncoderSettings(max_wait_ms=20_000.0))
    cache = HeadstartCache(patient, store="memory:", match="static", threshold=0.9)
    try:
        cache.update("How can I sign up for ChatGPT?", "llm", [Generation(text="So.")])
        until_s = time.monotonic() + PATIENCE_S
        while (found := cache.lookup("I want to sign up for ChatGPT", "llm")) is None:
            assert time.monotonic() < until_s, "the stored prompt was not encoded"
        assert found == [Generation(text="So.")]
        assert cache.lookup("I do not want to sign up for ChatGPT", "llm") is None
    finally:
        cache.close()

"""The public API as users type it. Checked by mypy and pyright (strict), never run.

``assert_type`` holds what a user's editor will say; an assignment proves that an implementation
matches its Protocol, since none has a base class.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

import headstart
from headstart import Endpoint, HeadstartMiddleware, Settings, gateway
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.cohere_chat import COHERE_CHAT
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from headstart.dialects.dialect import Dialect, UpstreamDialect
    from headstart.embeddings.encoder import OnnxEncoder
    from headstart.embeddings.index import FaissIndex
    from headstart.embeddings.stores.memory import MemoryStore
    from headstart.embeddings.stores.redis import RedisStore
    from headstart.embeddings.stores.sqlite import SQLiteStore
    from headstart.interfaces import (
        AdmissionPolicy,
        Candidate,
        Encoder,
        MatchPolicy,
        Store,
        Upstream,
        VectorIndex,
    )
    from headstart.middleware.shaping.steps import ShapedCandidate
    from headstart.middleware.upstreams.app import AppUpstream
    from headstart.middleware.upstreams.attempt_group import AttemptGroup
    from headstart.middleware.upstreams.cascade import Cascade
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.middleware.upstreams.rescue import RescuedCandidate
    from headstart.middleware.upstreams.target import Target
    from headstart.observe import Observation, Observer
    from headstart.policies.admission import Admission
    from headstart.policies.match import StaticMatch
    from headstart.types import ChatRequest, Completion


async def app(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})


class Printer:
    """A user's observer: no base class."""

    def notify(self, observation: Observation) -> None:
        assert_type(observation.__class__.__name__, str)


def tenant(scope: MutableMapping[str, Any]) -> str | None:
    return scope.get("tenant")


def split(document: Mapping[str, Any]) -> tuple[str | None, Any]:
    return document.get("question"), None


def mount() -> None:
    wrapped = HeadstartMiddleware(
        app,
        endpoints=[Endpoint("/ask", prompt="question"), Endpoint("/chat", prompt=split)],
        scope=tenant,
        observers=[Printer()],
        threshold=0.93,
    )
    assert_type(wrapped, HeadstartMiddleware)
    gateway("headstart.toml")
    gateway(Path("headstart.toml"), scope=tenant)
    gateway(Settings(), observers=(Printer(),))


def shorten() -> None:
    done = headstart.compress([{"role": "user", "content": "Hi"}], model="gpt-4o", mode="balanced")
    assert_type(done, headstart.Compression)
    assert_type(done.tokens_before - done.tokens_after, int)
    assert_type(done.restore(), list[dict[str, Any]])


def short(request: ChatRequest, draft: Completion) -> bool:
    return len(draft.choices) == 1


async def graded(request: ChatRequest, draft: Completion) -> float:
    return 0.5 if request.stream else 0.9


def compose() -> None:
    answer = headstart.race("a", headstart.hedge("b", "c", extra_calls=0.1))
    route = headstart.route("chat", answer, model="llama-*", deadline_s=5.0)
    judged = headstart.cascade("a", "b", judges=[short, graded], min_confidence=0.8)
    headstart.route("careful", judged)
    upstream = headstart.UpstreamSettings(preset="groq")
    gateway(Settings(upstream=(upstream,), route=(route,)))


def read() -> None:
    assert_type(headstart.__version__, str)
    assert_type(Settings().cache.enabled, bool)
    assert_type(headstart.Overloaded().status, int)
    assert_type(headstart.UpstreamTimeout().code, str)


def conform(
    *,
    memory: MemoryStore,
    sqlite: SQLiteStore,
    redis: RedisStore,
    faiss: FaissIndex,
    onnx: OnnxEncoder,
    admission: Admission,
    static: StaticMatch,
    provider: HTTPUpstream,
    wrapped: AppUpstream,
    target: Target,
    attempt_group: AttemptGroup,
    cascade: Cascade,
    rescued: RescuedCandidate,
    shaped: ShapedCandidate,
) -> None:
    stores: list[Store] = [memory, sqlite, redis]
    index: VectorIndex = faiss
    encoder: Encoder = onnx
    may: AdmissionPolicy = admission
    match: MatchPolicy[Any] = static
    upstreams: list[Upstream] = [provider, wrapped]
    candidates: list[Candidate] = [target, attempt_group, cascade, rescued, shaped]
    dialects: list[Dialect] = [OPENAI_CHAT, ANTHROPIC_MESSAGES, GEMINI_GENERATE]
    spoken: list[UpstreamDialect] = [*dialects, COHERE_CHAT]
    observer: Observer = Printer()
    del stores, index, encoder, may, match, upstreams, candidates, spoken, observer


def catch() -> None:
    try:
        mount()
    except headstart.ConfigError as error:
        assert_type(error, headstart.ConfigError)
    except (headstart.RequestError, headstart.UpstreamError) as error:
        assert_type(error.status, int)
    except headstart.HeadstartError:
        raise
    except ImportError as error:  # a MissingExtra is one
        assert_type(error.name, str | None)

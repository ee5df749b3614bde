"""Choosing an upstream, and what of that choice is in the key."""

from __future__ import annotations

import msgspec
import pytest

from headstart.config import CacheSettings, Settings, UpstreamSettings
from headstart.errors import ConfigError, NoUpstream
from headstart.factory import start_engine
from headstart.factory.upstreams import choose, identity_of
from headstart.observe import Observers
from headstart.types import ChatRequest
from support.proxied import proxied

IN_MEMORY = CacheSettings(store="memory:")
CHAT, MESSAGES = "openai-chat", "anthropic-messages"


def request(model: str) -> ChatRequest:
    return ChatRequest(model=model, stream=False, document={}, query=None)


def test_the_key_binds_the_provider_its_address_and_the_model_behind_an_alias() -> None:
    one = UpstreamSettings(name="a", base_url="https://a.test", models={"fast": "small-1"})
    identities = {
        identity_of((), CHAT, request("fast")),
        identity_of((one,), CHAT, request("fast")),
        identity_of((one,), CHAT, request("small-1")) + " unaliased",
        identity_of(
            (UpstreamSettings(name="a", base_url="https://b.test"),), CHAT, request("fast")
        ),
        identity_of(
            (UpstreamSettings(name="a", base_url="https://a.test", models={"fast": "small-2"}),),
            CHAT,
            request("fast"),
        ),
    }
    assert len(identities) == 5


def test_a_request_goes_to_an_upstream_of_its_dialect_and_its_model_first() -> None:
    groq = UpstreamSettings(name="groq", base_url="https://g.test")
    claude = UpstreamSettings(name="claude", base_url="https://c.test", dialect="anthropic")
    haiku = msgspec.structs.replace(claude, name="haiku", models={"small": "haiku-1"})
    upstreams = (groq, claude, haiku)
    assert choose(upstreams, CHAT, "small") is groq
    assert choose(upstreams, MESSAGES, "large") is claude
    assert choose(upstreams, MESSAGES, "small") is haiku
    assert choose(upstreams, "", "large") is groq
    with pytest.raises(NoUpstream, match=r'add an .* dialect = "anthropic"'):
        choose((groq,), MESSAGES, "small")


@pytest.mark.anyio
async def test_an_alias_is_replaced_upstream_and_named_in_a_header() -> None:
    async with proxied(provider={"models": {"m": "m-real"}, "include_usage": False}) as proxy:
        reply = await proxy.ask()
        assert proxy.upstream.calls[0].json["model"] == "m-real"
        assert reply.headers["x-headstart-transforms"] == "model"


@pytest.mark.anyio
async def test_a_gateway_without_an_upstream_says_how_to_name_one() -> None:
    with pytest.raises(ConfigError, match="no upstream"):
        await start_engine(Settings(cache=IN_MEMORY), Observers(), wrapped=False)


@pytest.mark.anyio
async def test_a_missing_provider_key_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    upstream = UpstreamSettings(name="a", base_url="https://a.test", api_key_env="NO_SUCH_KEY")
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        await start_engine(
            Settings(cache=IN_MEMORY, upstream=(upstream,)), Observers(), wrapped=False
        )

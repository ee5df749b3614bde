"""Starting an engine from settings."""

from __future__ import annotations

import pytest

from headstart.errors import ConfigError
from headstart.factory import start_engine
from headstart.middleware.observers import Observers
from headstart.settings import CacheSettings, Settings, UpstreamSettings
from support.proxied import proxied

IN_MEMORY = CacheSettings(store="memory:")


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

"""What an upstream's address reveals: a known provider, its dialect, or a likely mistake."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.config.checks import checked, ignored_proxy, notes_on
from headstart.settings import CacheSettings, ServerSettings, Settings, UpstreamSettings


def one(**fields: Any) -> UpstreamSettings:
    [upstream] = checked(Settings(upstream=(UpstreamSettings(**fields),))).upstream
    return upstream


@pytest.mark.parametrize(
    ("url", "preset", "dialect", "complete"),
    [
        ("https://api.anthropic.com", "anthropic", "anthropic", "https://api.anthropic.com"),
        (
            "https://generativelanguage.googleapis.com/",
            "gemini",
            "gemini",
            "https://generativelanguage.googleapis.com",
        ),
        ("https://api.groq.com", "groq", "openai", "https://api.groq.com/openai/v1"),
        ("https://api.openai.com/v1/", "openai", "openai", "https://api.openai.com/v1"),
        ("https://api.cohere.com", "cohere", "cohere", None),
    ],
)
def test_a_known_provider_is_asked_as_it_wants_to_be(
    url: str, preset: str, dialect: str, complete: str | None
) -> None:
    found = one(base_url=url)
    assert (found.preset, found.dialect, found.key_variables) == (preset, dialect, ())
    assert complete is None or found.base_url == complete
    assert checked(Settings(upstream=(found,))).upstream == (found,)


def test_a_dialect_that_is_written_is_spoken() -> None:
    found = one(base_url="https://api.anthropic.com", dialect="openai")
    assert (found.preset, found.dialect) == (None, "openai")


def test_nobody_knows_an_address_that_is_not_a_providers_own() -> None:
    for url in ("https://api.groq.com.example.test", "http://api.groq.com", "https://api.groq.co"):
        assert one(base_url=url).preset is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (
            "https://llm.example.test/team",
            ["/team/chat/completions", '"https://llm.example.test/team/v1"'],
        ),
        ("https://api.groq.com/v1", ["https://api.groq.com/openai/v1", "preset = 'groq'"]),
    ],
)
def test_an_address_that_is_likely_wrong_is_noted(url: str, words: list[str]) -> None:
    [note] = notes_on(checked(Settings(upstream=(UpstreamSettings(base_url=url),))))
    assert all(word in note for word in words), note


@pytest.mark.parametrize(
    "fields",
    [
        {"base_url": "http://127.0.0.1:8000"},
        {"base_url": "https://llm.example.test/v1beta/openai"},
        {"base_url": "https://llm.example.test/anthropic", "dialect": "anthropic"},
        {"base_url": "https://api.groq.com/v1", "preset": "groq"},
        {"preset": "vllm"},
    ],
)
def test_an_address_that_can_be_right_is_not_noted(fields: dict[str, Any]) -> None:
    assert list(notes_on(checked(Settings(upstream=(UpstreamSettings(**fields),))))) == []


def test_a_scope_header_that_nobody_may_send_is_noted() -> None:
    by_header = Settings(cache=CacheSettings(scope="header:X-Team"))
    [note] = notes_on(by_header)
    assert "server.trusted_proxies" in note
    proxied = Settings(cache=by_header.cache, server=ServerSettings(trusted_proxies=("10.0.0.1",)))
    assert list(notes_on(proxied)) == []


OPENAI = {"name": "openai", "base_url": "https://one.example.test/v1"}
TOGETHER = {"name": "together", "base_url": "https://two.example.test/v1"}
LOCAL = {"base_url": "http://127.0.0.1:11434"}


@pytest.mark.parametrize(
    ("upstreams", "server", "noted"),
    [
        ((OPENAI, TOGETHER), {}, True),
        ((OPENAI, LOCAL), {}, True),
        ((OPENAI,), {}, False),
        ((LOCAL, {"base_url": "http://localhost:8000"}), {}, False),
        ((OPENAI, {**OPENAI, "name": "again"}), {}, False),
        ((OPENAI, {**TOGETHER, "api_key_env": "TOGETHER_API_KEY"}), {}, False),
        ((OPENAI, TOGETHER), {"client_keys": ("k",)}, False),
    ],
)
def test_where_callers_keys_may_reach_several_providers_is_noted(
    upstreams: tuple[dict[str, Any], ...], server: dict[str, Any], *, noted: bool
) -> None:
    settings = Settings(
        upstream=tuple(UpstreamSettings(**each) for each in upstreams),
        server=ServerSettings(**server),
    )
    found = list(notes_on(checked(settings)))
    assert [("api_key_env" in note, "'openai'" in note) for note in found] == [(True, True)] * noted


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"HTTPS_PROXY": "http://proxy:3128"}, "HTTPS_PROXY"),
        ({"https_proxy": "http://proxy:3128"}, "https_proxy"),
        ({"all_proxy": "http://proxy:3128"}, "all_proxy"),
        ({"HTTP_PROXY": "http://proxy:3128"}, None),
        ({"HTTPS_PROXY": ""}, None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "other.test,provider.test"}, None),
        ({"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "other.test"}, "HTTPS_PROXY"),
    ],
)
def test_a_proxy_that_other_programs_use_is_found(
    variables: dict[str, str], found: str | None
) -> None:
    direct = UpstreamSettings(name="a", base_url="https://api.provider.test/v1")
    assert ignored_proxy(Settings(upstream=(direct,)), variables) == found
    through = UpstreamSettings(name="b", base_url=direct.base_url, proxy="http://proxy:3128")
    assert ignored_proxy(Settings(upstream=(through,)), variables) is None

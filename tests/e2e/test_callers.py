"""Which callers of a sidecar share answers, with requests of the official clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest
from google import genai

from headstart.decisions import Outcome
from headstart.mount import HeadstartMiddleware
from support.scripted import ScriptedUpstream
from support.serving import serving
from support.sidecar import Provider, Sidecar, sidecar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = [
    pytest.mark.anyio,
    # google-genai's own class, made on first use
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
KEY = "sk-test"
APART = (
    "cookie", "x-auth", "x-auth-token", "ocp-apim-subscription-key", "x-litellm-api-key",
    "cf-aig-authorization", "x-portkey-api-key", "proxy-authorization", "x-user",
)  # fmt: skip
SILENT = ("x-request-id", "idempotency-key", "traceparent", "baggage", "x-title", "referer")


async def by_openai(url: str, prompt: str, number: int, headers: dict[str, str]) -> None:
    async with openai.AsyncOpenAI(
        base_url=url + "/v1",
        api_key=KEY,
        default_headers=headers,
        max_retries=number,
        timeout=60 + number,
    ) as client:
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": prompt}]
        )


async def by_anthropic(url: str, prompt: str, number: int, headers: dict[str, str]) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=url,
        api_key=KEY,
        default_headers=headers,
        max_retries=number,
        timeout=60 + number,
    ) as client:
        await client.messages.create(
            model="m", max_tokens=4000, messages=[{"role": "user", "content": prompt}]
        )


async def by_gemini(url: str, prompt: str, number: int, headers: dict[str, str]) -> None:
    options = genai.types.HttpOptions(base_url=url, headers=headers, timeout=(60 + number) * 1000)
    client = genai.Client(api_key=KEY, vertexai=False, http_options=options).aio
    try:
        await client.models.generate_content(model="m", contents=prompt)
    finally:
        await client.aclose()


CLIENTS: dict[str, Callable[[str, str, int, dict[str, str]], Awaitable[None]]] = {
    "openai": by_openai,
    "anthropic": by_anthropic,
    "gemini": by_gemini,
}


async def outcomes(gateway: Sidecar, sdk: str, name: str) -> list[Outcome]:
    """Return what became of one call twice, with two values of a header, by two clients."""
    before = len(gateway.served)
    for number in range(2):
        await CLIENTS[sdk](gateway.url, f"What is a {name}?", number, {name: f"value-{number}"})
    await gateway.finished(before + 2)
    return gateway.outcomes[before:]


@pytest.mark.parametrize("sdk", CLIENTS)
async def test_clients_with_one_key_share_unless_a_header_may_tell_them_apart(sdk: str) -> None:
    dialect = {"dialect": sdk} if sdk != "openai" else {}
    async with sidecar(upstream=dialect, cache={"mode": "exact-only"}) as gateway:
        shared = {name: await outcomes(gateway, sdk, name) for name in SILENT}
        apart = {name: await outcomes(gateway, sdk, name) for name in APART}
    assert [name for name in SILENT if shared[name] != [Outcome.MISS, Outcome.EXACT]] == []
    assert [name for name in APART if apart[name] != [Outcome.MISS, Outcome.MISS]] == []


async def test_a_header_that_the_operator_calls_silent_is() -> None:
    cache = {"mode": "exact-only", "ignore_headers": ["X-Session"]}
    async with sidecar(cache=cache) as gateway:
        assert await outcomes(gateway, "openai", "x-session") == [Outcome.MISS, Outcome.EXACT]


async def test_users_behind_one_gateway_key_do_not_share_in_an_app() -> None:
    app = ScriptedUpstream()
    caching: Any = HeadstartMiddleware(app, mode="exact-only")
    async with serving(caching) as url:
        for user in ("ann", "bob", "ann"):
            await by_openai(url, "What is mine?", 0, {"x-user": user})
        assert len(app.calls) == 2
        for language in ("en", "de"):
            await by_openai(url, "What is ours?", 0, {"accept-language": language})
        assert len(app.calls) == 3


class Balanced(Provider):
    """A provider behind a load balancer that sets another cookie with each answer."""

    cookie = "__cf_bm"
    asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def balanced(message: Any) -> None:
            if message["type"] == "http.response.start":
                cookie = f"{self.cookie}={self.asked}; path=/".encode()
                message["headers"] = [*message["headers"], (b"set-cookie", cookie)]
            await send(message)

        self.asked += 1
        await super().__call__(scope, receive, balanced)


@pytest.mark.parametrize(("cookie", "again"), [("__cf_bm", Outcome.EXACT), ("id", Outcome.MISS)])
async def test_a_cookie_of_a_load_balancer_makes_no_new_caller(cookie: str, again: Outcome) -> None:
    provider = Balanced()
    provider.cookie = cookie
    async with sidecar(provider, cache={"mode": "exact-only"}) as gateway:
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=KEY) as client:
            for _ in range(2):
                await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "Why?"}]
                )
        await gateway.finished(2)
        assert gateway.outcomes == [Outcome.MISS, again]

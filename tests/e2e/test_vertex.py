"""Clients before Google Vertex AI: where tokens come from, when they are renewed, what fails."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from headstart.cli.config import report_on
from headstart.config.checks import checked
from headstart.errors import ConfigError
from headstart.factory.upstreams import cloud_access
from headstart.settings import Settings, UpstreamSettings
from support.patience import PATIENCE_S
from support.proxied import proxied
from support.scripted import lifespan, whole_body
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

KEY = generate_private_key(65537, 2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
WHOLE = {
    "candidates": [
        {"content": {"role": "model", "parts": [{"text": "It scatters."}]}, "finishReason": "STOP"}
    ],
    "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5},
}
VARIABLES = (
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT",
    "GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION", "GCE_METADATA_HOST",
)  # fmt: skip


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@dataclass
class TokenServer:
    """Hands out tokens as Google's endpoint and a metadata server do."""

    life_s: float = 3600.0
    status: int = 200
    said: bytes = b""
    """The answer, if it is no token."""
    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        body = await whole_body(receive)
        self.paths.append(scope["path"])
        self.asked.append({name: each[0] for name, each in parse_qs(body.decode()).items()})
        number = len(self.asked)
        await self.open.wait()
        said: dict[str, Any] = {"access_token": f"t{number}", "expires_in": self.life_s}
        if self.status != 200:
            said = {"error": "invalid_grant", "error_description": "Bad assertion."}
        data = self.said or json.dumps(said).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": data})


@contextlib.asynccontextmanager
async def token_server(**fields: Any) -> AsyncIterator[TokenServer]:
    server = TokenServer(**fields)
    async with serving(server) as server.url:
        yield server


def account(folder: Path, url: str, **fields: Any) -> str:
    """Write the key of a service account; return the file's name."""
    known = {
        "type": "service_account",
        "project_id": "mine",
        "private_key_id": "k1",
        "private_key": PEM,
        "client_email": "me@mine.iam",
        "token_uri": f"{url}/token",
        **fields,
    }
    path = folder / "account.json"
    path.write_text(json.dumps(known))
    return str(path)


def vertex(**fields: Any) -> dict[str, Any]:
    return {"name": "google", "preset": "vertex", **fields}


def segments(token: str) -> list[Any]:
    head, claims, signature = token.encode().split(b".")
    raw = [base64.urlsafe_b64decode(each + b"==") for each in (head, claims, signature)]
    KEY.public_key().verify(raw[2], head + b"." + claims, PKCS1v15(), SHA256())
    return [json.loads(each) for each in raw[:2]]


async def test_a_service_accounts_token_goes_with_each_call(tmp_path: Path) -> None:
    async with token_server() as tokens:
        settings = vertex(credentials_file=account(tmp_path, tokens.url))
        async with proxied(provider=settings) as proxy:
            proxy.upstream.body = json.dumps(WHOLE).encode()
            first, second = await proxy.ask("a"), await proxy.ask("b")
    assert "It scatters." in first.body.decode()
    assert second.status == 200
    sent = [call.header(b"authorization") for call in proxy.upstream.calls]
    assert sent == [b"Bearer t1", b"Bearer t1"]
    assert all(call.header(b"x-goog-api-key") is None for call in proxy.upstream.calls)
    (asked,) = tokens.asked
    assert asked["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    head, claims = segments(asked["assertion"])
    assert head == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    assert claims["iss"] == "me@mine.iam"
    assert claims["aud"] == f"{tokens.url}/token"
    assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
    assert claims["exp"] - claims["iat"] == 3600


async def test_callers_keys_do_not_reach_google(tmp_path: Path) -> None:
    async with token_server() as tokens:
        settings = vertex(credentials_file=account(tmp_path, tokens.url))
        async with proxied(provider=settings) as proxy:
            proxy.upstream.body = json.dumps(WHOLE).encode()
            path = "/v1beta/models/gemini-2.5-flash:generateContent?key=callers"
            body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
            headers = {"x-goog-api-key": "callers"}
            async with proxy.session.post(proxy.url + path, json=body, headers=headers) as answer:
                assert answer.status == 200
    (call,) = proxy.upstream.calls
    assert b"callers" not in call.query + b"".join(value for _, value in call.headers)
    assert call.path == "/v1beta/models/gemini-2.5-flash:generateContent"


async def test_many_first_calls_share_one_token(tmp_path: Path) -> None:
    async with token_server() as tokens:
        tokens.open.clear()
        settings = vertex(credentials_file=account(tmp_path, tokens.url))
        async with proxied(provider=settings) as proxy:
            proxy.upstream.body = json.dumps(WHOLE).encode()
            async with asyncio.TaskGroup() as group:
                asking = [group.create_task(proxy.ask(str(n))) for n in range(20)]
                while not tokens.asked:
                    await asyncio.sleep(0.005)
                asking[0].cancel()
                tokens.open.set()
    assert [each.result().status for each in asking[1:]] == [200] * 19
    assert len(tokens.asked) <= 2  # one more where the caller that fetched has left


async def test_a_token_is_renewed_before_its_end_and_nobody_waits(tmp_path: Path) -> None:
    async with token_server(life_s=200.0) as tokens:
        settings = vertex(credentials_file=account(tmp_path, tokens.url))
        async with proxied(provider=settings) as proxy:
            proxy.upstream.body = json.dumps(WHOLE).encode()
            await proxy.ask("a")
            tokens.open.clear()
            await proxy.ask("b")  # with the old token, while a new one is fetched
            while len(tokens.asked) < 2:
                await asyncio.sleep(0.005)
            tokens.open.set()
            async with asyncio.timeout(PATIENCE_S):
                while proxy.upstream.calls[-1].header(b"authorization") == b"Bearer t1":
                    await proxy.ask(str(len(proxy.upstream.calls)))
    sent = [call.header(b"authorization") for call in proxy.upstream.calls]
    assert sent[:2] == [b"Bearer t1", b"Bearer t1"]


async def test_an_answer_that_is_nested_too_deeply_is_no_token(tmp_path: Path) -> None:
    async with token_server(said=b"[" * 20_000 + b"]" * 20_000) as tokens:
        settings = vertex(credentials_file=account(tmp_path, tokens.url))
        async with proxied(provider=settings) as proxy:
            reply = await proxy.ask()
    assert "Google gives no access token: status 200 without a token" in reply.body.decode()


async def test_without_a_token_the_client_gets_a_clear_error(tmp_path: Path) -> None:
    async with token_server(status=400) as tokens:
        settings = vertex(credentials_file=account(tmp_path, tokens.url))
        async with proxied(provider=settings) as proxy:
            reply = await proxy.ask()
    assert reply.status >= 500
    assert "Google gives no access token: Bad assertion. (status 400)" in reply.body.decode()
    assert proxy.upstream.calls == []
    assert len(tokens.asked) == 1  # after a failure nobody asks for a while


async def test_the_metadata_server_is_asked_on_a_machine_of_google(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with token_server() as tokens:
        monkeypatch.setenv("GCE_METADATA_HOST", tokens.url.removeprefix("http://"))
        async with proxied(provider=vertex()) as proxy:
            proxy.upstream.body = json.dumps(WHOLE).encode()
            assert (await proxy.ask()).status == 200
    assert tokens.paths == ["/computeMetadata/v1/instance/service-accounts/default/token"]


@pytest.mark.parametrize(
    ("script", "status"), [("echo tok", 200), ("echo 'log in' >&2; exit 1", 502)]
)
async def test_gcloud_hands_out_the_token_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, status: int
) -> None:
    program = tmp_path / "gcloud"
    program.write_text(f'#!/bin/sh\n[ "$*" = "auth print-access-token" ] || exit 9\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    async with proxied(provider=vertex()) as proxy:
        proxy.upstream.body = json.dumps(WHOLE).encode()
        reply = await proxy.ask()
    assert reply.status == status
    if status == 200:
        assert proxy.upstream.calls[0].header(b"authorization") == b"Bearer tok"
    else:
        assert "log in" in reply.body.decode()


async def test_a_users_login_is_refreshed(tmp_path: Path) -> None:
    user = {"client_id": "id", "client_secret": "s", "refresh_token": "r"}
    async with token_server() as tokens:
        file = account(tmp_path, tokens.url, type="authorized_user", **user)
        async with proxied(provider=vertex(credentials_file=file)) as proxy:
            proxy.upstream.body = json.dumps(WHOLE).encode()
            assert (await proxy.ask()).status == 200
    assert tokens.asked == [{**user, "grant_type": "refresh_token"}]


def address(environ: dict[str, str], **fields: Any) -> str:
    (upstream,) = checked(
        Settings(upstream=(UpstreamSettings(preset="vertex", **fields),))
    ).upstream
    return cloud_access(upstream, environ).settings.base_url


async def test_the_address_has_project_and_region(tmp_path: Path) -> None:
    def look() -> None:
        file = account(tmp_path, "http://t")
        near = address({}, region="europe-west4", credentials_file=file)
        assert near == (
            "https://europe-west4-aiplatform.googleapis.com/v1/projects/mine/locations/europe-west4"
            "/publishers/google"
        )
        environ = {"GOOGLE_CLOUD_LOCATION": "global", "GOOGLE_CLOUD_PROJECT": "other"}
        assert address(environ) == (
            "https://aiplatform.googleapis.com/v1/projects/other/locations/global/publishers/google"
        )

        wide = address({"CLOUD_ML_REGION": "eu", "ANTHROPIC_VERTEX_PROJECT_ID": "p"})
        assert wide == (
            "https://aiplatform.eu.rep.googleapis.com/v1/projects/p/locations/eu/publishers/google"
        )

    await asyncio.to_thread(look)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"type": "external_account"}, "credentials of type 'external_account' are not known"),
        ({"private_key": 1}, "lacks private_key"),
        ({"private_key": "x"}, "private_key is not a key in PEM format"),
    ],
)
async def test_config_check_says_what_is_wrong_with_a_file(
    tmp_path: Path, fields: dict[str, Any], told: str
) -> None:
    def problems() -> tuple[str, ...]:
        file = account(tmp_path, "http://t", **fields)
        upstream = UpstreamSettings(preset="vertex", region="x", credentials_file=file)
        return report_on(checked(Settings(upstream=(upstream,))), {}).problems

    (problem,) = await asyncio.to_thread(problems)
    assert told in problem
    assert "credentials_file" in problem
    assert PEM not in problem


async def test_config_check_says_which_setting_is_missing(tmp_path: Path) -> None:
    def look() -> None:
        for fields, told in (
            ({"project": "p"}, "set its region, or the variable GOOGLE_CLOUD_LOCATION"),
            ({"region": "r"}, "set its project, or the variable GOOGLE_CLOUD_PROJECT"),
        ):
            with pytest.raises(ConfigError, match=told):
                address({}, **fields)
        with pytest.raises(ConfigError, match="No such file"):
            address({"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "none")}, region="r")

    await asyncio.to_thread(look)

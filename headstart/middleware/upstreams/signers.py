"""Makes the headers that authorise calls to AWS and Google Cloud. They differ from call to call.

AWS gets Signature Version 4. The code is our own, because botocore's signer comes with 16 MB of
descriptions of all services. Google Cloud gets access tokens, which are renewed before they end.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote, unquote_plus

import aiohttp
import msgspec

from headstart.errors import ConfigError, InvalidRequest, MissingExtra, UpstreamUnreachable
from headstart.sockets import client_session
from headstart.types import UNDECODABLE, json_or_none

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from yarl import URL

    from headstart.middleware.concurrency import Spawn


class Signer(Protocol):
    """Authorises calls to one upstream."""

    async def headers(
        self, method: str, url: URL, headers: Sequence[tuple[str, str]], body: bytes | None
    ) -> Sequence[tuple[str, str]]:
        """Return the headers to add to a request. ``body`` is None if it is not known yet.

        Raises UpstreamError if no credential can be obtained.
        """


@dataclass(eq=False, repr=False)
class AwsSigner:
    """Signs calls with the keys of an AWS identity. ``clock`` gives Unix seconds."""

    keys: AwsKeys
    _: KW_ONLY
    region: str
    service: str
    clock: Callable[[], float]

    async def headers(
        self, method: str, url: URL, headers: Sequence[tuple[str, str]], body: bytes | None
    ) -> Sequence[tuple[str, str]]:
        """Return date, token and signature. Raises InvalidRequest without a whole body."""
        if body is None:
            raise InvalidRequest("an upstream at AWS takes no body that is sent as it comes")
        typed = tuple(pair for pair in headers if pair[0] == "content-type")
        asked = SignedRequest(
            method, url.authority, url.raw_path, url.raw_query_string, typed, body
        )
        return sign(asked, self.keys, region=self.region, service=self.service, now=self.clock())


_ALGORITHM = "AWS4-HMAC-SHA256"


class AwsKeys(NamedTuple):
    """The keys of one AWS identity."""

    id: str
    secret: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return "AwsKeys(***)"


class SignedRequest(NamedTuple):
    """The parts of a request that a signature covers."""

    method: str
    host: str
    path: str
    """The path as it is sent, percent-encoded."""
    query: str
    headers: tuple[tuple[str, str], ...]
    """Further headers to sign."""
    body: bytes


def sign(
    request: SignedRequest, keys: AwsKeys, *, region: str, service: str, now: float
) -> tuple[tuple[str, str], ...]:
    """Return the headers that authorise a request. ``now`` is in Unix seconds."""
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    added = [("x-amz-date", moment)]
    if keys.session_token is not None:
        added.append(("x-amz-security-token", keys.session_token))
    headers = _canonical_headers((("host", request.host), *request.headers, *added))
    names = ";".join(headers)
    canonical = "\n".join(
        (
            request.method,
            quote(request.path or "/", safe="/~"),
            _canonical_query(request.query),
            *(f"{name}:{value}" for name, value in headers.items()),
            "",
            names,
            sha256(request.body).hexdigest(),
        )
    )
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    text = "\n".join((_ALGORITHM, moment, scope, sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{keys.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={keys.id}/{scope}"
    proof = f"{_ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}"
    return (*added, ("authorization", proof))


def _canonical_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by lower-case name, sorted; values of one name are joined by commas."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name.lower(), []).append(" ".join(value.split()))
    return {name: ",".join(values[name]) for name in sorted(values)}


def _canonical_query(query: str) -> str:
    if not query:
        return ""
    pairs = [pair.partition("=") for pair in query.split("&")]
    encoded = [(_encoded(name), _encoded(value)) for name, _, value in pairs]
    return "&".join(f"{name}={value}" for name, value in sorted(encoded))


def _encoded(text: str) -> str:
    return quote(unquote_plus(text), safe="~")


EARLY_S = 300.0
"""Seconds before its end at which a token is renewed."""
REST_S = 5.0
"""Seconds after a failure in which no token is fetched."""
PATIENCE_S = 20.0
"""Longest wait for a token."""
GCLOUD_S = EARLY_S + 300.0
"""Seconds for which a token of gcloud is used. gcloud does not report its end, and gives out fresh
tokens."""
TOKEN_URL = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_LIFE_S = 3600
_FLAVOR = {"Metadata-Flavor": "Google"}


class AccessToken(NamedTuple):
    """A token and the seconds for which it is valid."""

    value: str
    life_s: float

    def __repr__(self) -> str:
        return f"AccessToken(***, {self.life_s})"


TokenSource: TypeAlias = "Callable[[], Awaitable[AccessToken]]"
"""Returns a new token. Raises UpstreamUnreachable, OSError or aiohttp's errors."""


class GoogleTokens:
    """A signer that sends an access token with each call.

    One fetch serves all calls that wait for it. ``spawn`` starts a fetch in the background shortly
    before a token ends; without it a call waits.
    """

    def __init__(self, upstream: str, source: TokenSource, spawn: Spawn | None) -> None:
        self._upstream = upstream
        self._source = source
        self._spawn = spawn
        self._fetching = asyncio.Lock()
        self._token = ""
        self._ends_at = self._rests_until = float("-inf")
        self._failure = ""

    async def headers(
        self,
        method: str,  # noqa: ARG002 - a token is for all requests
        url: URL,  # noqa: ARG002
        headers: Sequence[tuple[str, str]],  # noqa: ARG002
        body: bytes | None,  # noqa: ARG002
    ) -> Sequence[tuple[str, str]]:
        """Return the header with the token. Raises UpstreamUnreachable without one."""
        left_s = self._ends_at - asyncio.get_running_loop().time()
        if left_s <= 0:
            await self._renew(0.0)
        elif left_s < EARLY_S and not self._fetching.locked() and not self._rests:
            if self._spawn is None:
                await self._renew(EARLY_S)
            else:
                self._spawn(self._renew_quietly)
        return (("authorization", f"Bearer {self._token}"),)

    @property
    def _rests(self) -> bool:
        return asyncio.get_running_loop().time() < self._rests_until

    async def _renew_quietly(self) -> None:
        """Renew a token that is still valid. The next call reports a failure."""
        try:
            await self._renew(EARLY_S)
        except UpstreamUnreachable:
            return

    async def _renew(self, least_s: float) -> None:
        """Fetch a token, unless another call has done so or failed just now."""
        loop = asyncio.get_running_loop()
        async with self._fetching:
            if self._ends_at - loop.time() > least_s:
                return
            if self._rests:
                raise self._error()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    token = await self._source()
            except TimeoutError as error:
                raise self._failed(f"no answer within {PATIENCE_S:g} s") from error
            except (UpstreamUnreachable, aiohttp.ClientError, OSError) as error:
                raise self._failed(str(error) or type(error).__name__) from error
            self._token, self._ends_at = token.value, loop.time() + token.life_s

    def _failed(self, reason: str) -> UpstreamUnreachable:
        self._failure = reason
        self._rests_until = asyncio.get_running_loop().time() + REST_S
        return self._error()

    def _error(self) -> UpstreamUnreachable:
        return UpstreamUnreachable(
            f"upstream {self._upstream}: Google gives no access token: {self._failure}"
        )


async def exchange_token(
    url: str, form: Callable[[], Mapping[str, str]], proxy: str | None
) -> AccessToken:
    """Exchange what ``form`` returns for a token, at a token endpoint."""
    async with (
        client_session() as session,
        session.post(url, data=dict(form()), proxy=proxy) as response,
    ):
        return _read(response.status, await response.read())


async def ask_metadata_server(host: str | None) -> AccessToken:
    """Ask the metadata server of a machine in Google Cloud; ``host`` None: the usual one."""
    host = host or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    async with client_session(headers=_FLAVOR) as session, session.get(url) as response:
        return _read(response.status, await response.read())


async def ask_gcloud(program: str) -> AccessToken:
    """Ask the command line of Google Cloud, whose user has logged in."""
    running = await asyncio.create_subprocess_exec(
        program, "auth", "print-access-token",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, told = await running.communicate()
    except BaseException:
        if running.returncode is None:
            running.kill()
        raise
    token = out.decode("utf-8", "replace").strip()
    if running.returncode or not token:
        lines = told.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise UpstreamUnreachable(f"gcloud auth print-access-token failed: {lines[0][:200]}")
    return AccessToken(token, GCLOUD_S)


def _read(status: int, body: bytes) -> AccessToken:
    """Read the answer of a token endpoint. Raises UpstreamUnreachable."""
    match json_or_none(body, object):
        case {"access_token": str(token), **rest} if token and status == 200:
            life_s = rest.get("expires_in")
            return AccessToken(token, life_s if isinstance(life_s, int | float) else _LIFE_S)
        case {"error_description": str(reason)} | {"error": str(reason)}:
            raise UpstreamUnreachable(f"{reason[:200]} (status {status})")
    raise UpstreamUnreachable(f"status {status} without a token")


def from_file(
    path: Path, *, setting: str, proxy: str | None, clock: Callable[[], float]
) -> tuple[TokenSource, str | None]:
    """Return the source that a file of credentials describes, and its project.

    Raises ConfigError that begins with ``setting``.
    """
    try:
        known = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{setting}: {path}: {error.strerror or error}") from error
    except UNDECODABLE as error:
        raise ConfigError(f"{setting}: {path} is not a JSON object") from error
    wanted = _WANTED.get(str(known.get("type")))
    if wanted is None:
        raise ConfigError(
            f"{setting}: {path}: credentials of type {known.get('type')!r} are not known; use the "
            "key of a service account, or what gcloud auth application-default login writes"
        )
    if missing := [name for name in wanted if not isinstance(known.get(name), str)]:
        raise ConfigError(f"{setting}: {path} lacks {', '.join(missing)}")
    url = known.get("token_uri") or TOKEN_URL
    form = _refresh_form(known) if "refresh_token" in wanted else _signed_form(
        known, url, setting=f"{setting}: {path}", clock=clock
    )  # fmt: skip
    project = known.get("project_id") or known.get("quota_project_id")
    return partial(exchange_token, url, form, proxy), project


_WANTED = {
    "service_account": ("client_email", "private_key"),
    "authorized_user": ("client_id", "client_secret", "refresh_token"),
}
"""The fields of a file of credentials, by its type."""


def _refresh_form(known: Mapping[str, str]) -> Callable[[], Mapping[str, str]]:
    form = {name: known[name] for name in _WANTED["authorized_user"]}
    return lambda: {**form, "grant_type": "refresh_token"}


def _signed_form(
    known: Mapping[str, str], url: str, *, setting: str, clock: Callable[[], float]
) -> Callable[[], Mapping[str, str]]:
    """Return a function that makes a signed JWT for the service account (RFC 7523).

    Raises ConfigError.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise ConfigError(str(MissingExtra("google", "the key of a service account"))) from error
    try:
        key = load_pem_private_key(known["private_key"].encode(), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{setting}: private_key is not a key in PEM format") from error
    if not isinstance(key, RSAPrivateKey):
        raise ConfigError(f"{setting}: private_key is not an RSA key")
    id = known.get("private_key_id")
    head = {"alg": "RS256", "typ": "JWT", **({"kid": id} if id else {})}

    def form() -> Mapping[str, str]:
        now = int(clock())
        claims = {
            "iss": known["client_email"],
            "scope": SCOPE,
            "aud": url,
            "iat": now,
            "exp": now + _LIFE_S,
        }
        text = b".".join(_base64(msgspec.json.encode(each)) for each in (head, claims))
        signature = _base64(key.sign(text, PKCS1v15(), SHA256()))
        grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
        return {"grant_type": grant, "assertion": (text + b"." + signature).decode()}

    return form


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")

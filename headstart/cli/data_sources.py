"""Where commands read data: a store that a server filled, or a running server's admin API."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, TypeVar

import anyio
import msgspec

from headstart.errors import ConfigError, HeadstartError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from headstart.embeddings.stores.records import StoreCipher
    from headstart.interfaces import Store
    from headstart.settings import ServerSettings

T = TypeVar("T")

TIMEOUT_S = 60.0
ADMIN_TOKEN_ENV = "HEADSTART_ADMIN_TOKEN"  # noqa: S105 - a variable's name
ANY_HOST = ("0.0.0.0", "::", "")  # noqa: S104 - it is compared, not bound


def url_of(server: ServerSettings) -> str:
    """Return the URL at which this machine reaches a server with these settings."""
    host = "127.0.0.1" if server.host in ANY_HOST else server.host
    return f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"


def chosen_url(url: str | None, config: Path | None) -> str:
    """Return ``url``, else that of the server which the configuration describes.

    Raises ConfigError.
    """
    from headstart.config.loading import load_address

    return url or url_of(load_address(config, os.environ))


def chosen_token_env(name: str | None, config: Path | None) -> str:
    """Return the variable of the admin token: ``name``, else that of the configuration.

    Raises ConfigError.
    """
    from headstart.config.loading import load_address

    return name or load_address(config, os.environ).admin_token_env or ADMIN_TOKEN_ENV


async def ask_server(
    url: str, path: str, token_env: str, *, method: str = "GET", timeout_s: float = TIMEOUT_S
) -> bytes:
    """Return what ``/_headstart/{path}`` of the server at ``url`` answers.

    Raises ConfigError when the server refuses, HeadstartError when it does not answer.
    """
    import aiohttp

    token = os.environ.get(token_env)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.request(method, f"{url.rstrip('/')}/_headstart/{path}") as response,
        ):
            body = await response.read()
    except aiohttp.ClientConnectorError as error:
        cause = error.os_error.strerror or str(error)
        raise HeadstartError(
            f"{url} does not answer: {cause}; is it running? --url names another address"
        ) from error
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        cause = str(error) or type(error).__name__
        raise HeadstartError(f"{url} does not answer: {cause}") from error
    if response.status == 401:
        raise ConfigError(f"{url} asks for its admin token: put it in the variable {token_env}")
    if response.status != 200:
        raise HeadstartError(f"{url}: {_message(body) or f'status {response.status}'}")
    return body


def decode_answer(body: bytes, type: type[T]) -> T:
    """Decode an answer. Raises HeadstartError for what another version sent."""
    try:
        return msgspec.json.decode(body, type=type)
    except msgspec.DecodeError as error:
        raise HeadstartError(f"the server's answer cannot be read: {error}") from error


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


def _message(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.DecodeError:
        return None


@contextlib.asynccontextmanager
async def existing_store(url: str, config: Path | None = None) -> AsyncIterator[Store]:
    """Open a store that some server has filled, with the key of its configuration, if it has one.

    Raises ConfigError when there is none to read.
    """
    from headstart.embeddings.stores.store_urls import open_store

    await _refuse_what_is_empty(url)
    store = open_store(url, cipher=configured_cipher(config))
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


def configured_cipher(config: Path | None) -> StoreCipher | None:
    """Return the cipher of the configuration's store, or None. Raises ConfigError."""
    from headstart.config.loading import load_settings
    from headstart.factory.caching import store_cipher

    return store_cipher(load_settings(config, os.environ).cache)


async def _refuse_what_is_empty(url: str) -> None:
    """Opening a SQLite store would make one, and a store in memory is always new."""
    if url == "memory:":
        raise ConfigError(
            "cache.store: a store in memory ends with its server; keep it in sqlite:/// or redis://"
            " to read it from outside, or ask the running server: /_headstart/stats for the report,"
            " headstart audit --url for audits"
        )
    path = url.removeprefix("sqlite:///")
    if path != url and not await anyio.Path(path).is_file():
        raise ConfigError(f"cache.store: there is no store at {path} yet; name one with --store")

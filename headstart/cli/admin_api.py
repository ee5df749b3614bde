"""A running server's admin API, asked once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from headstart.errors import ConfigError, HeadstartError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., object]")

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 60.0


def token_option(function: F) -> F:
    """Add ``--token-env`` to a command."""
    return click.option(
        "--token-env",
        metavar="NAME",
        default="HEADSTART_ADMIN_TOKEN",
        help="The variable with the admin token, where the server asks for one.",
        show_default=True,
    )(function)


async def ask(url: str, path: str, token_env: str) -> bytes:
    """Return what ``/_headstart/{path}`` of the server at ``url`` answers.

    Raises ConfigError when the server refuses, HeadstartError when it does not answer.
    """
    import aiohttp

    token = os.environ.get(token_env)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.get(f"{url.rstrip('/')}/_headstart/{path}") as response,
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


def read(body: bytes, type: type[T]) -> T:
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

"""The data that commands read: a store, a running server's admin API, or logs of other tools.

Of logs, the calls of OpenAI's chat completions that brought an answer are read:

- LiteLLM logs one object for each call (``StandardLoggingPayload``, or a row of its spend logs).
- Langfuse exports observations; those of the type GENERATION are calls.
- Helicone exports requests with both bodies.
- A spreadsheet saved as CSV has one call, one labelled prompt or one pair in each row.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import os
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec

from headstart.errors import ConfigError, HeadstartError
from headstart.settings import ServerSettings, Settings, masked_variable
from headstart.sockets import client_session, reason_of
from headstart.types import UNDECODABLE, Frozen, T, json_or_none

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from pathlib import Path

    import aiohttp

    from headstart.interfaces import Store


TIMEOUT_S = 60.0
"""Longest wait for an answer of a server."""
ADMIN_TOKEN_ENV = "HEADSTART_ADMIN_TOKEN"  # noqa: S105 - a variable's name
ANY_HOST = ("0.0.0.0", "::", "")  # noqa: S104 - it is compared, not bound


def url_of(server: ServerSettings) -> str:
    """Return the URL at which this machine reaches a server with these settings."""
    host = "127.0.0.1" if server.host in ANY_HOST else server.host
    return f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"


class RunningServer(NamedTuple):
    """A server with an admin API."""

    url: str
    token_env: str
    """The variable with its admin token."""

    async def ask(self, path: str, *, method: str = "GET", timeout_s: float = TIMEOUT_S) -> bytes:
        """Return the answer of ``/_headstart/{path}``.

        Raises ConfigError when the server refuses, HeadstartError when it does not answer.
        """
        import aiohttp

        url, token = self.url, os.environ.get(self.token_env)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with (
                client_session(headers=headers, timeout=timeout) as session,
                session.request(method, f"{url.rstrip('/')}/_headstart/{path}") as response,
            ):
                body = await response.read()
        except aiohttp.ClientConnectorError as error:
            raise HeadstartError(f"{url} {unreachable(error)}") from error
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            cause = str(error) or type(error).__name__
            raise HeadstartError(f"{url} does not answer: {cause}") from error
        if response.status == 401:
            place = f"in the variable {self.token_env}"
            if token:
                raise ConfigError(f"{url} does not accept the admin token {place}")
            raise ConfigError(f"{url} asks for its admin token: put it {place}")
        if response.status != 200:
            raise HeadstartError(f"{url}: {message_of(body) or f'status {response.status}'}")
        return body


def running_server(url: str | None, token_env: str | None, config: Path | None) -> RunningServer:
    """Return a server. The configuration gives the values that are None. Raises ConfigError."""
    from headstart.config.loading import load_address

    if url and token_env:
        return RunningServer(url, token_env)
    server = load_address(config, os.environ)
    return RunningServer(
        url or url_of(server), token_env or server.admin_token_env or ADMIN_TOKEN_ENV
    )


def bearer_key(variable: str) -> str:
    """Return the key in the variable of ``--key-env``, as an authorization. Raises ConfigError."""
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"--key-env: the variable {masked_variable(variable)} is not set")
    return f"Bearer {key}"


def unreachable(error: aiohttp.ClientConnectorError) -> str:
    """Return what a person needs to know if a server cannot be reached."""
    cause = reason_of(error.os_error)
    return f"does not answer: {cause}; is it running? --url names another address"


def decode_answer(body: bytes, type: type[T]) -> T:
    """Decode an answer. Raises HeadstartError for an answer of another version."""
    try:
        return msgspec.json.decode(body, type=type)
    except UNDECODABLE as error:
        raise HeadstartError(f"the server's answer cannot be read: {error}") from error


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


def message_of(body: bytes) -> str | None:
    """Return the message of an error's body, if it has one."""
    refusal = json_or_none(body, _Refusal)
    return None if refusal is None else refusal.error.message


@contextlib.asynccontextmanager
async def existing_store(url: str | None, config: Path | None = None) -> AsyncIterator[Store]:
    """Open a store that some server has filled, with the key of its configuration, if it has one.

    Without ``url`` it is the store of the configuration. Raises ConfigError when there is none to
    read.
    """
    from headstart.embeddings.stores.store_urls import open_store
    from headstart.factory.caching import store_cipher

    settings = settings_to_read(config).cache
    url = url or settings.store
    await _refuse_missing_store(url)
    store = open_store(url, cipher=store_cipher(settings))
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


def settings_to_read(config: Path | None) -> Settings:
    """Return the settings for a command that reads a store. Raises ConfigError.

    Its shell may lack the variables of the client keys.
    """
    from headstart.config.loading import load_settings

    return load_settings(config, os.environ, needs_client_keys=False)


async def _refuse_missing_store(url: str) -> None:
    """Raise ConfigError for a store that does not exist: opening it would only make a new one."""
    if url == "memory:":
        raise ConfigError(
            "cache.store: a store in memory ends with its server; keep it in sqlite:/// or redis://"
            " to read it from outside, or ask the running server: its live page at /_headstart/,"
            " or headstart audit --url"
        )
    path = url.removeprefix("sqlite:///")
    if path != url and not await anyio.Path(path).is_file():
        raise ConfigError(f"cache.store: there is no store at {path} yet; name one with --store")


# --- logs of other tools --------------------------------------------------------------------------

LONGEST_CELL = 16 * 1024 * 1024
_PROMPTS = ("prompt", "question", "input")
_ANSWERS = ("answer", "response", "output")
"""The columns of a log in CSV, under the names that people give them."""
_TRUE = frozenset(("1", "true", "yes"))


def lines_of(path: Path) -> list[bytes]:
    """Return the lines of a file, without the mark that some editors put at its beginning."""
    return path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file of JSON lines, or the rows of a ``.csv`` as such lines.

    Raises ConfigError for a CSV without the columns that are needed.
    """
    if path.suffix.lower() != ".csv":
        yield from lines_of(path)
        return
    csv.field_size_limit(LONGEST_CELL)
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            for row in csv.DictReader(file):
                yield msgspec.json.encode(_csv_line(path, row))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"{path.name}: no CSV in UTF-8: {error}") from error


def decode_lines(lines: Iterable[bytes], type: type[T], name: str) -> Iterator[T]:
    """Decode the lines that are not blank. Raises ConfigError, with ``name`` and the line."""
    decoder = msgspec.json.Decoder(type)
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield decoder.decode(line)
            except UNDECODABLE as error:
                raise ConfigError(f"{name}, line {number}: {error}") from error


def _csv_line(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as a line of labelled prompts, of pairs, or of a log."""
    cells = {
        name.strip().lower(): cell for name, cell in row.items() if name and isinstance(cell, str)
    }
    if {"a", "b", "same_answer"} <= cells.keys():
        return {**cells, "same_answer": cells["same_answer"].strip().lower() in _TRUE}
    prompt = next((cells[name] for name in _PROMPTS if name in cells), None)
    if prompt is not None and "class" in cells:
        return {"category": cells.get("category"), "prompt": prompt, "class": cells["class"]}
    answer = next((cells[name] for name in _ANSWERS if name in cells), None)
    if prompt is None or answer is None:
        found = ", ".join(cells) or "no column"
        raise ConfigError(
            f"{path.name}: found {found}; a CSV needs the columns prompt and answer, prompt and "
            "class, or a, b and same_answer"
        )
    said = [("system", cells.get("system", "")), ("user", prompt), ("assistant", answer)]
    messages = [{"role": role, "content": text} for role, text in said if text or role != "system"]
    seconds = _seconds(_number(cells.get("at")))
    known = {name: cells[name] for name in ("model", "scope") if cells.get(name)}
    return {"messages": messages, **known, **({} if seconds is None else {"at": seconds})}


def _number(text: str | None) -> float | str | None:
    """Return the number in a cell; other texts stay unchanged."""
    try:
        return float(text or "")
    except ValueError:
        return text


class LogLine(Frozen):
    """A line of a log, in one of three shapes.

    - a record of the sidecar: ``{"at", "id", "scope", "dialect", "request", "response"}``;
    - any other ``{"request", "response"}``, whose values may be wrapped as ``{"body": ...}``;
    - a conversation that ends with the answer: ``{"messages": [..., {"role": "assistant", ...}]}``.

    ``at`` is in Unix seconds.
    """

    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    model: str | None = None
    dialect: str | None = None
    scope: str = ""
    at: float | None = None

    def bodies(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the bodies of the request and of its answer; None if it lacks one of them."""
        request, response = body_of(self.request), body_of(self.response)
        if self.messages is not None:
            if len(self.messages) < 2 or self.messages[-1].get("role") != "assistant":
                return None
            *asked, answer = self.messages
            choice = {"index": 0, "message": answer, "finish_reason": "stop"}
            request, response = {"messages": asked}, {"choices": [choice]}
        if request is None or response is None:
            return None
        if self.model is not None:
            request = {"model": self.model, **request}
        return request, {"model": request.get("model"), **response}


def body_of(document: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a body, which may be wrapped, as in batch files; None if there is none."""
    body = None if document is None else document.get("body", document)
    return body if isinstance(body, dict) else None


def as_log_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each line in the shape of our own log.

    The result is empty for a call that has no answer or is not a chat. Other lines stay unchanged.
    """
    for line in lines:
        row = json_or_none(line, dict[str, Any]) or {}
        convert = next((read for marks, read in _SHAPES if marks <= row.keys()), None)
        if convert is None:
            yield line
        else:
            found = convert(row)
            yield b"" if found is None else msgspec.json.encode(found)


def _litellm(row: dict[str, Any]) -> dict[str, Any] | None:
    if row.get("status", "success") != "success":
        return None
    given = _document(row.get("model_parameters"))
    request = {**given, "model": row.get("model"), "messages": _decoded(row["messages"])}
    return _exchange(request, _decoded(row["response"]), row.get("startTime"))


def _langfuse(row: dict[str, Any]) -> dict[str, Any] | None:
    if row.get("type") != "GENERATION" or row.get("level") == "ERROR":
        return None
    asked, answered = _decoded(row["input"]), _decoded(row["output"])
    if isinstance(asked, dict):
        asked = asked.get("messages")
    elif isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    given = _document(row.get("modelParameters"))
    request = {**given, "model": row.get("model"), "messages": asked}
    return _exchange(request, answered, row.get("startTime"))


def _helicone(row: dict[str, Any]) -> dict[str, Any] | None:
    if row.get("response_status", 200) != 200:
        return None
    request, response = _decoded(row["request_body"]), _decoded(row["response_body"])
    at = row.get("request_created_at")
    return _exchange(request, response, at) if isinstance(request, dict) else None


_SHAPES = (
    (frozenset(("request_body", "response_body")), _helicone),
    (frozenset(("type", "input", "output")), _langfuse),
    (frozenset(("messages", "response")), _litellm),
)
"""For each form: the fields by which it is recognised, and its reader."""


def _exchange(request: dict[str, Any], response: Any, at: Any) -> dict[str, Any] | None:
    """Return a line of our own log; None without messages, or without an answer to them."""
    messages, model = request.get("messages"), request.get("model")
    response = _completion(response)
    if not isinstance(messages, list) or not messages or response is None:
        return None
    model = model if isinstance(model, str) else "unknown"
    line = {"request": {**request, "model": model}, "response": {"model": model, **response}}
    seconds = _seconds(at)
    return line if seconds is None else {**line, "at": seconds}


def _completion(response: Any) -> dict[str, Any] | None:
    """Return the body of an answer. It was logged as body, message or text."""
    if isinstance(response, str) and response:
        response = {"role": "assistant", "content": response}
    if not isinstance(response, dict):
        return None
    if "choices" in response:
        return response
    if "content" not in response and "tool_calls" not in response:
        return None
    message = {"role": "assistant", **response}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def _decoded(value: Any) -> Any:
    """Return the value of a JSON text; other texts and values stay unchanged."""
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return value
    try:
        return msgspec.json.decode(value)
    except UNDECODABLE:
        return value


def _document(value: Any) -> dict[str, Any]:
    found = _decoded(value)
    return found if isinstance(found, dict) else {}


def _seconds(at: Any) -> float | None:
    """Return Unix seconds of a number or an ISO 8601 text; None for any other value."""
    if isinstance(at, (int, float)):
        return float(at)
    try:
        return datetime.fromisoformat(at).timestamp()
    except (TypeError, ValueError):
        return None

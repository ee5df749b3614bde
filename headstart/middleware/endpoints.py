"""Which requests are cached: the dialects' own paths and the user's custom endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headstart.errors import ConfigError, InvalidRequest
from headstart.types import ChatRequest

if TYPE_CHECKING:
    from headstart.middleware.dialects.dialect import Dialect

Prompt: TypeAlias = str | Callable[[Mapping[str, Any]], tuple[str | None, Any]]
"""A dotted path into the JSON body, or a function from the body to (prompt, everything else)."""


@dataclass(frozen=True)
class Endpoint:
    """A path of your own app whose whole 200 answers are cached.

    ``prompt`` names the question in the JSON body: ``"question"``, ``"input.text"``,
    ``"messages.-1.content"``, or a function that returns the prompt and everything else.
    Requests that differ in anything else never share an answer; without ``prompt`` only equal
    requests do. The app is never called more often than its clients call.
    """

    path: str
    prompt: Prompt | None = None
    method: str = "POST"

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigError(f"Endpoint path {self.path!r} must start with '/'")


@dataclass(frozen=True)
class Route:
    """A matched path: a dialect's, or a custom endpoint (``dialect`` is then None)."""

    name: str
    dialect: Dialect | None
    endpoint: Endpoint | None = None

    def parse(self, body: bytes) -> ChatRequest:
        """Read the request. Raises InvalidRequest; a custom body that is no JSON raises too."""
        if self.dialect is not None:
            return self.dialect.parse_request(body)
        assert self.endpoint is not None
        return parse_custom(self.endpoint, body)


class Routes:
    """Exact (method, raw path) lookup."""

    def __init__(self, dialects: Mapping[str, Dialect], endpoints: tuple[Endpoint, ...]) -> None:
        self._table = {
            (b"POST", path.encode()): Route(path, dialect) for path, dialect in dialects.items()
        }
        for endpoint in endpoints:
            key = (endpoint.method.upper().encode(), endpoint.path.encode())
            self._table[key] = Route(endpoint.path, None, endpoint)

    def match(self, method: str, path: bytes) -> Route | None:
        """Return the route of a request, or None."""
        return self._table.get((method.encode(), path))


def parse_custom(endpoint: Endpoint, body: bytes) -> ChatRequest:
    """Split a custom endpoint's JSON body into its prompt and everything else."""
    try:
        document = msgspec.json.decode(body) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequest("the body is not a JSON object")
    query: str | None = None
    rest: Any = document
    if callable(endpoint.prompt):
        query, rest = endpoint.prompt(document)
    elif endpoint.prompt is not None:
        query, rest = _split(document, endpoint.prompt.split("."))
    if not isinstance(query, str):
        query, rest = None, document
    return ChatRequest(model="", stream=False, document={"rest": rest}, query=query)


def _split(value: Any, path: list[str]) -> tuple[Any, Any]:
    """Return the value at ``path`` and a copy of the document with null in its place."""
    step, *more = path
    key: Any = step
    if isinstance(value, list) and step.lstrip("-").isdigit():
        key = int(step)
    try:
        inner = value[key]
    except (KeyError, IndexError, TypeError):
        return None, value
    found, rest = _split(inner, more) if more else (inner, None)
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[key] = rest
    return found, copy

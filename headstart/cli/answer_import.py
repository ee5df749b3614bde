"""``headstart cache import --answers``: the answers of a request log become entries."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.cli.request_logs import as_log_lines
from headstart.dialects.registry import DIALECTS
from headstart.errors import ConfigError
from headstart.factory import start_engine
from headstart.middleware.logged_answers import LoggedAnswer
from headstart.observe import Observers
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headstart.dialects.dialect import Dialect
    from headstart.settings import Settings
    from headstart.types import Headers

PATH = "/v1/chat/completions"
"""The path of a call that does not name its dialect."""


class LoggedCall(Frozen):
    """A call in a log; ``at`` is in Unix seconds."""

    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    """In place of request and response: the last message is the answer."""
    model: str | None = None
    dialect: str | None = None
    at: float | None = None


async def import_answers(
    settings: Settings, lines: list[bytes], headers: Headers, progress: Callable[[int], None]
) -> Counter[str]:
    """Store the answers in the lines of a log as a server with these settings would.

    ``headers`` are those of the callers who shall get them. Returns how many were ``stored``, and
    how many were left out for each reason. Raises ConfigError.
    """
    outcomes = Counter[str]()
    running = await start_engine(settings, Observers(), wrapped=False)
    try:
        log = running.engine.answer_log()
        if log is None:
            raise ConfigError("cache.enabled: with the cache off, no answer is stored")
        for call in read_calls(lines):
            logged = None if call is None else _logged(call, headers)
            outcome = "no-call" if logged is None else await log.keep(logged)
            outcomes[outcome or "stored"] += 1
            progress(outcomes.total())
    finally:
        await running.aclose()
    return outcomes


def read_calls(lines: Iterable[bytes]) -> Iterator[LoggedCall | None]:
    """Yield the calls of a log; None for a line that holds none, or no answer. Skip empty lines."""
    for line, read in zip(lines, as_log_lines(lines), strict=True):
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(read, type=LoggedCall)
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield None


def _logged(call: LoggedCall, headers: Headers) -> LoggedAnswer | None:
    request, response = _body(call.request), _body(call.response)
    if call.messages and call.messages[-1].get("role") == "assistant":
        *asked, answer = call.messages
        choice = {"index": 0, "message": answer, "finish_reason": "stop"}
        request, response = {"messages": asked}, {"choices": [choice]}
    dialect = _dialect(call)
    if request is None or response is None or dialect is None:
        return None
    if call.model is not None:
        request = {"model": call.model, **request}
    return LoggedAnswer(
        dialect=dialect,
        path=dialect.paths[0],
        headers=headers,
        request=msgspec.json.encode(request),
        response=msgspec.json.encode({"model": request.get("model"), **response}),
        at=time.time() if call.at is None else call.at,  # noqa: TID251 - the composition root
    )


def _dialect(call: LoggedCall) -> Dialect | None:
    """Return the dialect of a call, if its path does not depend on the request."""
    if call.dialect is None:
        return next(each for each in DIALECTS.values() if PATH in each.paths)
    named = DIALECTS.get(call.dialect)
    return named if named is not None and named.paths else None


def _body(document: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a body, which may be wrapped, as in batch files."""
    body = None if document is None else document.get("body", document)
    return body if isinstance(body, dict) else None

"""Gemini: errors, as ``google.rpc.Status`` in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.types import ErrorReported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.errors import HeadstartError

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_TYPE = "type.googleapis.com/google.rpc."


def read_error(document: dict[str, Any], status: int | None) -> ErrorReported:
    """Read an error's body or chunk. Its ``status`` is a word, its ``code`` the HTTP status.

    The reason among its details says more than either where there is one.
    """
    error = document.get("error") or document
    if not isinstance(error, dict):
        return ErrorReported(message=str(error), status=status)
    message, number = error.get("message"), error.get("code")
    code = next(_details(error, "reason"), None) or error.get("status")
    if status is None and type(number) is int and 400 <= number < 600:
        status = number
    return ErrorReported(
        message=str(message or "the provider reported an error"),
        code=str(code) if code else None,
        status=status,
    )


def retry_delay_s(document: Any) -> float | None:
    """Return the seconds that an error's body asks to wait (``google.rpc.RetryInfo``), if any."""
    error = document.get("error") if isinstance(document, dict) else None
    for delay in _details(error, "retryDelay"):
        if isinstance(delay, str) and delay.endswith("s"):
            try:
                seconds = float(delay[:-1])
            except ValueError:
                continue
            return seconds if 0 <= seconds < float("inf") else None
    return None


def _details(error: Any, name: str) -> Iterator[Any]:
    """Yield what the error's details say under a name."""
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and name in detail:
            yield detail[name]


def error_body(error: HeadstartError | ErrorReported, request_id: str) -> bytes:
    """Return ``{"error": {...}}``, which names our request id in its details."""
    status = getattr(error, "status", None) or 500
    code = getattr(error, "code", None)
    other = "INVALID_ARGUMENT" if status < 500 else "INTERNAL"
    details: list[dict[str, str]] = [{"@type": _TYPE + "RequestInfo", "requestId": request_id}]
    if code:
        reason = {"@type": _TYPE + "ErrorInfo", "reason": code, "domain": "headstart"}
        details.append(reason)
    return msgspec.json.encode(
        {
            "error": {
                "code": status,
                "message": getattr(error, "message", None) or str(error),
                "status": _STATUSES.get(status, other),
                "details": details,
            }
        }
    )

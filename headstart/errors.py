"""All errors that Headstart raises, as one tree.

HeadstartError
├── ConfigError                 at the start; the message names the setting and the fix
├── RequestError                the caller's fault: 4xx in the caller's dialect
│   ├── InvalidRequest          400
│   ├── Unauthorized            401
│   ├── Forbidden               403, from a web page or a key without permission
│   │   └── ModelForbidden      a model that the caller's key may not use
│   ├── NoUpstream              404, no upstream speaks the request's dialect
│   ├── RequestTimeout          408, the body did not come in time
│   ├── RequestTooLarge         413
│   ├── Overloaded              429
│   ├── OverLimit               429, the limits of the caller's key are used up
│   ├── LimitsUnavailable       503, the rest of these limits is not known
│   ├── AnswersUnavailable      503, it is not known whose answer an id names
│   ├── UnknownReference        400 or 404, an id of an answer that the caller does not have
│   ├── ServerStopping          503, a WebSocket to a server that stops
│   └── NotCached               504, ``Cache-Control: only-if-cached`` on a miss
├── UpstreamError               the provider's fault: 5xx in the caller's dialect
│   ├── UpstreamUnreachable     502, connection refused or reset, DNS or TLS failure
│   │   └── IdleConnectionClosed  the provider closed it while the request was on its way
│   ├── UpstreamTimeout         504
│   ├── UpstreamRefused         an error status, with the provider's own answer
│   ├── UpstreamUnavailable     503, no upstream may be asked now; 429 for a rate limit
│   └── UpstreamProtocolError   502, an answer that cannot be read
├── StageError                  an optional stage failed: the pipeline counts and bypasses it
│   ├── EncoderError
│   ├── VectorIndexError
│   └── StoreError
└── MissingExtra                an optional dependency is not installed (also an ImportError)
"""

from __future__ import annotations

import re

TYPE_CHECKING = False  # as in ``headstart/__init__.py``
if TYPE_CHECKING:
    from headstart.types import Headers


class HeadstartError(Exception):
    """The base of all errors that this package raises."""

    def forget_frames(self) -> None:
        """Remove the tracebacks of this error and of its causes.

        A frame refers to the request, and often to the object that keeps this error. Such a cycle
        would hold the request's body until Python looks for cycles.
        """
        error: BaseException | None = self
        while error is not None and error.__traceback__ is not None:
            error.__traceback__ = None
            error = error.__cause__ or error.__context__


class ConfigError(HeadstartError):
    """A setting is missing, unknown or impossible. The message names it and the fix."""


class RequestError(HeadstartError):
    """The request cannot be served as it is. The caller gets ``status`` and ``code``."""

    status = 400
    code = "invalid_request"


class InvalidRequest(RequestError):
    """The endpoint does not accept this body."""


class Unauthorized(RequestError):
    """The caller's key is missing or is not one of ``server.client_keys``."""

    status = 401
    code = "invalid_api_key"


class Forbidden(RequestError):
    """The request is from another site's page, for another host, or beyond its key's rights."""

    status = 403
    code = "forbidden"


class ModelForbidden(Forbidden):
    """The list ``models`` in the key's ``server.client_limits`` does not contain the model."""

    code = "model_not_found"


class NoUpstream(RequestError):
    """No upstream speaks the request's dialect. The message names the setting that adds one."""

    status = 404
    code = "no_upstream"


class RequestTimeout(RequestError):
    """The client stopped sending or sends too slowly (``server.body_timeout_s``)."""

    status = 408
    code = "request_timeout"


class RequestTooLarge(RequestError):
    """The body exceeds ``server.max_body_bytes`` or ``max_body_values``, or has a long number."""

    status = 413
    code = "request_too_large"


class Overloaded(RequestError):
    """``server.max_concurrency`` or ``max_relays`` is reached, and the queue is full."""

    status = 429
    code = "overloaded"


class OverLimit(RequestError):
    """A limit of the caller's key (``server.client_limits``) is used up for ``retry_after_s``.

    ``lasts``: the limit is for a day or a month, so trying again soon makes no sense.
    """

    status = 429

    def __init__(
        self, message: str, *, code: str, retry_after_s: float = 1.0, lasts: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        self.lasts = lasts


def booked_code(error: HeadstartError) -> str:
    """Return the name of an error in the books: limits of client keys have names of their own."""
    return "over_limit" if isinstance(error, OverLimit) else getattr(error, "code", "error")


class LimitsUnavailable(RequestError):
    """The store does not answer, so the rest of a key's limits is not known."""

    status = 503
    code = "limits_unavailable"


class AnswersUnavailable(RequestError):
    """The store fails, so it is not known whose answer an id names, or it cannot be deleted."""

    status = 503
    code = "answers_unavailable"


class UnknownReference(RequestError):
    """The caller names an answer, or an item of an answer, that it does not have.

    ``param`` is the field of the request; None: the path.
    """

    def __init__(
        self, message: str, *, status: int, param: str | None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code  # type: ignore[assignment]  # the API gives some errors none


class ServerStopping(RequestError):
    """The server stops and takes no new WebSockets."""

    status = 503
    code = "server_stopping"


class NotCached(RequestError):
    """The caller allowed only a cached answer, and there is none."""

    status = 504
    code = "not_cached"


class UpstreamError(HeadstartError):
    """The provider failed. The caller gets ``status`` and ``code``.

    ``kind`` is a ``policies.routing.failures.FailureKind``, if the class alone does not tell.
    ``sdk_may_retry``: the client's SDK may ask again, as it would without Headstart.
    """

    status = 502
    code = "upstream_error"
    sdk_may_retry = False

    def __init__(self, message: str = "", *, kind: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind


class UpstreamUnreachable(UpstreamError):
    """The connection failed: refused, reset, DNS failure or TLS failure."""

    code = "upstream_unreachable"


class IdleConnectionClosed(UpstreamUnreachable):
    """The provider closed an idle connection while a request was on its way to it.

    It has not read the request, and this tells nothing about its health.
    """


class UpstreamTimeout(UpstreamError):
    """The provider sent nothing until a timeout or until the request's deadline."""

    status = 504
    code = "upstream_timeout"


class UpstreamRefused(UpstreamError):
    """The provider answered with an error: a status, or an error event in the answer.

    The caller gets ``status``, ``headers`` and ``body``, in its own dialect, if no other upstream
    answers. ``queues``: a rate limit refused it that lets other calls pass, so the call may queue.
    ``event`` is the provider's own event, if it told of the error in the middle of a stream.
    ``reason`` is for books and log: the message may quote the prompt.
    """

    queues = False
    event = b""
    reason: str | None = None

    def __init__(
        self,
        message: str,
        *,
        status: int,
        headers: Headers,
        body: bytes,
        code: str,
        upstream: str = "",
    ) -> None:
        super().__init__(message)
        self.upstream = upstream
        """The name of the upstream that answered, if the caller may know it."""
        self.status = status
        self.headers = headers
        self.body = body
        self.code = code


class UpstreamUnavailable(UpstreamError):
    """No upstream may be asked now: circuit breakers are open, or rate limits are used up.

    ``retry_after_s`` is the time until one may be asked again, if known. ``limited`` is True if a
    rate limit of the provider is the reason.
    """

    status = 503
    code = "upstream_unavailable"

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, limited: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.limited = limited
        if limited:
            self.status = 429
            self.code = "rate_limit_exceeded"


class UpstreamProtocolError(UpstreamError):
    """The provider's answer cannot be read, or it ended before its terminal event."""

    code = "upstream_protocol_error"


class StageError(HeadstartError):
    """An optional stage failed. The request goes on without it."""

    stage = "stage"


class EncoderError(StageError):
    """The encoder could not embed a prompt."""

    stage = "encoder"


class VectorIndexError(StageError):
    """The vector index could not answer."""

    stage = "index"


class StoreError(StageError):
    """The entry store could not read or write."""

    stage = "store"


class MissingExtra(HeadstartError, ImportError):
    """An optional dependency is absent. The message names the extra to install."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the extra: pip install 'headstart[{extra}]'")
        self.extra = extra


# --- what providers write if a prompt is too long -------------------------------------------------

CONTEXT_CODES = (
    "context_length_exceeded",
    "context_window_exceeded",
    "model_context_window_exceeded",
    "exceed_context_size_error",
    "input_too_long",
    "tokens_limit_reached",
)
CONTEXT_TEXTS = re.compile(
    r"context[ _](?:length|window|size|limit)"
    r"|maximum (?:supported )?(?:prompt|input|model|sequence) length"
    r"|(?:prompt|input|request|conversation) (?:is |was )?too long"
    r"|too many (?:input |prompt )?tokens"
    r"|token count\b.{0,80}\bexceeds"
    r"|input tokens exceed|model token limit|range of input length|prompt exceeds max"
    r"|tokens \+ .?max_new_tokens.? must be"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)"
)
"""For text in lower case."""
_NUMBERS = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3}){1,2}|\d{4,9})(?!\w|[.,]\d)")
"""Numbers of tokens. Shorter ones are statuses and codes."""


def is_context_exceeded(status: int | None, code: str | None, message: str) -> bool:
    """Tell whether an error says that the prompt is longer than the model's context."""
    if code in CONTEXT_CODES:
        return True
    return status in (None, 400, 413, 422) and bool(CONTEXT_TEXTS.search(message[:2000].lower()))


def prompt_too_long(message: str) -> str:
    """Return the message in Anthropic's words, with the tokens of the prompt if it tells them.

    Claude Code and others shorten a conversation only if they read these words.
    """
    if "prompt is too long" in message.lower():
        return message
    numbers = {int(each.replace(",", "")) for each in _NUMBERS.findall(message[:2000])}
    told = f": {max(numbers)} tokens > {min(numbers)} maximum" if len(numbers) == 2 else ""
    return f"prompt is too long{told} ({message})"

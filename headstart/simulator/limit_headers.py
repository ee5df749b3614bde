"""What each provider's headers say about its rate limits, in the provider's own form."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headstart.simulator.rate_limit import Allowance, Window
    from headstart.types import Headers

LimitForm: TypeAlias = Literal[
    "openai", "azure", "anthropic", "cerebras", "mistral", "together", "none"
]
"""``openai`` is Groq's and Fireworks' too; Gemini and Cohere send none."""


def limit_headers(form: LimitForm, allowance: Allowance, now: float) -> Headers:
    """Return the headers at ``now`` (Unix seconds), with ``retry-after`` on a refusal."""
    if form == "none":
        return ()
    rows = list(_FORMS[form](allowance, now))
    if allowance.retry_after_s is not None:
        rows.append(("retry-after", str(math.ceil(allowance.retry_after_s))))
        if form in {"openai", "azure"}:
            rows.append(("retry-after-ms", str(math.ceil(allowance.retry_after_s * 1000))))
    return tuple((name.encode(), value.encode()) for name, value in rows)


_Rows: TypeAlias = "Iterator[tuple[str, str]]"


def _windows(allowance: Allowance) -> Iterator[tuple[str, Window]]:
    for kind, window in (("requests", allowance.requests), ("tokens", allowance.tokens)):
        if window is not None:
            yield kind, window


def _openai(allowance: Allowance, now: float) -> _Rows:  # noqa: ARG001 - resets are durations
    for kind, window in _windows(allowance):
        yield f"x-ratelimit-limit-{kind}", str(window.limit)
        yield f"x-ratelimit-remaining-{kind}", str(window.remaining)
        yield f"x-ratelimit-reset-{kind}", format_duration(window.reset_s)


def _azure(allowance: Allowance, now: float) -> _Rows:  # noqa: ARG001 - resets are seconds
    for kind, window in _windows(allowance):
        yield f"x-ratelimit-limit-{kind}", str(window.limit)
        yield f"x-ratelimit-remaining-{kind}", str(window.remaining)
        yield f"x-ratelimit-reset-{kind}", str(math.ceil(window.reset_s))


def _anthropic(allowance: Allowance, now: float) -> _Rows:
    for kind, window in _windows(allowance):
        reset = datetime.fromtimestamp(now, UTC) + timedelta(seconds=window.reset_s)
        names = (kind,) if kind == "requests" else ("tokens", "input-tokens", "output-tokens")
        for name in names:
            yield f"anthropic-ratelimit-{name}-limit", str(window.limit)
            yield f"anthropic-ratelimit-{name}-remaining", str(window.remaining)
            yield f"anthropic-ratelimit-{name}-reset", f"{reset:%Y-%m-%dT%H:%M:%SZ}"


def _cerebras(allowance: Allowance, now: float) -> _Rows:  # noqa: ARG001 - resets are seconds
    for kind, window in _windows(allowance):
        name = "requests-day" if kind == "requests" else "tokens-minute"
        yield f"x-ratelimit-limit-{name}", str(window.limit)
        yield f"x-ratelimit-remaining-{name}", str(window.remaining)
        yield f"x-ratelimit-reset-{name}", f"{window.reset_s:.3f}"


def _mistral(allowance: Allowance, now: float) -> _Rows:  # noqa: ARG001 - it names no reset
    for kind, window in _windows(allowance):
        name = "req-minute" if kind == "requests" else "tokens-minute"
        yield f"x-ratelimit-limit-{name}", str(window.limit)
        yield f"x-ratelimit-remaining-{name}", str(window.remaining)


def _together(allowance: Allowance, now: float) -> _Rows:  # noqa: ARG001 - resets are seconds
    for kind, window in _windows(allowance):
        name = "x-ratelimit" if kind == "requests" else "x-tokenlimit"
        yield f"{name}-limit", str(window.limit)
        yield f"{name}-remaining", str(window.remaining)
        yield f"{name}-reset", str(math.ceil(window.reset_s))


_FORMS: dict[LimitForm, Callable[[Allowance, float], _Rows]] = {
    "openai": _openai,
    "azure": _azure,
    "anthropic": _anthropic,
    "cerebras": _cerebras,
    "mistral": _mistral,
    "together": _together,
}


def format_duration(seconds: float) -> str:
    """Format seconds the way OpenAI's headers do: ``12ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"

"""Provider profiles: their dated figures, their rate limits and the headers that report them."""

from __future__ import annotations

import difflib
import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import msgspec

from headstart.errors import ConfigError
from headstart.types import Frozen, Headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


Value = TypeVar("Value")
LimitForm: TypeAlias = Literal[
    "openai", "azure", "anthropic", "cerebras", "mistral", "together", "none"
]
"""Groq and Fireworks use the form ``openai``; Gemini and Cohere send no such headers."""
_ANTHROPIC = "anthropic-ratelimit-{name}-{part}"
_FORMS: dict[LimitForm, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "openai": ("x-ratelimit-{part}-{name}", ("requests",), ("tokens",)),
    "azure": ("x-ratelimit-{part}-{name}", ("requests",), ("tokens",)),
    "anthropic": (_ANTHROPIC, ("requests",), ("tokens", "input-tokens", "output-tokens")),
    "cerebras": ("x-ratelimit-{part}-{name}", ("requests-day",), ("tokens-minute",)),
    "mistral": ("x-ratelimit-{part}-{name}", ("req-minute",), ("tokens-minute",)),
    "together": ("{name}-{part}", ("x-ratelimit",), ("x-tokenlimit",)),
}
"""For each form: the pattern of a header, and its names for requests and for tokens."""


def limit_headers(form: LimitForm, allowance: RateAllowance, now: float) -> Headers:
    """Return the headers at ``now`` (Unix seconds), with ``retry-after`` on a refusal."""
    if form == "none":
        return ()
    pattern, *names = _FORMS[form]
    rows: dict[str, str] = {}
    for kinds, window in zip(names, (allowance.requests, allowance.tokens), strict=True):
        if window is None:
            continue
        for name in kinds:
            parts = {"limit": window.limit, "remaining": window.remaining}
            rows |= {pattern.format(name=name, part=part): str(n) for part, n in parts.items()}
            if form != "mistral":  # Mistral names no time of the reset
                rows[pattern.format(name=name, part="reset")] = _reset(form, window.reset_s, now)
    if allowance.retry_after_s is not None:
        rows["retry-after"] = str(math.ceil(allowance.retry_after_s))
        if form in {"openai", "azure"}:
            rows["retry-after-ms"] = str(math.ceil(allowance.retry_after_s * 1000))
    return tuple((name.encode(), value.encode()) for name, value in rows.items())


def _reset(form: LimitForm, seconds: float, now: float) -> str:
    match form:
        case "openai":
            return format_duration(seconds)
        case "anthropic":
            reset = datetime.fromtimestamp(now, UTC) + timedelta(seconds=seconds)
            return f"{reset:%Y-%m-%dT%H:%M:%SZ}"
        case "cerebras":
            return f"{seconds:.3f}"
    return str(math.ceil(seconds))


def format_duration(seconds: float) -> str:
    """Format seconds the way OpenAI's headers do: ``12ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"


# --- profiles -------------------------------------------------------------------------------------


class TokenPrice(Frozen):
    """Dollars per million tokens."""

    input: float
    output: float


class Draw(Frozen):
    """The random draw of one call: seconds to the first token, then tokens per second."""

    ttft_s: float = 0.0
    tokens_per_s: float = math.inf
    stalled: bool = False
    fails: bool = False


_INSTANT = Draw()


class ProviderProfile(Frozen, forbid_unknown_fields=True):
    """How one provider behaves; the fields are explained at the top of ``profiles.toml``."""

    model: str
    ttft_ms: float = 0.0
    ttft_sigma: float = 0.0
    stall: float = 0.0
    stall_s: tuple[float, float] = (5.0, 30.0)
    error: float = 0.0
    tokens_per_s: tuple[float, float] | None = None
    """None: the whole answer comes at once."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    limit_headers: LimitForm | None = None
    prefill_ms_per_1k: float = 0.0
    prefix_cache: bool = False
    prefill: Literal["ignored", "continued", "refused"] = "ignored"
    usd_per_million: TokenPrice | None = None
    parallel: int | None = None
    assumed: tuple[str, ...] = ()
    notes: str = ""

    @property
    def instant(self) -> bool:
        """True when no call can wait or fail, so that no draw is needed."""
        return not (self.ttft_ms or self.stall or self.error or self.tokens_per_s)

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds for reading this number of prompt tokens."""
        return self.prefill_ms_per_1k * tokens / 1e6

    def draw(self, seed: int, call: int) -> Draw:
        """Return the draw of the ``call``-th request, which depends on the arguments alone."""
        if self.instant:
            return _INSTANT
        rng = random.Random(f"{seed}/{call}")
        ttft_s = self.ttft_ms / 1000 * math.exp(self.ttft_sigma * rng.gauss())
        stalled = rng.random() < self.stall
        stall_s = rng.uniform(*self.stall_s)
        fails = rng.random() < self.error
        speed = rng.uniform(*self.tokens_per_s) if self.tokens_per_s else math.inf
        return Draw(
            ttft_s=ttft_s + stall_s * stalled, tokens_per_s=speed, stalled=stalled, fails=fails
        )


class _ProfileFile(Frozen, forbid_unknown_fields=True):
    as_of: str
    profiles: dict[str, ProviderProfile]


def read_table(file: str, type: type[Value]) -> Value:
    """Return the contents of a TOML file of this folder."""
    return msgspec.toml.decode(Path(__file__).with_name(file).read_bytes(), type=type)


_DATA = read_table("profiles.toml", _ProfileFile)
PROFILES = _DATA.profiles
"""All profiles by name, in the order of the file."""
FIGURES_AS_OF = _DATA.as_of
"""The date of the figures, ``YYYY-MM-DD``."""


def find_profile(name: str) -> ProviderProfile:
    """Return a profile by name. Raises ConfigError with the nearest valid name."""
    return find_named("profile", PROFILES, name)


def find_named(kind: str, known: Mapping[str, Value], name: str) -> Value:
    """Return the value of that name. Raises ConfigError with the nearest valid name."""
    if name in known:
        return known[name]
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
    raise ConfigError(f"unknown {kind} {name!r}; {hint}")


# --- rate limits ----------------------------------------------------------------------------------


class RateWindow(Frozen):
    """One limit, with the figures that the client gets."""

    limit: int
    remaining: int
    reset_s: float
    """Seconds until the limit is full again."""


class RateAllowance(Frozen):
    """The decision on one request, and the figures of both limits. None: there is no such limit."""

    requests: RateWindow | None = None
    tokens: RateWindow | None = None
    retry_after_s: float | None = None
    """Seconds until such a request would pass; None when this one passes."""


_UNLIMITED = RateAllowance(
    requests=RateWindow(limit=10_000, remaining=9_999, reset_s=0.006),
    tokens=RateWindow(limit=2_000_000, remaining=1_999_000, reset_s=0.03),
)


class RateLimit:
    """Token buckets for each credential, which refill evenly over a minute."""

    def __init__(
        self, requests: int | None, tokens: int | None, clock: Callable[[], float]
    ) -> None:
        limits = {"requests": requests, "tokens": tokens}
        self._buckets = {name: _Buckets(n) for name, n in limits.items() if n is not None}
        self._clock = clock

    def reset(self) -> None:
        """Fill every bucket."""
        for buckets in self._buckets.values():
            buckets.clear()

    def take(self, credential: bytes, tokens: int) -> RateAllowance:
        """Ask for one request of a credential. ``tokens`` are those that it may use, in and out."""
        if not self._buckets:
            return _UNLIMITED
        now, amounts = self._clock(), {"requests": 1, "tokens": tokens}
        limits = self._buckets.items()
        wait_s = max(each.wait_s(credential, amounts[name], now) for name, each in limits)
        if wait_s == 0:
            for name, each in limits:
                each.take(credential, amounts[name])
        windows = {name: each.window(credential) for name, each in limits}
        return RateAllowance(**windows, retry_after_s=wait_s or None)


class _Buckets:
    """One bucket for each credential."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left: dict[bytes, tuple[float, float]] = {}

    def clear(self) -> None:
        self._left.clear()

    def wait_s(self, credential: bytes, amount: int, now: float) -> float:
        """Refill; return the seconds until the bucket, at most a full one, has the amount."""
        left, then = self._left.get(credential, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - then) * self._per_minute / 60)
        self._left[credential] = (left, now)
        return max(0.0, (min(amount, self._per_minute) - left) * 60 / self._per_minute)

    def take(self, credential: bytes, amount: int) -> None:
        left, then = self._left[credential]
        self._left[credential] = (left - min(amount, self._per_minute), then)

    def window(self, credential: bytes) -> RateWindow:
        left, _ = self._left[credential]
        return RateWindow(
            limit=self._per_minute,
            remaining=math.floor(left),
            reset_s=(self._per_minute - left) * 60 / self._per_minute,
        )

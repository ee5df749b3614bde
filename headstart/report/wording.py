"""Numbers as a reader wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.report.values import Extra, Interval, Savings

UNKNOWN = "-"


def duration(seconds: float | None) -> str:
    """Return ``0.25 ms``, ``1.2 ms``, ``3.4 s``, ``2.1 min`` or ``5.6 h``."""
    if seconds is None:
        return UNKNOWN
    size = abs(seconds)
    if size < 0.9995:
        digits = 2 if 0 < size < 0.000995 else 1 if size < 0.09995 else 0
        return f"{seconds * 1000:.{digits}f} ms"
    if size < 120:
        return f"{seconds:.{2 if size < 10 else 1}f} s"
    if size < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"


def dollars(usd: float | None) -> str:
    """Return ``$1.23``, with more digits for small sums."""
    if usd is None:
        return UNKNOWN
    sign = "-" if usd < 0 else ""
    size = abs(usd)
    return f"{sign}${size:,.{2 if size >= 1 or size == 0 else 4}f}"


def count(number: float) -> str:
    """Return ``1,234``, with a digit more for small numbers."""
    return f"{number:,.{0 if abs(number) >= 100 else 1}f}"


def percent(share: float | None) -> str:
    """Return ``12.3 %``."""
    return UNKNOWN if share is None else f"{share * 100:.1f} %"


def estimate(interval: Interval | None, show: str = "s") -> str:
    """Return the value with its interval; ``show`` is ``s``, ``usd`` or ``tokens``."""
    write = {"s": duration, "usd": dollars, "tokens": count}[show]
    if interval is None:
        return UNKNOWN
    if interval.low is None or interval.high is None:
        return f"{write(interval.value)} (too few)"
    return f"{write(interval.value)} ({write(interval.low)} to {write(interval.high)})"


def money_note(savings: Savings) -> str:
    """Say what the saved money leaves out and what was taken off it."""
    notes = []
    if savings.unpriced_hits:
        notes.append(f"{savings.unpriced_hits:,} hits without a known price")
    if savings.audits:
        notes.append(f"net of {savings.audits:,} audits for {dollars(savings.audits_usd)}")
    return "; ".join(notes)


def extra_note(extra: Extra) -> str:
    """Say what racing, hedging, retrying and failing over cost."""
    words = f"{percent(extra.calls_share)} calls beyond one for each of {extra.requests:,} requests"
    if extra.usd_share is None:
        return f"{words}."
    share = percent(extra.usd_share)
    return f"{words}; calls that answered nobody cost {dollars(extra.usd)}, {share} of all."


def verdict(*, disagree: bool | None) -> str:
    """Say whether both estimates of the saved time fit together."""
    if disagree is None:
        return "too few held-out requests to compare the estimates"
    if disagree:
        return "the estimates disagree: trust the one by holdout"
    return "the estimates agree within their uncertainty"

"""Limits of a client key: which counters a call is charged to, and what it may cost at most.

A counter counts one measure in one window of the calendar (UTC). Dollars are counted in billionths.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from headstart.attempts import Tokens
from headstart.errors import OverLimit
from headstart.types import Charge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.policies.cost import Price
    from headstart.settings import ClientLimits
    from headstart.types import Charged

Measure: TypeAlias = Literal["usd", "tokens", "requests"]
Period: TypeAlias = Literal["minute", "day", "month"]

USD_UNITS = 1_000_000_000
MOST_UNITS = 10**15
"""No call counts for more: counters of stores have 64 bits, and callers may write any number."""
WARN_AT = 0.8
"""Share of a limit from which the log warns."""
KEPT_S = 86_400.0
"""Time for which a counter stays after its window: calls that began in it may still end."""
PROMPT_MARGIN = 2
"""Factor on estimates of prompts, which count 4 bytes for a token. Nearly no text has less than 2:
Chinese has 3, as numbers have."""
HELD_S = 5.0
"""Time after which a caller may try again if calls in flight hold what is left."""
LEASES = 20
"""The requests of a minute are leased from the store in so many parts."""
_LABELS = {"minute": "%Y-%m-%dT%H:%M", "day": "%Y-%m-%d", "month": "%Y-%m"}
_EXHAUSTED = "insufficient_quota"
_TOO_FAST = "rate_limit_exceeded"


class Window(NamedTuple):
    """A minute, a day or a month of the calendar."""

    label: str
    ends: float
    """Unix seconds."""


def window(period: Period, now: float) -> Window:
    """Return the window in which ``now`` (Unix seconds) lies."""
    at = datetime.fromtimestamp(now, UTC).replace(second=0, microsecond=0)
    if period == "minute":
        end = at + timedelta(minutes=1)
    else:
        at = at.replace(hour=0, minute=0)
        end = at + timedelta(days=1)
        if period == "month":
            end = (at.replace(day=1) + timedelta(days=32)).replace(day=1)
    return Window(at.strftime(_LABELS[period]), end.timestamp())


class Allowance(NamedTuple):
    """One measure that is counted in one period, and its limit."""

    measure: Measure
    period: Period
    most: int | None = None
    """Units that may be used in a window; None: any number."""

    @property
    def setting(self) -> str:
        """The name of the setting that limits it."""
        return f"{self.measure}_per_{self.period}"

    @property
    def unit(self) -> int:
        """The units of one dollar, or of one token or request."""
        return USD_UNITS if self.measure == "usd" else 1

    def charge(self, caller: str, amount: int, now: float) -> Charge:
        """Return the charge of an amount to a caller's counter of now."""
        label, ends = window(self.period, now)
        counter = f"client/{caller}/{self.measure}/{label}"
        return Charge(counter, amount, ends + KEPT_S, self.most)


class Headroom(NamedTuple):
    """What is left of a limit in its window."""

    unit: Measure
    most: int
    left: int
    ends: float
    """Unix seconds."""


def spending(limits: ClientLimits) -> tuple[Allowance, ...]:
    """Return what the calls of a caller are charged to; none if nothing limits their cost.

    Days and months are counted even where they have no limit: a limit that is added later holds for
    what was spent before.
    """
    usd_per_day, usd_per_month = _units(limits.usd_per_day), _units(limits.usd_per_month)
    found = [
        Allowance("usd", "day", usd_per_day),
        Allowance("usd", "month", usd_per_month),
        Allowance("tokens", "day", limits.tokens_per_day),
        Allowance("tokens", "month", limits.tokens_per_month),
    ]
    if limits.tokens_per_minute is not None:
        found.append(Allowance("tokens", "minute", limits.tokens_per_minute))
    return tuple(found) if any(each.most is not None for each in found) else ()


def _units(usd: float | None) -> int | None:
    return None if usd is None else round(usd * USD_UNITS)


def allows_model(limits: ClientLimits, model: str) -> bool:
    """Tell whether the caller may use a model, by the name that it asks for."""
    return any(fnmatchcase(model, pattern) for pattern in limits.models)


class Usage(NamedTuple):
    """What a call uses, or may use: dollars and tokens."""

    usd: float
    tokens: int

    def amount(self, allowance: Allowance) -> int:
        """Return the units of an allowance's measure."""
        amount = self.usd * allowance.unit if allowance.measure == "usd" else self.tokens
        return round(min(amount, MOST_UNITS))


def most_usage(price: Price | None, prompt: int, completion: int) -> Usage:
    """Return the most that a call of so many tokens may use. No price: it costs nothing."""
    completion = min(completion, MOST_UNITS)
    tokens = prompt + completion
    if price is None:
        return Usage(0.0, tokens)
    ways = (Tokens(prompt, completion), Tokens(prompt, completion, cache_write=prompt))
    return Usage(max(map(price.cost_usd, ways)), tokens)


def reservations(
    allowances: Sequence[Allowance], caller: str, usage: Usage, now: float
) -> tuple[Charge, ...]:
    """Return the charges that reserve the usage of a call.

    A call that is larger than all tokens of a minute may begin when none of them is used.
    """
    charges = []
    for each in allowances:
        amount = usage.amount(each)
        if each.period == "minute" and each.most is not None:
            amount = min(amount, each.most)
        charges.append(each.charge(caller, amount, now))
    return tuple(charges)


def refusal(
    allowances: Sequence[Allowance],
    charges: Sequence[Charge],
    charged: Charged,
    now: float,
    held: Callable[[str], int] = lambda _: 0,
) -> OverLimit:
    """Return the error for charges that were not added: the limit that is in the way longest.

    ``held`` returns the part of a counter that calls in flight have reserved. They give back what
    they do not use, so what is full of reservations is not used up.
    """
    over = [
        _Excess(
            window(allowance.period, now).ends, allowance, allowance.most, charge.amount, used,
            is_held=used - held(charge.counter) + charge.amount <= allowance.most,
        )
        for allowance, charge, used in zip(allowances, charges, charged.values, strict=True)
        if allowance.most is not None and used + charge.amount > allowance.most
    ]  # fmt: skip
    if not over:  # what was in the way has just been given back
        return OverLimit("a limit of this API key was reached; try again", code=_TOO_FAST)
    return max(over, key=lambda each: (not each.is_held, each.ends)).error(now)


class _Excess(NamedTuple):
    """A limit that a call would pass."""

    ends: float
    allowance: Allowance
    most: int
    amount: int
    used: int
    is_held: bool
    """Calls in flight have reserved what is missing."""

    def error(self, now: float) -> OverLimit:
        """Return what the caller hears."""
        allowance, waits_s = self.allowance, self.ends - now
        limit = f"{allowance.setting} = {shown(allowance, self.most).partition(' ')[0]}"
        if self.is_held:
            return OverLimit(
                f"this API key is limited to {limit}, and calls in flight have reserved the rest; "
                "try again when they have ended",
                code=_TOO_FAST,
                retry_after_s=min(HELD_S, waits_s),
            )
        asked = shown(allowance, self.amount)
        if self.amount > self.most:
            why = f"this call may use {asked}: ask for fewer tokens"
        elif allowance.measure == "requests":
            why = "try again in the next minute"
        else:
            why = f"{shown(allowance, self.used)} are used, and this call may use {asked}"
        return OverLimit(
            f"this API key is limited to {limit}; {why}. It begins anew at {clock_time(self.ends)}",
            code=_TOO_FAST if allowance.period == "minute" else _EXHAUSTED,
            retry_after_s=waits_s,
            lasts=allowance.period != "minute",
        )


def shown(allowance: Allowance, units: int) -> str:
    """Return an amount for people."""
    if allowance.measure == "usd":
        return f"${units / USD_UNITS:,.4f}".rstrip("0").rstrip(".")
    return f"{units:,} {allowance.measure}"


def clock_time(at: float) -> str:
    """Return a time (Unix seconds) for people, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"

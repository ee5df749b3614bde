"""A provider's rate limits: reads them from headers, and tracks how much is left.

So Headstart makes no call that the provider would refuse. The headers of an answer say how much of
a limit is left (``remaining``), and when the limit is full again (``reset``). Between two answers,
``_Bucket`` computes how much is left. There are three kinds of limits:

- **Token buckets** fill steadily, at ``(limit - remaining) / reset``. OpenAI, Anthropic, Groq and
  Cerebras say that their limits are token buckets.
- **Fixed windows** give the whole limit back at their end. Two answers in a row tell a window from
  a bucket: the more is used, the later a bucket is full, and a window ends when it did before.
- **Unannounced limits:** no header names them. The provider's refusals show that they are used up
  (``_UnannouncedLimit``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from headstart.policies.callers import NameMemo, NamesMemo
from headstart.policies.freshness import http_date

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.types import Headers


# --- limits in headers ----------------------------------------------------------------------------

_TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?<!\d)(\d{1,18}+(?:\.\d++)?)(ms|s|m|h|d)")  # 400 digits are infinite
_EPOCH_S = 1e9
"""Larger numbers are Unix times, not durations."""
_EPOCH_MS = 1e12
_MINUTE_S, _DAY_S = 60.0, 86400.0
_WINDOWS_S = {
    "second": 1.0, "minute": _MINUTE_S, "hour": 3600.0, "day": _DAY_S, "month": 30 * _DAY_S,
}  # fmt: skip
_ONE_DIRECTION = ("input", "output", "prompt", "generated")
_HEADER = re.compile(rb"(?:x-|anthropic-)?(ratelimit|ratelimitbysize|tokenlimit)-([a-z0-9-]{1,60})")
_FIELDS = ("limit", "remaining", "reset")
_MESSAGE_WAIT = re.compile(r"(?:try again|retry) (?:in|after) ((?:[\d.]+(?:ms|[smhd]))+)")
MOST_LIMITS = 16
"""The most limits that are read from headers. No provider names more, but a hostile one could."""


class LimitWindow(NamedTuple):
    """One limit as the headers of a provider describe it. What they do not say is None."""

    name: str
    """The unit that it counts and the time over which it counts, such as ``tokens-minute``."""
    limit: float | None
    remaining: float | None
    reset_s: float | None
    """The seconds until it is full again."""

    @property
    def kind(self) -> LimitKind:
        """The meaning of its name."""
        return _limit_kind(self.name)


class LimitKind(msgspec.Struct, frozen=True, gc=False):
    """The meaning of a limit's name."""

    counts_tokens: bool
    one_direction: bool
    """It counts the tokens of one direction only: input or output."""
    length_s: float
    """The time over which it counts; a minute if the name does not say."""


@lru_cache(maxsize=256)
def _limit_kind(name: str) -> LimitKind:
    words = name.split("-")
    times = float(words[-2]) if len(words) > 1 and words[-2].isdecimal() else 1.0
    length_s = max(times, 1.0) * _WINDOWS_S[words[-1]] if words[-1] in _WINDOWS_S else _MINUTE_S
    counts_tokens = "token" in name
    one_direction = counts_tokens and any(word in name for word in _ONE_DIRECTION)
    return LimitKind(counts_tokens, one_direction, length_s)


def duration_s(text: str, unix: float, headers: Headers = ()) -> float | None:
    """Return the seconds that a text means; None if it means none. Never negative.

    The text is a duration (``12ms``, ``6m0s``, ``59.7``), or a Unix or RFC 3339 time, from which
    ``unix``, the present Unix time, is subtracted. If ``headers`` have the time of the provider's
    clock, that time is subtracted instead.
    """
    text = text.strip()
    if text[-1:] in _TIME_UNITS:
        return _units_s(text)
    number = _number(text)
    if number is None:
        lower = text.lower()
        return _units_s(lower) if _DURATION.match(lower) else _moment_s(text, unix, headers)
    if number >= _EPOCH_MS:
        number /= 1000
    return max(0.0, number - _written_at(headers, unix) if number >= _EPOCH_S else number)


def retry_after_s(headers: Headers, unix: float) -> float | None:
    """Return the wait that ``retry-after-ms``, ``x-ms-retry-after-ms`` or ``retry-after`` asks for.

    ``retry-after`` is seconds or an HTTP date (RFC 9110, 10.2.3).
    """
    found = dict(reversed(headers))
    for name in (b"retry-after-ms", b"x-ms-retry-after-ms"):
        milliseconds = _number(found.get(name, b"").decode("latin-1"))
        if milliseconds is not None and milliseconds >= 0:
            return milliseconds / 1000
    value = found.get(b"retry-after", b"").decode("latin-1").strip()
    if not value:
        return None
    seconds = duration_s(value, unix, headers)
    if seconds is None and (moment := http_date(value)) is not None:
        seconds = max(0.0, moment - _written_at(headers, unix))
    return seconds


def message_wait_s(text: str) -> float | None:
    """Return the wait that an error message names ("Please try again in 6m0s"), or None."""
    found = _MESSAGE_WAIT.search(text)
    return _units_s(found[1].rstrip(".")) if found else None


def exhausted_until_s(headers: Headers, unix: float) -> float | None:
    """Return the seconds until all used up limits in ``headers`` are full again, or None."""
    waits = [
        window.reset_s
        for window in limit_windows(headers, unix)
        if window.remaining is not None and window.remaining < 1 and window.reset_s
    ]
    return max(waits, default=None)


def limit_windows(headers: Headers, unix: float) -> list[LimitWindow]:
    """Return the limits that the headers of any provider describe."""
    names, values = zip(*headers, strict=True) if headers else ((), ())
    found: dict[str, dict[str, float]] = {}
    for place, name, part in limit_places[names]:
        if part == "reset":
            number = duration_s(values[place].decode("latin-1"), unix, headers)
            if number is None:
                continue
        else:
            try:
                number = float(values[place])
            except ValueError:
                continue
            # Zero limits and negative remainders mean "unknown" where they occur (Azure).
            if not (1.0 if part == "limit" else 0.0) <= number < math.inf:
                continue
        window = found.get(name)
        if window is not None:
            window[part] = number
        elif len(found) < MOST_LIMITS:
            found[name] = {part: number}
    return [LimitWindow(name, *map(fields.get, _FIELDS)) for name, fields in found.items()]


def _places_of_limits(names: tuple[bytes, ...]) -> list[tuple[int, str, str]]:
    """Return the places of the headers that describe limits, with a limit's name and field."""
    parts = ((place, _part_of(name)) for place, name in enumerate(names))
    return [(place, *part) for place, part in parts if part is not None]


limit_places = NamesMemo(_places_of_limits)
"""The places of the headers that describe limits, by the names of all headers; mostly none."""


def _part_of(header: bytes) -> tuple[str, str] | None:
    """Return the name and the field of the limit that a header describes, or None."""
    match = _HEADER.fullmatch(header)
    if match is None:
        return None
    family, words = match[1].decode(), match[2].decode().split("-")
    field = next((word for word in (words[0], words[-1]) if word in _FIELDS), None)
    if field is None:
        return None
    words.remove(field)
    if family != "ratelimit":
        words.insert(0, "tokens")
    name = "-".join(words)
    return (name, field) if _is_known(name) else None


_TELLS_LIMIT = re.compile(rb"(?:x-|anthropic-)?(?:ratelimit|tokenlimit)[a-z0-9-]*")
tells_limit = NameMemo(lambda name: _TELLS_LIMIT.fullmatch(name) is not None)
"""Tells whether a header describes a provider's limit, in any form, by the header's name."""


def _is_known(name: str) -> bool:
    """Tell whether a limit is on requests or tokens, and not on spending or subscriptions."""
    words = [word for word in name.split("-") if word not in ("", *_WINDOWS_S)]
    words = [word for word in words if not word.isdecimal()]
    return not words or any(word.startswith(("req", "token")) for word in words)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@lru_cache(maxsize=256)  # The reset times of hardly used limits repeat often.
def _units_s(text: str) -> float | None:
    parts = _DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _TIME_UNITS[unit] for number, unit in parts)


def _moment_s(text: str, unix: float, headers: Headers) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        at = moment.timestamp() if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None
    return None if at is None else max(0.0, at - _written_at(headers, unix))


_CLOCKS_DIFFER_S = 2.0
"""A smaller difference of the clocks is ignored: ``date`` has whole seconds, and takes a moment to
arrive."""


def _written_at(headers: Headers, unix: float) -> float:
    """Return the Unix time of headers: by the provider's clock, if ours differs from it."""
    date = next((value for name, value in headers if name == b"date"), None)
    at = None if date is None else http_date(date.decode("latin-1"))
    return unix if at is None or abs(at - unix) <= _CLOCKS_DIFFER_S else at


# --- a limit that headers name --------------------------------------------------------------------

_BELIEVED_S = 3600.0
"""A header is believed for this time. Then one call may test whether it is still true."""
_LEARN_AGAIN_S = 0.05
"""While more than half of each limit is left, headers are read once in this time."""
_SHORTEST_RESET_S = 1e-3
_OTHERS_S = 3.0
"""If a provider counts more use than this process does, for this many seconds, all of the
difference counts as the use of other processes with the same key."""
_AFTER_WINDOW_S = 0.03
"""Seconds after the end of a window until it is used again."""
_LONG_WINDOW_S = 5.0
"""A ``reset`` in whole seconds may be rounded down. So a second is added if it is at least this."""
_TELLING = 0.1
"""Two readings tell a window from a bucket if this share of the limit was used between them."""
_DIFFERENCES, _WINDOW_DIFFERENCES = 3, 5
"""The number of ``differences`` that are kept, for a bucket and for a window."""
_MOST_FOR_OTHERS = 0.95
"""The largest share of a limit that others are assumed to use. A call tests the rest."""


class LimitReading(NamedTuple):
    """A limit as a header described it, at the time when the provider accepted the call."""

    used: float = 0.0
    reset_s: float = 0.0
    at: float = 0.0

    @property
    def ends(self) -> float:
        """The time at which the limit is full again."""
        return self.at + self.reset_s

    @property
    def surely_ends(self) -> float:
        """The time from which calls use the next window. It allows for rounded seconds."""
        rounded = self.reset_s >= _LONG_WINDOW_S and self.reset_s.is_integer()
        return self.ends + (1.0 if rounded else 0.0) + _AFTER_WINDOW_S


_Mark: TypeAlias = tuple[float, float]
"""The level of a limit after a call was counted, and the sum of its corrections."""


@dataclass(slots=True, eq=False)
class _Bucket:
    """How much is left of one limit, which is a token bucket or a fixed window."""

    kind: LimitKind
    level: float = 0.0
    """The requests or tokens that were left at the time ``at``."""
    limit: float = 1.0
    per_s: float = 0.0
    at: float = 0.0
    believed_until: float = 0.0
    corrected: float = 0.0
    """The sum of all corrections of ``level``."""
    differences: tuple[float, ...] = ()
    """The last values of the provider, each minus the level without corrections."""
    others_per_s: float = 0.0
    """The use by other processes with the same key, in requests or tokens a second."""
    window_s: float = 0.0
    """The length of the window; 0 for a bucket."""
    ends: float = 0.0
    """The end of the present window."""
    first: LimitReading = field(default_factory=LimitReading)
    """An earlier reading. With a later one it tells a window from a bucket."""

    def learn(
        self, window: LimitWindow, remaining: float, taken: _Mark | None, began: float, now: float
    ) -> None:
        """Take over the provider's values, which were right when the call began, at ``began``.

        ``taken`` is what ``mark`` returned then, or None if the limit was not known then.
        """
        self.limit = window.limit or max(self.limit, remaining)
        reading = LimitReading(self.limit - remaining, window.reset_s or 0.0, began)
        usual_per_s = self.limit / self.kind.length_s
        if not self.believed_until:
            self.per_s, self.level = usual_per_s, min(remaining, self.limit)
        elif not self.window_s or began >= self.ends - self.window_s:
            self._correct(remaining, taken, now)
        if reading.used > 0.0 and reading.reset_s:
            self._detect_window(reading, now)
            if not self.window_s:
                self._measure_rate(reading, usual_per_s)
        self.at, self.believed_until = now, now + _BELIEVED_S

    def _measure_rate(self, reading: LimitReading, usual_per_s: float) -> None:
        """Take over the rate of a bucket: what was used is full again after ``reset_s``."""
        # Providers round down, so up to one call less was used.
        reset_s = max(reading.reset_s, _SHORTEST_RESET_S)
        least, most = (reading.used - 1.0) / reset_s, reading.used / reset_s
        is_measured = self.per_s != usual_per_s
        self.per_s = min(max(self.per_s, least), most) if is_measured else most
        self.others_per_s = min(self.others_per_s, _MOST_FOR_OTHERS * self.per_s)

    def _correct(self, remaining: float, taken: _Mark | None, now: float) -> None:
        """Correct the level by the provider's ``remaining``.

        Calls of several processes reach the provider in another order than they are counted here,
        and providers round down. So the smallest of the last differences is the correction.
        """
        level = self.level_at(now)
        if taken is None:
            # The level does not contain this call yet, but what the provider says is left does.
            difference = self.corrected + min(0.0, remaining - level)
        else:
            # Calls that were made since have been counted here, and not by the provider.
            level_then, corrected_then = taken
            difference = remaining - (level_then - corrected_then)
        kept = _WINDOW_DIFFERENCES if self.window_s else _DIFFERENCES
        self.differences = (*self.differences[1 - kept :], difference)
        correction = min(self.differences) - self.corrected
        if taken is not None:
            others_per_s = self.others_per_s - correction / _OTHERS_S
            self.others_per_s = min(max(others_per_s, 0.0), _MOST_FOR_OTHERS * self.per_s)
        self.corrected += correction
        self.level = min(level + correction, self.limit)

    def _detect_window(self, reading: LimitReading, now: float) -> None:
        """Tell from two readings whether the limit is a window, and when the window ends.

        The end of a window does not change while more of it is used. A bucket that is used more is
        full later.
        """
        first = self.first
        if reading.at < first.at or reading.ends <= now:
            return
        if now >= first.ends or reading.used < first.used:
            self.first = reading
            if self.window_s:
                self.ends = reading.surely_ends
            return
        used = reading.used - first.used
        if used >= max(3.0, _TELLING * self.limit):
            # How much later ``reset`` is: in a window by -elapsed_s, in a bucket by longer_s.
            elapsed_s = reading.at - first.at
            longer_s = reading.reset_s * used / reading.used
            is_window = reading.reset_s - first.reset_s < (longer_s - elapsed_s) / 2
            if is_window and not self.window_s:
                self.window_s, self.ends = first.reset_s, first.surely_ends
            elif not is_window:
                self.window_s = 0.0
        if self.window_s:
            self.window_s = max(self.window_s, reading.reset_s)
            self.ends = max(self.ends, reading.surely_ends)

    def mark(self) -> _Mark:
        """Return the level at the time ``at``, and the sum of its corrections."""
        return self.level, self.corrected

    def level_at(self, now: float) -> float:
        """Return the requests or tokens that are left."""
        level, limit = self.level, self.limit
        if self.window_s:
            level = limit if now >= self.ends else level
        elif now > self.at:
            level += (now - self.at) * (self.per_s - self.others_per_s)
        return limit if level > limit else level  # noqa: FURB136 - this takes a fraction of min

    def change(self, amount: float, now: float) -> None:
        """Change the level. The first call after a window begins the next one."""
        level = self.level_at(now) + amount
        if not 0.0 <= level <= self.limit:
            level = min(max(0.0, level), self.limit)
        self.level, self.at = level, now
        if self.window_s and now >= self.ends:
            self.ends = now + self.window_s
            self.corrected, self.differences = 0.0, (0.0,)

    def need(self, tokens: int) -> float:
        """Return what a call takes of this limit."""
        if not self.kind.counts_tokens or self.kind.one_direction:
            # The tokens of a call in one direction are not known. So a limit on one direction
            # counts only once it is used up.
            return 1.0
        if 1 <= tokens <= self.limit:
            return tokens
        # A call that is larger than the whole limit can only be tried: no wait would suffice.
        return min(float(max(1, tokens)), self.limit)

    def wait_s(self, tokens: int, now: float, calls: int, reserve: float) -> float:
        """Return the seconds until the limit allows ``calls``, with the share ``reserve`` left.

        The use of others counts only for the first call. A burst can make this estimate far too
        high, and with it no call that could wait would be allowed to.
        """
        need, level = self.need(tokens), self.level_at(now)
        if level >= calls * need and not reserve:
            return 0.0
        wait_s = 0.0
        if self.window_s:
            if (windows := math.ceil((calls * need - level) / self.limit)) > 0:
                wait_s = max(0.0, self.ends - now) + (windows - 1) * self.window_s
        else:
            if reserve:
                level -= min(1.0, reserve * self.limit, self.limit - need)
            lacks_for_first = need - level
            lacks_for_others = (calls - 1) * need - max(0.0, level - need)
            if lacks_for_first > 0.0:
                wait_s = lacks_for_first / (self.per_s - self.others_per_s)
            if lacks_for_others > 0.0:
                wait_s += lacks_for_others / self.per_s
        return max(0.0, min(wait_s, self.believed_until - now))


# --- a limit that no header names -----------------------------------------------------------------

_FIRST_PER_S, _MOST_FIRST_PER_S = 1.0, 100.0
"""The fewest and the most calls a second after the first refusal."""
_DOUBLES_S, _LEAST_DOUBLES_S, _MOST_DOUBLES_S = 1.0, 2.0, 60.0
"""Seconds in which the rate doubles: before the limit was measured; afterwards, the least and the
most."""
_CONFIRMED = 0.1
"""Two measurements that differ by less than this share confirm each other."""
_MOST_DOUBLINGS = 6.0
_UNANNOUNCED_S = 600.0
"""Seconds until an unannounced limit is forgotten."""
_LEAST_ANSWERED, _LEAST_S, _ENOUGH_S = 8.0, 1.0, 10.0
"""A rate is measured over 8 answered calls and at least 1 s, or over one answered call and 10 s."""
_LONGEST_BURST_S = 60.0
UNANNOUNCED = "untold"
"""The name of an unannounced limit. It must not change, because stored limits have it."""


class _UnannouncedLimit(_Bucket):
    """Estimates the rate of calls that a provider allows, from its refusals alone.

    A refusal means that nothing is left. So the number of calls that were answered between two
    refusals, divided by the time between them, is the rate that the limit allows. For example,
    calls are refused at 0 s and at 10 s, and 30 calls between them are answered: the limit allows 3
    calls a second. This is right for a bucket, and also for a window if the time covers a whole
    window.

    The rate begins with a guess and doubles each second, as in the slow start of TCP. It keeps
    growing after a measurement, because only more calls can show that the limit is higher: then it
    doubles in half of the time over which it was measured, and more slowly once another measurement
    confirms it.

    ``per_s`` is the measured rate, from which the rate grows. Answered calls are counted from the
    refusal at ``counted_from``, when the level was ``level_then``. ``doubles_s`` is the time in
    which the rate doubles now.
    """

    __slots__ = ("counted_from", "doubles_s", "level_then")

    @property
    def first(self) -> LimitReading:
        """The numbers that only this kind of limit has, in the place where a bucket is stored."""
        return LimitReading(used=self.level_then, reset_s=self.doubles_s, at=self.counted_from)

    @first.setter
    def first(self, stored: LimitReading) -> None:
        self.level_then, self.doubles_s, self.counted_from = stored

    def refuse(self, pause_s: float, began: float, now: float) -> None:
        """Learn from a refused call that began at ``began``. No call is made for ``pause_s``."""
        if not self.believed_until:
            per_s = _MOST_FIRST_PER_S if pause_s < 1.0 / _MOST_FIRST_PER_S else 1.0 / pause_s
            self._set_rate(max(per_s, _FIRST_PER_S), _DOUBLES_S, _ENOUGH_S, now)
            self.at = now
        elif began < self.counted_from:
            return  # a call of the same burst as that refusal
        elapsed_s, level = now - self.counted_from, self.level_at(now)
        granted = self._granted(self.counted_from, now)
        answered = self.level_then + granted - level - 1.0
        many = answered >= _LEAST_ANSWERED and elapsed_s >= _LEAST_S
        if many or (answered >= 1.0 and elapsed_s >= _ENOUGH_S):
            per_s = answered / elapsed_s
            doubles_s = max(elapsed_s / 2.0, _LEAST_DOUBLES_S)
            few_were_made = level > 1.0 + granted / 10.0
            if few_were_made:  # they show little about the limit
                per_s, doubles_s = max(per_s, _FIRST_PER_S), _DOUBLES_S
            elif abs(per_s - self.per_s) < _CONFIRMED * self.per_s:
                doubles_s = min(max(doubles_s, 2.0 * self.doubles_s), _MOST_DOUBLES_S)
            self._set_rate(per_s, doubles_s, elapsed_s, now)
            answered = 0.0
        self.believed_until = now + pause_s + _UNANNOUNCED_S
        # When the pause ends, one call fits, and half of those that the limit allows meanwhile.
        self.at, self.level = now, min(level, 1.0 - self.per_s * pause_s / 2.0)
        granted = self._granted(self.counted_from, now)
        self.level_then = max(0.0, answered) + self.level - granted

    def _set_rate(self, per_s: float, doubles_s: float, over_s: float, now: float) -> None:
        """Take over a rate that was measured over ``over_s``, and count calls from now on."""
        self.per_s = per_s
        self.limit = 1.0 + per_s * min(max(over_s, _LEAST_S), _LONGEST_BURST_S)
        self.level_then, self.doubles_s, self.counted_from = 0.0, doubles_s, now

    @property
    def _grows_at(self) -> float:
        """The time from which the rate grows: the end of the pause after the last refusal."""
        return self.believed_until - _UNANNOUNCED_S

    def _doublings(self, now: float) -> float:
        """Return how often the rate has doubled, also as a fraction."""
        return min(max(0.0, (now - self._grows_at) / self.doubles_s), _MOST_DOUBLINGS)

    def _rate(self, now: float) -> float:
        return self.per_s * math.exp2(self._doublings(now))

    def _granted(self, since: float, now: float) -> float:
        """Return the number of calls that the rate allows between two times: its integral."""
        return self._integral(now) - self._integral(since)

    def _integral(self, now: float) -> float:
        """Return the number of calls since the rate began to grow; negative before that."""
        doublings = self._doublings(now)
        grown = self.doubles_s * (math.exp2(doublings) - 1.0) / math.log(2.0)
        steady_s = now - self._grows_at - doublings * self.doubles_s
        return self.per_s * (grown + steady_s * math.exp2(doublings))

    def level_at(self, now: float) -> float:
        return min(self.limit, self.level + self._granted(self.at, max(now, self.at)))

    def change(self, amount: float, now: float) -> None:
        """Change the level, but not below 0: calls before the last refusal are no debt."""
        level = self.level_at(now)
        self.level, self.at = min(max(level + amount, min(level, 0.0)), self.limit), now

    def wait_s(self, tokens: int, now: float, calls: int, reserve: float) -> float:  # noqa: ARG002 - refusals show what is left
        """Return the seconds until the rate allows ``calls``.

        After the first call the rate is assumed to stay as it is.
        """
        level = self.level_at(now)
        wait_s = self._passes_s(1.0 - level, now) if level < 1.0 else 0.0
        others = calls - max(1.0, level)
        if others > 0.0:
            wait_s += others / self._rate(now)
        return max(0.0, min(wait_s, self.believed_until - now))

    def _passes_s(self, calls: float, now: float) -> float:
        """Return the seconds in which the growing rate allows ``calls``."""
        pause_s = max(0.0, self._grows_at - now)
        if calls <= self.per_s * pause_s:
            return calls / self.per_s
        calls -= self.per_s * pause_s
        doublings, most = self._doublings(now), math.exp2(_MOST_DOUBLINGS)
        per_doubling = self.per_s * self.doubles_s / math.log(2.0)
        grown = math.exp2(doublings) + calls / per_doubling
        if grown <= most:
            return pause_s + (math.log2(grown) - doublings) * self.doubles_s
        calls -= per_doubling * (most - math.exp2(doublings))
        grows_s = (_MOST_DOUBLINGS - doublings) * self.doubles_s
        return pause_s + grows_s + calls / (self.per_s * most)


# --- all limits of an upstream --------------------------------------------------------------------


class SavedLimit(NamedTuple):
    """The fields of a ``_Bucket`` that are kept for other processes. Stores keep this order."""

    limit: float
    per_s: float
    window_s: float
    corrected: float
    differences: tuple[float, ...]
    others_per_s: float
    believed_until: float
    first: LimitReading


SavedLimits: TypeAlias = dict[str, SavedLimit]
"""The limits by name, without their levels."""
Taken: TypeAlias = dict[str, _Mark]
"""For each limit, what ``mark`` returned after a call was counted."""
NOTHING_TAKEN: Taken = {}
_CLOCK_ERROR_S = 10.0


def are_possible(saved: SavedLimits, levels: Sequence[float], now: float) -> bool:
    """Tell whether stored limits are plausible. Damage, or a clock ahead, could stop all calls."""
    soon = now + _CLOCK_ERROR_S
    if len(saved) > MOST_LIMITS or len(levels) != 3 * len(saved):
        return False
    for place, each in enumerate(saved.values()):
        at, level, ends = levels[3 * place : 3 * place + 3]
        numbers = (each.limit, each.per_s, each.window_s, each.corrected, *each.differences)
        numbers = (*numbers, each.others_per_s, each.believed_until, *each.first, at, level, ends)
        if not all(map(math.isfinite, numbers)):
            return False
        if each.limit < 1.0 or each.per_s <= 0.0 or not 0.0 <= each.others_per_s <= each.limit:
            return False
        lowest = -each.limit - each.per_s * _BELIEVED_S
        if len(each.differences) > _WINDOW_DIFFERENCES or level < lowest:
            return False
        latest = soon + _BELIEVED_S + _UNANNOUNCED_S
        if at > soon or each.believed_until > latest or ends > soon + max(each.window_s, 0.0):
            return False
    return True


class RateLimits:
    """The limits of one (upstream, model, key). ``now`` is always in monotonic seconds.

    All calls are allowed until the provider's headers name a limit, or it refuses a call.
    """

    def __init__(self) -> None:
        self.known = False
        """Whether any limit is known."""
        self._buckets: dict[str, _Bucket] = {}

    def learn(
        self,
        headers: Headers,
        now: float,
        unix: float,
        taken: Taken = NOTHING_TAKEN,
        windows: Sequence[LimitWindow] | None = None,
        *,
        began: float | None = None,
    ) -> bool:
        """Learn the limits that the headers of an answer name.

        ``unix`` is the present Unix time. ``taken`` is what ``take`` returned when the call began,
        at ``began`` (default: now): the headers say what was left then, and other calls may have
        been made since. ``windows``, if given, is the result of ``limit_windows`` for the headers.
        Returns whether the headers say how many tokens are left.
        """
        tells_tokens = False
        began = now if began is None else began
        for window in limit_windows(headers, unix) if windows is None else windows:
            if window.remaining is None:
                continue
            described = window
            if window.remaining < 1 and not window.reset_s:
                described = window._replace(reset_s=retry_after_s(headers, unix))
            bucket = self._buckets.get(window.name)
            if bucket is None:
                if len(self._buckets) >= MOST_LIMITS:
                    continue
                self._buckets.pop(UNANNOUNCED, None)
                bucket = self._buckets[window.name] = _Bucket(window.kind)
                self.known = True
            bucket.learn(described, window.remaining, taken.get(window.name), began, now)
            tells_tokens = tells_tokens or bucket.kind.counts_tokens
        return tells_tokens

    def learn_refusal(self, pause_s: float, began: float, now: float) -> None:
        """Learn from a refused call the rate of a provider that names no limits.

        The call began at ``began``. The provider gets no call for the next ``pause_s``.
        """
        if not self._buckets:
            self._buckets[UNANNOUNCED] = _UnannouncedLimit(_limit_kind(UNANNOUNCED))
            self.known = True
        unannounced = self._buckets.get(UNANNOUNCED)
        if isinstance(unannounced, _UnannouncedLimit):
            unannounced.refuse(pause_s, began, now)

    def needs_headers(self, now: float) -> bool:
        """Tell whether to ``learn`` from an answer: the known limits are old, or little is left."""
        fresh_until = now + _BELIEVED_S - _LEARN_AGAIN_S
        for bucket in self._buckets.values():
            if bucket.believed_until < fresh_until or bucket.level < bucket.limit / 2:
                return True
        return False

    def ready_in_s(self, tokens: int, now: float, calls: int = 1, *, reserve: float = 0.0) -> float:
        """Return the seconds until the limits allow ``calls`` of ``tokens`` each.

        ``tokens`` are the input and the reserved output. Afterwards the share ``reserve`` of each
        bucket is still left, but no more than one call or token.
        """
        longest_s = 0.0
        for bucket in self._buckets.values():
            if wait_s := bucket.wait_s(tokens, now, calls, reserve):
                longest_s = max(longest_s, wait_s)
        return longest_s

    def allowance(self, now: float) -> float:
        """Return the share that is left of the tightest limit; 1.0 if no limit is known."""
        shares = [
            max(0.0, each.level_at(now) / each.limit)
            for each in self._buckets.values()
            if each.limit > 0
        ]
        return min(shares, default=1.0)

    def take(self, tokens: int, now: float) -> Taken:
        """Count a call that is being made. Give the result to ``learn``, with the call's answer."""
        taken = {}
        for name, bucket in self._buckets.items():
            bucket.change(0.0 if bucket.kind.one_direction else -bucket.need(tokens), now)
            taken[name] = bucket.mark()
        return taken

    def fits_share(self, calls: int, tokens: int, share: float, now: float) -> bool:
        """Tell whether ``calls`` of ``tokens`` in all need at most ``share`` of what is left."""
        for bucket in self._buckets.values():
            counted = bucket.kind.counts_tokens and not bucket.kind.one_direction
            if (tokens if counted else calls) > share * bucket.level_at(now):
                return False
        return True

    def cancel(self, tokens: int, now: float) -> None:
        """Undo ``take``: the call was not made."""
        for bucket in self._buckets.values():
            bucket.change(0.0 if bucket.kind.one_direction else bucket.need(tokens), now)

    def give_back(self, tokens: int, now: float) -> None:
        """Give back the tokens of a call that was refused: they were never used."""
        if not tokens:
            return
        for bucket in self._buckets.values():
            if bucket.kind.counts_tokens and not bucket.kind.one_direction:
                bucket.change(bucket.need(tokens), now)

    @property
    def levels(self) -> Sequence[float]:
        """What a call changes: for each limit a time, the level then, and a window's end."""
        return [
            number for each in self._buckets.values() for number in (each.at, each.level, each.ends)
        ]

    @levels.setter
    def levels(self, numbers: Sequence[float]) -> None:
        ats, levels, ends = numbers[::3], numbers[1::3], numbers[2::3]
        for bucket, *state in zip(self._buckets.values(), ats, levels, ends, strict=False):
            bucket.at, bucket.level, bucket.ends = state

    def saved(self) -> SavedLimits:
        """Return the limits without their levels, for another process of the same machine."""
        fields = attrgetter(*SavedLimit._fields)
        return {name: SavedLimit(*fields(each)) for name, each in self._buckets.items()}

    def restore(self, saved: SavedLimits) -> None:
        """Take over what ``saved`` returned."""
        known, self._buckets = self._buckets, {}
        for name, each in saved.items():
            make = _UnannouncedLimit if name == UNANNOUNCED else _Bucket
            bucket = self._buckets[name] = known.get(name) or make(_limit_kind(name))
            bucket.limit, bucket.per_s, bucket.window_s = each.limit, each.per_s, each.window_s
            bucket.corrected, bucket.differences = each.corrected, each.differences
            bucket.others_per_s, bucket.believed_until = each.others_per_s, each.believed_until
            bucket.first = each.first
        self.known = bool(saved)

    def copy_from(self, other: RateLimits) -> None:
        """Take over all of another object's limits."""
        self.restore(other.saved())
        self.levels = other.levels

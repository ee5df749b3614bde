"""Callers: which headers tell them apart, from which origins they may come, and their limits.

A provider, or the app behind the middleware, may recognise its users by any header. So every header
tells callers apart, except those that are known to say nothing about the caller.

**Web pages.** Any web page in a browser on this machine can send requests to this server, even
under the page's own host name (DNS rebinding). The page knows no key. But if the server needs no
key, the page could use the operator's key, or read the cache. So requests of browsers are checked:
they have the page's origin (``Origin``) and its relation to the server (``Sec-Fetch-Site``). Other
clients send neither header, and are not checked. The content type is not used: browsers send
``Origin`` with every POST to another site, and curl sends the content type of a form by default.

**Limits of a client key:** the counters to which a call is charged, and the most that a call may
cost. A counter counts one measure in one window of the calendar (UTC). Dollars are counted in
billionths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import ip_address
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

from headstart.attempts import Tokens
from headstart.dialects.registry import PROTOCOL_HEADERS
from headstart.errors import OverLimit
from headstart.types import Charge, Charged, Headers, T, read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from headstart.policies.cost import Price
    from headstart.settings import ClientLimits


# --- what headers say about the caller ------------------------------------------------------------

_VOCABULARY = read_vocabulary(__name__)
K = TypeVar("K", bound="Collection[object]")
MEMO_NAMES = 1024
MOST_NAMES, NAMES_BYTES = 64, 2048
"""The most header names, and the most bytes of them, that are remembered together."""
LONGEST_NAME = 1024
"""A longer name, or key, is not remembered, because callers choose the names of headers."""


class _BoundedMemo(dict[K, T]):
    """Remembers the result of a function for each key that is not too long."""

    def __init__(self, judge: Callable[[K], T]) -> None:
        self._judge = judge

    def __missing__(self, key: K) -> T:
        said = self._judge(key)
        if self._is_kept(key):
            if len(self) >= MEMO_NAMES:
                self.clear()
            self[key] = said
        return said

    def _is_kept(self, key: K) -> bool:
        return len(key) <= LONGEST_NAME


class NameMemo(_BoundedMemo[bytes, T]):
    """Remembers the result of a function for each header name, or for each key."""


class NamesMemo(_BoundedMemo[tuple[bytes, ...], T]):
    """Remembers the result of a function for the names of all headers of an answer, in their order.

    The answers of a provider mostly have the same headers in the same order. So what follows from
    the names is worked out once, and not for each header of each answer.
    """

    def _is_kept(self, key: tuple[bytes, ...]) -> bool:
        return len(key) <= MOST_NAMES and sum(map(len, key)) <= NAMES_BYTES


def picker(places: Sequence[int]) -> Callable[[tuple[T, ...]], tuple[T, ...]]:
    """Return a function that takes the items at these places out of a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    first = places[0] if places else 0
    return itemgetter(slice(first, first + len(places)))


def _names(text: str) -> frozenset[bytes]:
    return frozenset(text.encode().split())


_SILENT = PROTOCOL_HEADERS | _names(_VOCABULARY["silent_headers"])
"""Headers that need not tell callers apart. Those of the protocol are part of every cache key."""
_SILENT_BEGINNINGS = (b"sec-ch-", b"sec-fetch-", b"x-headstart-")
"""Prefixes of names that only browsers may set, or that never reach an upstream."""
_TRACE_ENDINGS = tuple(b"-span-id -spanid -trace-id -traceid -traceparent -tracestate".split())
"""Endings of the names in which tracers, each with a prefix of its own, name one request. They are
whole words: ``x-lifespan-id`` may name a caller."""
_SIGNATURES = _names("x-vercel-proxy-signature x-vercel-proxy-signature-ts")
"""Headers in which an app's host signs each request. They are secrets, but not the caller's."""
_HOSTS = _names("host x-forwarded-host")
"""Headers with the host name that was asked for. An app may have a tenant for each host name."""
_ADDRESSES = _names(_VOCABULARY["address_headers"])
_ADDRESS_BEGINNINGS = (b"cloudfront-viewer-", b"x-vercel-ip-")
"""Headers with the address of the caller, or its place. Many callers may have one address, so it is
used only if nothing else identifies the caller."""

_ROUTING_COOKIES = re.compile(
    rb"__cf_bm|_cfuvid|__cflb|__cfruid|__cfseq.*|_abck|ak_bmsc|bm_(?:sv|sz|mi|so|s)"
    rb"|awsalb(?:cors|tg|tgcors|app-[0-9])?|arraffinity(?:samesite)?|applicationgatewayaffinity(?:cors)?"
    rb"|gclb|incap_ses_.*|visid_incap_.*|nlbi_.*|bigipserver.*",
    re.IGNORECASE,
)
"""Cookies that load balancers and bot filters set on any client."""

_SILENT_PARAMETERS = _names("$.xgafv $alt $prettyprint alt api-version beta prettyprint")
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")
_PLAIN_VALUE = re.compile(rb"[A-Za-z0-9._-]{0,32}")

_SECRET_WORDS = _names(_VOCABULARY["secret_words"])
_SECRET_ENDINGS = (b"key", b"token")
_OPEN_SESSIONS = _names(_VOCABULARY["session_headers"])
"""Headers in which agents and proxies name a conversation, for logs and prompt caches."""
_OPENCODE_SESSION = re.compile(rb"ses_[0-9A-Za-z]{20,64}")
_OPENCODE_HEADERS = _names("session-id x-session-affinity x-session-id")
_CODEX_TURN = b"x-codex-turn-metadata"
_CODEX_SESSION = re.compile(rb"([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})(?::\d+)?")
_CODEX_HEADERS = _names("session-id thread-id x-codex-window-id x-codex-parent-thread-id")
_PAGING = (b"continuation", b"idempotency", b"next", b"order", b"page", b"partition", b"sort",
           b"start", b"sync")  # fmt: skip
"""Words of pagination. With one of them, a ``token`` or ``key`` in a query is a place in a list."""
_CAMEL = re.compile(rb"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BETWEEN_WORDS = re.compile(rb"[^a-z0-9]+")


def tells_callers_apart(name: bytes, *, include_host: bool) -> bool:
    """Tell whether two values of a header (lower case) may mean two callers.

    With ``include_host`` the name of the host may tell them apart, too. Addresses never do: see
    ``tells_address``.
    """
    if name in _HOSTS:
        return include_host
    return not (
        name in _SILENT
        or name.startswith(_SILENT_BEGINNINGS)
        or (b"-" + name).endswith(_TRACE_ENDINGS)
        or name in _SIGNATURES
        or tells_address(name)
    )


def tells_address(name: bytes) -> bool:
    """Tell whether a header (lower case) says from which address a call came."""
    return name in _ADDRESSES or name.startswith(_ADDRESS_BEGINNINGS)


def identifying_cookies(value: bytes) -> bytes:
    """Return the cookies of a ``Cookie`` header, without those that only route or filter traffic.

    Client libraries keep such cookies of a provider's load balancer. They change every few minutes,
    so with them a caller would look like a new one each time.
    """
    kept = [
        pair
        for pair in value.split(b";")
        if pair.strip() and not _ROUTING_COOKIES.fullmatch(pair.partition(b"=")[0].strip())
    ]
    return b";".join(kept).strip()


def without_agent_session(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers without those in which OpenCode and Codex name their conversation.

    Each run of such an agent has another name. A header such as ``X-Session-Id`` is often a
    credential. So it is left out only if its value has the agent's form and stands in a second
    header, which only the agent sends: OpenCode's hint for load balancers, or Codex's metadata.
    """
    turns = [value for name, value in headers if name == _CODEX_TURN]
    if len(turns) == 1:
        headers = [pair for pair in headers if not _names_codex_session(*pair, turns[0])]
    return _without_opencode_session(headers)


def _names_codex_session(name: bytes, value: bytes, turn: bytes) -> bool:
    found = _CODEX_SESSION.fullmatch(value) if name in _CODEX_HEADERS else None
    return name == _CODEX_TURN or (found is not None and found[1] in turn)


def _without_opencode_session(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    hints = [value for name, value in headers if name == b"x-session-affinity"]
    if (
        len(hints) != 1
        or (b"x-session-id", hints[0]) not in headers
        or not _OPENCODE_SESSION.fullmatch(hints[0])
    ):
        return headers
    return [
        (name, value)
        for name, value in headers
        if not (name in _OPENCODE_HEADERS and value == hints[0])
        and not (name == b"x-parent-session-id" and _OPENCODE_SESSION.fullmatch(value))
    ]


def is_secret(name: bytes) -> bool:
    """Tell whether a header (lower case) is named like one that holds a key, token or cookie."""
    return _SECRETS[name]


def is_secret_parameter(name: bytes) -> bool:
    """Tell whether a query parameter (percent-decoded) is named like one that holds a key."""
    return _SECRET_PARAMETERS[name]


def _is_secret(name: bytes) -> bool:
    if name in _SILENT:
        return False
    return name not in _OPEN_SESSIONS and any(_is_secret_word(word) for word in _words(name))


def _is_secret_parameter(name: bytes) -> bool:
    words = _words(_CAMEL.sub(b"-", name))
    secret = [word for word in words if _is_secret_word(word)]
    if any(word in _SECRET_WORDS for word in secret):
        return True
    # It filters a list by the ids of keys, or names a place in a list.
    others = [word for word in words if word not in _SECRET_ENDINGS]
    listed = b"ids" in words or (others and all(word.startswith(_PAGING) for word in others))
    return bool(secret) and not listed


_SECRETS = NameMemo(_is_secret)
_SECRET_PARAMETERS = NameMemo(_is_secret_parameter)


def identifying_query(query: bytes) -> bytes:
    """Return the parameters of a query that could tell callers apart.

    These are all parameters except a few that are known to say nothing about the caller. Names are
    compared percent-decoded. Order and repetitions are kept. A known parameter is also kept if its
    value is not a plain word: after a ``;`` it might contain another parameter.
    """
    if not query:
        return b""
    kept: list[bytes] = []
    for pair in query.split(b"&"):
        raw, equals, value = pair.partition(b"=")
        name = _PERCENT.sub(lambda found: bytes.fromhex(found[1].decode()), raw)
        if name.lower() in _SILENT_PARAMETERS and _PLAIN_VALUE.fullmatch(value):
            continue
        for sign, code in ((b"%", b"%25"), (b"&", b"%26"), (b"=", b"%3D")):
            # Escaped, so that two different queries never look the same.
            name = name.replace(sign, code)
        kept.append(name + equals + value)
    return b"&".join(kept)


def _words(name: bytes) -> list[bytes]:
    words = _BETWEEN_WORDS.split(name.lower())
    return [word.rstrip(b"0123456789") for word in words if word]


def _is_secret_word(word: bytes) -> bool:
    return word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS)


# --- web pages ------------------------------------------------------------------------------------

_OWN_SITE = (b"same-origin", b"none")
"""``Sec-Fetch-Site`` of the server's own pages, and of an address that the user typed."""
_FORWARDING = frozenset((b"cdn-loop", b"cf-ray", b"via"))
"""Further headers that only proxies add."""
_HOST_FORM = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:@/\[\]]+))(?::[0-9]*)?")
"""A name, or an IPv6 address in brackets, with or without a port."""
_QUOTED_CHARACTERS = 100
"""Number of characters of a caller's header that an error message shows."""


@dataclass(frozen=True)
class OriginRules:
    """The rules that decide which web pages may send requests.

    ``hosts`` has names of the server in addition to ``localhost`` and loopback addresses; None
    allows any name. ``origins`` has patterns of other origins whose pages may send requests.
    ``instead`` names the setting of a secret that makes these rules unnecessary.
    """

    hosts: frozenset[str] | None = frozenset()
    origins: tuple[str, ...] = ()
    instead: str = "server.client_keys"

    def refusal(self, headers: Headers) -> str | None:
        """Return why a request is refused, or None if it may come in."""
        hosts, origins, foreign = [], [], False
        for name, value in headers:
            if name == b"host":
                hosts.append(value.decode("latin-1").lower())
            elif name == b"origin":
                origins.append(value)
            elif name == b"sec-fetch-site" and value not in _OWN_SITE:
                foreign = True
        # Every browser sends a Host, so a request without one cannot be DNS rebinding.
        for host in hosts:
            if not (self._is_named(_host_name(host)) or _is_loopback(host)):
                return (
                    f"this server does not answer to the host {_quoted(host)}: add its name to "
                    f"server.allowed_hosts, or set {self.instead}"
                )
        for value in origins:
            origin = value.decode("latin-1").lower()
            if origin.partition("://")[2] not in hosts and not self.allows(value):
                return (
                    f"pages of the origin {_quoted(origin)} may not use this server: add the "
                    f"origin to server.allowed_origins, or set {self.instead}"
                )
        if foreign and not origins:
            return (
                "a page of another site may not use this server (Sec-Fetch-Site); "
                f"{self.instead} opens it to all callers with a key"
            )
        return None

    def _is_named(self, name: str) -> bool:
        return self.hosts is None or name in self.hosts or f"{name}." in self.hosts

    def allows(self, origin: bytes) -> bool:
        """Return whether pages of another origin may send requests."""
        text = origin.decode("latin-1").lower()
        # The brackets of an IPv6 address must not be read as a set of characters.
        patterns = [pattern.lower().replace("[", "[[]") for pattern in self.origins]
        return any(fnmatchcase(text, pattern) for pattern in patterns)


def _host_name(host: str) -> str:
    """Return a host without its port and the dot at its end; "" if it is not a host."""
    match = _HOST_FORM.fullmatch(host)
    return "" if match is None else str(match[1] or match[2].removesuffix("."))


@lru_cache(maxsize=256)
def _is_loopback(host: str) -> bool:
    name = _host_name(host)
    try:
        address = ip_address(name)
    except ValueError:
        return name == "localhost"
    # Not every release of Python recognises an IPv4 address that is mapped to IPv6.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def proxy_sign(headers: Headers, http_version: str) -> str | None:
    """Return the header or version that shows that a proxy passed a request on, or None.

    By default, nginx adds no header, but speaks HTTP/1.0.
    """
    for name, _ in headers:
        if (
            name in _FORWARDING
            or tells_address(name)
            or name.startswith((b"x-forwarded-", b"x-original-"))
        ):
            return name.decode("latin-1").title()
    return f"HTTP/{http_version}" if http_version.startswith("1.0") else None


def _quoted(text: str) -> str:
    plain = text if text.isprintable() and text.isascii() else ascii(text)
    return repr(plain[:_QUOTED_CHARACTERS])


# --- limits of a client key -----------------------------------------------------------------------

Measure: TypeAlias = Literal["usd", "tokens", "requests"]
Period: TypeAlias = Literal["minute", "day", "month"]

USD_UNITS = 1_000_000_000
MOST_UNITS = 10**15
"""The most that one call is charged. Counters of stores have 64 bits, and callers may send any
number."""
WARN_AT = 0.8
"""The log warns if this share of a limit is used."""
KEPT_S = 86_400.0
"""Seconds for which a counter is kept after its window, for calls that began in it."""
PROMPT_MARGIN = 2
"""The factor on the estimated tokens of a prompt. The estimate assumes 4 bytes a token. Chinese
text and numbers have 3, and hardly any text has fewer than 2."""
HELD_S = 5.0
"""Seconds after which a caller is told to try again, if calls in flight have reserved the rest of a
limit."""
PARTS_OF_A_MINUTE = 20
"""Processes take the requests of a minute from the store in this many parts."""
_LABELS = {"minute": "%Y-%m-%dT%H:%M", "day": "%Y-%m-%d", "month": "%Y-%m"}
_EXHAUSTED = "insufficient_quota"
_TOO_FAST = "rate_limit_exceeded"


class CalendarWindow(NamedTuple):
    """A minute, a day or a month of the calendar."""

    label: str
    ends: float
    """Unix seconds."""


def window(period: Period, now: float) -> CalendarWindow:
    """Return the window in which ``now`` (Unix seconds) lies."""
    at = datetime.fromtimestamp(now, UTC).replace(second=0, microsecond=0)
    if period == "minute":
        end = at + timedelta(minutes=1)
    else:
        at = at.replace(hour=0, minute=0)
        end = at + timedelta(days=1)
        if period == "month":
            end = (at.replace(day=1) + timedelta(days=32)).replace(day=1)
    return CalendarWindow(at.strftime(_LABELS[period]), end.timestamp())


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
        """Return the charge of an amount to the present counter of a caller."""
        label, ends = window(self.period, now)
        counter = f"client/{caller}/{self.measure}/{label}"
        return Charge(counter, amount, ends + KEPT_S, self.most)


class Headroom(NamedTuple):
    """The rest of a limit in its window."""

    unit: Measure
    most: int
    left: int
    ends: float
    """Unix seconds."""


def spending(limits: ClientLimits) -> tuple[Allowance, ...]:
    """Return the allowances to which the calls of a caller are charged; empty without any limit.

    If the caller has a limit of any kind, days and months are always counted. So a limit that is
    added later includes earlier spending.
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
    """The usage of a call, or the usage that it may have: dollars and tokens."""

    usd: float
    tokens: int

    def amount(self, allowance: Allowance) -> int:
        """Return the units of an allowance's measure."""
        amount = self.usd * allowance.unit if allowance.measure == "usd" else self.tokens
        return round(min(amount, MOST_UNITS))


def most_usage(price: Price | None, prompt: int, completion: int) -> Usage:
    """Return the most that a call with these tokens may use.

    A call without a price costs nothing.
    """
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

    A call that is larger than the limit of a minute may begin if nothing of the limit is used yet.
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
    """Return the error for refused charges. It names the limit that blocks the call the longest.

    ``held`` returns the part of a counter that calls in flight have reserved. They give back what
    they do not use, so a limit that is full only because of reservations may soon have room.
    """
    over = [
        _Excess(
            window(allowance.period, now).ends, allowance, allowance.most, charge.amount, used,
            is_held=used - held(charge.counter) + charge.amount <= allowance.most,
        )
        for allowance, charge, used in zip(allowances, charges, charged.values, strict=True)
        if allowance.most is not None and used + charge.amount > allowance.most
    ]  # fmt: skip
    if not over:  # another call has just given back enough
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
    """Calls in flight have reserved the missing part."""

    def error(self, now: float) -> OverLimit:
        """Return the error for the caller."""
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
            f"this API key is limited to {limit}; {why}. "
            f"It begins again at {clock_time(self.ends)}",
            code=_TOO_FAST if allowance.period == "minute" else _EXHAUSTED,
            retry_after_s=waits_s,
            lasts=allowance.period != "minute",
        )


def shown(allowance: Allowance, units: int) -> str:
    """Return an amount as people write it."""
    if allowance.measure == "usd":
        return f"${units / USD_UNITS:,.4f}".rstrip("0").rstrip(".")
    return f"{units:,} {allowance.measure}"


def clock_time(at: float) -> str:
    """Return a time (Unix seconds) as people write it, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"

"""Chooses the prefixes of a prompt that a provider should cache, if it caches only marked ones.

Such a provider charges more for tokens that it writes to its cache: at Anthropic 1.25 times the
price of input. It charges less for tokens that it reads there: 0.1 times. A written prefix lives
for five minutes after its last use. So a write pays if

    expected reads in this time x (1 - read price) > write price - 1.

For each kind of prefix it is learned which share ``p`` of the uses is followed by another one in
time. With this probability, p / (1 - p) reads are expected.

For example, at Anthropic's prices a write pays if 0.9 x reads > 0.25, so from 0.28 expected reads
on: if more than 22 % of the uses are followed by another one in time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headstart.attempts import PREFIX_TTL_S
from headstart.types import CacheMarks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.policies.cost import Price

WRITE = 1.25
"""Price of a written token where the price of input is 1 and the list of prices has none."""
MOST_PREFIXES, MOST_KINDS = 20_000, 256
"""The prefixes, and the kinds of prompts, that are remembered."""
SOON_S = 30.0
"""Seconds after which a use without a successor may have none at all."""
REMEMBERED = 300.0
"""Number of the last uses of a kind from which its share is learned."""
_MOST_SHARE = 0.95
"""The largest share of uses that count as followed by another use."""


class PrefixPrices(NamedTuple):
    """The prices of a read and of a written token, as shares of the price of an input token."""

    read: float
    write: float

    def pays(self, expected_reads: float) -> bool:
        """Tell whether the expected reads pay for a write."""
        return expected_reads * (1.0 - self.read) > self.write - 1.0


def prefix_prices(price: Price | None, read: float) -> PrefixPrices:
    """Return the prices of a model. Missing prices are ``read``, and 1.25 as at Anthropic."""
    if price is None or not price.input_per_million:
        return PrefixPrices(read, WRITE)
    cached, written = price.cached_per_million, price.cache_write_per_million
    full = price.input_per_million
    return PrefixPrices(
        read if cached is None else cached / full, WRITE if written is None else written / full
    )


class PrefixUse(NamedTuple):
    """The expectations for a prefix."""

    cached: bool = False
    """It was marked in the last five minutes, so that the provider should have it."""
    expected_reads: float = 0.0
    """Expected reads in the five minutes after each use."""


def choose_marks(
    conversation: PrefixUse, shared: PrefixUse, prices: PrefixPrices
) -> CacheMarks | None:
    """Return the marks of a request; None: none pays.

    ``conversation`` is the prompt up to its last message, ``shared`` tools and system text, which
    many conversations have in common. A mark at a cached prefix is free: it reads.
    """
    last = prices.pays(conversation.expected_reads)
    marks = CacheMarks(
        shared=last or shared.cached or prices.pays(shared.expected_reads),
        previous=conversation.cached,
        last=last,
    )
    return marks if marks != CacheMarks() else None


class SeenPrefix(NamedTuple):
    """One use of a prefix."""

    prefix: str
    """Its digest."""
    kind: str
    """The kind of prefix, and the route or endpoint: each has its own kinds."""
    request: str
    """The id of the request. A request that is sent again is the same use."""
    at: float
    """A monotonic time in seconds."""
    cached: bool
    """It was marked."""


@dataclass(slots=True, eq=False)
class _Share:
    """The share of the uses of a kind that another use followed in time."""

    followed: float
    """The uses that were followed in time. Old uses weigh less, here and in ``uses``."""
    uses: float
    """All uses of which it is known whether they were followed."""
    waiting: deque[SeenPrefix] = field(default_factory=deque)
    """The uses of the last half minute, the oldest first."""
    late: set[str] = field(default_factory=set)
    """Prefixes with an older last use, which may still be followed in time."""

    def add(self, *, followed: bool) -> None:
        keep = 1.0 - 1.0 / REMEMBERED  # so the weights of all uses add up to REMEMBERED at most
        self.followed = keep * self.followed + followed
        self.uses = keep * self.uses + 1.0

    def wait(self, now: float, seen: Mapping[str, SeenPrefix]) -> None:
        """Take note of the uses that were not followed in half a minute."""
        while self.waiting and now - self.waiting[0].at >= SOON_S:
            use = self.waiting.popleft()
            if seen.get(use.prefix) is use:
                self.late.add(use.prefix)

    @property
    def expected_reads(self) -> float:
        # It takes five minutes to know whether the uses of a burst are followed. Until then they
        # count as not followed, but not so many of them that they outweigh the known uses.
        open = len(self.late) + len(self.waiting)
        uses = self.uses + min(open, 2.0 * self.uses)
        share = min(_MOST_SHARE, self.followed / uses)
        return share / (1.0 - share)


SHARED, OPENING, OPENING_WITH_TOOLS, LATER = "shared", "opening", "opening-tools", "later"
"""The kinds of prefixes: tools and system text; a conversation without an answer of the model so
far, without and with tools; a conversation that goes on."""
_BEFORE: dict[str, tuple[float, float]] = {
    SHARED: (0.5, 4.0),
    OPENING: (1.0, 8.0),
    OPENING_WITH_TOOLS: (2.0, 4.0),
    LATER: (3.0, 4.0),
}
"""Prior counts, before anything is learned: the uses that were followed, and all uses."""


class PrefixReuse:
    """The recent prefixes, and how often those of each kind came again in time.

    ``now`` is a monotonic time in seconds.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[str, SeenPrefix] = OrderedDict()
        """By prefix, the least recently used first."""
        self._shares: dict[str, _Share] = {}

    def of(self, prefix: str, kind: str, now: float) -> PrefixUse:
        """Return the expectations for a prefix that is used now."""
        seen = self._seen.get(prefix)
        cached = seen is not None and seen.cached and now - seen.at < PREFIX_TTL_S
        share = self._share(kind)
        share.wait(now, self._seen)
        return PrefixUse(cached, share.expected_reads)

    def used(self, use: SeenPrefix) -> None:
        """Learn that a request used a prefix."""
        self._forget(use.at)
        before = self._seen.get(use.prefix)
        if before is not None:
            share = self._share(before.kind)
            share.late.discard(use.prefix)
            if before.request != use.request:
                share.add(followed=True)
        self._seen[use.prefix] = use
        self._seen.move_to_end(use.prefix)
        self._share(use.kind).waiting.append(use)

    def _forget(self, now: float) -> None:
        """Learn that prefixes were not used again in time."""
        while self._seen:
            prefix, seen = next(iter(self._seen.items()))
            if now - seen.at < PREFIX_TTL_S and len(self._seen) < MOST_PREFIXES:
                return
            share = self._share(seen.kind)
            del self._seen[prefix]
            share.late.discard(prefix)
            if now - seen.at >= PREFIX_TTL_S:
                share.add(followed=False)

    def _share(self, kind: str) -> _Share:
        share = self._shares.get(kind)
        if share is None:
            share = _Share(*_BEFORE[kind.partition(" ")[0]])
            if len(self._shares) < MOST_KINDS:
                self._shares[kind] = share
        return share

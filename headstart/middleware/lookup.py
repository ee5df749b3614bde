"""Looks requests up in the cache: exactly, then by meaning, under the caller's conditions."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headstart.decisions import MISS, Lookup, MatchContext, Outcome
from headstart.dialects.registry import refuse_in_dialect
from headstart.policies.output.answer_limits import refuses_concise
from headstart.types import CacheKey, ChatRequest, Entry, Latest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.embeddings.cache import FindExact, SemanticCache
    from headstart.embeddings.semantic_search import Refuse
    from headstart.interfaces import AdmissionPolicy
    from headstart.middleware.learning.hit_decisions import HitDecider
    from headstart.middleware.prepare import Prepared, Repeat
    from headstart.policies.gate import EncoderWaitLimit

UNPROVEN = "unproven-key"
"""The reason of a miss: the stored answer is from an upstream that has not accepted the caller's
key."""


MOST_AHEAD_S = 3600.0
"""An answer may be from the future by at most this, or by its lifetime if that is shorter, because
the clocks of nodes differ."""


MOST_ANSWERED = 65_536
"""Number of answered requests that are remembered to recognise repeats: two minutes at 500 a
second, some 10 MB."""


class RecentAnswers:
    """Remembers which callers got an answer lately, so that it can recognise their repeats.

    It holds the last ``capacity`` answers of this process. ``clock`` gives seconds.
    """

    def __init__(self, clock: Callable[[], float], capacity: int = MOST_ANSWERED) -> None:
        self._clock = clock
        self._at: Latest[bytes, float] = Latest(capacity)

    def note(self, repeat: Repeat) -> None:
        """Note that a caller has the whole answer now. A repeat within the window rejects it."""
        self._at[repeat.digest] = self._clock()

    def __contains__(self, repeat: Repeat) -> bool:
        at = self._at.get(repeat.digest)
        return at is not None and self._clock() - at < repeat.window_s


@dataclass(eq=False, repr=False)
class Finder:
    """Looks requests up. A repeat of an ``answered`` request is a miss.

    ``concise`` holds the level of brevity by route (0: none), under ``""`` for all other routes.
    ``wait_limit`` decides how long a question may wait for the encoder; None: the cache's setting.
    """

    cache: SemanticCache
    admission: AdmissionPolicy
    hit_decider: HitDecider | None
    _: KW_ONLY
    clock: Callable[[], float]
    answered: RecentAnswers
    concise: Mapping[str, int] = field(default_factory=lambda: {"": 0})
    wait_limit: EncoderWaitLimit | None = None

    def peek(self, prepared: Prepared, key: CacheKey) -> Lookup | None:
        """Return the lookup if memory alone decides it; None: call ``find``."""
        directives, repeat, readable = prepared.directives, prepared.repeat, prepared.readable
        if directives.no_cache:
            return _miss("no-cache")
        if repeat is not None and not directives.only_if_cached and repeat in self.answered:
            return _miss("repeat")
        if readable is not None and not readable:
            return _miss(UNPROVEN)
        entry = self.cache.peek_exact(key.exact)
        return None if entry is None else self._judge(prepared, entry)

    async def find(
        self, prepared: Prepared, key: CacheKey, search_store: FindExact | None = None
    ) -> Lookup:
        """Return a hit, or a miss and its reason. Stages that fail cost only the cache.

        ``search_store`` replaces the usual search of the store for the exact key.
        """
        refuse: Refuse = partial(self.refuses, prepared)
        entry = await self.cache.find_exact(key, refuse, search_store)
        if entry is not None:
            return self._judge(prepared, entry)
        context, request = prepared.match_context, prepared.request
        reason = prepared.semantic_refusal
        if reason is None and context.max_error == 0:
            reason = "exact-only"
        if reason is None and self.hit_decider is not None:
            reason = await self.hit_decider.refuse(context)
        if reason is None:
            max_wait = None
            if self.wait_limit is not None and request is not None:
                max_wait = partial(self._max_wait_s, context, prepared.route, request.model)
            vetoing = self._with_vetoes(key, refuse)
            lookup = await self.cache.find_semantic(key, vetoing, context, max_wait)
            found = lookup.entry
            if found is not None and found.key.exact == key.exact:
                # It was stored meanwhile. A repeat says nothing about rewordings.
                lookup = Lookup(outcome=Outcome.EXACT, entry=found)
        else:
            lookup = _miss(reason)
        return lookup if prepared.readable is None else _hide(lookup)

    def _max_wait_s(self, context: MatchContext, route: str, model: str) -> float:
        """Return the longest wait for the encoder.

        It grows with the share of hits and with the time that one saves.
        """
        assert self.wait_limit is not None
        return self.wait_limit.wait_s(route, model, self.cache.hit_share(context))

    def lost_in_dialect(self, request: ChatRequest, key: CacheKey) -> str | None:
        """Return why the entry under an exact key cannot be sent in the request's dialect, or None.

        It returns None also if memory has no such entry.
        """
        entry = self.cache.peek_exact(key.exact)
        return None if entry is None else refuse_in_dialect(request, entry)

    async def find_items(
        self, prepared: Prepared, keys: Sequence[str]
    ) -> tuple[list[Entry | None], str | None]:
        """Return the entry under each exact key that may be served, and why the first is missing.

        Only exact repeats of items are found.
        """
        directives, repeat, readable = prepared.directives, prepared.repeat, prepared.readable
        if directives.no_cache:
            return [None] * len(keys), "no-cache"
        if repeat is not None and not directives.only_if_cached and repeat in self.answered:
            return [None] * len(keys), "repeat"
        if readable is not None and not readable:
            return [None] * len(keys), UNPROVEN
        entries: list[Entry | None] = []
        refusal = None
        for entry in await self.cache.find_each(keys):
            why = "exact-only" if entry is None else self.refuses(prepared, entry)
            entries.append(entry if why is None else None)
            refusal = refusal or why
        return entries, UNPROVEN if refusal and readable is not None else refusal

    def _judge(self, prepared: Prepared, entry: Entry) -> Lookup:
        """Return a hit if an entry under the exact key may answer the request."""
        reason = self.refuses(prepared, entry)
        if reason is not None:
            return _miss(reason) if prepared.readable is None else _hide(_miss(reason))
        return Lookup(outcome=Outcome.EXACT, entry=entry)

    def refuses(self, prepared: Prepared, entry: Entry) -> str | None:
        """Return why an entry may not answer a request, or None."""
        if prepared.readable is not None and entry.origin.upstream not in prepared.readable:
            return UNPROVEN
        directives, request = prepared.directives, prepared.request
        ttl_s = prepared.lifetime.seconds
        if directives.max_age_s is not None or ttl_s is not None:
            # Routes with different lifetimes may share an entry.
            age_s = self.clock() - entry.created
            most_s = math.inf if ttl_s is None else ttl_s
            if directives.max_age_s is not None:
                most_s = min(most_s, directives.max_age_s)
            if age_s > most_s or (age_s < 0 and _is_ahead(entry, -age_s)):
                return "stale"
        if entry.transforms:
            if directives.compress is not None and directives.refuses(entry.transforms):
                return "compressed"
            level = self.concise.get(prepared.route, self.concise[""])
            if refuses_concise(entry.transforms, level):
                return "concise"
        tools = prepared.cached_tools
        return None if request is None else self.admission.refuse_serve(request, entry, tools)

    def _with_vetoes(self, key: CacheKey, refuse: Refuse) -> Refuse:
        """Return ``refuse``, which then also refuses entries that people called wrong.

        It is used only for lookups by meaning, so the entry's own prompt still gets its answer.
        """
        hit_decider = self.hit_decider
        if hit_decider is None:
            return refuse
        return lambda entry: hit_decider.refuse_entry(entry.id, key) or refuse(entry)


def _is_ahead(entry: Entry, by_s: float) -> bool:
    """Tell whether an answer is too far in the future, so that its age is not known."""
    life_s = math.inf if entry.expires is None else entry.expires - entry.created
    return by_s > min(life_s, MOST_AHEAD_S)


def _miss(reason: str) -> Lookup:
    return Lookup(outcome=MISS, reason=reason)


def _hide(lookup: Lookup) -> Lookup:
    """Hide the reason of a miss from a caller that may not read all answers.

    The similarity would reveal what others asked upstreams that this caller cannot use.
    """
    if lookup.entry is not None:
        return lookup
    return msgspec.structs.replace(lookup, reason=UNPROVEN, similarity=None, veto=None)

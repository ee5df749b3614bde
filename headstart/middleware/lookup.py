"""The cache's part of a request: exact, then by meaning, with the caller's conditions."""

from __future__ import annotations

import time
from collections import OrderedDict
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from headstart.decisions import Lookup, Outcome
from headstart.policies.output.concise import refuses_concise
from headstart.policies.vetoes import question_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headstart.embeddings.cache import SemanticCache
    from headstart.embeddings.similar import Accept
    from headstart.interfaces import AdmissionPolicy
    from headstart.middleware.learning.oversight import Oversight
    from headstart.middleware.prepare import Prepared, Repeat
    from headstart.types import CacheKey, Entry

UNPROVEN = "unproven-key"
"""Why a caller may not read an answer that all share: its upstream has not accepted his key."""


MOST_ANSWERED = 65_536
"""Requests remembered for repeats: a window of two minutes at 500 a second, some 10 MB."""


class Answered:
    """Who was answered what lately, so that a caller's repeat is known from another's request.

    It is this process's memory, of the last ``capacity`` answers. ``clock`` gives seconds.
    """

    def __init__(self, clock: Callable[[], float], capacity: int = MOST_ANSWERED) -> None:
        self._clock = clock
        self._capacity = capacity
        self._at: OrderedDict[bytes, float] = OrderedDict()

    def note(self, repeat: Repeat) -> None:
        """Note that a caller has the whole answer now."""
        self._at[repeat.digest] = self._clock()
        self._at.move_to_end(repeat.digest)
        if len(self._at) > self._capacity:
            self._at.popitem(last=False)

    def __contains__(self, repeat: Repeat) -> bool:
        at = self._at.get(repeat.digest)
        return at is not None and self._clock() - at < repeat.window_s


class Finder:
    """Looks requests up. ``answered`` tells which are a caller's repeats, to be answered anew.

    ``concise`` tells by route how short answers are to be (0: as they come), under ``""`` for all
    routes that it does not name.
    """

    def __init__(
        self,
        cache: SemanticCache,
        admission: AdmissionPolicy,
        oversight: Oversight | None,
        *,
        clock: Callable[[], float],
        answered: Answered,
        concise: Mapping[str, int] = MappingProxyType({"": 0}),
    ) -> None:
        self._cache = cache
        self._admission = admission
        self._oversight = oversight
        self._clock = clock
        self._answered = answered
        self._concise = concise

    def note_answered(self, repeat: Repeat) -> None:
        """Note that a caller has the whole answer now: within the window, a repeat rejects it."""
        self._answered.note(repeat)

    async def find(self, prepared: Prepared, key: CacheKey) -> Lookup:
        """Return a hit, or a miss and why. Stages that fail cost the request the cache alone."""
        readable = prepared.readable
        anew = self._wants_anew(prepared)
        if anew is not None:
            return _miss(anew)
        if readable is None:
            return await self._find(prepared, key)
        if not readable:
            return _miss(UNPROVEN)
        lookup = await self._find(prepared, key)
        if lookup.entry is not None:
            return lookup
        # How near the nearest is would tell what others asked of upstreams that are not his.
        return msgspec.structs.replace(lookup, reason=UNPROVEN, similarity=None, veto=None)

    async def _find(self, prepared: Prepared, key: CacheKey) -> Lookup:
        directives, request, readable = prepared.directives, prepared.request, prepared.readable
        now = self._clock()

        def refuse(entry: Entry) -> str | None:
            if readable is not None and entry.origin.upstream not in readable:
                return UNPROVEN
            if directives.max_age_s is not None and now - entry.created > directives.max_age_s:
                return "stale"
            ttl_s = prepared.lifetime.seconds
            if ttl_s is not None and now - entry.created > ttl_s:
                # Routes of different lives may share an entry.
                return "stale"
            if directives.refuses(entry.transforms):
                return "compressed"
            level = self._concise.get(prepared.rule, self._concise[""])
            if refuses_concise(entry.transforms, level):
                return "concise"
            return self._admission.refuse_serve(request, entry) if request is not None else None

        began = time.perf_counter()
        entry = self._cache.peek_exact(key.exact)
        if entry is None:
            entry = await self._cache.find_exact(key, refuse)
        if entry is not None:
            reason = refuse(entry)
            if reason is not None:
                return _miss(reason)
            spent = time.perf_counter() - began
            return Lookup(outcome=Outcome.EXACT, entry=entry, lookup_s=spent)
        refusal = await self._refuse_meaning(prepared)
        if refusal is not None:
            return _miss(refusal)
        return await self._cache.find_semantic(key, self._with_vetoes(key, refuse), prepared.terms)

    def _wants_anew(self, prepared: Prepared) -> str | None:
        """Return why a stored answer is not what the caller wants, or None."""
        if prepared.directives.no_cache:
            return "no-cache"
        repeat = prepared.repeat
        if repeat is None or prepared.directives.only_if_cached or repeat not in self._answered:
            return None
        return "repeat"

    def _with_vetoes(self, key: CacheKey, refuse: Accept) -> Accept:
        """Refuse also what people called wrong; an entry's own prompt never comes here."""
        oversight = self._oversight
        if oversight is None:
            return refuse
        question = question_of(key)
        return lambda entry: oversight.refuse_entry(entry.id, question) or refuse(entry)

    async def _refuse_meaning(self, prepared: Prepared) -> str | None:
        """Return why a request may be answered by an exact repeat alone, or None."""
        if prepared.semantic_refusal is not None:
            return prepared.semantic_refusal
        if prepared.terms.max_error == 0:
            return "exact-only"
        return None if self._oversight is None else await self._oversight.refuse(prepared.terms)


def _miss(reason: str) -> Lookup:
    return Lookup(outcome=Outcome.MISS, reason=reason)

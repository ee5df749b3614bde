"""Vetoes of people: questions and entries that are not matched by meaning any more."""

from __future__ import annotations

from collections import Counter, OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from headstart.decisions import LabelSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.decisions import Label
    from headstart.types import CacheKey

FEEDBACK = "feedback"
"""The name of a person's veto."""
MOST_VETOES = 20_000
"""Most vetoes that are kept, some 10 MB. The oldest are evicted first."""


class Veto(NamedTuple):
    """The entry and the question that a wrong answer stops."""

    entry: str
    question: str
    """"" if only the entry is known."""
    pair_only: bool = False


def question_of(key: CacheKey) -> str:
    """Return the name of a question for vetoes: the same text among the same neighbours."""
    return blake2b(f"{key.group}\0{key.query}".encode(), digest_size=12).hexdigest()


class Vetoes:
    """Vetoes by the request that was called wrong, and not called right since.

    A wrong hit stops its entry for all rewordings, and its question for all entries, so that the
    next to ask it gets a fresh answer; with ``pair_only`` the one for the other alone.
    """

    def __init__(self, rows: Mapping[str, Veto] | None = None) -> None:
        self._rows: OrderedDict[str, Veto] = OrderedDict()
        self._stopped: Counter[tuple[str, str]] = Counter()
        for id, veto in (rows or {}).items():
            self._place(id, veto)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> dict[str, Veto]:
        """Return all, oldest first."""
        return dict(self._rows)

    def find(self, id: str) -> Veto | None:
        """Return the veto that a verdict on this request placed."""
        return self._rows.get(id)

    def refuses(self, entry: str, question: str) -> bool:
        """Tell whether an entry must not answer a question that rewords its own."""
        asked = ((entry, question), (entry, ""), ("", question))
        return bool(self._rows) and any(each in self._stopped for each in asked)

    def apply(self, label: Label) -> bool:
        """Take the verdict of a person; return whether it changed anything. Order decides.

        Feedback says "wrong" of an answer that was served, a review only of a pair.
        """
        if label.source not in (LabelSource.FEEDBACK, LabelSource.REVIEW):
            return False
        if label.same:
            return self._lift_all(label)
        reviewed = label.source is LabelSource.REVIEW
        veto = Veto(label.entry, label.question, label.pair_only or reviewed)
        useless = veto.pair_only and not veto.question
        if label.same is None or not (label.served or reviewed) or useless:
            return False
        if self._rows.get(label.id) == veto:
            return False
        self._lift(label.id)
        self._place(label.id, veto)
        return True

    def _place(self, id: str, veto: Veto) -> None:
        self._rows[id] = veto
        self._stopped.update(_stops(veto))
        if len(self._rows) > MOST_VETOES:
            self._lift(next(iter(self._rows)))

    def _lift_all(self, label: Label) -> bool:
        """Lift the request's veto, and those on other requests for the same pair."""
        same = [
            id
            for id, veto in self._rows.items()
            if id == label.id
            or (label.question and (veto.entry, veto.question) == (label.entry, label.question))
        ]
        for id in same:
            self._lift(id)
        return bool(same)

    def _lift(self, id: str) -> None:
        veto = self._rows.pop(id, None)
        for each in () if veto is None else _stops(veto):
            self._stopped[each] -= 1
            if not self._stopped[each]:
                del self._stopped[each]


def _stops(veto: Veto) -> tuple[tuple[str, str], ...]:
    """Return the stopped pairs of entry and question; "" matches any."""
    if veto.pair_only:
        return ((veto.entry, veto.question),)
    return ((veto.entry, ""), ("", veto.question)) if veto.question else ((veto.entry, ""),)

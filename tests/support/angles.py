"""Prompts whose vectors are angles, and a policy for them: small enough to check by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headstart.decisions import HistoryComparison, RankedNeighbor, UnmatchedTurn, Verdict
from headstart.lab.rates import LabelledPrompt, Pair
from headstart.lab.stream import PreparedPrompt
from headstart.types import CacheKey, Turn
from support.fakes import FakeMatchPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence


ANGLES = {
    "north": 0, "northward": 5, "northish": 10, "northeast": 30, "east": 90, "not north": 1,
    "endless": 0,
}  # fmt: skip


class ByAngle(FakeMatchPolicy):
    """Serves above a threshold, but vetoes prompts that say "not"."""

    version = "test"
    parse_version = "test"

    def __init__(self, minimum: float = 0.9, threshold: float = 0.9) -> None:
        super().__init__()
        self.minimum = self.least = minimum
        self.threshold = threshold

    def compare(
        self,
        one: Sequence[Turn],
        other: Sequence[Turn],
        max_error: float | None,
        tenant: str = "",
    ) -> HistoryComparison:
        """Return every turn as unmatched, with all turns of the other side as its counterparts."""
        if not one or not other:
            return HistoryComparison("empty")
        counterparts = tuple(turn.text for turn in other)
        return HistoryComparison(
            None, tuple(UnmatchedTurn(turn.text, counterparts) for turn in one)
        )

    def judge(
        self, query: str, candidate: str, nearby: RankedNeighbor, veto: str | None = None
    ) -> Verdict:
        verdict = super().judge(query, candidate, nearby, veto)
        return msgspec.structs.replace(verdict, features=query.encode())


def prepare(text: str, task: str = "") -> PreparedPrompt[str]:
    angle = np.deg2rad(ANGLES[text.rstrip(" 0123456789")])
    vector = np.array([np.cos(angle), np.sin(angle)], np.float32)
    return PreparedPrompt(vector, text, usable=text != "endless")


def key(text: str | None, history: str = "") -> CacheKey:
    return CacheKey(scope="", partition=history, exact=f"{history}: {text}", query=text)


def conversation(text: str, *turns: str) -> CacheKey:
    """Return the key of a question in a group in which histories are compared."""
    return CacheKey(
        scope="",
        partition=" ".join(turns),
        exact=f"{turns}: {text}",
        query=text,
        conversation="talk",
        history=tuple(Turn(user=True, text=turn) for turn in turns),
    )


def pair(a: str, b: str, *, same: bool, category: str | None = None, history: str = "") -> Pair:
    return Pair(a=key(a), b=key(b, history), same_answer=same, category=category)


def labelled(
    text: str | None, label: str, history: str = "", category: str | None = None
) -> LabelledPrompt:
    return LabelledPrompt(prompt=key(text, history), label=label, category=category)

"""Prompts whose vectors are angles, and a policy for them: small enough to check by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headstart.decisions import Comparison, Encoding, Nearby, Verdict
from headstart.lab.labelled import Labelled, Pair, Prompt
from headstart.lab.stream import Prepared

ANGLES = {
    "north": 0, "northward": 5, "northish": 10, "northeast": 30, "east": 90, "not north": 1,
    "endless": 0,
}  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.types import Turn


class ByAngle:
    """Serves above a threshold, but vetoes prompts that say "not"."""

    version = "test"

    def __init__(self, minimum: float = 0.9, threshold: float = 0.9) -> None:
        self.minimum = minimum
        self.threshold = threshold

    def prepare(self, text: str, encoding: Encoding) -> str:
        return text

    def pack(self, prepared: str) -> bytes:
        return prepared.encode()

    def unpack(self, evidence: bytes) -> str:
        return evidence.decode()

    def veto(self, query: str, candidate: str) -> str | None:
        return "negation" if ("not" in query.split()) != ("not" in candidate.split()) else None

    def compare(
        self, one: Sequence[Turn], other: Sequence[Turn], max_error: float | None
    ) -> Comparison:
        return Comparison(None if one == other else "unsaid")

    def judge(self, query: str, candidate: str, nearby: Nearby, veto: str | None = None) -> Verdict:
        similarity = nearby.neighbor.similarity
        if veto is None and similarity < self.threshold:
            veto = "threshold"
        return Verdict(
            serve=veto is None, similarity=similarity, veto=veto, features=query.encode()
        )


def prepare(text: str) -> Prepared[str]:
    angle = np.deg2rad(ANGLES[text.rstrip(" 0123456789")])
    vector = np.array([np.cos(angle), np.sin(angle)], np.float32)
    return Prepared(vector, text, usable=text != "endless")


def pair(a: str, b: str, *, same: bool, category: str | None = None, history: str = "") -> Pair:
    return Pair(
        a=Prompt(history="", text=a),
        b=Prompt(history=history, text=b),
        same_answer=same,
        category=category,
    )


def labelled(
    text: str | None, label: str, history: str = "", category: str | None = None
) -> Labelled:
    return Labelled(prompt=Prompt(history=history, text=text), label=label, category=category)

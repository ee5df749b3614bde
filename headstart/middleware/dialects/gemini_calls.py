"""Gemini's function calls: those that come in pieces, and ids for those that have none."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

import msgspec

MINTED = "call_gemini_"
"""Begins the ids that we give to calls which the API left without. It is never told them."""

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\[(?:"([^"]*)"|'([^']*)')\]""")
_PIECE = frozenset({"args", "partialArgs", "willContinue"})
_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")
_LONGEST_LIST = 10_000


def mint_id(answer: str, choice: int, position: int, arguments: str) -> str:
    """Return an id that is the same whenever the same answer is read."""
    material = msgspec.json.encode((answer, choice, position, arguments))
    return MINTED + sha256(material).hexdigest()[:20]


class PartialCall:
    """A call whose arguments arrive as values at JSON paths (``partialArgs``)."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        """The part's and the call's own fields, arguments aside."""
        self._arguments: dict[str, Any] = {}
        self._growing: set[str] = set()

    def add(self, part: dict[str, Any], call: dict[str, Any]) -> bool:
        """Take in a piece. Returns True when it was the last. Raises ValueError on a bad path."""
        known = self.fields.get("functionCall", {})
        own = {name: value for name, value in call.items() if name not in _PIECE and value}
        self.fields = {**self.fields, **part, "functionCall": {**known, **own}}
        if isinstance(call.get("args"), dict):
            self._arguments.update(call["args"])
        pieces = call.get("partialArgs")
        for piece in pieces if isinstance(pieces, list) else ():
            if isinstance(piece, dict):
                self._set(piece)
        return call.get("willContinue") is not True

    def whole(self) -> dict[str, Any]:
        """Return the part as it would have come at once."""
        call = {**self.fields["functionCall"], "args": self._arguments}
        return {**self.fields, "functionCall": call}

    def _set(self, piece: dict[str, Any]) -> None:
        path = str(piece.get("jsonPath") or "")
        steps = _steps(path)
        value = next((piece[name] for name in _VALUES if name in piece), "")
        value = None if "nullValue" in piece else value
        into: Any = self._arguments
        for step, follower in zip(steps, (*steps[1:], None), strict=True):
            if isinstance(step, int) != isinstance(into, list):
                raise ValueError("a piece of a function call stands at no place")
            held = _held(into, step)
            if follower is None:
                grows = path in self._growing and isinstance(held, str) and isinstance(value, str)
                into[step] = held + value if grows else value
            elif not isinstance(held, dict | list):
                into[step] = [] if isinstance(follower, int) else {}
            into = into[step]
        if piece.get("willContinue") is True:
            self._growing.add(path)


def _steps(path: str) -> tuple[str | int, ...]:
    """Split a JSON path such as ``$.places[0].name``. Raises ValueError."""
    steps: list[str | int] = []
    end = 1
    while path.startswith("$") and (match := _STEP.match(path, end)) is not None:
        name, index, *quoted = match.groups()
        steps.append(int(index) if index else name or "".join(filter(None, quoted)))
        end = match.end()
    if not steps or end != len(path):
        raise ValueError("a piece of a function call has no JSON path that can be read")
    return tuple(steps)


def _held(into: Any, step: str | int) -> Any:
    """Return what stands at a step; a list is made long enough to have a place there."""
    if isinstance(step, str):
        return into.get(step)
    if step > _LONGEST_LIST:
        raise ValueError("a piece of a function call stands too far down a list")
    into.extend([None] * (step + 1 - len(into)))
    return into[step]

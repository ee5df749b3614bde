"""Structured answers by canonical equality: JSON, tool calls and code."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.policies.agreement.wording import short_form
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.types import ToolCall

_CODE_SHARE = 0.5
_REWRITTEN = 0.4
"""Code that shares fewer of its tokens (Jaccard over multisets) is other code."""

_FENCE = "```"
_CODE_TOKEN = re.compile(r"\w+|[^\w\s]+")


class Difference(Frozen):
    """How two documents differ: ``same`` is None when what differs may mean the same.

    ``prose`` are the pairs of long strings in which alone they differ; they have to be judged.
    """

    same: bool | None
    prose: tuple[tuple[str, str], ...] = ()


EQUAL = Difference(same=True)
OTHER = Difference(same=False)
UNSURE = Difference(same=None)


def compare_json(a: str, b: str) -> Difference | None:
    """Compare two JSON objects or arrays, also in a code fence; None if either is none."""
    try:
        one, other = _read_document(a), _read_document(b)
        return None if one is None or other is None else _compare(one, other)
    except RecursionError:
        return UNSURE


def compare_calls(a: Sequence[ToolCall], b: Sequence[ToolCall]) -> Difference:
    """Compare the tool calls of two answers: names and arguments, whatever their ids and order."""
    if Counter(call.name for call in a) != Counter(call.name for call in b):
        return OTHER
    try:
        pairs = zip(sorted(map(_canonical, a)), sorted(map(_canonical, b)), strict=True)
        return _all([_compare(_decode(one), _decode(other)) for (_, one), (_, other) in pairs])
    except RecursionError:
        return UNSURE


def compare_code(a: str, b: str) -> Difference | None:
    """Compare two answers that are mostly code, layout aside; None if either is not.

    Other code may do the same, so only code that shares little is called different.
    """
    code_a, code_b = _code(a), _code(b)
    if code_a is None or code_b is None:
        return None
    if code_a == code_b:
        return EQUAL
    tokens_a, tokens_b = (Counter(_CODE_TOKEN.findall(code)) for code in (code_a, code_b))
    likeness = (tokens_a & tokens_b).total() / max((tokens_a | tokens_b).total(), 1)
    return UNSURE if likeness >= _REWRITTEN else OTHER


def _read_document(text: str) -> Any:
    """Return the object or array that a text consists of, else None."""
    lines = text.split("\n")
    if len(lines) > 2 and _is_fence(lines[0]) and lines[-1].strip() == _FENCE:
        text = "\n".join(lines[1:-1])
    document = _decode(text)
    return document if isinstance(document, dict | list) else None


def _canonical(call: ToolCall) -> tuple[str, str]:
    arguments = msgspec.json.encode(_decode(call.arguments or "{}"), order="deterministic")
    return call.name, arguments.decode()


def _decode(text: str) -> Any:
    """Return what a text means as JSON, and the text itself when it is none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _compare(a: Any, b: Any) -> Difference:
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return OTHER
        return _all([_compare(a[name], b[name]) for name in a])
    if isinstance(a, list) and isinstance(b, list):
        return _compare_lists(a, b)
    if isinstance(a, str) and isinstance(b, str):
        return _compare_strings(a, b)
    if isinstance(a, bool) or isinstance(b, bool):
        return EQUAL if a is b else OTHER
    return EQUAL if a == b else OTHER


def _compare_lists(a: list[Any], b: list[Any]) -> Difference:
    """In order; the same items in another order may be a set or a ranking."""
    if len(a) != len(b):
        return OTHER
    in_order = _all([_compare(one, other) for one, other in zip(a, b, strict=True)])
    if in_order.same is False and _sorted(a) == _sorted(b):
        return UNSURE
    return in_order


def _sorted(items: list[Any]) -> list[bytes]:
    return sorted(msgspec.json.encode(item, order="deterministic") for item in items)


def _compare_strings(a: str, b: str) -> Difference:
    words_a, words_b = short_form(a), short_form(b)
    if a == b or (words_a and words_a == words_b):
        return EQUAL
    if words_a is None and words_b is None:
        return Difference(same=None, prose=((a, b),))
    return OTHER


def _all(differences: list[Difference]) -> Difference:
    if any(difference.same is False for difference in differences):
        return OTHER
    if any(difference.same is None and not difference.prose for difference in differences):
        return UNSURE
    prose = tuple(pair for difference in differences for pair in difference.prose)
    return Difference(same=None, prose=prose) if prose else EQUAL


def _code(text: str) -> str | None:
    """Return the code of an answer that is mostly code, without its layout."""
    fenced, code = False, []
    for line in text.split("\n"):
        if _is_fence(line):
            fenced = not fenced
        elif fenced and line.strip():
            code.append(line.rstrip())
    joined = "\n".join(code)
    return joined if code and len(joined) >= _CODE_SHARE * len(text) else None


def _is_fence(line: str) -> bool:
    return line.startswith(_FENCE)

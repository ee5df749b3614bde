"""Quantifiers: all against some, both against either, and "only" on one side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.policies.guards.words import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.policies.guards.parse import Parse
    from headstart.policies.guards.words import Word

_ONLY = "only"
_CLASS = {
    word: name
    for name, words in {
        "all": "all every each everyone everybody everything entire whole",
        "some": "some half someone somebody",
        "both": "both",
        "either": "either",
        _ONLY: "only solely exclusively",
    }.items()
    for word in words.split()
}
_RIVALS = (("all", "some"), ("both", "either"))
_TIMES = frozenset(listed("time day night week month year hour minute morning evening single"))
_BEFORE_ALL = frozenset(listed("at after above in not"))
_AFTER_ALL = frozenset(listed("right set about"))
_AFTER_SOME = frozenset(listed("reason help information info advice more time ideas tips way"))


def quantifiers(words: Sequence[Word]) -> frozenset[str]:
    """Return the classes of quantifiers in a prompt, idioms left out."""
    found = set()
    for place, word in enumerate(words):
        name = _CLASS.get(word.text)
        if name is None:
            continue
        before = words[place - 1].text if place else ""
        after = words[place + 1].text if place + 1 < len(words) else ""
        if not _is_idiom(word.text, before, after):
            found.add(name)
    return frozenset(found)


def quantifiers_differ(a: Parse, b: Parse) -> bool:
    """Veto when rival quantifiers were exchanged, or when one prompt alone says "only"."""
    only_a, only_b = a.quantifiers - b.quantifiers, b.quantifiers - a.quantifiers
    if _ONLY in only_a or _ONLY in only_b:
        return True
    return any(
        (one in only_a and other in only_b) or (one in only_b and other in only_a)
        for one, other in _RIVALS
    )


def _is_idiom(text: str, before: str, after: str) -> bool:
    if text == "all":
        return before in _BEFORE_ALL or after in _AFTER_ALL
    if text == "some":
        return after in _AFTER_SOME
    if text in {"every", "each"}:
        return after in _TIMES
    return text == _ONLY and (before in {"not", "if"} or after == "if")

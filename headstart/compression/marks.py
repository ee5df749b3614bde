"""What stands in a text for what was left out of it.

A text that bears a mark is never shortened again: so compression is idempotent, and a mark that a
client sends back is left as it is.
"""

from __future__ import annotations

import re

_MARK = re.compile(r"\[… (?:(?!\[… )[^\n])*? …\]")


def without_marks(text: str) -> str:
    """Return ``text`` without marks, its lines bare of white space: what its author wrote."""
    plain = _MARK.sub("", text) if has_mark(text) else text
    lines = (line.strip() for line in plain.split("\n"))
    return "\n".join(line for line in lines if line)


def has_mark(text: str) -> bool:
    """Was something left out of ``text`` already?"""
    return "[… " in text and " …]" in text


CLEARED = "[… the result of this call was omitted: call again if it is needed …]"


def omitted(count: int, unit: str) -> str:
    """Return the mark for ``count`` omitted lines, sentences or documents."""
    return f"[… {count} {unit}{'' if count == 1 else 's'} omitted …]"


def same_as(begin: str, count: int = 0, unit: str = "") -> str:
    """Return the mark for what stands above, the latest that begins so; all of it if no count."""
    what = f"{count} {unit}{'' if count == 1 else 's'}, " if count else ""
    return f"[… {what}the same as the latest above that begins: {begin} …]"

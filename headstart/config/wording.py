"""msgspec's refusals, in the words of a configuration file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headstart.config.names import NONE, fields_of

if TYPE_CHECKING:
    import msgspec

_KINDS = {
    "object": "a table",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": f'"{NONE}"',
}
_TYPES = re.compile(r"(?<=xpected )`([^`]+)`|(?<=got )`([^`]+)`")
_ITEM = re.compile(r"\[[^]]*\]")


def problem(error: msgspec.ValidationError) -> str:
    """Return msgspec's message with the setting's name first, as it is written in the file."""
    message, _, path = str(error).partition(" - at `")
    place = path.rstrip("`").removeprefix("$").removeprefix(".")
    section, _, key = _ITEM.sub("", place).rpartition(".")
    return f"{place}: {expectation(section, key, message)}" if place else message


def expectation(section: str, key: str, message: str) -> str:
    """Return msgspec's message on a setting in words: what it may be, and what it was."""
    described = _description(section, key)
    if described is not None:
        return f"expected {described}"
    number = "a number"
    if key.endswith("_s") and not key.endswith("_per_s"):
        number = "a number of seconds"

    def in_words(found: re.Match[str]) -> str:
        kinds = {**_KINDS, "float": number} if found[1] else _KINDS
        return " or ".join(
            kinds.get(each, f"`{each}`") for each in (found[1] or found[2]).split(" | ")
        )

    return message[:1].lower() + _TYPES.sub(in_words, message)[1:]


def _description(section: str, key: str) -> str | None:
    """Return how a setting that no type describes says what it takes."""
    try:
        kind = fields_of(section)[key]
    except KeyError:  # within a table whose keys are the user's
        return None
    notes = getattr(kind, "__metadata__", ())
    return next((note.description for note in notes if note.description), None)

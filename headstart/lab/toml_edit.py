"""Set keys of one table of a TOML file in place: comments, order and all else stay."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_TABLE = re.compile(r"\s*\[")


def set_keys(
    text: str, table: str, values: Mapping[str, str], *, remove: Collection[str] = ()
) -> str:
    """Return ``text`` with keys of ``[table]`` set to TOML ``values``, and others removed.

    Raises ConfigError when the file is not TOML, or says it in a way that this cannot edit.
    """
    wanted = _loads(text)
    section = {**wanted.get(table, {}), **tomllib.loads(_assignments(values))}
    wanted[table] = {name: value for name, value in section.items() if name not in remove}
    lines = text.splitlines()
    start = _header(lines, table)
    if start is None:
        lines += ["", f"[{table}]"] if lines else [f"[{table}]"]
        start = len(lines) - 1
    for name in remove:
        _replace(lines, start, name, None)
    for name, value in values.items():
        _replace(lines, start, name, f"{name} = {value}")
    edited = "\n".join(lines) + "\n"
    try:
        done = tomllib.loads(edited) == wanted
    except tomllib.TOMLDecodeError:
        done = False
    if not done:
        raise ConfigError(
            f"the file sets [{table}] in a way that cannot be edited; write into it:\n"
            + _assignments(values)
        )
    return edited


def _loads(text: str) -> dict[str, dict[str, object]]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the file is no TOML: {error}") from error


def _assignments(values: Mapping[str, str]) -> str:
    return "\n".join(f"{name} = {value}" for name, value in values.items())


def _header(lines: list[str], table: str) -> int | None:
    header = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]\s*(#.*)?")
    return next((place for place, line in enumerate(lines) if header.fullmatch(line)), None)


def _replace(lines: list[str], start: int, name: str, assignment: str | None) -> None:
    """Replace, add behind the header, or remove one assignment of the table at ``start``."""
    key = re.compile(rf"\s*{re.escape(name)}\s*=")
    for place in range(start + 1, len(lines)):
        if _TABLE.match(lines[place]):
            break
        if key.match(lines[place]):
            end = _end(lines, place)
            comment = _comment(lines[place]) if end == place + 1 else ""
            lines[place:end] = [] if assignment is None else [assignment + comment]
            return
    if assignment is not None:
        lines.insert(start + 1, assignment)


def _end(lines: list[str], start: int) -> int:
    """Return the line after the assignment that begins at ``start``; arrays span several."""
    for end in range(start + 1, len(lines) + 1):
        try:
            tomllib.loads("\n".join(lines[start:end]))
        except tomllib.TOMLDecodeError:
            continue
        return end
    return start + 1


def _comment(line: str) -> str:
    """Return the comment behind a value that holds no ``#`` itself."""
    value, mark, comment = line.partition("#")
    if not mark or value.count('"') % 2 or value.count("'") % 2:
        return ""
    return f"  #{comment}"

"""Writes the texts that are made from ``settings.py``: ``python -m scripts.settings_tables``.

``headstart/settings.py`` has each setting once. This program makes two texts from it: the tables in
``docs/configuration.md``, and the keyword arguments of the public functions in
``headstart/mount.py``.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from headstart import settings
from headstart.config.names import NONE, help_texts
from headstart.settings import Strategy, StrategySettings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = Path("docs/configuration.md")
FRONT_DOORS = Path("headstart/mount.py")
INNER = {
    "CacheSettings": ("audit", "judge", "ttl_by_class"),
    "ServerSettings": ("conversations",),
}
"""Tables inside tables, which have chapters of their own."""
HEAD = "| setting | default | meaning |\n|---|---|---|\n"
_MARKED = re.compile(r"(?<=<!-- settings: )(\w+)( -->\n\n)(?:\|.*\n)*")
_OPTIONS = re.compile(r"(?<=explains them\.\"\"\"\n\n)(?:    \w+: .*\n)*")


def main() -> None:
    """Write both files anew."""
    for file, made in ((DOCUMENT, document), (FRONT_DOORS, front_doors)):
        path = ROOT / file
        path.write_text(made(path.read_text("utf-8")), "utf-8")


def document(text: str) -> str:
    """Return the page with the tables that are marked, such as ``<!-- settings: Strategy -->``."""
    return _MARKED.sub(lambda found: f"{found[1]}{found[2]}{table(found[1])}", text)


def table(name: str) -> str:
    """Return the rows of a table of settings, as Markdown."""
    return HEAD + "".join(f"| `{row[0]}` | {row[1]} | {row[2]} |\n" for row in _rows(name))


def front_doors(text: str) -> str:
    """Return the module with the keys of ``[cache]`` as keyword arguments."""
    lines = (
        f"    {each.name}: {_annotation(each.type)}\n"
        for each in msgspec.structs.fields(settings.CacheSettings)
        if each.name != "scope"  # a parameter of its own
    )
    return _OPTIONS.sub("".join(lines), text)


def _rows(name: str) -> Iterator[tuple[str, str, str]]:
    texts = help_texts()
    for field in _fields(name):
        home = next(each for each in (name, "Strategy") if field.name in texts[each])
        yield field.name, _shown(field), texts[home][field.name]


def _fields(name: str) -> list[msgspec.structs.FieldInfo]:
    """Return the fields that a table shows, with the defaults in force."""
    in_force = {field.name: field for field in msgspec.structs.fields(Strategy)}
    if name == "Strategy":
        return [in_force[each] for each in StrategySettings.__struct_fields__]
    fields = [*msgspec.structs.fields(getattr(settings, name))]
    if name == "RouteSettings":
        shared = frozenset(StrategySettings.__struct_fields__)
        fields = sorted(
            (in_force.get(each.name, each) for each in fields if each.name not in shared),
            key=lambda each: each.name in in_force,
        )
    return [each for each in fields if each.name not in INNER.get(name, ())]


def _shown(field: msgspec.structs.FieldInfo) -> str:
    """Return a default as TOML writes it."""
    if field.required:
        return "required"
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default == settings.GUARDS:
        return "all"
    return f"`{_toml(default)}`"


def _toml(value: object) -> str:
    match value:
        case None:
            return NONE
        case bool() | str() | tuple() | list():
            return msgspec.json.encode(value).decode().replace(",", ", ")
        case int() | float():
            return f"{value:_}".removesuffix(".0") if value >= 10_000 else f"{value:g}"
        case _:
            return "{}"


def _annotation(kind: Any) -> str:
    """Return a type as a keyword argument may have it."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"Literal[{', '.join(map(_quoted, inside))}]"
    if origin is Annotated:
        return _annotation(inside[0])
    if origin in (Union, UnionType):
        return " | ".join(map(_annotation, inside))
    if origin is tuple:
        return "Sequence[str]"
    if issubclass(kind, msgspec.Struct):
        return "Mapping[str, object]"
    return "None" if kind is NoneType else str(kind.__name__)


def _quoted(text: str) -> str:
    return f'"{text}"'


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()

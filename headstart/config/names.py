"""Finds wrong names and values in a document of settings, and tells them in plain words.

``name_problems`` finds unknown names and choices, and ``type_problems`` values of other types. A
problem is a line of text that begins with the place, as the user has written it:

    cache.treshold: unknown setting; did you mean 'threshold'?
    upstream[0].base_url: expected text, got a whole number

The types of ``headstart/settings.py`` decide. In this file a *kind* is the type of a setting, such
as ``float | None``; a *section* is the dotted name of a table, such as ``cache.audit``, and "" is
the whole document; a *place* is the name to show, such as ``upstream[0].name`` or a variable.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from headstart.errors import ConfigError
from headstart.settings import ClientLimits, PriceSettings, Settings

NONE = "none"
"""The text for "no value": TOML has no null."""
LISTS = frozenset({"upstream", "route"})
"""Sections that are lists of tables."""

# --- unknown names and choices --------------------------------------------------------------------


def name_problems(document: Mapping[str, object]) -> list[str]:
    """Return all unknown names and choices; ``type_problems`` finds the rest."""
    return list(_name_problems(Settings, "", "", document))


def _name_problems(
    struct: type[msgspec.Struct], section: str, place: str, table: object
) -> Iterator[str]:
    """Yield the unknown names and choices of a table and of the tables in it."""
    if not isinstance(table, Mapping):
        return
    kinds = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for name, value in table.items():
        value_place = _below(place, name)
        try:
            _check_setting(kinds, section, name, value, value_place)
        except ConfigError as error:
            yield str(error)
            continue
        inner, inner_section = table_type(kinds[name]), _below(section, name)
        if inner is None:
            continue
        if get_origin(kinds[name]) is dict:
            yield from _named_tables_problems(inner, inner_section, value_place, value)
        else:
            for each, each_place in _tables_in(value, value_place, named=False):
                yield from _name_problems(inner, inner_section, each_place, each)


def _below(table: str, name: str) -> str:
    """Return the dotted name of a setting in a table."""
    return f"{table}.{name}" if table else name


def _tables_in(value: object, place: str, *, named: bool) -> Iterator[tuple[object, str]]:
    """Yield the tables in a setting's value, each with its name in errors.

    ``named``: the setting is a table of tables, whose keys users choose.
    """
    if named and isinstance(value, Mapping):
        yield from ((each, f"{place}.{key}") for key, each in value.items())
    elif isinstance(value, list | tuple):
        yield from ((each, f"{place}[{index}]") for index, each in enumerate(value))
    else:
        yield value, place


_BY_NAME = {
    PriceSettings: "a price is a table, by model or for all others: "
    "{}.default = {{ input_per_million = 1.0, output_per_million = 2.0 }}",
    ClientLimits: "limits are a table, by the name of the key: "
    "{}.team-a = {{ usd_per_day = 20, requests_per_minute = 60 }}",
}
"""The text to write for each table in which users choose the keys."""


def _named_tables_problems(
    struct: type[msgspec.Struct], section: str, place: str, tables: object
) -> Iterator[str]:
    """Yield the unknown names and choices in tables whose names users choose."""
    for key, table in tables.items() if isinstance(tables, Mapping) else ():
        if not isinstance(table, Mapping):
            yield f"{place}.{key}: {_BY_NAME[struct].format(place)}"
            continue
        for name, value in table.items():
            value_place = f"{place}.{key}.{name}"
            try:
                _check_known(name, struct.__struct_fields__, value_place)
                check_choice(section, name, value, value_place)
            except ConfigError as error:
                yield str(error)


def _check_setting(
    kinds: Mapping[str, object], section: str, name: str, value: object, place: str
) -> None:
    """Raise ConfigError for an unknown name, a table in place of a list, or an unknown choice."""
    are_tables = isinstance(value, list) and all(isinstance(each, Mapping) for each in value)
    if not section and name not in kinds and not are_tables and (homes := _sections_with(name)):
        raise ConfigError(f"{place}: unknown setting; write it in {' or '.join(homes)}")
    if section and name not in kinds and (inner := _inner_setting(kinds, name)):
        raise ConfigError(f"{place}: unknown setting; did you mean {inner!r}?")
    check_name(section, name, place)
    if not section and name in LISTS and isinstance(value, Mapping):
        raise ConfigError(f"{name}: write [[{name}]], once for each, in place of [{name}]")
    if table_type(kinds[name]) is None:
        check_choice(section, name, value, place)


def _inner_setting(kinds: Mapping[str, object], name: str) -> str | None:
    """Return the setting of this name, or of its singular, that is one table deeper."""
    for table, kind in kinds.items():
        struct = table_type(kind)
        if struct is None or get_origin(kind) is dict:
            continue
        for each in (name, name.removesuffix("s")):
            if each in struct.__struct_fields__:
                return f"{table}.{each}"
    return None


def _sections_with(name: str) -> list[str]:
    """Return the headers of the sections that have a setting of this name."""
    return [
        f"[[{section}]]" if section in LISTS else f"[{section}]"
        for section, kind in settings_of("").items()
        if table_type(kind) is not None and name in settings_of(section)
    ]


def check_name(section: str, name: str, place: str) -> None:
    """Raise ConfigError unless ``name`` is a setting of ``section`` (``""``: a section)."""
    _check_known(name, tuple(settings_of(section)), place)


def check_choice(section: str, name: str, value: object, place: str) -> None:
    """Raise ConfigError if the setting has choices and ``value`` is not one of them."""
    kind = settings_of(section)[name]
    choices = tuple(_choices(kind))
    if not choices:
        return
    for each in value if isinstance(value, list | tuple) else (value,):
        if isinstance(each, bool) and bool not in get_args(kind):
            each = str(each).lower()  # noqa: PLW2901 - as TOML writes it
        if not isinstance(each, str) or each in choices or each.isdecimal():
            continue  # A number in a variable is still a text here; msgspec checks it.
        takes_numbers = any(getattr(one, "__origin__", one) is int for one in get_args(kind))
        wrong = "neither a number nor a choice" if takes_numbers else "not a choice"
        raise ConfigError(f"{place}: {each!r} is {wrong}; {hint(each, choices, all_of=True)}")


def _check_known(name: str, known: tuple[str, ...], place: str) -> None:
    if name not in known:
        raise ConfigError(f"{place}: unknown setting; {hint(name, known)}")


def hint(name: str, known: Collection[str], *, all_of: bool = False) -> str:
    """Return a hint at the nearest known name; without a near one, at all known names.

    ``all_of``: at both.
    """
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    meant = f"did you mean {nearest[0]!r}?" if nearest else ""
    if nearest and not all_of:
        return meant
    return f"{meant} known: {', '.join(known)}".lstrip()


# --- values of other types ------------------------------------------------------------------------


def type_problems(
    table: object, struct: type[msgspec.Struct] = Settings, place: str = ""
) -> Iterator[str]:
    """Yield the problems of a table's values, at most one for each; none for unknown names."""
    found: list[str] = []
    values = table if isinstance(table, Mapping) else {}
    for field in msgspec.structs.fields(struct):
        if field.name in values:
            found += _value_problems(field.type, values[field.name], _below(place, field.name))
    # If no value has a problem, one is missing: msgspec names no field.
    yield from found or _problems_of(struct, table, place)


def _value_problems(kind: object, value: object, place: str) -> list[str]:
    """Return the problem of a value, or those inside if it is a table."""
    found: list[str] = []
    if (inner := table_type(kind)) is not None:
        for each, each_place in _tables_in(value, place, named=get_origin(kind) is dict):
            if isinstance(each, Mapping):
                found += type_problems(each, inner, each_place)
    return found or _problems_of(kind, value, place)


def _problems_of(kind: object, value: object, place: str) -> list[str]:
    """Return msgspec's error about a value, in a list; an empty list if there is none.

    Unknown names are no error here: ``name_problems`` finds them.
    """
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return [] if "contains unknown field" in str(error) else [problem(error, place)]
    return []


# --- the messages of msgspec in plain words -------------------------------------------------------

_KINDS = {  # the words for the types that msgspec names
    "object": "a table",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": f'"{NONE}"',
}
_UNITS = {"s": " of seconds", "ms": " of milliseconds", "bytes": " of bytes", "days": " of days"}
"""The unit of a setting's number, by the end of the setting's name."""
_TABLE = 'a table, such as { name = "value" }'
_TYPES = re.compile(r"(?<=xpected )`([^`]+)`|(?<=got )`([^`]+)`")  # "`int | null`"
_ITEM = re.compile(r"\[[^]]*\]")  # "[0]" in a place
_MISSING = re.compile("Object missing required field `(.*)`")


def problem(error: msgspec.ValidationError, place: str = "") -> str:
    """Return msgspec's message with the setting's name first, as it is written in the file.

    ``place`` is that of the value that msgspec has read; "": it read all settings. For example,
    "Expected `str`, got `int` - at `$[0].base_url`" becomes "upstream[0].base_url: expected text,
    got a whole number".
    """
    message, _, path = str(error).partition(" - at `")
    found_at = (place + path.rstrip("`").removeprefix("$")).removeprefix(".")
    if (missing := _MISSING.fullmatch(message)) is not None:
        return f"{found_at}.{missing[1]}: required"
    section, _, key = _ITEM.sub("", found_at).rpartition(".")
    return f"{found_at}: {expectation(section, key, message)}" if found_at else message


def expectation(section: str, key: str, message: str) -> str:
    """Return msgspec's message about a setting in plain words, with the allowed values."""
    described = _description(section, key)
    if described is not None:
        return f"expected {described}"
    if message.startswith("Invalid enum value '"):  # other texts failed in ``check_choice``
        return f"{message.rpartition(' ')[2]} is a text; write the number without quotes"
    unit = "" if key.endswith("_per_s") else _UNITS.get(key.rpartition("_")[2], "")

    def in_words(types: re.Match[str]) -> str:
        expected, given = types[1], types[2]
        # What is expected is told more exactly than what was given.
        words, of_unit = ({**_KINDS, "object": _TABLE}, unit) if expected else (_KINDS, "")
        return " or ".join(
            words.get(each, f"a {each}") + of_unit * (each in {"int", "float"})
            for each in (expected or given).split(" | ")
        )

    share = '; 2 % is 0.02 or "2%"' if _is_share(_kind(section, key)) else ""
    return message[:1].lower() + _TYPES.sub(in_words, message)[1:] + share


def _description(section: str, key: str) -> str | None:
    """Return a description of a setting's values; None if the type describes them."""
    notes = getattr(_kind(section, key), "__metadata__", ())
    return next((note.description for note in notes if note.description), None)


# --- the types of settings ------------------------------------------------------------------------


def settings_of(section: str) -> dict[str, Any]:
    """Return the settings of a section, such as ``cache.audit``, and their types."""
    table: type[msgspec.Struct] = Settings
    for step in section.split(".") if section else ():
        kind = {field.name: field.type for field in msgspec.structs.fields(table)}[step]
        table = table_type(kind) or table
    return {field.name: field.type for field in msgspec.structs.fields(table)}


def _kind(section: str, key: str) -> object:
    """Return the type of a setting; None if users choose the keys of its table."""
    try:
        return settings_of(section)[key]
    except KeyError:
        return None


def table_type(kind: object) -> type[msgspec.Struct] | None:
    """Return the type of a setting's table or tables; None for a setting without a table.

    For example, ``UpstreamSettings`` for the setting ``upstream``, a list of tables.
    """
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next(filter(None, map(table_type, get_args(kind))), None)


def may_be_none(kind: object) -> bool:
    """Return whether a setting of this type may have no value."""
    return type(None) in get_args(kind)


def may_be_empty(kind: object) -> bool:
    """Return whether a setting of this type may be an empty list."""
    return any(get_origin(each) is tuple for each in (kind, *get_args(kind)))


def _choices(kind: object) -> Iterator[str]:
    """Yield the choices of a setting; none if its values are no choices."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif get_origin(kind) is tuple:
        yield from _choices(get_args(kind)[0])
    elif isinstance(kind, UnionType) or get_origin(kind) is Union:
        found = [choice for each in get_args(kind) for choice in _choices(each)]
        yield from (*found, NONE) if found and may_be_none(kind) else found


def read_share(kind: object, value: object) -> object:
    """Return the share that a text such as ``2%`` means, for a setting that is a share."""
    if not isinstance(value, str) or not value.endswith("%") or not _is_share(kind):
        return value
    try:
        return float(value[:-1]) / 100
    except ValueError:
        return value  # msgspec reports the error


def _is_share(kind: object) -> bool:
    notes = [note.extra or {} for note in getattr(kind, "__metadata__", ())]
    return any("percent" in note for note in notes) or any(map(_is_share, get_args(kind)))


# --- the help of settings -------------------------------------------------------------------------


@cache
def help_texts() -> dict[str, dict[str, str]]:
    """Return the help of each field, by table and field, as Markdown on one line."""
    source = files("headstart").joinpath("settings.py").read_text(encoding="utf-8")
    tables = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)]
    return {table.name: dict(_texts_below(table)) for table in tables}


def _texts_below(table: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield each field with a text below it, and the text."""
    for field, below in itertools.pairwise(table.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                yield name, " ".join(text.split())

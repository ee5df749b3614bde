"""The tables of settings, and the page and the keyword arguments that are made of them."""

from __future__ import annotations

import re
from typing import Literal, get_args, get_origin

import msgspec
import pytest

from headstart import settings
from headstart.config.names import help_texts
from headstart.mount import CacheOptions
from headstart.settings import RouteSettings, Section, Settings, Strategy
from scripts import settings_tables
from support.repository import ROOT

TABLES = {
    name: kind
    for name, kind in vars(settings).items()
    if isinstance(kind, type) and issubclass(kind, Section) and kind is not Section
}
WHOLE = {"Settings", "PriceSettings", "RouteMatch"}
"""Not shown as a table: the document itself, and the values of ``price`` and ``match``."""
ELSEWHERE = {"Settings", "StrategySettings", "_RouteStrategy", "RouteSettings", "Strategy"}
"""Their choices are in tables of the page, or those of a setting of another table."""
PAGE = (ROOT / settings_tables.DOCUMENT).read_text("utf-8")


def documented() -> dict[str, dict[str, str]]:
    """Return the defaults that the page shows, by table and setting."""
    chapters = re.findall(r"<!-- settings: (\w+) -->\n\n((?:\|.*\n)+)", PAGE)
    return {
        name: dict(re.findall(r"^\| `(\w+)` \| (\S.*?) \|", rows, re.MULTILINE))
        for name, rows in chapters
    }


def test_every_table_is_documented() -> None:
    routes = {"StrategySettings", "_RouteStrategy"}
    assert documented().keys() == TABLES.keys() - WHOLE - routes


def choices(kind: object) -> set[object]:
    """Return the values that a setting of this type may have, if it has to be one of a few."""
    inner = {each for part in get_args(kind) for each in choices(part)}
    return set(get_args(kind)) if get_origin(kind) is Literal else inner


@pytest.mark.parametrize("name", sorted(TABLES.keys() - ELSEWHERE))
def test_help_names_every_choice_but_the_default(name: str) -> None:
    helps = help_texts()[name]
    missing = {
        f"{field.name} = {choice!r}"
        for field in msgspec.structs.fields(TABLES[name])
        for choice in choices(field.type)
        if field.name not in {"also_speaks", "tier"}  # those of ``dialect``; those of the provider
        if choice != field.default and str(choice) not in helps[field.name]
    }
    assert not missing


@pytest.mark.parametrize("name", sorted(documented()))
def test_every_setting_and_its_default_is_documented(name: str) -> None:
    shown = documented()[name]
    fields = {field.name: field for field in msgspec.structs.fields(TABLES[name])}
    in_force = {field.name: field for field in msgspec.structs.fields(Strategy)}
    if name == "Strategy":
        assert shown.keys() | documented()["RouteSettings"].keys() == {
            *RouteSettings.__struct_fields__
        }
    elif name != "RouteSettings":
        assert shown.keys() == fields.keys() - {*settings_tables.INNER.get(name, ())}
    for setting, text in shown.items():
        of_a_route = name in ("Strategy", "RouteSettings") and setting in in_force
        default = in_force[setting] if of_a_route else fields[setting]
        plain = text.replace("_", "").strip('`"')
        match default.default:
            case bool():
                assert plain == str(default.default).lower()
            case int() | float():
                assert float(plain) == default.default
            case None:
                assert plain == "none"
            case str():
                assert text == f'`"{default.default}"`'
            case _:
                assert plain


@pytest.mark.parametrize("name", sorted(TABLES.keys() - {"Settings", "StrategySettings"}))
def test_every_setting_has_a_help_text(name: str) -> None:
    texts = {**help_texts()["Strategy"], **help_texts().get(name, {})}
    inner = {*settings_tables.INNER.get(name, ())}
    assert TABLES[name].__struct_fields__
    assert set(TABLES[name].__struct_fields__) - texts.keys() <= inner


def test_the_generated_tables_are_up_to_date() -> None:
    hint = "run: python -m scripts.settings_tables"
    assert settings_tables.document(PAGE) == PAGE, hint
    doors = (ROOT / settings_tables.FRONT_DOORS).read_text("utf-8")
    assert settings_tables.front_doors(doors) == doors, hint
    keys = {*Settings().cache.__struct_fields__} - {"scope"}
    assert set(CacheOptions.__annotations__) == keys

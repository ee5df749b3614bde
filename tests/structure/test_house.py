"""The counters of ``scripts/house.py``, on small packages and with small budgets."""

from __future__ import annotations

import importlib
import sys
import textwrap
import tomllib
from typing import TYPE_CHECKING

import pytest

from scripts.house import House, Module, complaints, fitted, reserves
from scripts.house_path import PathCounters, Trace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "made_up"
    folder.mkdir()
    return folder


def write(package: Path, **modules: str) -> House:
    for name, text in modules.items():
        path = package.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")
    return House(package)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ('"""A module."""\n\nx = 1\n', 1),
        ("# a comment\nx = 1  # and one\n", 1),
        ("x = (\n    1,\n\n    # none\n    2,\n)\n", 4),
        ('def f():\n    """A docstring\n\n    of three lines."""\n    return 1\n', 2),
        ('x = 1\n"""What x is."""\n', 1),
        ('x = """two\nlines"""\n', 2),
        ('"a".upper()\n', 1),
        ('"a"\n"b"\n', 0),
        ('"""One."""  # a comment\n', 0),
    ],
)
def test_code_lines_leave_out_blanks_comments_and_docstrings(text: str, count: int) -> None:
    assert Module("m", "kernel", text).code_lines == count


def test_files_and_lines_are_counted_by_room(package: Path) -> None:
    house = write(package, types="x = 1\n", room__a="a = 1\nb = 2\n", room__b="c = 3\n")
    assert house.counters["files"] == {"kernel": 1, "room": 2}
    assert house.counters["code_lines"] == {"kernel": 1, "room": 3}


def test_module_with_one_importer_counts_in_its_own_room_alone(package: Path) -> None:
    house = write(
        package,
        kernel="",
        room__top="import made_up.kernel\nfrom made_up.room import once, twice\n",
        room__other="from made_up.room.twice import x\n",
        room__once="",
        room__twice="x = 1\n",
    )
    assert house.single_importers == {"made_up.room.once": "made_up.room.top"}


def test_class_name_counts_when_several_classes_have_it(package: Path) -> None:
    house = write(
        package,
        a="class Same: ...\nclass Own: ...\n",
        b="class Outer:\n    class Same: ...\n",
    )
    assert house.shared_class_names == {"Same": ["made_up.a", "made_up.b"]}
    assert house.counters["names"]["shared_class_names"] == 1


def test_cycle_is_found_through_imports_for_annotations_and_inside_functions(
    package: Path,
) -> None:
    house = write(
        package,
        a="""
            from typing import TYPE_CHECKING
            if TYPE_CHECKING:
                from made_up.b import B
        """,
        b="import made_up.c\n",
        c="def f():\n    from made_up import a\n",
        d="from made_up import a\n",
    )
    assert house.import_cycles == [["made_up.a", "made_up.b", "made_up.c"]]


def test_two_import_cycles_are_counted_apart(package: Path) -> None:
    house = write(
        package,
        a="import made_up.b\n",
        b="import made_up.a\nimport made_up.c\n",
        c="import made_up.d\n",
        d="import made_up.c\n",
    )
    assert house.counters["names"]["import_cycles"] == 2


def test_counter_over_its_budget_or_without_one_is_named() -> None:
    counters = {"names": {"import_cycles": 2}, "files": {"cli": 5, "lab": 1}}
    budget = {"names": {"import_cycles": 1}, "files": {"cli": 5}}
    assert complaints(counters, budget) == [
        "names.import_cycles is 2, over its budget of 1",
        "files.lab is 1 and has no budget",
    ]


def test_counter_under_its_budget_is_named_but_not_one_that_was_not_counted() -> None:
    budget = {"files": {"cli": 5, "gone": 2}, "exact_hit": {"calls": 46}}
    assert reserves({"files": {"cli": 4}}, budget) == [
        "files.cli is 4, under its budget of 5",
        "files.gone is 0, under its budget of 2",
    ]


BUDGET = """\
# Why and how.

[names]
import_cycles = 3

[files]
cli = 5  # 4 before: a command
gone = 1
"""


def test_budget_falls_to_the_counters_and_keeps_its_reasons() -> None:
    counters = {"names": {"import_cycles": 2}, "files": {"cli": 4}, "hit": {"files": 9}}
    assert fitted(BUDGET, counters) == (
        "# Why and how.\n\n[names]\nimport_cycles = 2\n\n[files]\ncli = 4  # 4 before: a command\n"
        "\n[hit]\nfiles = 9\n"
    )


def test_budget_keeps_a_table_that_was_not_counted() -> None:
    traced = f"{BUDGET}\n[hit]\nfiles = 9\n"
    counters = {"names": {"import_cycles": 3}, "files": {"cli": 5}}
    assert "\n[hit]\nfiles = 9\n" in fitted(traced, counters)


def test_budget_rises_for_files_and_lines_with_a_reason_alone() -> None:
    counters = {"names": {"import_cycles": 4}, "files": {"cli": 6, "lab": 1}}
    assert tomllib.loads(fitted(BUDGET, counters)) == {
        "names": {"import_cycles": 3},
        "files": {"cli": 5},
    }
    raised = fitted(BUDGET, counters, "a new room")
    assert "cli = 6  # 5 before: a new room\nlab = 1  # new: a new room\n" in raised
    assert "import_cycles = 3\n" in raised


TRACED = """
from dataclasses import dataclass
from typing import NamedTuple

from traced_up.other import beside, coroutine, numbers

class Base:
    def __init__(self):
        self.x = 1

class Built(Base):
    def __init__(self):
        super().__init__()

@dataclass
class Value:
    x: int

    def __post_init__(self):
        self.y = self.x

class Pair(NamedTuple):
    x: int

def plain():
    Built()
    Value(1)
    Pair(1)

def switching():
    beside()
    beside()

def iterating():
    return sum(numbers()) + sum([n for n in (1, 2)])

def awaiting():
    c = coroutine()
    c.send(None)
    c.close()
"""
OTHER = """
import types

def beside():
    len("no code of the package")

def numbers():
    yield 1
    yield 2

@types.coroutine
def pause():
    yield

async def coroutine():
    await pause()
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Built, its base's constructor, and what a dataclass does at the end of its constructor;
        # the constructor itself lies in no file.
        ("plain", PathCounters(1, functions=4, calls=4, switches=0, objects=1, instances=3)),
        ("switching", PathCounters(2, functions=2, calls=3, switches=1, objects=0, instances=0)),
        ("iterating", PathCounters(2, functions=2, calls=2, switches=1, objects=0, instances=0)),
        ("awaiting", PathCounters(2, functions=3, calls=3, switches=1, objects=0, instances=0)),
    ],
)
def test_trace_counts_the_path_of_a_call(
    name: str, expected: PathCounters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "traced_up"
    write(package, __init__="", top=TRACED, other=OTHER)
    monkeypatch.syspath_prepend(tmp_path)
    call = getattr(importlib.import_module("traced_up.top"), name)
    trace = Trace(package)
    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(before)
        for module in ("traced_up.top", "traced_up.other", "traced_up"):
            del sys.modules[module]
    assert trace.counters == expected

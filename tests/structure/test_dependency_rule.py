"""Who may import whom. ARCHITECTURE.md explains the rule; this table is the rule."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from typing import TYPE_CHECKING

import pytest

from support.repository import PACKAGE, ROOMS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VALUES = {
    "types", "decisions", "interfaces", "errors", "observe", "sockets", "attempts", "reply",
    "canonical_request", "schemas", "settings", "usual_calls",
}  # fmt: skip
SETTINGS = {"config"}
COMPONENTS = {"dialects", "report", *ROOMS}
ROOT_MODULES = {
    "factory", "mount", "sidecar", "cli", "__init__", "__main__", "clients", "httpx_transport",
    "langchain_cache",
}  # fmt: skip
ANYTHING = VALUES | SETTINGS | COMPONENTS | ROOT_MODULES

MAY_IMPORT = {
    **dict.fromkeys(VALUES, VALUES),
    **dict.fromkeys(SETTINGS, VALUES | SETTINGS | {"dialects"}),
    # Components take plain values or one table of settings, and decisions do no I/O.
    "dialects": VALUES,
    "policies": VALUES | {"dialects"},
    "compression": VALUES,
    "embeddings": VALUES,
    "report": VALUES,
    "middleware": VALUES | {"dialects", "policies", "compression", "embeddings"},
    # The composition root and what stands on it.
    **dict.fromkeys(ROOT_MODULES, ANYTHING),
    # Nothing else imports the laboratory, so the package works without its folder.
    "lab": ANYTHING,
}
LAB_MAY_IMPORT = {
    # The provider of the tests knows nothing of the code that it tests.
    "simulator": VALUES,
    # Labelled prompts play against the cache's decisions; the page has the look of the report.
    "": VALUES | {"policies", "embeddings", "report"},
    "commands": ANYTHING,
}
"""By the folder in ``lab/``: the parts of the package beside the laboratory."""
LAB_ROOMS_MAY_IMPORT = {
    "simulator": {"simulator"},
    "": {""},
    "commands": {"", "simulator", "commands"},
}

IMPURE = {
    "aiohttp", "anyio", "asyncio", "io", "logging", "os", "random", "redis", "socket", "sqlite3",
    "subprocess", "tempfile", "threading", "time", "urllib", "uvicorn",
}  # fmt: skip

HOSTS = {"django", "quart", "starlette"}
"""Frameworks that an app may be written in; none of them is a dependency."""
LOADED_BY_UVICORN = {"httptools", "uvloop", "websockets"}


def modules(folder: Path = PACKAGE) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def owner(path: Path) -> str:
    """Return the part of the package that a file belongs to: its room, or its own name."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Return every imported module's dotted name, also those for type checkers alone."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from _from_targets(node)


def _from_targets(node: ast.ImportFrom) -> Iterator[str]:
    assert node.module is not None
    if node.module == "headstart":
        for alias in node.names:
            submodule = (PACKAGE / alias.name).is_dir() or (PACKAGE / f"{alias.name}.py").is_file()
            yield f"headstart.{alias.name if submodule else '__init__'}"
    else:
        yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_what_its_place_allows(path: Path) -> None:
    part = owner(path)
    assert part in MAY_IMPORT, f"say in this table what headstart.{part} may import"
    ours = {name.split(".")[1] for name in imported(path) if name.startswith("headstart.")}
    forbidden = ours - MAY_IMPORT[part] - {part}
    assert not forbidden, f"headstart.{part} must not import {sorted(forbidden)}"


def test_no_component_sees_all_settings() -> None:
    seen = {
        str(path.relative_to(PACKAGE))
        for part in COMPONENTS | VALUES - {"settings"}
        for path in (modules(PACKAGE / part) or [PACKAGE / f"{part}.py"])
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "headstart.settings"
        if any(alias.name == "Settings" for alias in node.names)
    }
    assert not seen, "hand on the one table that is needed, not Settings"


@pytest.mark.parametrize("path", modules(PACKAGE / "lab"), ids=lambda path: path.name)
def test_laboratory_keeps_its_own_rooms_apart(path: Path) -> None:
    room = path.relative_to(PACKAGE / "lab").parent.as_posix().removeprefix(".")
    for name in imported(path):
        if name.startswith("headstart.lab."):
            inner = name.split(".")[2]
            imported_room = inner if inner in LAB_MAY_IMPORT else ""
            assert imported_room in LAB_ROOMS_MAY_IMPORT[room], name
        elif name.startswith("headstart."):
            assert name.split(".")[1] in LAB_MAY_IMPORT[room] | {"lab"}, name


@pytest.mark.parametrize(
    "path",
    [
        *modules(PACKAGE / "dialects"),
        *modules(PACKAGE / "policies"),
        *modules(PACKAGE / "compression"),
        *sorted((PACKAGE / "lab").glob("*.py")),
    ],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_decisions_are_pure(path: Path) -> None:
    used = {
        name for name in imported(path) if name.split(".")[0] in IMPURE and name != "urllib.parse"
    }
    assert used == set()


def test_rooms_are_imported_through_the_package() -> None:
    bare = {
        (str(path), name)
        for path in modules()
        for name in imported(path)
        if name.split(".")[0] in ROOMS
    }
    assert not bare


def test_third_party_imports_are_declared_and_nothing_else_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = {_requirement_name(line) for line in project["dependencies"]}
    extras = {
        _requirement_name(line)
        for extra in ("export", "encryption", "google", "httpx", "httpx2", "langchain", "otel")
        for line in project["optional-dependencies"][extra]
    }
    known = {"headstart", *sys.stdlib_module_names, *map(_import_name, declared | extras)}
    used = {name.split(".")[0] for path in modules() for name in imported(path)}
    assert used - known <= HOSTS
    # What has called us is loaded already; nothing else may count on it.
    hosted = {
        path.name for path in modules() for name in imported(path) if name.split(".")[0] in HOSTS
    }
    assert hosted == {"after_checks.py"}
    assert {_import_name(name) for name in declared} <= used | LOADED_BY_UVICORN


def _requirement_name(line: str) -> str:
    return re.split(r"[\[<>=;! ]", line)[0]


def _import_name(distribution: str) -> str:
    names = {"faiss-cpu": "faiss"}
    if distribution.startswith("opentelemetry-"):
        return "opentelemetry"
    return names.get(distribution, distribution.replace("-", "_"))


def test_table_names_only_what_exists() -> None:
    parts = {owner(path) for path in modules()} | {"compression"}
    assert set(MAY_IMPORT) <= parts

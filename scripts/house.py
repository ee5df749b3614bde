"""Count the causes of code that is hard to read, and compare the counters with a budget.

    python -m scripts.house [--json]                          print the counters
    python -m scripts.house --check                           fail if a counter exceeds its budget
    python -m scripts.house --write [--because 'a reason']    set the budget to the counters

``scripts/house.toml`` is the budget. ``--write`` lowers it. With a reason it also raises the files
and code lines of rooms and notes the reason; all other counters may only fall.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
BUDGET = ROOT / "scripts" / "house.toml"
KERNEL = "kernel"
"""The room of the modules that lie in the package's own folder."""
MAY_RISE = ("files", "code_lines")
"""The tables of the budget that a reason can raise."""
SHOWN = 12
"""How many names the table shows of a long list."""

Counters: TypeAlias = dict[str, dict[str, int]]
"""By table of the budget, then by name."""

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    """Dotted, such as ``headstart.cli.serve``."""
    room: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def code_lines(self) -> int:
        """Lines that are not blank, comment or docstring."""
        lines: set[int] = set()
        begins = True  # a statement
        held: tokenize.TokenInfo | None = None
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if held is not None:
                if token.type in (tokenize.COMMENT, tokenize.NL):
                    continue
                if token.type != tokenize.NEWLINE:  # the string was part of a statement
                    lines.update(range(held.start[0], held.end[0] + 1))
                held = None
            if begins and token.type == tokenize.STRING:
                held, begins = token, False
            elif token.type == tokenize.NEWLINE:
                begins = True
            elif token.type not in _NO_CODE:
                begins = False
                lines.update(range(token.start[0], token.end[0] + 1))
        return len(lines)

    def imports(self, names: set[str]) -> set[str]:
        """Return the modules among ``names`` that this one imports, wherever it does so."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    member = f"{node.module}.{alias.name}"
                    found.add(member if member in names else node.module)
        return found & names - {self.name}


class House:
    """A package, as its source shows it."""

    def __init__(self, package: Path) -> None:
        self.modules = {module.name: module for module in _read(package)}
        names = set(self.modules)
        self.imports = {name: module.imports(names) for name, module in self.modules.items()}

    @cached_property
    def single_importers(self) -> dict[str, str]:
        """Modules that one module of the same room imports and no other, with that module."""
        importers = defaultdict(list)
        for importer, imported in self.imports.items():
            for name in imported:
                importers[name].append(importer)
        return {
            name: importers[name][0]
            for name, module in sorted(self.modules.items())
            if len(importers[name]) == 1 and self.modules[importers[name][0]].room == module.room
        }

    @cached_property
    def shared_class_names(self) -> dict[str, list[str]]:
        """Names that several classes have, with the modules of these classes."""
        owners = defaultdict(list)
        for name, module in sorted(self.modules.items()):
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    owners[node.name].append(name)
        return {name: owners[name] for name in sorted(owners) if len(owners[name]) > 1}

    @cached_property
    def import_cycles(self) -> list[list[str]]:
        """Largest groups of modules in which each imports each other, perhaps through others."""
        reached = {name: self._reachable(name) for name in self.imports}
        groups = {
            tuple(sorted(other for other in reached[name] if name in reached[other]))
            for name in reached
            if name in reached[name]
        }
        return sorted(map(list, groups))

    def _reachable(self, start: str) -> set[str]:
        reached: set[str] = set()
        waiting = [start]
        while waiting:
            new = self.imports[waiting.pop()] - reached
            reached |= new
            waiting.extend(new)
        return reached

    @property
    def counters(self) -> Counters:
        """All counters but those of the traced requests."""
        rooms = sorted({module.room for module in self.modules.values()})
        files = Counter(module.room for module in self.modules.values())
        lines: Counter[str] = Counter()
        for module in self.modules.values():
            lines[module.room] += module.code_lines
        return {
            "names": {
                "import_cycles": len(self.import_cycles),
                "shared_class_names": len(self.shared_class_names),
            },
            "files": {room: files[room] for room in rooms},
            "code_lines": {room: lines[room] for room in rooms},
        }


def _read(package: Path) -> Iterator[Module]:
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        dotted = ".".join((package.name, *parts)).removesuffix(".__init__")
        room = parts[0] if len(parts) > 1 else KERNEL
        yield Module(dotted, room, path.read_text("utf-8"))


def traced_counters() -> Counters:
    """Return the counters of the traced requests, from a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.house_path"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=True,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    paths: Counters = json.loads(done.stdout)
    return paths


def complaints(counters: Counters, budget: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a sentence for every counter that exceeds its budget or has none."""
    found = []
    for table, name, count in _each(counters):
        limit = budget.get(table, {}).get(name)
        if limit is None:
            found.append(f"{table}.{name} is {count} and has no budget")
        elif count > limit:
            found.append(f"{table}.{name} is {count}, over its budget of {limit}")
    return found


def reserves(counters: Counters, budget: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a sentence for every budget that is larger than its counter.

    Tables that were not counted are left out.
    """
    return [
        f"{table}.{name} is {counters[table].get(name, 0)}, under its budget of {limit}"
        for table, name, limit in _each(budget)
        if table in counters and counters[table].get(name, 0) < limit
    ]


def _each(tables: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, str, int]]:
    for table, rows in tables.items():
        for name, count in rows.items():
            yield table, name, count


def fitted(text: str, counters: Counters, reason: str | None = None) -> str:
    """Return a budget file's ``text`` with the counters in place of larger limits.

    With a ``reason`` they also take the place of smaller limits of files and code lines, and new
    rooms are added; the reason is written beside them. Rows that count nothing any more go; tables
    that were not counted stay.
    """
    waiting = {table: dict(rows) for table, rows in counters.items()}
    lines: list[str] = []
    rows: dict[str, int] = {}
    table = ""
    for line in text.splitlines():
        if header := re.fullmatch(r"\[(\w+)\](?: *#.*)?", line):
            _add_rows(lines, table, rows, reason)
            table = header[1]
            rows = waiting.pop(table, {})
            lines.append(line)
        elif row := re.fullmatch(r"([\w-]+) = (\d+)( *#.*)?", line):
            name, limit = row[1], int(row[2])
            if table not in counters:
                lines.append(line)
            elif name in rows:
                count, note = rows.pop(name), row[3] or ""
                if count > limit and (reason is None or table not in MAY_RISE):
                    count = limit
                elif count > limit:
                    note = f"  # {limit} before: {reason}"
                lines.append(f"{name} = {count}{note}")
        else:
            lines.append(line)
    _add_rows(lines, table, rows, reason)
    for table, rows in waiting.items():
        lines += ["", f"[{table}]"]
        lines += [f"{name} = {count}" for name, count in rows.items()]
    return "\n".join(lines) + "\n"


def _add_rows(lines: list[str], table: str, rows: Mapping[str, int], reason: str | None) -> None:
    """Add new rows at the end of a table, before the blank lines that follow it."""
    if table in MAY_RISE and reason is None:
        return
    note = f"  # new: {reason}" if table in MAY_RISE else ""
    end = len(lines)
    while end and not lines[end - 1]:
        end -= 1
    lines[end:end] = [f"{name} = {count}{note}" for name, count in rows.items()]


def describe(house: House, counters: Counters) -> str:
    """Return the counters as tables in plain text, with the names behind them."""
    rooms, lines = counters["files"], counters["code_lines"]
    parts = [f"{'room':<14}{'files':>8}{'code lines':>12}"]
    parts += [f"{room:<14}{rooms[room]:>8}{lines[room]:>12,}" for room in rooms]
    parts += [f"{'all':<14}{sum(rooms.values()):>8}{sum(lines.values()):>12,}", ""]
    cycles = [" <-> ".join(map(_short, group)) for group in house.import_cycles]
    shared = [f"{name} ({len(owners)})" for name, owners in house.shared_class_names.items()]
    single = [f"{_short(a)} <- {_short(b)}" for a, b in house.single_importers.items()]
    for title, names in (
        ("groups of modules that import each other", cycles),
        ("class names that several classes have", shared),
        ("modules with one importer, in the same room", single),
    ):
        parts.append(f"{len(names)} {title}")
        parts += [f"    {name}" for name in names[:SHOWN]]
        if len(names) > SHOWN:
            parts.append(f"    and {len(names) - SHOWN} more; --json has all")
    paths = {name: rows for name, rows in counters.items() if "switches" in rows}
    if paths:
        columns = list(next(iter(paths.values())))
        parts += ["", f"{'request':<14}" + "".join(f"{name:>11}" for name in columns)]
        for name, rows in paths.items():
            parts.append(f"{name:<14}" + "".join(f"{rows[column]:>11}" for column in columns))
    return "\n".join(parts)


def _short(module: str) -> str:
    return module.partition(".")[2] or module


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the counters as JSON")
    parser.add_argument("--static", action="store_true", help="trace no requests")
    parser.add_argument("--check", action="store_true", help="hold the counters to the budget")
    parser.add_argument("--write", action="store_true", help="lower the budget to the counters")
    parser.add_argument("--because", metavar="REASON", help="with --write: raise it, too")
    options = parser.parse_args(arguments)
    house = House(ROOT / "headstart")
    counters = house.counters | ({} if options.static else traced_counters())
    if options.write:
        text = BUDGET.read_text("utf-8") if BUDGET.exists() else ""
        BUDGET.write_text(fitted(text, counters, options.because), "utf-8")
    if options.check or options.write:
        return _check(counters)
    if options.json:
        names = {
            "import_cycles": house.import_cycles,
            "shared_class_names": house.shared_class_names,
            "single_importers": house.single_importers,
        }
        print(json.dumps({"counters": counters, "names": names}, indent=1))
    else:
        print(describe(house, counters))
    return 0


def _check(counters: Counters) -> int:
    budget = tomllib.loads(BUDGET.read_text("utf-8"))
    exceeded = complaints(counters, budget)
    for line in exceeded:
        print(f"house: {line}", file=sys.stderr)
    if exceeded:
        print(
            "house: `python -m scripts.house` shows the names. Only files and code lines may rise, "
            "with --write --because 'a reason'.",
            file=sys.stderr,
        )
    elif left := reserves(counters, budget):
        print("\n".join(f"house: {line}" for line in left))
        print("house: lower the budget with `python -m scripts.house --write`.")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())

"""Sessions of agents: generated ones that work on real code, those of tau-bench and of SWE-agent.

A coding agent reads, searches and edits the files of Python's standard library. Each next step is
drawn at random. The weights of the steps follow the shares of tokens in published sessions of
Claude Code: 47 % files that it reads, 21 % its own edits, 17 % output of commands and searches, 8 %
the user's words, 4 % its own words.
"""

from __future__ import annotations

import json
import random
import sysconfig
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import compression_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

Message = dict[str, Any]

_SMALLEST, _LARGEST = 4_000, 80_000
_STEPS = {"read": 40, "grep": 10, "bash": 22, "edit": 25, "write": 3}
_PATHS = ("Lib", "src/app", "/srv/project/lib", "packages/core")


@cache
def code() -> dict[str, list[str]]:
    """Return the lines of the standard library's files, by name."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        each for each in folder.glob("*.py") if _SMALLEST < each.stat().st_size < _LARGEST
    )
    return {each.name: each.read_text("utf-8").split("\n") for each in files}


class Coding:
    """One session, which depends on the seed alone. ``messages`` ends with the agent's answer.

    ``returns`` is the share of reads that read lines of an earlier read again. If it is above 0,
    edits quote lines that were read before.
    """

    def __init__(self, seed: int, *, returns: float = 0.0) -> None:
        self._returns = returns
        self._read_before: list[tuple[str, int, list[str]]] = []
        self._random = random.Random(f"coding/{seed}")
        self._root = self._random.choice(_PATHS)
        self._files = self._random.sample(sorted(code()), 6)
        self._calls = 0
        self.read_characters: dict[str, int] = {}
        """Characters by kind of content."""
        self.messages: list[Message] = [{"role": "system", "content": _system(self._root)}]
        for turn in range(self._random.randint(1, 4)):
            self._user(turn)
            for _ in range(self._random.randint(3, 9)):
                getattr(self, f"_{self._drawn()}")()
            self._say(None)

    def _drawn(self) -> str:
        return self._random.choices(list(_STEPS), list(_STEPS.values()))[0]

    def _stretch(self, least: int, most: int) -> tuple[str, int, list[str]]:
        """Return a file, the number of a line and the lines from there on."""
        name = self._random.choice(self._files)
        lines = code()[name]
        length = min(len(lines), self._random.randint(least, most))
        start = self._random.randint(0, len(lines) - length)
        return f"{self._root}/{name}", start + 1, lines[start : start + length]

    def _count(self, kind: str, text: str) -> str:
        self.read_characters[kind] = self.read_characters.get(kind, 0) + len(text)
        return text

    def _user(self, turn: int) -> None:
        path, line, shown = self._stretch(10, 60 if self._random.random() < 0.6 else 140)
        said = f"{'Now' if turn else 'Please'} look at {path}, around line {line}. "
        said += self._random.choice(
            (
                "This fails for empty input, please fix it and add a check:",
                "Explain, then simplify:",
            )
        )
        text = said + "\n\n" + "\n".join(shown)
        self.messages.append({"role": "user", "content": self._count("user", text)})

    def _say(self, call: tuple[str, Any] | None) -> None:
        _, _, lines = self._stretch(2, 8)
        words = "I will go on with " + " ".join(" ".join(lines).split())[:260]
        message: Message = {"role": "assistant", "content": self._count("assistant", words)}
        if call is not None:
            name, arguments = call
            self._calls += 1
            function = {"name": name, "arguments": json.dumps(arguments)}
            edits = name in ("edit_file", "write_file")
            self._count("edits" if edits else "assistant", function["arguments"])
            id = f"call_{self._calls}"
            message["tool_calls"] = [{"id": id, "type": "function", "function": function}]
        self.messages.append(message)

    def _result(self, kind: str, text: str) -> None:
        result = {"role": "tool", "tool_call_id": f"call_{self._calls}"}
        self.messages.append({**result, "content": self._count(kind, text)})

    def _read(self) -> None:
        path, start, lines = self._stretch(30, 240)
        if self._returns:
            if self._read_before and self._random.random() < self._returns:
                path, start, lines = self._random.choice(self._read_before)
            self._read_before.append((path, start, lines))
        self._say(("read_file", {"path": path, "offset": start, "limit": len(lines)}))
        self._result("reads", _numbered(lines, start))

    def _grep(self) -> None:
        word = self._random.choice(("def ", "raise ", "import ", "self.", "return ", "isinstance"))
        self._say(("grep", {"pattern": word, "path": self._root}))
        found = [
            f"{self._root}/{name}:{number}:{line}"
            for name in self._files
            for number, line in enumerate(code()[name], 1)
            if word in line
        ]
        self._result("shell", "\n".join(found[: self._random.randint(20, 80)]))

    def _bash(self) -> None:
        path, start, lines = self._stretch(30, 150)
        if self._random.random() < 0.4:
            command = f"sed -n '{start},{start + len(lines)}p' {path}"
            text = "\n".join(lines)
        else:
            command = f"python -m pytest -q {path.replace('.py', '_test.py')}"
            text = "\n".join(
                f"{path}::test_case_{start + number} {self._random.choice(('PASSED', 'FAILED'))}"
                for number in range(len(lines) // 3)
            )
        self._say(("bash", {"command": command}))
        self._result("shell", text)

    def _edit(self) -> None:
        path, start, lines = self._stretch(10, 60)
        if self._read_before:
            path, start, read = self._random.choice(self._read_before)
            at = self._random.randrange(len(read))
            lines, start = read[at : at + self._random.randint(1, 30)], start + at
        new = [*lines[: len(lines) // 2], "    # checked", *lines[len(lines) // 2 :]]
        edit = {"path": path, "old_string": "\n".join(lines), "new_string": "\n".join(new)}
        self._say(("edit_file", edit))
        text = f"The file {path} has been updated. Here's the result of running `cat -n` on it:\n"
        self._result("reads", text + _numbered(new[:12], start))

    def _write(self) -> None:
        path, _, lines = self._stretch(40, 200)
        self._say(("write_file", {"path": path + ".new", "content": "\n".join(lines)}))
        self._result("reads", f"File created successfully at: {path}.new")


def _numbered(lines: list[str], start: int) -> str:
    """Return lines as Claude Code's reads and ``cat -n`` show them."""
    return "\n".join(f"{number:6d}\u2192{line}" for number, line in enumerate(lines, start))


def _documentation(name: str, characters: int) -> str:
    """Return text of a length that is usual for the instructions of agents."""
    return "\n".join(code()[name])[:characters]


def _system(root: str) -> str:
    guide = _documentation("argparse.py" if "argparse.py" in code() else min(code()), 9_000)
    return f"You are a coding agent. You work in {root}. Follow these rules.\n\n{guide}"


def tools() -> list[Message]:
    """Return the tools of the coding agent: some 3,000 tokens, as those of real ones."""
    names = ("read_file", "write_file", "edit_file", "grep", "bash", "list_files", "plan", "finish")
    texts = sorted(code())
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": _documentation(texts[number], 1_400),
                "parameters": parameters,
            },
        }
        for number, name in enumerate(names)
    ]


def coding(count: int, returns: float = 0.0) -> Iterator[list[Message]]:
    """Yield coding sessions."""
    for seed in range(count):
        yield Coding(seed, returns=returns).messages


def airline(data: Path, count: int) -> Iterator[list[Message]]:
    """Yield sessions of tau-bench's airline agent, as they are."""
    for number, session in enumerate(compression_cache.sessions(data / "longctx", 1)[:count]):
        first = {**session[0], "content": f"{session[0]['content']}\n\nSession {number}."}
        yield [first, *map(_plain, session[1:])]


def swe_agent(folder: Path) -> Iterator[list[Message]]:
    """Yield the sessions of SWE-agent's trajectory files (``*.traj``), as they are.

    Its repository has such files, of models and of people. Older ones hold the results of commands
    in the user's messages.
    """
    for path in sorted(folder.rglob("*.traj")):
        history = json.loads(path.read_text("utf-8")).get("history", [])
        ids = [(message.get("tool_call_ids") or [None])[0] for message in history]
        yield [
            _plain(message if id is None else {**message, "tool_call_id": id})
            for message, id in zip(history, ids, strict=True)
        ]


def _plain(message: Message) -> Message:
    """Return a message without the fields that recordings carry along."""
    kept = ("role", "content", "tool_calls", "tool_call_id")
    return {
        name: message[name] for name in kept if message.get(name) is not None or name == "content"
    }


def shares(count: int) -> dict[str, float]:
    """Return the share of each kind of content in coding sessions, by characters."""
    totals: dict[str, int] = {}
    for seed in range(count):
        for kind, characters in Coding(seed).read_characters.items():
            totals[kind] = totals.get(kind, 0) + characters
    return {kind: characters / sum(totals.values()) for kind, characters in totals.items()}

"""Pairs of file versions from a git history, and the search/replace blocks between them."""

from __future__ import annotations

import difflib
import subprocess
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from headstart.policies.output.document_edits import has_markers

if TYPE_CHECKING:
    import random
    from pathlib import Path

MIN_CHARS, MAX_CHARS = 2400, 60_000

Fault: TypeAlias = Literal["whitespace", "ambiguous", "missing line", "elided", "cut", "whole file"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
ELISIONS = (
    "# ... rest stays the same", "# rest of the function unchanged", "# (existing code here)",
    "# [unchanged]", "// remaining steps stay the same", "{/* ... rest of the component ... */}",
    "pass  # ... existing code ...", "# <rest of code>", "# existing steps...", "[...]",
    "# same as before", "// etc...", "<!-- ... -->", "...", "\u2026", "... (unchanged) ...",
    "[rest of the section]", "The rest stays the same.", "/* snip */", "# your code here",
)  # fmt: skip
_QUOTED = 12
"""Number of unchanged lines that a model quotes on each side of a change, with some left out."""


class Pair(NamedTuple):
    """A file before and after one commit, without its last line break."""

    path: str
    old: str
    new: str

    @property
    def changed(self) -> float:
        """Lines that went or came, by the lines of the old file."""
        old, new = self.old.split("\n"), self.new.split("\n")
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        same = sum(block.size for block in matcher.get_matching_blocks())
        return max(len(old), len(new)) / len(old) - same / len(old)


class Block(NamedTuple):
    search: tuple[str, ...]
    replace: tuple[str, ...]

    def text(self) -> str:
        lines = ("<<<<<<< SEARCH", *self.search, "=======", *self.replace, ">>>>>>> REPLACE")
        return "\n".join(lines)


def read_pairs(repository: Path, revision: str, count: int, draw: random.Random) -> list[Pair]:
    """Return ``count`` changes of .py and .md files of at least 600 tokens, at most 5 a file.

    They are drawn from what led to ``revision``, so the same draws give the same pairs.
    """
    changes = _git(repository, "log", revision, "--no-merges", "--format=", "--raw", "--no-abbrev",
                   "--diff-filter=M", "--", "*.py", "*.md").splitlines()  # fmt: skip
    draw.shuffle(changes)
    pairs: list[Pair] = []
    by_path: dict[str, int] = {}
    for change in changes:
        fields, _, path = change.partition("\t")
        old, new = (_git(repository, "cat-file", "blob", sha) for sha in fields.split()[2:4])
        fits = MIN_CHARS <= len(old) <= MAX_CHARS and old.endswith("\n") and new.endswith("\n")
        if not fits or by_path.get(path, 0) >= 5 or has_markers(old + new) or "\r" in old + new:
            continue
        by_path[path] = by_path.get(path, 0) + 1
        pairs.append(Pair(path, old[:-1], new[:-1]))
        if len(pairs) == count:
            break
    return pairs


def ideal_blocks(pair: Pair) -> list[Block]:
    """Return the blocks that change one file into the other, as the instruction asks for them.

    Each block begins and ends with an unchanged line if the file has one there. It has as many
    lines as it needs to occur only once in the file. Blocks that touch become one.
    """
    old, new = pair.old.split("\n"), pair.new.split("\n")
    opcodes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    spans: list[tuple[int, int, int, int]] = []
    for tag, i1, i2, j1, j2 in opcodes:
        if tag == "equal":
            continue
        width = 1
        while not _stands_once(old[max(0, i1 - width) : i2 + width], old):
            width += 1
        before, after = min(width, i1), min(width, len(old) - i2)
        span = (i1 - before, i2 + after, j1 - before, j2 + after)
        if spans and span[0] < spans[-1][1]:
            first = spans.pop()
            span = (first[0], max(first[1], span[1]), first[2], max(first[3], span[3]))
        spans.append(span)
    return [Block(tuple(old[a:b]), tuple(new[c:d])) for a, b, c, d in spans]


def spoil(blocks: list[Block], fault: Fault, old: str, draw: random.Random) -> str:
    """Return the answer of a model that makes this mistake in one of its blocks."""
    blocks = list(blocks)
    at = draw.randrange(len(blocks))
    search, replace = blocks[at]
    line = draw.randrange(len(search))
    if fault == "whitespace":
        other = draw.choice((f" {search[line]}", f"{search[line]} ", f"\t{search[line].lstrip()}"))
        search = (*search[:line], other, *search[line + 1 :])
    elif fault == "missing line":
        line = draw.choice(_needed(search, replace) or [line])
        search = (*search[:line], *search[line + 1 :])
    elif fault == "ambiguous":
        lines = old.split("\n")
        twice = [each for each in search if lines.count(each) > 1]
        common = draw.choice(twice or [max(lines, key=lines.count)])
        search, replace = (common,), (*replace[:1], common)
    elif fault == "elided":
        search, replace = _elided(blocks, at, old.split("\n"), draw)
    blocks[at] = Block(search, replace)
    answer = "\n\n".join(block.text() for block in blocks)
    return answer[: -draw.randrange(1, 40)] if fault == "cut" else answer


def _elided(blocks: list[Block], at: int, lines: list[str], draw: random.Random) -> Block:
    """Return a block that quotes many unchanged lines, and replaces some of them by an ellipsis."""
    search, replace = blocks[at]
    spans = [_span(block.search, lines) for block in blocks]
    start, end = spans[at]
    first = max([0, start - _QUOTED, *(other for _, other in spans if other <= start)])
    last = min([len(lines), end + _QUOTED, *(other for other, _ in spans if other >= end)])
    before, after = tuple(lines[first:start]), tuple(lines[end:last])
    begin = draw.randrange(max(1, len(after) - 1))
    rest = after[draw.randrange(begin + 1, len(after)) :] if len(after) > 1 else replace[-1:]
    said = (*before, *replace, *after[:begin]) if len(after) > 1 else (*before, *replace[:1])
    margin = said[-1][: len(said[-1]) - len(said[-1].lstrip())]
    return Block((*before, *search, *after), (*said, margin + draw.choice(ELISIONS), *rest))


def _needed(search: tuple[str, ...], replace: tuple[str, ...]) -> list[int]:
    """Return the numbers of the lines of a search that cannot be missing without a visible fault.

    A changed first or last line can be missing, if it is at the beginning or the end of the file:
    the block is then a valid block of another change.
    """
    changed = set()
    if search[:1] != replace[:1]:
        changed.add(0)
    if search[-1:] != replace[-1:]:
        changed.add(len(search) - 1)
    return [line for line in range(len(search)) if line not in changed]


def _span(search: tuple[str, ...], lines: list[str]) -> tuple[int, int]:
    size = len(search)
    start = next(at for at in range(len(lines)) if tuple(lines[at : at + size]) == search)
    return start, start + size


def _stands_once(search: list[str], lines: list[str]) -> bool:
    size = len(search)
    hits = (lines[at : at + size] == search for at in range(len(lines) - size + 1))
    return any(line.strip() for line in search) and sum(hits) == 1


def _git(repository: Path, *command: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *command], capture_output=True, check=True)
    return done.stdout.decode("utf-8", "replace")

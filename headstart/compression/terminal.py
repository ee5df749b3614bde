"""Output of programs as a terminal shows it: overwritten text and the steps of progress bars go.

A line that a program wrote over and over with carriage returns or backspaces keeps its last state.
Of steps of one progress bar on lines of their own, the first and the last stay. Text that shows no
progress stays as it is: a carriage return may also end a line.
"""

from __future__ import annotations

import re
from itertools import groupby

from headstart.compression.passages import omitted

_OVERWRITES = re.compile(r"\r+(?!\n|\Z)|\x08")
_STEERING = re.compile(r"\r+|\x08|\x1b\[[0-9;]*[Km]|[^\r\x08\x1b]+|\x1b")
_PROGRESS = re.compile(
    r"\d ?%|\d(?:\.\d+)?\s?(?:[kKMG]i?B)?\s?(?:/|of)\s?\d|\[[=#>.\s-]{5,}\]"
    r"|[\u2588\u2501\u2580-\u259f\u2800-\u28ff]"
)
_BAR = re.compile(
    r"\[[=#>.\s-]*[=#>][=#>.\s-]{4,}\]|[\u2500-\u259f]{2}[\u2500-\u259f\s]*|\|[#= ]{5,}\|"
)
_DONE = re.compile(r"\d[\d.]*\s?(?:[kKMG]i?B)?\s?/\s?(\d[\d.]*\s?(?:[kKMG]i?B)?)")
_NUMBER = re.compile(r"\d[\d.,:]*(?:\s?[kKMG]i?B)?")
_MIN_STEPS = 4
_MIN_SHARE = 0.6
"""The smallest share of what a line was overwritten with that shows progress."""


def play_back(text: str) -> str:
    """Return the text as a terminal shows it in the end: the last state of each line."""
    if not ("\r" in text or "\x08" in text) or _OVERWRITES.search(text) is None:
        return text
    return "\n".join(map(_last_state, text.split("\n")))


def fold_steps(text: str) -> str:
    """Return the text with the first and the last of the lines that one progress bar wrote."""
    out: list[str] = []
    for form, group in groupby(text.split("\n"), key=_step):
        run = list(group)
        if form and len(run) >= _MIN_STEPS:
            out += (run[0], omitted(len(run) - 2, "line"), run[-1])
        else:
            out += run
    return "\n".join(out)


def _step(line: str) -> tuple[str, str] | None:
    """Return the form of a line with a bar, and the total that it counts up to."""
    done = _DONE.search(line) if "/" in line else None
    if done is None or _BAR.search(line) is None:
        return None
    return _NUMBER.sub("#", _BAR.sub("~", line)), done[1]


def _last_state(line: str) -> str:
    """Play a line back, if it shows progress."""
    if not _OVERWRITES.search(line):
        return line
    states = [state for state in re.split(r"[\r\x08]+", line) if state.strip()]
    if sum(_PROGRESS.search(state) is not None for state in states) < _MIN_SHARE * len(states):
        return line
    shown: list[str] = []
    at = 0
    for piece in _STEERING.findall(line.rstrip("\r")):
        if piece[0] == "\r":
            at = 0
        elif piece == "\x08":
            at = max(0, at - 1)
        elif piece.startswith("\x1b[") and piece[-1] == "K":
            del shown[0 if piece[2:-1] == "2" else at :]
            shown += " " * (at - len(shown))
        elif piece[0] != "\x1b":
            shown[at : at + len(piece)] = piece
            at += len(piece)
    return "".join(shown).rstrip() + "\r" * line.endswith("\r")

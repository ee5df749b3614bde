"""Typical outputs of programs, with the parts that compression must keep."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

Kind: TypeAlias = Literal["log", "json", "data", "lines"]
"""The kinds: ``json`` keeps its values; ``data`` stays or goes whole; ``lines`` may point to equal
lines."""


class Made(NamedTuple):
    """A text, its kind, and the lines of a log that report problems."""

    text: str
    kind: Kind
    trouble: tuple[str, ...] = ()


_WORDS = ("harbour", "council", "order", "invoice", "total", "item", "north", "retry")
_STORY = (
    "The first lock of the canal was built by the council in the spring. It is kept by the port"
    " authority and by the city. Ships of the northern line call there on Monday, and leave it"
    " on Friday. The old lighthouse stands on the cliff above the lock, next to the inn."
)
_LOGS = (
    ("{d} {t},{n:03}:{level}:checkout:order {n} taken", "INFO", "ERROR"),
    ("{t}:{level}:order {n} taken", "INFO", "CRITICAL"),
    ("{d} {t}.{n:04}|{level}|Shop.Orders|Order {n} changed", "INFO", "FATAL"),
    ("{d}T{t}Z/{level}/mod order {n}", "INFO", "ERROR"),
    ("{d} {t} [{level}] order {n}", "I", "E"),
    ("{d} {t}.000  1234  1234 {level} Orders: order {n}", "D", "W"),
    ("{d} {t} {level} order {n} changed", "INFO", "FEHLER"),
    ("{d} {t} [{level}] order {n}", "\u4fe1\u606f", "\u9519\u8bef"),
    (
        "{d} {t} {level} order {n}",
        "\u0418\u041d\u0424\u041e",
        "\u041e\u0428\u0418\u0411\u041a\u0410",
    ),
    ("{d} {t} <{level}> order {n}", "6", "3"),
    ("{d} {t} level={level} order {n}", "30", "50"),
    ("{d} {t} GET /orders/{n} {level} {n}ms", "200", "503"),
    ("{d} {t} worker {n} exited with code {level}", "0", "137"),
    ("[{t}][{level}] order {n} changed", "info", "warning"),
)


def made(random: Random) -> Made:
    """Return a text of any of these formats."""
    makers: tuple[Callable[[Random], Made], ...] = (
        _log, _log, _log, _json_lines, _cut_off, _xml, _yaml, _tsv, _rules,
    )  # fmt: skip
    return random.choice(makers)(random)


def _log(random: Random) -> Made:
    form, usual, trouble = random.choice(_LOGS)
    often = random.choice((0.02, 0.1, 0.5))
    lines, told = [], []
    for n in range(random.randint(20, 160)):
        bad = random.random() < often
        time = f"10:{n // 60:02}:{n % 60:02}"
        line = form.format(d="2026-03-01", t=time, n=n, level=trouble if bad else usual)
        lines.append(line)
        told += [line] * bad
    return Made("\n".join(lines), "log", tuple(told))


def _json_lines(random: Random) -> Made:
    key = random.choice(("columns", "price"))
    lines = [json.dumps({"id": n, key: 1.5, "a/b": _STORY}) for n in range(random.randint(2, 12))]
    old, new = random.choice(
        (("1.5", "1.50"), ("/", "\\/"), ("1.5", "1e5"), ("lock", "l\\u00F6ck"))
    )
    text = random.choice(("\n", "\r\n", "\n\n")).join(lines)
    return Made(text.replace(old, new), "json")


def _cut_off(random: Random) -> Made:
    rows = [{"id": n, "text": _STORY} for n in range(random.randint(3, 30))]
    text = str(rows) if random.random() < 0.2 else json.dumps(rows, indent=random.choice((None, 1)))
    start = random.choice(("Found these results:\n", "HTTP/1.1 200 OK\n\n", ""))
    return Made(start + text[: -random.randint(2, 90)], "data")


def _xml(random: Random) -> Made:
    rows = "\n".join(
        random.choice(
            (
                f'<table name="t{n}" rows="{n * 31}"><section from="{n}" to="{n + 5}"/></table>',
                f"<p id='{n}'><title>{_STORY}</title><amount>{n}</amount></p>",
            )
        )
        for n in range(random.randint(12, 40))
    )
    return Made(f'<?xml version="1.0"?>\n<a>\n{rows}\n</a>', "data")


def _yaml(random: Random) -> Made:
    block = [f"setting_{word}_of_the_service: value of {word}" for word in _WORDS]
    out = []
    for number in range(random.randint(2, 5)):
        depth = random.choice((2, 4))
        out.append(f"{' ' * (depth - 2)}service_{number}:")
        out += [" " * depth + line for line in block]
    return Made("\n".join(out), "lines")


def _tsv(random: Random) -> Made:
    rows = [
        "\t".join((random.choice(_WORDS) + " of the harbour", "", random.choice(("x", "")), "", ""))
        for _ in range(random.randint(5, 60))
    ]
    return Made("\n".join(rows), "lines")


def _rules(random: Random) -> Made:
    rule = random.choice(("-" * 300, "| " + " " * 300 + " |", "=" * 280, "+----" * 60 + "+"))
    rows = [random.choice((rule, f"{random.choice(_WORDS)} went up")) for _ in range(20)]
    return Made("\n".join(rows), "lines")

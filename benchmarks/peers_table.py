"""The figures of ``benchmarks.peers`` as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers_site import BREAKS, BROKEN_AFTER, TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable

    Rows = dict[tuple[str, str], dict[str, Any]]

_MISS = (
    "miss",
    "added ms, p50 and p95",
    "CPU µs",
    "16 at once: added ms, p50 and p95",
    "requests/s",
    "CPU µs",
    "streamed: added ms to first token, p50 and p95",
    "CPU µs",
)
_MISSES = ("miss", "miss, 16 at once", "miss, streamed")
_HIT = (
    "exact hit",
    "ms, p50 and p95",
    "CPU µs",
    "16 at once: ms, p50 and p95",
    "requests/s",
    "CPU µs",
)


def table(figures: dict[str, Any]) -> str:
    """Return all tables, and a line for each target that is not the expected one."""
    rows: Rows = {(row["case"], row["target"]): row for row in figures["rows"]}
    endings = figures["endings"]
    names = [name for case, name in rows if case == "miss"]
    stream = ("stream", "client leaves: upstream call cancelled")
    return "\n".join(
        [
            f"Load of the machine before and after: {'; '.join(figures['load'])}.",
            *_lines(_MISS, (_miss(rows, name) for name in names)),
            *_lines(_HIT, (_hit(rows, name) for name in ("no-op app", *names[2:]))),
            *_lines((*stream, *BREAKS.values()), map(_ending, endings)),
            "",
            f"Upstreams broke off after {BROKEN_AFTER} of {TOKENS} tokens.",
            *_doubts(figures["rows"]),
        ]
    )


def _lines(heads: tuple[str, ...], rows: Iterable[list[str]]) -> list[str]:
    rule = "|---" * len(heads) + "|"
    return ["", f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def _miss(rows: Rows, name: str) -> list[str]:
    one, many, streamed = (rows[case, name] for case in _MISSES)
    base = [rows[case, "direct"] for case in _MISSES]
    return [
        name,
        _added(one, base[0], "total"),
        _cpu(one),
        _added(many, base[1], "total"),
        f"{many['per_s']:.0f}",
        _cpu(many),
        _added(streamed, base[2], "first"),
        _cpu(streamed),
    ]


def _hit(rows: Rows, name: str) -> list[str]:
    if ("exact hit", name) not in rows:
        return [name, "no hits", "", "", "", ""]
    one, many = rows["exact hit", name], rows["exact hit, 16 at once", name]
    return [name, _times(one), _cpu(one), _times(many), f"{many['per_s']:.0f}", _cpu(many)]


def _ending(each: dict[str, Any]) -> list[str]:
    left = each["client_left"]
    if left["cancelled"] is None:
        when = left["error"]
    else:
        when = f"after {left['median_s'] * 1e3:.0f} ms" if left["cancelled"] else "never"
    broke = [each["upstream_broke"][case] for case in BREAKS]
    return [each["target"], when, *(_broke(one) for one in broke)]


def _broke(figures: dict[str, Any]) -> str:
    calls = figures["upstream_calls"]
    return f"{figures['verdict']}, {calls} upstream calls" if calls > 1 else str(figures["verdict"])


def _doubts(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        which = f"{row['target']}, {row['case']}"
        if row["failed"]:
            lines.append(f"{which}: {row['failed']} of {row['calls']} calls failed.")
        if row["case"] in _MISSES and row["reached"] != row["calls"]:
            lines.append(f"{which}: {row['calls']} calls were {row['reached']} at the provider.")
        if row["case"] not in _MISSES and 0 < row["reached"] < row["calls"]:
            lines.append(f"{which}: the provider saw {row['reached']} of {row['calls']} calls.")
    return lines


def _added(row: dict[str, Any], base: dict[str, Any], what: str) -> str:
    fields = (f"{what}_p50_ms", f"{what}_p95_ms")
    if row is base:
        return ", ".join(f"({row[name]:.2f})" for name in fields)
    return ", ".join(f"{row[name] - base[name]:+.2f}" for name in fields)


def _times(row: dict[str, Any]) -> str:
    return f"{row['total_p50_ms']:.2f}, {row['total_p95_ms']:.2f}"


def _cpu(row: dict[str, Any]) -> str:
    return f"{row['cpu_us']:.0f}" if row["cpu_us"] else ""

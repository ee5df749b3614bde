"""The tables of ``benchmarks.safe_hits``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.report.estimates import least_share
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headstart.lab.rates import PairReport


class Run(Frozen, frozen=True, kw_only=True):
    """One policy on one ordering of one stream."""

    stream: str
    ordering: int
    policy: str
    judge: str
    confidence: float
    target: float | None
    requests: int
    hits: int
    wrong: int
    audits: int
    cold_hits: int
    """Hits by the cold-start rule."""
    cold_wrong: int
    quarters: list[int]
    """Hits by quarter of the stream."""
    after_shift: dict[str, int] | None
    alarms: int

    @property
    def broken(self) -> bool:
        """Return whether the run broke its promise, beyond chance."""
        return self.target is not None and least_share(self.wrong, self.hits) > self.target

    @property
    def ratio(self) -> float | None:
        """The measured error, divided by the promised error."""
        if self.target is None:
            return None
        return self.wrong / self.hits / self.target if self.hits else 0.0


def _groups(runs: Sequence[Run]) -> Iterator[tuple[tuple[Any, ...], Sequence[Run]]]:
    def key(each: Run) -> tuple[Any, ...]:
        return each.stream, each.judge, each.policy, each.confidence

    for group in dict.fromkeys(map(key, runs)):
        yield group, [each for each in runs if key(each) == group]


def summary(runs: Sequence[Run], pairs: Mapping[str, PairReport]) -> dict[str, Any]:
    """Return the numbers: a row for each stream, judge and policy, summed over the orderings."""
    rows = []
    for (stream, judge, policy, confidence), group in _groups(runs):
        ratios = [each.ratio for each in group if each.ratio is not None]
        row: dict[str, Any] = {"stream": stream, "policy": policy}
        if ratios:
            row |= {"judge": judge, "confidence": confidence}
        row |= {
            "requests": _sum(group, "requests"),
            "hits": [each.hits for each in group],
            "wrong": [each.wrong for each in group],
        }
        if ratios:
            row |= {
                "audits": _sum(group, "audits"),
                "cold_start": [_sum(group, "cold_hits"), _sum(group, "cold_wrong")],
                "ratios": [round(ratio, 2) for ratio in ratios],
                "broken": sum(each.broken for each in group),
                "alarms": _sum(group, "alarms"),
                "quarters": [sum(each.quarters[place] for each in group) for place in range(4)],
            }
        if stream == "shift":
            row["after_shift"] = [each.after_shift for each in group]
        rows.append(row)
    return {
        "orderings": sorted({each.ordering for each in runs}),
        "streams": rows,
        "pairs": {
            policy: {
                name: [of.genuine_served, of.genuine, of.traps_served, of.traps]
                for name, of in report.categories.items()
            }
            for policy, report in pairs.items()
        },
    }


def print_table(runs: Sequence[Run]) -> None:
    """Print means over the orderings."""
    print(
        f"{'stream':8} {'judge':16} {'policy':15} conf  hit% saved%  wrong/hit%  wrong/request%"
        "  ratio: mean worst  broken alarms  hit% by quarter  cold start"
    )
    for (stream, judge, policy, confidence), group in _groups(runs):
        requests, hits, wrong, audits = (
            _sum(group, field) for field in ("requests", "hits", "wrong", "audits")
        )
        line = f"{stream:8} {judge:16} {policy:15} {confidence:4} {hits / requests:5.1%}"
        line += f" {(hits - audits) / requests:6.1%} {wrong / max(hits, 1):11.2%}"
        line += f" {wrong / requests:15.2%}"
        ratios = [each.ratio for each in group if each.ratio is not None]
        if ratios:
            quarters = [sum(each.quarters[place] for each in group) for place in range(4)]
            line += f" {sum(ratios) / len(ratios):12.2f} {max(ratios):5.2f}"
            line += (
                f" {sum(each.broken for each in group):5}/{len(group)} {_sum(group, 'alarms'):5}"
            )
            line += "  " + "".join(f"{4 * quarter / requests:5.0%}" for quarter in quarters)
            line += f"  {_sum(group, 'cold_wrong')}/{_sum(group, 'cold_hits')}"
        print(line)
    promised = [each for each in runs if each.target is not None]
    print(f"broken: {sum(each.broken for each in promised)} of {len(promised)} runs")


def print_shift(runs: Sequence[Run]) -> None:
    """Print the wrong hits after the traffic changed."""
    for each in runs:
        if each.after_shift is not None:
            print(
                f"shift, ordering {each.ordering}, {each.judge}, {each.policy}: next 1,000 requests"
                f" {each.after_shift['wrong']} wrong of {each.after_shift['hits']} hits,"
                f" {each.alarms} alarms"
            )


def print_pairs(pairs: Mapping[str, PairReport]) -> None:
    """Print the served pairs by category."""
    for policy, report in pairs.items():
        print(
            f"pairs {policy:15} genuine {report.genuine_served}/{report.genuine},"
            f" traps {report.traps_served}/{report.traps},"
            f" wrong per hit {report.wrong_per_hit or 0:.1%};"
            + "".join(
                f" {name} {of.genuine_served}/{of.genuine} {of.traps_served}/{of.traps}"
                for name, of in report.categories.items()
            )
        )


def _sum(runs: Sequence[Run], field: str) -> int:
    return sum(int(getattr(each, field)) for each in runs)

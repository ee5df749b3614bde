"""Scores of a run of ``benchmarks.safe_hits_http``: against the hidden truth, and summed."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.load import percentile
from headstart.lab.rates import percent
from headstart.report.estimates import wilson_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.decisions import Label

DECISION = (
    "outcome", "reason", "veto", "neighbor", "similarity", "rule", "score", "threshold",
)  # fmt: skip
"""The fields of ``explain`` with the decision and its reasons."""


class Asked(msgspec.Struct, omit_defaults=True):
    """One request of the run. ``wrong`` and what names the neighbour are of semantic hits alone."""

    n: int
    at_s: float
    id: str
    label: str
    status: int
    total_ms: float
    outcome: str
    """``semantic``, ``exact``, or the reason of a miss."""
    similarity: float | None = None
    veto: str | None = None
    timing_ms: dict[str, float] = {}
    """``Server-Timing``: encode, lookup, match ..."""
    entry: str | None = None
    rule: str | None = None
    score: float | None = None
    threshold: float | None = None
    wrong: bool | None = None


class Sample(msgspec.Struct):
    """The state of the sidecar after ``n`` requests."""

    n: int
    at_s: float
    rss_mb: float
    hits: int
    wrong: int
    compared: int
    """Labels written so far."""
    dropped: int
    """Failures of the stage "learner": comparisons lost to a full queue, above all."""
    learning: list[dict[str, Any]]
    certificates: list[dict[str, Any]]


def summarize(
    rows: Sequence[Asked], samples: Sequence[Sample], labels: Iterable[Label], truth: dict[str, str]
) -> dict[str, Any]:
    """Return the figures of a run; ``truth`` is the class of each entry and each request id."""
    hits = [row for row in rows if row.outcome == "semantic"]
    wrong = sum(row.wrong is True for row in hits)
    last = samples[-1]
    return {
        "requests": len(rows),
        "not_200": sum(row.status != 200 for row in rows),
        "semantic_hits": len(hits),
        "wrong_hits": wrong,
        "hit_rate": _share(len(hits), len(rows)),
        "wrong_per_hit": _share(wrong, len(hits)),
        "wrong_per_hit_95": wilson_interval(wrong, len(hits)),
        "wrong_per_request": _share(wrong, len(rows)),
        "wrong_per_request_95": wilson_interval(wrong, len(rows)),
        "by_rule": {
            name: {
                "hits": sum(row.rule == name for row in hits),
                "wrong": sum(row.rule == name and row.wrong is True for row in hits),
            }
            for name in sorted({row.rule or "unknown" for row in hits})
        },
        "quarters": [_quarter(rows, place) for place in range(4)],
        "outcomes": dict(Counter(row.outcome for row in rows).most_common()),
        "vetoes": dict(Counter(row.veto for row in rows if row.veto).most_common()),
        "labels": last.compared,
        "comparisons_dropped": last.dropped,
        "judge": _judge(labels, truth),
        "learning": last.learning,
        "certificates": last.certificates,
        "latency_ms": _latency(rows),
        "rss_mb": {
            "first": samples[0].rss_mb,
            "last": last.rss_mb,
            "most": max(sample.rss_mb for sample in samples),
        },
    }


def _quarter(rows: Sequence[Asked], place: int) -> dict[str, Any]:
    part = rows[len(rows) * place // 4 : len(rows) * (place + 1) // 4]
    hits = [row for row in part if row.outcome == "semantic"]
    wrong = sum(row.wrong is True for row in hits)
    return {"requests": len(part), "hits": len(hits), "wrong": wrong}


def _judge(labels: Iterable[Label], truth: dict[str, str]) -> dict[str, dict[str, int]]:
    """Count the judge's judgements by the truth: source -> truth/judgement -> count."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for label in labels:
        one, other = truth.get(label.id), truth.get(label.entry)
        if one is None or other is None:
            continue
        said = {True: "same", False: "different", None: "unsure"}[label.same]
        name = f"{'same' if one == other else 'different'} called {said}"
        found[label.source.value][name] += 1
    return {source: dict(sorted(counts.items())) for source, counts in sorted(found.items())}


def _latency(rows: Sequence[Asked]) -> dict[str, Any]:
    hits = [row for row in rows if row.outcome == "semantic"]
    misses = [row.total_ms for row in rows if row.outcome not in {"semantic", "exact"}]
    found: dict[str, Any] = {}
    if hits:
        encode = [row.timing_ms.get("encode", 0.0) for row in hits]
        found = {
            "semantic_hit_p50": percentile([row.total_ms for row in hits], 0.5),
            "semantic_hit_p99": percentile([row.total_ms for row in hits], 0.99),
            "encode_p50": percentile(encode, 0.5),
        }
    return found | ({"miss_p50": percentile(misses, 0.5)} if misses else {})


def compare_decisions(
    before: Sequence[tuple[Any, ...]], after: Sequence[tuple[Any, ...]]
) -> dict[str, Any]:
    """Compare the ``DECISION`` on each probe with that before."""
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    return {
        "probes": len(before),
        "probes_served": sum(each[0] == "semantic" for each in before),
        "outcomes_changed": sum(old[0] != new[0] for old, new in changed),
        "changed_in_any_field": len(changed),
        "first_changes": changed[:3],
    }


def time_apart(hits: Sequence[Asked], nothing: Sequence[float]) -> dict[str, float]:
    """Return medians of hits that were asked one at a time; ``nothing``: an empty exchange."""
    if not hits:
        return {}
    stages = {
        name: percentile([row.timing_ms.get(name, 0.0) for row in hits], 0.5)
        for name in ("parse", "encode", "lookup", "match")
    }
    rest = [row.total_ms - row.timing_ms.get("encode", 0.0) for row in hits]
    return {
        "hits": len(hits),
        "semantic_hit_p50": percentile([row.total_ms for row in hits], 0.5),
        "hit_less_encode_p50": percentile(rest, 0.5),
        "empty_exchange_p50": percentile(list(nothing), 0.5),
        **{f"{name}_p50": value for name, value in stages.items()},
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def text_table(found: dict[str, Any], max_error: float) -> str:
    """Return the figures that matter as lines of text."""
    low, high = found["wrong_per_hit_95"] or (0.0, 1.0)
    lines = [
        f"requests            {found['requests']:,} ({found['not_200']} not 200)",
        f"semantic hits       {found['semantic_hits']:,} ({percent(found['hit_rate'])})",
        f"wrong hits          {found['wrong_hits']:,}: {percent(found['wrong_per_hit'])} of hits",
        f"                    {low:.2%} to {high:.2%}, target {max_error:.2%}",
        f"                    {percent(found['wrong_per_request'])} of requests",
        f"by rule             {found['by_rule']}",
        f"quarters            {[tuple(quarter.values()) for quarter in found['quarters']]}",
        *(f"judge, {source:12} {counts}" for source, counts in found["judge"].items()),
        f"labels, dropped     {found['labels']:,}, {found['comparisons_dropped']:,}",
        f"latency ms          {found['latency_ms']}",
        f"memory MB           { {k: round(v) for k, v in found['rss_mb'].items()} }",
    ]
    lines += [
        f"certificate         {row['domain'][:8]} {row['week']}: {row['audits']} audits,"
        f" {row['wrong']} wrong, at most {row['bound_per_hit']:.2%} of hits,"
        f" more audits {row['more_audits']}"
        for row in found["certificates"]
    ]
    return "\n".join(lines)

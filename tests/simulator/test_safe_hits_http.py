"""The benchmark that holds a sidecar to its error promise: a small run, and its scores."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.safe_hits_page import page
from benchmarks.safe_hits_scores import (
    Asked,
    Sample,
    compare_decisions,
    summarize,
    text_table,
    time_apart,
)
from support.labels import label
from support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def _asked(n: int, outcome: str, *, wrong: bool | None = None) -> Asked:
    return Asked(
        n=n,
        at_s=float(n),
        id=f"r{n}",
        label="a",
        status=200,
        total_ms=10.0 + n,
        outcome=outcome,
        timing_ms={"encode": 4.0},
        rule=None if wrong is None else "learned",
        wrong=wrong,
    )


def _sample(n: int) -> Sample:
    row = {"domain": "d", "week": "w", "audits": 3, "wrong": 0, "bound_per_hit": 0.5}
    return Sample(
        n=n,
        at_s=1.0,
        rss_mb=100.0 + n,
        hits=2,
        wrong=1,
        compared=5,
        dropped=0,
        learning=[],
        certificates=[row | {"more_audits": 200}],
    )


ROWS = [
    *(_asked(n, "below-threshold") for n in range(60)),
    *(_asked(n, "semantic", wrong=n == 63) for n in range(60, 64)),
]


def test_hits_are_scored_and_the_judge_is_held_to_the_truth() -> None:
    labels = [
        label("r1", entry="r2", same=True),
        label("r1", entry="r3", same=True),
        label("r1", entry="r2", same=None),
        label("r1", entry="gone", same=False),
    ]
    truth = {"r1": "a", "r2": "a", "r3": "b"}
    found = summarize(ROWS, [_sample(0), _sample(64)], labels, truth)
    assert (found["semantic_hits"], found["wrong_hits"]) == (4, 1)
    assert found["wrong_per_hit"] == 0.25
    assert found["wrong_per_request"] == 1 / 64
    assert found["by_rule"] == {"learned": {"hits": 4, "wrong": 1}}
    assert found["quarters"][3] == {"requests": 16, "hits": 4, "wrong": 1}
    assert found["judge"]["miss"] == {
        "different called same": 1,
        "same called same": 1,
        "same called unsure": 1,
    }
    assert found["rss_mb"] == {"first": 100.0, "last": 164.0, "most": 164.0}


def test_the_page_stands_alone_and_tells_the_figures() -> None:
    samples = [_sample(0), _sample(64)]
    found = summarize(ROWS, samples, [], {})
    drawn = page("A run", found, ROWS, samples, 0.02)
    assert "<script" not in drawn
    assert "25.00% of hits" in drawn
    assert "3 audits, 0 wrong, at most 50.00% of hits, more audits 200" in text_table(found, 0.02)


def test_a_changed_decision_is_counted() -> None:
    before = [("semantic", 0.9), ("miss", 0.5), ("miss", 0.4)]
    after = [("miss", 0.9), ("miss", 0.6), ("miss", 0.4)]
    found = compare_decisions(before, after)
    assert (found["outcomes_changed"], found["changed_in_any_field"]) == (1, 2)


def test_hits_are_timed_less_their_encoding() -> None:
    found = time_apart(ROWS[-3:], [1.0, 2.0, 3.0])
    assert found["hit_less_encode_p50"] == 10.0 + 62 - 4.0
    assert found["empty_exchange_p50"] == 2.0
    assert time_apart([], []) == {}


@pytest.mark.slow
def test_a_small_run_writes_its_artefacts_and_no_prompt(tmp_path: Path) -> None:
    stream = tmp_path / "stream.jsonl"
    asked = [f"How do I {verb} my account?" for verb in ("open", "close", "rename", "share")]
    asked += [f"{each} Thanks!" for each in asked]
    lines = [{"prompt": text, "class": f"account/{n % 4}"} for n, text in enumerate(asked)]
    stream.write_text("\n".join(map(json.dumps, lines)))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "benchmarks.safe_hits_http", stream, out, "--json"]
    done = subprocess.run(
        [*map(str, command), "--kill-after", "6"], cwd=ROOT, check=True, capture_output=True
    )
    found = json.loads(done.stdout)
    assert (found["requests"], found["not_200"]) == (8, 0)
    assert found["killed"]["state_equal"]
    assert found["killed"]["changed_in_any_field"] == 0
    written = sorted(path.name for path in out.iterdir())
    assert written == [
        "page.html", "requests.jsonl", "samples.jsonl", "settings.json", "summary.json",
    ]  # fmt: skip
    assert not any("account?" in path.read_text() for path in out.iterdir())

"""What hits saved: the comparison with recent calls, its intervals, and the holdout beside it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from headstart.attempts import AttemptRole
from headstart.decisions import Outcome
from headstart.report.sections import sections
from headstart.usual_calls import MOST_KINDS, UsualCalls, kind_of
from support.booked import attempt, estimate_of, hit, line_of, report_on, served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.observe import Served
    from headstart.report.values import Report


def draws(number: int, mean: float = 2.0, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(mean, 0.2) for _ in range(number)]


def calls(number: int = 40, mean: float = 2.0, **changes: Any) -> list[Served]:
    """Calls over some hours."""
    return [
        served(total_s=each, at=1000.0 + 300.0 * n, **changes)
        for n, each in enumerate(draws(number, mean))
    ]


def held_out(number: int, mean: float = 2.0, **changes: Any) -> list[Served]:
    return [
        served(holdout=True, reason="holdout", total_s=each, at=1000.0 + 400.0 * n, **changes)
        for n, each in enumerate(draws(number, mean, seed=2))
    ]


def notes_of(report: Report) -> str:
    return " ".join(each.note for each in sections(report))


def spread(rows: Sequence[Served]) -> list[Served]:
    """Give rows entries of their own, and times over some hours."""
    return [replace(row, entry=f"e{n}", at=1000.0 + 100.0 * n) for n, row in enumerate(rows)]


def test_one_slow_original_is_not_multiplied_by_the_hits_on_its_answer() -> None:
    popular = [hit(original_s=20.0) for _ in range(71)]
    savings = report_on(*calls(), *popular).overall.savings
    assert savings.total_s == pytest.approx(71 * (2.0 - 0.01), rel=0.05)


def test_an_outlier_among_the_calls_counts_in_part_and_is_told() -> None:
    report = report_on(*calls(60), served(total_s=300.0), *[hit()] * 100)
    savings = report.overall.savings
    assert savings.total_s == pytest.approx(100 * 1.99, rel=0.05)
    assert savings.outlier_calls == 1
    assert savings.outliers_s == pytest.approx(100 * 298.0 / 61, rel=0.05)
    assert "only a part of their time counts: 1;" in notes_of(report)


def test_times_of_many_calls_are_not_outliers() -> None:
    slow = [served(total_s=30.0, at=1000.0 + 300.0 * n) for n in range(4)]
    savings = report_on(*calls(36), *slow, *[hit()] * 100).overall.savings
    assert savings.outliers_s == 0.0
    assert savings.total_s == pytest.approx(100 * (0.9 * 2.0 + 0.1 * 30.0), rel=0.05)


def test_hits_are_compared_with_calls_in_their_own_streaming_mode() -> None:
    whole = {"stream": False, "ttft_s": 2.0}
    rows = [*calls(20, **whole), *calls(20)]
    streaming = report_on(*rows, hit(saved_ttft_s=None)).overall.savings
    assert streaming.ttft_s == pytest.approx(0.5 - 0.01)
    assert streaming.uncompared_hits == 0
    waiting = report_on(*rows, hit(stream=False, saved_ttft_s=0.5)).overall.savings
    assert waiting.ttft_s == pytest.approx(2.0 - 0.01, rel=0.05)


def test_without_a_streamed_call_the_first_token_of_a_streamed_hit_is_unknown() -> None:
    report = report_on(*calls(20, stream=False, ttft_s=2.0), hit(saved_ttft_s=None))
    savings = report.overall.savings
    assert savings.total_s == pytest.approx(1.99, rel=0.05), "a whole answer takes as long"
    assert (savings.ttft_s, savings.uncompared_hits) == (0.0, 1)
    assert "no call to be compared with: 1." in notes_of(report)


def test_hits_follow_a_provider_that_becomes_faster() -> None:
    rows: list[Served] = []
    for n in range(400):
        now_s = 4.0 - 3.0 * n / 400
        at = 1000.0 + 60.0 * n
        rows.append(served(total_s=now_s, at=at) if n % 4 else hit(original_s=4.0, at=at))
    truth = sum(4.0 - 3.0 * n / 400 - 0.01 for n in range(0, 400, 4))
    assert report_on(*rows).overall.savings.total_s == pytest.approx(truth, rel=0.03)


def test_long_answers_save_more_time_than_short_ones() -> None:
    rows = [
        served(total_s=0.5 + n / 100, completion_tokens=n, at=1000.0 + 60.0 * n)
        for n in range(10, 110)
    ]
    long, short = (hit(completion_tokens=n, at=5000.0, endpoint=rows[0].endpoint) for n in (300, 0))
    assert report_on(*rows, long).overall.savings.total_s == pytest.approx(3.5 - 0.01, rel=0.02)
    assert report_on(*rows, short).overall.savings.total_s == pytest.approx(0.5 - 0.01, rel=0.05)


def test_groups_add_up_to_the_whole() -> None:
    rows = [*calls(30, caller="a"), *[hit(caller="a")] * 3, *[hit(caller="b", total_s=0.5)] * 2]
    report = report_on(*rows)
    parts = [group.savings.total_s for group in report.callers]
    assert sum(parts) == pytest.approx(report.overall.savings.total_s)


def test_hits_without_any_call_are_compared_with_what_their_answers_took() -> None:
    report = report_on(*spread([hit(original_s=each) for each in (1.9, 2.0, 2.1, 2.2, 90.0)]))
    assert report.overall.savings.total_s == pytest.approx(5 * 2.2, rel=0.05)
    assert estimate_of(report, "total_s").by_calls is not None


def test_hits_slower_than_calls_are_a_loss() -> None:
    fast = calls(40, mean=2.0)
    report = report_on(*fast, *held_out(40, overhead_s=0.0), *[hit(total_s=5.0)] * 50)
    for estimate in (
        report.overall.savings.total_s,
        _value(estimate_of(report, "total_s").by_holdout),
    ):
        assert estimate == pytest.approx(50 * -3.0, rel=0.05)


def _value(interval: Any) -> float:
    assert interval is not None
    value: float = interval.value
    return value


# --- tokens and money -----------------------------------------------------------------------------


def test_audits_and_judges_cost_tokens_and_money() -> None:
    audit = served(Outcome.AUDIT, prompt_tokens=30, completion_tokens=40, cost_usd=0.003)
    judge = served(Outcome.AUDIT, reason="judge", prompt_tokens=9, completion_tokens=1)
    report = report_on(hit(), audit, judge)
    assert report.overall.savings.tokens == 100 - 70 - 10
    assert line_of(report, "audits").tokens == -80
    assert line_of(report, "audits").usd == -0.003


def test_an_audit_costs_the_tokens_of_all_its_calls() -> None:
    won = attempt(role=AttemptRole.RACE, prompt_tokens=10, completion_tokens=20)
    audit = served(Outcome.AUDIT, prompt_tokens=10, completion_tokens=20, attempts=(won, won))
    assert report_on(hit(), audit).overall.savings.tokens == 100 - 60


def test_the_cost_of_audits_shows_where_no_hit_has_a_price() -> None:
    audit = served(Outcome.AUDIT, cost_usd=0.003)
    assert report_on(hit(saved_usd=None), audit).overall.savings.usd == pytest.approx(-0.003)


def test_prices_of_some_hits_say_nothing_of_the_others() -> None:
    priced = [hit(model="priced") for _ in range(15)]
    rows = [*priced, *[hit(saved_usd=None)] * 140, *held_out(30, model="priced", cost_usd=0.02)]
    usd = estimate_of(report_on(*rows, *held_out(30)), "usd")
    assert _value(usd.by_calls) == pytest.approx(0.3)
    assert _value(usd.by_holdout) == pytest.approx(0.3)


def test_a_prompt_that_was_asked_a_moment_ago_would_have_been_read_from_the_prefix_cache() -> None:
    prompt = {"prompt_tokens": 20_000, "saved_usd": 0.05, "saved_prefix_usd": 0.045}
    rows = [hit(at=1000.0 + each, **prompt) for each in (0.0, 60.0, 3600.0)]
    report = report_on(*rows)
    savings = report.overall.savings
    assert savings.usd == pytest.approx(0.05 + 0.005 + 0.05)
    assert savings.usd_cold == pytest.approx(0.15)
    assert savings.usd_prefix_cached == pytest.approx(0.015)
    assert "$0.0150 if the provider's prefix cache had held" in notes_of(report)
    assert report.overall.costs.would_have_usd == pytest.approx(savings.usd)


def test_short_prompts_are_never_prefix_cached() -> None:
    prompt = {"prompt_tokens": 900, "saved_usd": 0.05, "saved_prefix_usd": 0.045}
    assert report_on(*[hit(**prompt)] * 3).overall.savings.usd == pytest.approx(0.15)


def test_repeats_tell_whether_the_provider_caches_prompts() -> None:
    prompt = {"prompt_tokens": 20_000, "saved_usd": 0.05, "saved_prefix_usd": 0.045}
    hits = [hit(at=1000.0 + 10 * n, **prompt) for n in range(20)]
    uncached = attempt(prompt_tokens=20_000, cached_tokens=0)
    repeats = [
        served(
            holdout=True, entry="e", at=1005.0 + 10 * n, prompt_tokens=20_000, attempts=(uncached,)
        )
        for n in range(12)
    ]
    assert report_on(*hits, *repeats).overall.savings.usd == pytest.approx(20 * 0.05)


def test_a_prompt_that_only_hits_asked_is_cold_at_the_provider_and_would_not_have_been() -> None:
    prompt = {"prompt_tokens": 20_000, "saved_usd": 0.05, "saved_prefix_usd": 0.045}
    cold = attempt(prompt_tokens=20_000, cost_usd=0.05, prefix_usd=0.045)
    rows = []
    for n in range(40):
        at = 1000.0 + 600.0 * n
        rows += [hit(at=at + each, **prompt) for each in (0.0, 10.0, 20.0)]
        rows.append(
            served(
                holdout=True, entry="e", at=at + 30.0, prompt_tokens=20_000, attempts=(cold,),
                cost_usd=0.05,
            )
        )  # fmt: skip
    report = report_on(*rows)
    # One hit of three would have been the first to ask for some time.
    truth = 40 * (0.05 + 2 * 0.005)
    assert report.overall.savings.usd == pytest.approx(truth)
    by_holdout = estimate_of(report, "usd").by_holdout
    assert _value(by_holdout) == pytest.approx(120 * 0.005), "each of them came after a hit"


# --- what is counted apart ------------------------------------------------------------------------


def test_joined_requests_are_a_line_of_their_own() -> None:
    joined = served(
        Outcome.JOINED, total_s=0.6, ttft_s=0.1, overhead_s=0.1, saved_tokens=80, saved_usd=0.01
    )
    report = report_on(*[served()] * 10, joined, joined)
    line = line_of(report, "joined requests")
    assert (line.requests, line.tokens, line.usd) == (2, 160, 0.02)
    assert line.total_s == pytest.approx(2 * 1.4)
    savings = report.overall.savings
    assert savings.total_s == pytest.approx(2 * 1.4), "their lookup is part of their own time"
    assert savings.overhead_s == 0.0


def test_a_cache_that_is_off_saves_and_costs_nothing() -> None:
    bypassed = served(Outcome.BYPASS, reason="disabled", overhead_s=0.01)
    savings = report_on(*[bypassed] * 20).overall.savings
    assert (savings.total_s, savings.ttft_s, savings.lines) == (0.0, 0.0, ())


def test_the_upload_of_a_body_is_nobodys_saving() -> None:
    slow: dict[str, Any] = {"read_s": 2.0, "total_s": 4.0, "ttft_s": 2.5}
    uploaded = hit(total_s=2.01, ttft_s=2.01, read_s=2.0, saved_total_s=1.99)
    savings = report_on(*[served(**slow)] * 10, uploaded).overall.savings
    assert savings.total_s == pytest.approx(1.99)
    assert savings.ttft_s == pytest.approx(0.49)


# --- the estimates --------------------------------------------------------------------------------


def test_both_estimates_are_net_of_the_same_costs() -> None:
    rows = [
        *calls(40, overhead_s=0.0),
        *spread([hit()] * 100),
        *held_out(40, prompt_tokens=60, completion_tokens=40, cost_usd=0.02),
        *[served(error="broken", status=502, overhead_s=1.0)] * 3,
        served(Outcome.AUDIT, completion_tokens=70, cost_usd=0.5),
    ]
    report = report_on(*rows)
    for measure, truth in (
        ("total_s", 100 * 1.99 - 3.0),
        ("ttft_s", 100 * 0.49 - 3.0),
        ("tokens", 100 * 100 - 70),
        ("usd", 100 * 0.02 - 0.5),
    ):
        estimate = estimate_of(report, measure)
        assert _value(estimate.by_calls) == pytest.approx(truth, rel=0.05)
        assert _value(estimate.by_holdout) == pytest.approx(truth, rel=0.05)
        assert not estimate.disagree


def test_the_holdout_leaves_out_the_lookup_that_no_cache_would_need() -> None:
    slow_lookups = held_out(40, mean=3.0, overhead_s=1.0, ttft_s=1.5)
    report = report_on(*calls(40), *spread([hit()] * 50), *slow_lookups)
    holdout = estimate_of(report, "total_s").by_holdout
    lookups_s = 40 * 1.0
    assert _value(holdout) == pytest.approx(50 * 1.99 - lookups_s, abs=5.0)
    assert not estimate_of(report, "total_s").disagree


@pytest.mark.parametrize("measure", ["total_s", "ttft_s", "usd"])
def test_the_estimates_disagree_in_each_measure(measure: str) -> None:
    changes: dict[str, Any] = {"cost_usd": 0.02, "mean": 2.0, "ttft_s": 0.5}
    changes |= {"total_s": {"mean": 1.0}, "ttft_s": {"ttft_s": 0.1}, "usd": {"cost_usd": 0.005}}[
        measure
    ]
    rows = [*calls(40), *spread([hit()] * 50)]
    report = report_on(*rows, *held_out(40, **changes))
    assert report.estimates is not None
    apart = [each.measure for each in report.estimates.estimates if each.disagree]
    # A held-out request is also one of the calls.
    assert measure in apart
    assert "trust the one by holdout" in notes_of(report)


def test_an_outlier_does_not_hide_that_the_estimates_disagree() -> None:
    rows = [*calls(40, mean=6.0), *spread([hit()] * 50), *held_out(30), served(total_s=900.0)]
    assert estimate_of(report_on(*rows), "total_s").disagree


def test_few_held_out_requests_give_no_verdict() -> None:
    report = report_on(*calls(40), *spread([hit()] * 50), *held_out(3))
    assert estimate_of(report, "total_s").disagree is None
    assert estimate_of(report, "total_s").by_holdout is None
    assert "too few held-out requests" in notes_of(report)


def test_few_calls_or_entries_give_no_interval() -> None:
    report = report_on(*calls(6), *[hit()] * 500)
    for measure in ("total_s", "usd"):
        interval = estimate_of(report, measure).by_calls
        assert interval is not None
        assert interval.low is None


def test_the_busiest_entry_is_named() -> None:
    report = report_on(*calls(30), *spread([hit()] * 10), *[hit(entry="busy")] * 10)
    assert report.estimates is not None
    assert (report.estimates.hits, report.estimates.entries) == (20, 11)
    assert "compared with recent calls of the same kind. Entry busy answered 50.0 % of them" in (
        notes_of(report)
    )


def test_hits_on_one_entry_are_not_independent() -> None:
    rows = calls(200)
    many = report_on(*rows, *spread([hit()] * 200))
    few = report_on(*rows, *[hit(entry=f"e{n % 4}") for n in range(200)])
    widths = []
    for report in (many, few):
        interval = estimate_of(report, "total_s").by_calls
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        widths.append(interval.high - interval.low)
    assert widths[1] > 2 * widths[0]


def test_failed_held_out_requests_measure_nothing() -> None:
    failed = served(holdout=True, status=502, error="UpstreamUnreachable")
    report = report_on(hit(), failed)
    assert report.estimates is not None
    assert report.estimates.held_out == 0


def test_the_live_page_holds_a_bounded_number_of_kinds_and_calls() -> None:
    usual = UsualCalls(most=20)
    for n in range(2 * MOST_KINDS):
        for row in (served(model=f"m{n}"), hit(model=f"h{n}", entry=f"e{n}")):
            usual.add(row)
    for n in range(100):
        usual.add(served(model="m0", total_s=1.0 if n < 80 else 3.0))
        usual.add(hit(model="h0", entry=f"x{n}", original_s=1.0 + n))
    known = [usual.times_of(kind_of(served(model=f"m{n}"))) for n in range(2 * MOST_KINDS)]
    assert sum(each is not None for each in known) == MOST_KINDS
    newest = usual.times_of(kind_of(served(model="m0")))
    assert newest is not None
    assert (newest.calls, newest.expected_s(0, 0)) == (20, 3.0)
    originals = usual.times_of(kind_of(hit(model="h0")))
    assert originals is not None
    assert originals.calls == 20

from __future__ import annotations

import pytest

from headstart.compression.logs import collapse_log, is_log

BEAT = [f"2026-03-01 10:00:{n:02d} INFO worker-{n % 3} heartbeat {n}" for n in range(30)]


def test_repeated_forms_are_left_out_and_counted() -> None:
    assert collapse_log("\n".join(BEAT), "") == f"{BEAT[0]}\n[… 29 lines omitted …]"


@pytest.mark.parametrize(
    "problems",
    [
        "2026-03-01 10:00:09 ERROR worker-1 gone",
        "2026-03-01 10:00:09 INFO connection to 10.0.0.1 refused",
        "2026-03-01 10:00:09 WARN queue 7 is long",
        "[Sun Dec 04 04:47:44 2005] [error] mod_jk child in state 6",
    ],
)
def test_every_line_of_trouble_is_kept(problems: str) -> None:
    lines = [*BEAT[:9], problems, *BEAT[9:20], problems, *BEAT[20:]]
    collapsed = collapse_log("\n".join(lines), "").split("\n")
    assert collapsed.count(problems) == 2


def test_what_is_indented_under_trouble_is_kept_with_it() -> None:
    trace = ["2026-03-01 10:00:09 ERROR boom 1", "    at f (a.js:1)", "    at f (a.js:2)"]
    collapsed = collapse_log("\n".join([*BEAT, *trace, *BEAT, *trace, *BEAT]), "")
    assert collapsed.count("\n".join(trace)) == 2


def test_lines_with_an_id_that_is_asked_about_are_kept() -> None:
    collapsed = collapse_log("\n".join(BEAT), "What did worker-2 do?").split("\n")
    assert [line for line in BEAT if "worker-2" in line] == [
        x for x in collapsed if "worker-2" in x
    ]


def test_a_single_line_is_not_worth_a_mark() -> None:
    lines = [BEAT[0], "2026-03-01 10:00:01 DEBUG a", BEAT[1], "2026-03-01 10:00:01 DEBUG b"]
    assert collapse_log("\n".join(lines), "") == "\n".join(lines)


def test_a_log_is_told_by_times_or_levels() -> None:
    assert is_log("\n".join(BEAT))
    assert not is_log("\n".join(BEAT[:9]))
    assert not is_log("\n".join(["A line of prose."] * 30))


@pytest.mark.parametrize(
    "form",
    [
        "2026-11-21 16:{m:02}:{s:02},{n:03}:{level}:checkout:payment {n} taken",
        "2026-11-21 16:{m:02}:{s:02}.{n:04}|{level}|Shop.Orders|Order {n} changed",
        "16:{m:02}:{s:02}:{level}:event {n}",
        "2026-11-21T16:{m:02}:{s:02}Z/{level}/mod event {n}",
    ],
)
def test_levels_are_seen_within_what_holds_digits(form: str) -> None:
    lines = [
        form.format(m=n // 60, s=n % 60, n=n, level="INFO" if n % 40 else "ERROR")
        for n in range(240)
    ]
    collapsed = collapse_log("\n".join(lines), "").split("\n")
    assert [line for line in collapsed if "ERROR" in line] == lines[::40]
    assert len(collapsed) < 20


def test_a_value_unlike_that_of_nearly_all_lines_is_kept() -> None:
    lines = [
        f"10:00:{n % 60:02d} ping {n}, replicas {2 if n in (50, 90) else 3}" for n in range(99)
    ]
    collapsed = collapse_log("\n".join(lines), "").split("\n")
    assert [line for line in collapsed if "omitted" not in line] == [lines[0], lines[50], lines[90]]


def test_all_lines_of_a_rare_form_are_kept() -> None:
    alarm = "2026-03-01 10:00:09 INFO ALARM in hall 7"
    lines = [*BEAT, alarm, *BEAT, alarm, *BEAT, alarm, *BEAT]
    assert collapse_log("\n".join(lines), "").split("\n").count(alarm) == 3

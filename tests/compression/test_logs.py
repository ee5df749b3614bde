from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from headstart.compression.compress import compress
from headstart.compression.logs import collapse_log, is_log

BEAT = [f"2026-03-01 10:00:{n:02d} INFO worker-{n % 3} heartbeat {n}" for n in range(30)]


def test_repeated_forms_are_left_out_and_counted() -> None:
    lines = [f"2026-03-01 10:00:{n:02d} INFO heartbeat {n}" for n in range(30)]
    assert collapse_log("\n".join(lines), "").split("\n") == [
        lines[0],
        lines[1],
        "[… 27 lines omitted …]",
        lines[29],
        "[… 30 lines like: 2026-03-01 10:00:00 to 2026-03-01 10:00:29 INFO heartbeat 0..29 …]",
    ]


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


def test_lines_indented_below_trouble_are_kept() -> None:
    trace = ["2026-03-01 10:00:09 ERROR boom 1", "    at f (a.js:1)", "    at f (a.js:2)"]
    collapsed = collapse_log("\n".join([*BEAT, *trace, *BEAT, *trace, *BEAT]), "")
    assert collapsed.count("\n".join(trace)) == 2


def test_lines_with_an_id_that_is_asked_about_are_kept() -> None:
    collapsed = collapse_log("\n".join(BEAT), "What did worker-2 do?").split("\n")
    assert [line for line in BEAT if "worker-2" in line] == [
        x for x in collapsed if "worker-2" in x and "lines like" not in x
    ]


def test_the_lines_around_a_line_that_the_question_names_are_kept() -> None:
    lines = [f"10:{n // 60:02}:{n % 60:02} INFO order {7 * n + 1000} taken" for n in range(300)]
    collapsed = collapse_log("\n".join(lines), "What came directly after order 2050?").split("\n")
    assert set(lines[147:153]) <= set(collapsed)
    assert len(collapsed) < 30


def test_letters_whose_lower_case_is_longer_move_no_line() -> None:
    """In Turkish a capital may become two characters."""
    lines = [
        f"10:{n // 60:02}:{n % 60:02} INFO İİİİİİ order {7 * n + 1000} taken" for n in range(300)
    ]
    collapsed = collapse_log("\n".join(lines), "What came directly after order 2050?").split("\n")
    assert set(lines[147:153]) <= set(collapsed)


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
    assert len(collapsed) < 40


def test_a_value_unlike_that_of_nearly_all_lines_is_kept() -> None:
    lines = [
        f"10:00:{n % 60:02d} ping {n}, replicas {2 if n in (50, 90) else 3}" for n in range(99)
    ]
    collapsed = collapse_log("\n".join(lines), "").split("\n")
    assert {lines[0], lines[50], lines[90], lines[98]} <= set(collapsed)
    assert len(collapsed) < 14


def test_all_lines_of_a_rare_form_are_kept() -> None:
    alarm = "2026-03-01 10:00:09 INFO ALARM in hall 7"
    lines = [*BEAT, alarm, *BEAT, alarm, *BEAT, alarm, *BEAT]
    assert collapse_log("\n".join(lines), "").split("\n").count(alarm) == 3


def _requests(count: int = 300) -> list[str]:
    return [
        f"2025-12-12T10:{n // 60:02}:{n % 60:02}Z INFO GET /api/{n} took {20 + n % 40}ms"
        for n in range(count)
    ]


def _collapsed(lines: list[str], words: str = "") -> list[str]:
    out = collapse_log("\n".join(lines), words).split("\n")
    assert len(out) < len(lines) / 4
    return out


def test_the_extremes_of_each_value_are_kept() -> None:
    lines = _requests()
    lines[211] = lines[211].replace(" took 31ms", " took 29874ms")
    lines[97] = lines[97].replace(" took 37ms", " took 1ms")
    assert {lines[211], lines[97]} <= set(_collapsed(lines, "Why is it slow?"))


def test_the_first_and_last_lines_of_the_log_and_of_each_name_are_kept() -> None:
    lines = _requests()
    logins = {n: lines[n].replace("GET /api", "login of alice") for n in (40, 80, 120, 160)}
    for number, line in logins.items():
        lines[number] = line
    assert {lines[0], lines[40], lines[160], lines[-1]} <= set(_collapsed(lines))


def test_the_lines_around_trouble_are_kept_and_those_that_share_its_id() -> None:
    lines = _requests()
    lines[100] = "2025-12-12T10:01:40Z INFO job j-8841 taken by w1"
    lines[200] = "2025-12-12T10:03:20Z ERROR job j-8841 crashed"
    assert {lines[100], *lines[197:203]} <= set(_collapsed(lines))


def test_a_usual_line_that_shares_the_id_of_trouble_is_kept() -> None:
    lines = [f"{line} order={40_000 + n}" for n, line in enumerate(_requests())]
    assert lines[111] not in _collapsed(lines)
    lines[200] = "2025-12-12T10:03:20Z ERROR order 40111 was lost"
    assert lines[111] in _collapsed(lines)


def test_both_sides_of_the_longest_pause_are_kept() -> None:
    lines = _requests()
    lines[150:200] = []
    assert {lines[149], lines[150]} <= set(_collapsed(lines))


DATED = {
    "ISO": "{:%Y-%m-%dT%H:%M:%S}Z INFO beat {}",
    "syslog": "{:%b %d %H:%M:%S} host app[71]: beat {}",
    "glog": "I{:%m%d %H:%M:%S}.123456 71 beat.cc:12] beat {}",
    "access log": '10.0.0.1 - - [{:%d/%b/%Y:%H:%M:%S} +0000] "GET /beat HTTP/1.1" 200 {}',
    "unknown": "{:%d.%m.%Y %H:%M:%S} INFO app: beat {}",
}


@pytest.mark.parametrize("form", DATED.values(), ids=DATED)
@pytest.mark.parametrize("missing", [1, 3])
def test_both_sides_of_a_pause_of_whole_days_are_kept(form: str, missing: int) -> None:
    begin = datetime(2025, 2, 27, 22, tzinfo=UTC)
    lines = [
        form.format(begin + timedelta(days=missing * (n > 150), minutes=n), 10 + n % 40)
        for n in range(300)
    ]
    assert {lines[150], lines[151]} <= set(_collapsed(lines))


@pytest.mark.parametrize("step", [1, 3, 7])
@pytest.mark.parametrize("forms", [("{0:%Y-%m-%d %H:%M:%S}",), tuple(DATED.values())])
def test_lines_without_a_date_or_with_another_form_hide_no_pause(
    forms: tuple[str, ...], step: int
) -> None:
    begin = datetime(2025, 11, 30, 22, tzinfo=UTC)
    times = [begin + timedelta(minutes=n + 50 * (n > 100)) for n in range(300)]
    pieces = [
        "{:%H:%M:%S}" if len(forms) == 1 and n else forms[n // step % len(forms)]
        for n in range(300)
    ]
    lines = [
        f"{piece.format(at, 7)} INFO beat {10 + n % 40}"
        for n, (piece, at) in enumerate(zip(pieces, times, strict=True))
    ]
    assert {lines[100], lines[101]} <= set(_collapsed(lines))


def test_a_night_without_its_report_shows() -> None:
    begin = datetime(2025, 12, 1, 2, tzinfo=UTC)
    lines = [
        f"{begin + timedelta(days=night + (night > 40)):%Y-%m-%d %H:%M:%S},001 INFO backed up 9"
        for night in range(90)
    ]
    assert {lines[40], lines[41]} <= set(collapse_log("\n".join(lines), "").split("\n"))


def test_a_pause_in_what_comes_regularly_is_kept_between_other_lines() -> None:
    lines = _requests(600)
    for number in range(0, 600, 10):
        if not 300 < number < 400:
            lines[number] = lines[number].split(" INFO")[0] + f" INFO beat {number}"
    assert {lines[300], lines[400]} <= set(_collapsed(lines))


def test_a_value_that_comes_twice_among_single_ones_is_kept() -> None:
    lines = [f"{line} order={40_000 + n}" for n, line in enumerate(_requests())]
    lines[222] = lines[222].replace("order=40222", "order=40111")
    assert {lines[111], lines[222]} <= set(_collapsed(lines))


def test_a_break_in_a_count_is_kept() -> None:
    lines = [f"{line} seq={n + (n > 170)}" for n, line in enumerate(_requests())]
    assert {lines[170], lines[171]} <= set(_collapsed(lines))


@pytest.mark.parametrize("words", ["Name the top 5 problems", "Was there trouble in 2025?"])
def test_a_short_number_or_one_that_all_lines_hold_is_no_id(words: str) -> None:
    _collapsed(_requests(), words)


def test_a_short_number_counts_with_the_word_before_it() -> None:
    lines = [f"{line} shop={n % 60}" for n, line in enumerate(_requests())]
    assert set(lines[7::60]) <= set(_collapsed(lines, "What did shop 7 sell?"))


def test_a_form_is_described_by_its_ranges_and_values() -> None:
    lines = [f"{line} from 10.0.0.{n % 3}" for n, line in enumerate(_requests())]
    assert _collapsed(lines)[-1] == (
        "[… 300 lines like: 2025-12-12T10:00:00Z to 2025-12-12T10:04:59Z INFO GET /api/0..299 took "
        "20ms..59ms from 10.0.0.0|10.0.0.1|10.0.0.2 …]"
    )


@pytest.mark.parametrize(
    "line",
    [
        "17/06/09 20:10:{n:02} INFO storage.BlockManager: block {n} stored",
        "nova-api.log.1.2017-05-16_13:53:08 2017-05-16 00:00:{n:02}.008 25746 INFO req {n}",
        '10.0.0.{n} - - [12/Dec/2025:10:00:{n:02} +0000] "GET / HTTP/1.1" 200 {n}',
        "web-1     | request {n} served",
        "[pod/web-1/app] 2025-12-12T10:00:{n:02}Z request {n} served",
        "[task 2025-12-12T10:00:{n:02}.070Z] step {n} is done",
        "I, [2025-12-12T10:00:{n:02}.000001 #77]  INFO -- : request {n} served",
        "time=2025-12-12T10:00:{n:02}Z level=info msg=served n={n}",
        "level=info ts=1765533600.{n} msg=served",
        "[ 1234.0000{n:02}] usb 1-1: new device {n}",
        "I1212 10:00:{n:02}.000001 42 server.go:88] request {n} served",
        "<134>1 2025-12-12T10:00:{n:02}Z web01 app 77 - - request {n} served",
        "20171223-22:15:{n:02}:606|Step_LSC|30002312|onStandStepChanged {n}",
        "20251212T1000{n:02}Z request {n} served",
        "[10.30 16:49:{n:02}] browser.exe - proxy.example:5070 open through {n}",
        "12-12 10:00:{n:02}.123  1234  1234 I Tag: request {n} served",
        "12/12/2025 10:00:{n:02} [web] request {n} served",
        "12.12.2025 10:00:{n:02} web-1: request {n} served",
        "build\tRun all tests\t2025-12-12T10:00:{n:02}.0000000Z request {n} served",
    ],
)
def test_logs_of_many_programs_are_told(line: str) -> None:
    assert is_log("\n".join(line.format(n=n) for n in range(40)))


@pytest.mark.parametrize(
    "line",
    [
        "2025-12-12,{n},{n}.5",
        "20171223 {n:04} {n} 7",
        "100000{n:02} 12:3{n}",
        "2025-12-12 10:00:{n:02};{n};open",
        "-rw-r--r-- 1 root root {n} 2025-12-12 10:00:{n:02}.000 +0000 notes",
        "| {n} | 2025-12-12 10:00:{n:02} | open |",
    ],
)
def test_tables_and_listings_are_no_logs(line: str) -> None:
    assert not is_log("\n".join(line.format(n=n) for n in range(40)))


@pytest.mark.parametrize("sign", [",", ";", "\t"])
@pytest.mark.parametrize("head", [["time{}load"], []])
def test_a_table_of_times_and_one_value_is_no_log(sign: str, head: list[str]) -> None:
    rows = [f"2026-03-01 10:{n:02d}:00{{}}{n * 37 % 50}" for n in range(40)]
    assert not is_log("\n".join([*head, *rows]).replace("{}", sign))


def test_a_comma_before_milliseconds_makes_no_table() -> None:
    assert is_log("\n".join(f"2026-03-01 10:00:{n:02d},120 INFO beat {n}" for n in range(40)))


def test_a_problem_line_stays_whole_although_its_sentences_came_before() -> None:
    parts = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
    status = " ".join(f"The {part} rail of the node card is not OK." for part in parts)
    lines = [f"2005-08-04 12:{number:02d}:00 INFO link {number} is up" for number in range(40)]
    errors = [f"2005-08-04 12:{number:02d}:30 ERROR node {number}. {status}" for number in (9, 30)]
    text = "\n".join([*lines[:10], errors[0], *lines[10:31], errors[1], *lines[31:]])
    short = compress([{"role": "tool", "content": text}], mode="balanced").messages[0]["content"]
    assert len(short) < len(text)
    assert all(error in short.split("\n") for error in errors)


def test_an_entry_of_several_lines_is_kept_with_its_beginning() -> None:
    lines: list[str] = []
    for number in range(200):
        lines += [
            f"10:{number // 60:02}:{number % 60:02}.000 IP packet {number}, length 48",
            "    host-a.80 > host-b.443: chunk",
            f"\t1) {'SHUTDOWN' if number == 120 else 'DATA'} [id {number}]",
        ]
    short = collapse_log("\n".join(lines), "").split("\n")
    assert len(short) < len(lines) / 8
    at = short.index(lines[362])
    assert short[at - 2 : at + 1] == lines[360:363]
    for before, line in pairwise(short):
        assert not line.startswith("\t") or before.startswith("    host")


def test_a_stack_without_times_is_kept_with_its_error() -> None:
    lines: list[str] = []
    for number in range(400):
        lines.append(f"2026/11/21 10:{number // 60:02}:{number % 60:02} served {number}")
        if number % 25 == 7:
            lines += [
                f"panic: runtime error: index out of range [{number}]",
                "",
                f"goroutine {number} [running]:",
                f"main.handle(0xc00{number:04x})",
                f"\t/src/main.go:{number} +0x1d",
                f"main.main({number})",
            ]
    short = collapse_log("\n".join(lines), "").split("\n")
    assert len(short) < len(lines) / 2
    assert [line for line in lines if "main." in line] == [
        line for line in short if "main." in line and "like:" not in line
    ]


@pytest.mark.parametrize(
    ("usual", "odd"),
    [
        (("312ns", "17.25\xb5s", "3.5ms", "1.25s"), "58.1s"),
        (("312ns", "17.25\xb5s", "3.5ms"), "2m41.5s"),
        (("7B", "80KB", "9MB", "61GB"), "3TB"),
        (("0.5", "1.25"), "1.3e+09"),
        (("v2.14.1", "v2.14.12", "v2.14.3"), "v1.9.3"),
        (("120x40", "120x41"), "120x9000"),
    ],
)
def test_a_value_in_an_unusual_unit_or_form_is_kept(usual: tuple[str, ...], odd: str) -> None:
    lines = [
        f"2026-03-01 10:{n // 60:02}:{n % 60:02} INFO step {n} done in {usual[n % len(usual)]}"
        for n in range(300)
    ]
    lines[177] = lines[177].rpartition(" ")[0] + f" {odd}"
    collapsed = collapse_log("\n".join(lines), "").split("\n")
    assert lines[177] in collapsed
    assert len(collapsed) < 60


@pytest.mark.parametrize(
    ("usual", "odd"),
    [
        ("GC 32{n:02}K->70{n:02}K(65536K)", "GC 3255K->9999K(65536K)"),
        ("moved 32{n:02} \u2192 70{n:02}", "moved 3255 \u2192 9999"),
        ("took 1,{n:03} ms", "took 1,999 ms"),
        ("uptime 1:02:{n:02}", "uptime 1:59:02"),
        ("waited {n}m12s", "waited 1h2m11s"),
        ("loss 4.{n:02}e-02", "loss 4.10e+01"),
    ],
)
def test_the_largest_of_composed_values_is_kept(usual: str, odd: str) -> None:
    values = [usual.format(n=n % 50 + 1) for n in range(300)]
    values[40:240:20] = [odd.replace("999", "99").replace("59", "9").replace("2m", "1m")] * 10
    values[177] = odd
    lines = [f"2026-03-01 10:{n // 60:02}:{n % 60:02} INFO {v}" for n, v in enumerate(values)]
    collapsed = collapse_log("\n".join(lines), "").split("\n")
    assert lines[177] in collapsed
    assert len(collapsed) < 60


def test_the_times_of_a_java_virtual_machine_are_read() -> None:
    lines = [f"[{n}.{n * 37 % 1000:03}s][info][gc] GC({n}) Pause {20 + n % 9}M" for n in range(99)]
    lines[60:70] = []
    assert is_log("\n".join(lines))
    collapsed = collapse_log("\n".join(lines), "").split("\n")
    assert {lines[59], lines[60]} <= set(collapsed)
    assert len(collapsed) < 20
    assert collapsed[-1].startswith("[… 89 lines like: [0.000s to 98.626s][info][gc] GC(0..98)")


def test_a_description_names_the_month_once() -> None:
    lines = [f"[Wed Nov 16 15:00:{n:02} 2026] [mem] GC {n} done" for n in range(40)]
    assert _collapsed(lines)[-1] == (
        "[… 40 lines like: [Wed Nov 16 15:00:00 to Nov 16 15:00:39 2026] [mem] GC 0..39 done …]"
    )
    lines = [f"Jan  1 15:00:{n:02} host app[12]: job {n} done" for n in range(40)]
    assert _collapsed(lines)[-1] == (
        "[… 40 lines like: Jan  1 15:00:00 to Jan  1 15:00:39 host app[12]: job 0..39 done …]"
    )


def test_the_least_of_values_that_mostly_count_up_is_kept() -> None:
    lines = [
        f"2026-03-01 10:{n // 60:02}:{n % 60:02} INFO sent {100 + n % 30} rows" for n in range(300)
    ]
    lines[277] = "2026-03-01 10:04:37 INFO sent 0 rows"
    assert lines[277] in collapse_log("\n".join(lines), "").split("\n")


@pytest.mark.parametrize(
    "row",
    [
        "2026-03-{d:02} account {n:4} {m:>8}.00 EUR paid",
        "2026/03/{d:02} Rent of flat {n} was {m}.00",
        "2026-03-{d:02} 10:00 {n}.5 {m}.25 99.{d}",
        "2026-03-01 10:{d:02}:00 sensor{n} {m}",
        "10:{d:02}:00  ICE {n}  Bremen Hbf  platform {m}",
        "2026-03-{d:02} 10:00 Dentist with Ada, room {m}",
        "2026-03-{d:02} 10:00:07 card payment Corner Shop EUR {m}.20 balance {n}.00",
        "2023-03-{d:02} 10:12:49.0000000000 {n} /usr/share/doc/part{m}/copyright",
        "2026-03-01 10:{d:02}:00 temperature {m}.5 humidity {n} door shut",
        "[10:{d:02}:00] Bob: I paid {m} euro for it",
        "[Bob 2026-03-01 10:{d:02}:00] I paid {m} euro for it",
        "00:{d:02}:10 JEAN-LUC: The budget of team {n} is {m} thousand",
    ],
)
def test_rows_of_facts_with_a_time_are_no_log(row: str) -> None:
    assert not is_log("\n".join(row.format(d=n % 28 + 1, n=n, m=n * 37 % 90) for n in range(60)))


@pytest.mark.parametrize("stamp", ["2026-03-01 INFO", "2026.03.01 node 10:00", "2026-03-01T10:00"])
def test_a_date_with_a_time_or_a_level_begins_a_line_of_a_log(stamp: str) -> None:
    assert is_log("\n".join(f"{stamp} job {n} [mail] was sent to the queue" for n in range(60)))


@pytest.mark.parametrize(
    ("usual", "odd"),
    [
        ("order {n} fraud_score=0.{m:02}", "order 177 fraud_score=0.97"),
        ("order {n} error_count=0", "order 177 error_count=3"),
        ("order {n} errors: 0, warnings: 0", "order 177 errors: 0, warnings: 1"),
        ("order {n} failed=false", "order 177 failed=true"),
        ("order {n} timeout=30s", "order 177 timeout=5s"),
        ("step {n} val_error=0.{m:02}", "step 177 val_error=7.50"),
        ("step {n} val_error=0.{m:02}", "step 177 val_error=nan"),
        ("order {n}: {m} rows, 0 failed", "order 177: 12 rows, 2 failed"),
        ("installing package {n} of the room", "package 177 is missing"),
    ],
)
def test_a_problem_word_in_each_line_tells_by_its_value(usual: str, odd: str) -> None:
    lines = [
        f"2026-03-01 10:{n // 60:02}:{n % 60:02} INFO {usual.format(n=n, m=n * 7 % 30)}"
        for n in range(500)
    ]
    lines[177] = f"2026-03-01 10:02:57 INFO {odd}"
    assert set(lines[174:180]) <= set(_collapsed(lines))


@pytest.mark.parametrize("beside", ["", "timeout=30s ", "fraud_score=0.31 "])
def test_each_number_of_a_field_that_is_mostly_zero_is_kept(beside: str) -> None:
    lines = [
        f"2026-03-01 10:{n // 60:02}:{n % 60:02} INFO batch {n} {beside}errors={errors}"
        for n in range(300)
        for errors in [n % 9 if n % 3 == 0 else 0]
    ]
    problems = [line for line in lines if not line.endswith("errors=0")]
    assert len(problems) == 66
    assert set(problems) <= set(collapse_log("\n".join(lines), "").split("\n"))


def test_each_change_of_a_sum_of_problems_is_kept() -> None:
    lines = [
        f"2026-03-01 10:{n // 60:02}:{n % 60:02} INFO batch {n} errors_total={17 + n // 70}"
        for n in range(300)
    ]
    kept = set(_collapsed(lines))
    assert {lines[at] for at in (70, 140, 210, 280)} <= kept
    assert len(kept) < 60


@pytest.mark.parametrize(
    "usual",
    [
        "order {n} error=5",
        "order {n} error_code=5",
        "order {n} lost",
        "connection {n} failed: 3 - no way",
        "connection {n} failed: 111",
    ],
)
def test_words_and_codes_in_each_line_are_problems(usual: str) -> None:
    lines = [f"2026-03-01 10:{n // 60:02}:{n % 60:02} INFO {usual.format(n=n)}" for n in range(300)]
    assert collapse_log("\n".join(lines), "") == "\n".join(lines)


def test_a_count_above_400_is_no_http_status() -> None:
    lines = [f"2026-03-01 10:{n // 60:02}:{n % 60:02} INFO order {n} sent" for n in range(600)]
    assert len(_collapsed(lines)) < 12
    statuses = [
        f'10.0.0.1 - - [12/Dec/2025:10:{n // 60:02}:{n % 60:02} +0000] "GET /" {status} {n}'
        for n in range(600)
        for status in [503 if n % 30 == 7 else 200]
    ]
    assert set(statuses[7::30]) <= set(_collapsed(statuses))


@pytest.mark.parametrize(
    "stamp", ["<6>[{n:5}.123456] ", "<6>[{n:5}.123456 / 01-01 00:00:07.250][0] "]
)
def test_the_log_of_a_kernel_may_begin_with_priorities(stamp: str) -> None:
    lines = [f"{stamp.format(n=n)}usb {n % 7}: device {n} found" for n in range(300)]
    assert is_log("\n".join(lines))
    lines[177] = lines[177].replace("<6>", "<3>")
    assert lines[177] in _collapsed(lines)

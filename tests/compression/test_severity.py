from __future__ import annotations

from time import perf_counter

import pytest

from headstart.compression.logs import reports_problem

STAMP = "2026-11-21 16:00:01"


@pytest.mark.parametrize(
    "line",
    [
        "16:00:01,123:ERROR:checkout:order 7 taken",
        f"{STAMP}.0001|FATAL|Shop.Orders|Order 7 changed",
        f"{STAMP}Z/WARN/mod order 7",
        f"{STAMP} 5(0x7f):ZOO_ERROR@handle@7: order",
        f"{STAMP} [E] order 7",
        f"{STAMP} 1234  1234 E Orders: order 7",
        f"{STAMP} W/Orders( 1234): order 7",
        "E1121 16:00:01.000000 1 orders.go:7] order 7",
        f"{STAMP} <3> order 7",
        f"{STAMP} <132> order 7",
        f"{STAMP} level=50 order 7",
        f'{STAMP} {{"level": 40, "order": 7}}',
        f"{STAMP} GET /orders/7 503 12ms",
        f'{STAMP} "GET /orders/7 HTTP/1.1" 404 12',
        f"{STAMP} status=500 order 7",
        f"{STAMP} order 7 exited with code 137",
        f"{STAMP} exit status 1",
        f"{STAMP} FEHLER Auftrag 7",
        f"{STAMP} échec de la commande 7",
        f"{STAMP} \u9519\u8bef 7",
        f"{STAMP} \u041e\u0428\u0418\u0411\u041a\u0410 7",
        f"{STAMP} \u274c order 7",
        f"{STAMP} read ECONNRESET for order 7",
        f"{STAMP} giving up on order 7",
        f"{STAMP} out of memory at order 7",
        f"{STAMP} no space left on device 7",
        f"{STAMP} pod 7 evicted",
        f"{STAMP} link down on port 7",
        f"{STAMP} too many open files: 1024",
        f"{STAMP} rolled back transaction 7",
        f"{STAMP} unhandled rejection in job 7",
        f"{STAMP} chyba v modulu 7",
        f"{STAMP} fel i modul 7",
        f"{STAMP} eroare la comanda 7",
        f"{STAMP} check 7 success=false",
        f'{STAMP} {{"check": 7, "healthy": false}}',
        f"{STAMP} statement 7 ORA-00942",
        f"{STAMP} sandbox: app(7) deny(1) network",
        f"{STAMP} gateway time-out for order 7",
        f"{STAMP} couldn't open order 7",
        f"{STAMP} card 7 was declined",
        f"{STAMP} pod 7 terminated",
        f"{STAMP} order 7 error_count=3",
        f"{STAMP} order 7 errors: 3, warnings: 0",
        f"{STAMP} order 7 failed=true",
        f"{STAMP} 9 passed, 1 failed",
        f"{STAMP} attempt 0 failed",
        f"{STAMP} error: no such order",
        f"{STAMP} error: 0 bytes were read",
        f"{STAMP} errors: none of the hosts answered",
        f"{STAMP} install failed",
        f"{STAMP} room 7: out of memory",
        f'{STAMP} order 7 err="no rows in result set"',
        f'{STAMP} order 7 error="0 of 3 replicas are up"',
        f"{STAMP} order 7 error=none of the hosts answered",
        f'{STAMP} {{"order": 7, "error": "no host: db7"}}',
        f"{STAMP} error: no user=7 in the map",
        f"{STAMP} order 7: java.lang.IllegalStateException: null",
        f"{STAMP} KeyError: 0",
        f"{STAMP} ERROR: null",
        f"{STAMP} CPU 0 errors: 5",
        f"{STAMP} exit code 137: null",
    ],
)
def test_levels_words_and_codes_tell_of_trouble(line: str) -> None:
    assert reports_problem(line)


@pytest.mark.parametrize(
    "line",
    [
        f"{STAMP},123:INFO:checkout:order 7 taken",
        f"{STAMP} [I] order 7 - caf\u00e9 \u2192 done \u2713",
        f"{STAMP} <134> order 7",
        f"{STAMP} level=30 order 7 took 450 ms",
        f"{STAMP} GET /orders/450 200 512ms",
        f"{STAMP} exited with code 0, status: 204",
        f"{STAMP} C:\\Users\\w opened by interrupt 7",
        "I1121 16:00:01.000000 1 orders.go:7] order 7",
        f"{STAMP} check 7 success=true, healthy: yes",
        f"{STAMP} runtime output 7, session termination, at any time, out of stock",
        f"{STAMP} order 7 error_count=0 failed=false err=<nil>",
        f"{STAMP} order 7 errors: 0, warnings: 0",
        f"{STAMP} order 7 dropped: 0 rejected: none",
        f'{STAMP} {{"error": null, "failures": 0, "exception": ""}}',
        f"{STAMP} 9 passed, 0 failed; done with 0 errors",
        f"{STAMP} order 7 failed=no error='' code=0 err=nil",
        f"{STAMP} order 7 error=0x0 errors: none warnings: 0",
        f"{STAMP} installing package 7, user joined room 7 with a new skill",
        f"{STAMP} counted down to 7, file opened, a full sync and a scale down of 7",
    ],
)
def test_lines_without_a_problem_report_none(line: str) -> None:
    assert not reports_problem(line)


def test_a_long_line_takes_linear_time() -> None:
    for part in ("level", "severity_", "error:0 a.", "error: 0 ", "KeyError: 0 "):
        begin = perf_counter()
        reports_problem(part * (100_000 // len(part)))
        assert perf_counter() - begin < 4, part

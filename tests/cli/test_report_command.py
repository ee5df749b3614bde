"""``headstart report`` over real stores and logs."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import msgspec
import pytest

from headstart.__main__ import main
from headstart.cli.data_sources import existing_store
from headstart.decisions import Outcome
from headstart.embeddings.stores.store_urls import open_store
from headstart.observe import Served
from headstart.policies.callers import spending
from headstart.settings import ClientLimits
from support.booked import attempt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DAY_S = 86400.0


def row(number: int, outcome: Outcome, age_s: float = 0.0) -> Served:
    hit = outcome is Outcome.EXACT
    return Served(
        id=f"{number:026d}",
        at=time.time() - age_s,  # noqa: TID251 - the command compares with the real clock
        endpoint="/v1/chat/completions",
        outcome=outcome,
        status=200,
        stream=True,
        total_s=0.002 if hit else 2.0,
        ttft_s=0.001 if hit else 0.5,
        model="[bold]gpt",
        saved_total_s=1.998 if hit else 0.0,
        saved_tokens=120 if hit else 0,
        saved_usd=0.01 if hit else None,
    )


@pytest.fixture
def rows() -> list[Served]:
    return [
        row(1, Outcome.MISS, age_s=9 * DAY_S),
        row(2, Outcome.MISS, age_s=60.0),
        row(3, Outcome.EXACT, age_s=5.0),
    ]


async def book(url: str, rows: Sequence[Served]) -> None:
    store = open_store(url)
    await store.open()
    await store.add_to_books(rows)
    await store.aclose()


@pytest.fixture
def store(tmp_path: Path, rows: list[Served]) -> str:
    url = f"sqlite:///{tmp_path}/books.db"
    anyio.run(book, url, rows)
    return url


@pytest.fixture
def log(tmp_path: Path, rows: list[Served]) -> Path:
    path = tmp_path / "served.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(each) for each in rows) + b"\n\n")
    return path


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADSTART_CACHE__STORE", raising=False)


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(["report", *arguments])
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["report", *arguments])
    assert left.value.code == 2
    return capsys.readouterr().err


def test_report_reads_the_books_of_a_store(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(report(capsys, "--store", store, "--json"))
    assert found["overall"]["requests"] == 3
    assert found["overall"]["hit_rate"] == pytest.approx(1 / 3)
    assert found["overall"]["savings"]["tokens"] == 120
    assert found["overall"]["hits"]["ttft"]["p50_s"] == 0.001
    assert found["estimates"]["held_out"] == 0


def test_report_reads_the_configured_store(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSTART_CACHE__STORE", store)
    assert json.loads(report(capsys, "--json"))["overall"]["requests"] == 3


def test_a_shell_without_the_client_keys_reads_the_configured_store(
    store: str, tmp_path: Path
) -> None:
    keys = '[server]\nclient_keys = { team-a = "env:HEADSTART_NO_SUCH_VARIABLE" }\n'
    (tmp_path / "headstart.toml").write_text(f'{keys}[cache]\nstore = "{store}"\n')
    for command in (["report"], ["audit"], ["cache", "stats"], ["config", "show"]):
        main(command)


def test_log_and_store_give_the_same_report(
    store: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from_log = report(capsys, "--log", str(log), "--json")
    assert json.loads(from_log) == json.loads(report(capsys, "--store", store, "--json"))


@pytest.mark.parametrize(("since", "requests"), [("45s", 1), ("1h", 2), ("1.5d", 2), ("2w", 3)])
def test_since_leaves_older_requests_out(
    store: str, log: Path, since: str, requests: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in (("--store", store), ("--log", str(log))):
        found = json.loads(report(capsys, *source, "--since", since, "--json"))
        assert found["overall"]["requests"] == requests


def test_terminal_shows_hits_beside_misses(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = report(capsys, "--store", store)
    assert "33.3 % hits" in shown
    assert "hits, first token" in shown
    assert "misses, whole answer" in shown
    assert "$0.01" in shown
    assert "[bold]gpt" in shown, "names that clients chose are no markup"


def test_money_without_any_price_is_called_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hit = msgspec.structs.replace(row(1, Outcome.EXACT), saved_usd=None)
    url = f"sqlite:///{tmp_path}/unpriced.db"
    anyio.run(book, url, [hit])
    text = " ".join(report(capsys, "--store", url).split())
    assert "an unknown sum of money (1 hit without a known price)" in text


def test_a_narrow_terminal_loses_no_column(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = report(capsys, "--store", store)
    assert "misses, whole answer" in text
    assert "would have cost did cost   saved" in " ".join(text.split("\n"))


def test_html_is_written_beside_the_terminal_report(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    shown = report(capsys, "--store", store, "--html", str(page))
    assert "report.html" in shown
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_empty_books_are_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    anyio.run(book, url, [])
    assert report(capsys, "--store", url) == "No requests are booked yet.\n"


def test_store_that_does_not_exist_is_refused_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal(capsys, "--store", f"sqlite:///{tmp_path}/absent.db")
    assert "absent.db" in error
    assert not (tmp_path / "absent.db").exists()


def test_store_in_memory_cannot_be_reported_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSTART_CACHE__STORE", "memory:")
    assert "live page at /_headstart/" in refusal(capsys)
    assert "live page at /_headstart/" in refusal(capsys, "--store", "memory:")


def test_bad_line_of_a_log_is_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with log.open("ab") as file:
        file.write(b"{}\n")
    assert "line 5" in refusal(capsys, "--log", str(log))


@pytest.mark.parametrize("since", ["7", "d", "-1d", "7y", "1 d"])
def test_bad_duration_is_a_usage_error(since: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--since" in refusal(capsys, f"--since={since}")


def test_log_and_store_exclude_each_other(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "exclude" in refusal(capsys, "--log", str(log), "--store", "memory:")


def test_page_that_cannot_be_written_is_refused(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "absent" / "report.html"
    assert "--html" in refusal(capsys, "--store", store, "--html", str(target))
    words = refusal(capsys, "--store", store, "--csv", str(target)).replace("\n", "")
    assert f"--csv {target}: No such file or directory" in words


def test_csv_has_the_bill_by_day(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bill.csv"
    assert f"wrote {path}" in report(capsys, "--store", store, "--csv", str(path)).replace("\n", "")
    header, *lines = path.read_text("utf-8").splitlines()
    assert header.startswith("day,caller,route,model,endpoint,tags,requests,hits,failed,")
    assert sum(int(line.split(",")[6]) for line in lines) == 3


def test_an_export_is_compared_with_the_books(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    day = datetime.fromtimestamp(time.time(), UTC).date().isoformat()  # noqa: TID251 - the same
    usage = tmp_path / "usage.csv"
    usage.write_text(
        "usage_date_utc,model_version,usage_input_tokens_no_cache,usage_output_tokens\n"
        f"{day},claude-x,100,20\n",
        "utf-8",
    )
    shown = report(capsys, "--log", str(log), "--reconcile", str(usage))
    assert "Beside the provider's export" in shown
    assert "0 of 1 days and models agree" in shown
    assert f"{day} claude-x" in shown
    found = json.loads(report(capsys, "--log", str(log), "--reconcile", str(usage), "--json"))
    (line,) = found["reconciliation"]["lines"]
    assert line["theirs"]["prompt_tokens"] == 100
    assert line["differs"] == ["prompt_tokens", "completion_tokens"]


def test_a_file_that_is_not_an_export_is_refused(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, "--log", str(log), "--reconcile", str(log))
    assert "--reconcile" in message


def test_a_machine_by_the_hour_has_its_own_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, log = tmp_path / "headstart.toml", tmp_path / "log.jsonl"
    config.write_text(
        '[[upstream]]\nname = "gpu"\nbase_url = "http://10.0.0.5:8000/v1"\nprice_per_hour = 3.6\n'
        "price.default = { input_per_million = 0.0, output_per_million = 10.0 }\n"
    )
    call = attempt(upstream="gpu", completion_tokens=1000, cost_usd=0.0)
    first, last = row(1, Outcome.MISS), row(2, Outcome.MISS)
    rows = [
        msgspec.structs.replace(first, at=0.0, attempts=(call,)),
        msgspec.structs.replace(last, at=98.0),
    ]
    log.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    main(["report", "--log", str(log), "--config", str(config), "--json"])
    found = json.loads(capsys.readouterr().out)
    (machine,) = found["machines"]
    assert machine["usd"] == pytest.approx(0.1)
    assert machine["metered_usd"] == pytest.approx(0.01)
    assert machine["break_even_load"] == pytest.approx(10.0)
    assert found["overall"]["costs"]["paid_usd"] in (None, 0.0)
    main(["report", "--log", str(log), "--config", str(config)])
    assert "Machines by the hour" in capsys.readouterr().out


def test_the_limits_of_client_keys_are_shown_with_what_is_used(
    tmp_path: Path,
    store: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEY_A", "a-key-of-team-a-0123456789")
    config = tmp_path / "limits.toml"
    config.write_text(
        '[server]\nclient_keys = { team-a = "env:KEY_A", team-b = "env:KEY_B" }\n'
        "[server.client_limits.team-a]\nusd_per_month = 40.0\ntokens_per_day = 200000\n"
        '[server.client_limits."*"]\ntokens_per_day = 300000\n'
    )
    limits = ClientLimits(usd_per_month=40.0, tokens_per_day=200_000)

    async def spend() -> None:
        async with existing_store(store) as books:
            now = time.time()  # noqa: TID251 - the command compares with the real clock
            found = {each.setting: each for each in spending(limits)}
            month, day = found["usd_per_month"], found["tokens_per_day"]
            await books.charge(
                [
                    month.charge("team-a", 10 * month.unit, now),
                    day.charge("team-a", 50_000, now),
                    day.charge("team-b", 60_000, now),
                ]
            )

    anyio.run(spend)
    found = json.loads(report(capsys, "--store", store, "--config", str(config), "--json"))
    used = {
        (each["caller"], each["limit"]): (each["used"], each["most"]) for each in found["limits"]
    }
    assert used == {
        ("team-a", "usd_per_month"): (10.0, 40.0),
        ("team-a", "tokens_per_day"): (50_000.0, 200_000.0),
        ("team-b", "tokens_per_day"): (60_000.0, 300_000.0),  # by the table "*"
    }
    text = report(capsys, "--store", store, "--config", str(config))
    assert "Limits of client keys" in text
    assert "25.0 %" in text
    assert "Limits of client keys" not in report(capsys, "--store", store)

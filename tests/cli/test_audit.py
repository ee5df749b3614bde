"""``headstart audit`` over a store and over a running sidecar."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest

from headstart.__main__ import main
from headstart.decisions import Label, LabelSource, Outcome
from headstart.embeddings.stores.store_urls import open_store
from headstart.middleware.learning.certificates import WORDS
from support.administered import CHATGPT, REWORDED
from support.booked import served
from support.learned import make_label
from support.remote import remote

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from headstart.observe import Served

NOW = time.time()  # noqa: TID251 - the command compares with the real clock
DAY_S = 86400.0


def audit_labels(right: int, wrong: int, *, age_s: float = 0.0, first: int = 0) -> list[Label]:
    words = [True] * right + [False] * wrong
    return [
        make_label(first + number, source=LabelSource.AUDIT, same=same, at=NOW - age_s)
        for number, same in enumerate(words)
    ]


def hits(count: int) -> list[Served]:
    usual = {"at": NOW, "endpoint": "chat", "domain": "d"}
    return [served(Outcome.SEMANTIC, id=str(n), **usual) for n in range(count)]


async def fill(url: str, labels: Iterable[Label], booked: Iterable[Served] = ()) -> None:
    store = open_store(url)
    await store.open()
    await store.add_labels(list(labels))
    await store.add_to_books(list(booked))
    await store.aclose()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADSTART_CACHE__STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "120")


def audit(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(["audit", *arguments])
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, object]:
    with pytest.raises(SystemExit) as left:
        main(["audit", *arguments])
    return capsys.readouterr().err, left.value.code


def read(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(audit(capsys, *arguments, "--json"))


def test_a_store_shows_both_errors_their_bounds_and_the_audits_to_come(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    anyio.run(fill, url, audit_labels(99, 1), hits(400))
    shown = audit(capsys, "--store", url)
    assert "at most 2 % of the semantic hits wrong" in shown
    lines = shown.splitlines()
    heading = lines.index("chat  d")
    row = lines[heading + 2]
    assert lines[heading + 1].split()[:5] == ["week", "hits", "cold", "audits", "wrong"]
    assert row.split()[1:5] == ["400", "0", "100", "1"]
    assert row.count("1 % ≤ ") == 2
    (found,) = read(capsys, "--store", url)["certificates"]
    assert f"{found['more_audits']:,} more audits" in row
    assert "q99 answered by e1, similarity 0.900" in shown
    assert " ".join(WORDS.split()) in " ".join(shown.split())


def test_domains_are_named_by_path_route_and_caller(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = msgspec.structs.replace(
        hits(1)[0], endpoint="/v1/messages", route="faq", caller="team-a", outcome=Outcome.MISS
    )
    anyio.run(fill, url, audit_labels(0, 10), [row])
    (found,) = read(capsys, "--store", url)["certificates"]
    assert (found["path"], found["route"], found["caller"]) == ("/v1/messages", "faq", "team-a")
    shown = audit(capsys, "--store", url).splitlines()
    assert "/v1/messages, route faq, team-a  d" in shown, "whole, also on a narrow terminal"
    assert any(line.endswith("too many wrong") for line in map(str.rstrip, shown))
    message, _ = refusal(capsys, "--store", url, "--fail-over", "1%")
    assert "/v1/messages, route faq, team-a: up to" in message


def test_a_certified_domain_says_so_and_a_hopeless_one_too(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    anyio.run(fill, url, audit_labels(400, 0))
    assert audit(capsys, "--store", url).splitlines()[4].rstrip().endswith("yes")
    anyio.run(fill, url, audit_labels(0, 100, first=400))
    assert "no: too many wrong" in audit(capsys, "--store", url)


def test_the_promise_and_the_store_are_those_of_the_configuration(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anyio.run(fill, url, audit_labels(10, 0))
    path = tmp_path / "headstart.toml"
    path.write_text(f'[cache]\nstore = "{url}"\nmax_error = 0.05\nerror_of = "requests"\n')
    found = read(capsys, "--config", str(path))
    assert (found["max_error"], found["error_of"]) == (0.05, "requests")
    assert found["certificates"][0]["audits"] == 10
    assert "at most 5 % of the requests wrong" in audit(capsys, "--config", str(path))


def test_since_leaves_older_audits_out(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    anyio.run(fill, url, audit_labels(3, 1, age_s=20 * DAY_S) + audit_labels(2, 0))
    found = read(capsys, "--store", url, "--since", "7d")
    assert [row["audits"] for row in found["certificates"]] == [2]
    assert found["wrong_hits"] == []


def test_nothing_to_prove_is_said(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    anyio.run(fill, url, [])
    assert "nothing to prove" in audit(capsys, "--store", url, "--fail-over", "1%")


def test_fail_over_looks_at_the_latest_week_alone(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    anyio.run(fill, url, audit_labels(0, 50, age_s=20 * DAY_S))
    assert refusal(capsys, "--store", url, "--fail-over", "2%")[1] == 1
    anyio.run(fill, url, audit_labels(600, 0, first=50))
    audit(capsys, "--store", url, "--fail-over", "2%")
    error, code = refusal(capsys, "--store", url, "--fail-over", "0.01%", "--json")
    assert "over --fail-over 0.01%" in error
    assert code == 1


def test_a_running_sidecar_is_asked_by_url(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADSTART_ADMIN_TOKEN", "secret")
    with remote(token_env="HEADSTART_ADMIN_TOKEN", token="secret") as sidecar:
        sidecar.ask_first(CHATGPT)
        sidecar.ask(REWORDED)
        sidecar.until(lambda: bool(sidecar.admin("audit")["certificates"]))
        (row,) = read(capsys, "--url", sidecar.url, "--since", "1d")["certificates"]
        assert (row["hits"], row["audits"], row["wrong_per_hit"]) == (1, 0, None)
        monkeypatch.delenv("HEADSTART_ADMIN_TOKEN")
        error, code = refusal(capsys, "--url", sidecar.url)
    assert "asks for its admin token" in error
    assert code == 2


def test_a_static_match_has_nothing_to_audit(capsys: pytest.CaptureFixture[str]) -> None:
    with remote(match="static") as sidecar:
        error, code = refusal(capsys, "--url", sidecar.url)
    assert 'cache.match is "static"' in error
    assert code == 1


def test_an_unreadable_source_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], free_port: int
) -> None:
    for arguments, reason in (
        (("--store", "memory:"), "headstart audit --url"),
        (("--store", f"sqlite:///{tmp_path}/none.db"), "there is no store"),
        (("--url", "http://x", "--store", "memory:"), "excludes"),
        (("--since", "soon"), "not a duration"),
        (("--fail-over", "2"), "not between 0 and 1"),
    ):
        error, code = refusal(capsys, *arguments)
        assert reason in error
        assert code == 2
    assert refusal(capsys, "--url", f"http://127.0.0.1:{free_port}")[1] == 1

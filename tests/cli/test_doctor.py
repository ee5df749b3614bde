"""``headstart doctor``: each fault is found, and each finding says what to do."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headstart.__main__ import main
from headstart.config.providers import providers
from headstart.embeddings.stores.sqlite import SCHEMA_VERSION
from headstart.settings import CacheSettings, Settings, UpstreamSettings
from headstart.sidecar import build_sidecar
from support.redis_server import redis_server
from support.scripted import lifespan
from support.serving import bind_free_port, serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

Findings = list[dict[str, str]]


class Upstream:
    """A provider that answers 404 to what doctor asks, with a ``Date`` header."""

    def __init__(self) -> None:
        self.late_s = 0.0
        self.seen: list[tuple[str, dict[bytes, bytes]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        self.seen.append((scope["method"], dict(scope["headers"])))
        date = format_datetime(datetime.now(UTC) - timedelta(seconds=self.late_s), usegmt=True)
        headers = [(b"date", date.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def provider() -> Upstream:
    return Upstream()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, provider: Upstream) -> Iterator[Path]:
    """Give an empty folder, with a provider in the environment, and no keys of others."""
    for known in providers().values():
        if known.variable is not None:
            monkeypatch.delenv(known.variable, raising=False)
    for name in [each for each in os.environ if each.upper().endswith("_PROXY")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    with serving_in_thread(provider, date_header=False) as url, bind_free_port() as free:
        upstream = [{"name": "p", "base_url": f"{url}/v1", "api_key_env": "P_KEY"}]
        monkeypatch.setenv("HEADSTART_UPSTREAM", json.dumps(upstream))
        monkeypatch.setenv("P_KEY", "sk-provider")
        monkeypatch.setenv("HEADSTART_SERVER__PORT", str(free.getsockname()[1]))
        monkeypatch.setenv("HEADSTART_CACHE__MODE", "exact-only")
        free.close()
        yield tmp_path


def examined(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Findings]:
    code = 0
    try:
        main(["doctor", "--json", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    shown = json.loads(capsys.readouterr().out)
    assert shown["healthy"] is (code == 0)
    findings: Findings = shown["findings"]
    for each in findings:
        assert (each["verdict"] == "ok") == ("fix" not in each), "each fault has its fix"
    return code, findings


def about(findings: Findings, check: str) -> list[tuple[str, str]]:
    return [(each["verdict"], each["text"]) for each in findings if each["check"] == check]


def test_a_sound_deployment_passes(
    place: Path, capsys: pytest.CaptureFixture[str], provider: Upstream
) -> None:
    code, findings = examined(capsys)
    assert code == 0
    assert {each["verdict"] for each in findings} == {"ok"}
    assert {each["check"] for each in findings} == {
        "configuration", "keys", "port", "store", "encoder", "files", "upstream p", "clock",
        "limits",
    }  # fmt: skip
    assert list(place.iterdir()) == [], "doctor leaves nothing behind"
    ((method, headers),) = provider.seen
    assert method == "HEAD"
    assert b"authorization" not in headers, "no key is needed to reach a provider"


def test_text_shows_each_fix_below_its_finding(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSTART_CACHE__STORE", "memory:")
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("warning  store"))
    assert lines[at + 1].strip().startswith("fix: set cache.store")
    assert lines[-1] == "0 problems, 1 warning"


@pytest.mark.usefixtures("place")
def test_a_configuration_that_cannot_be_read_is_the_only_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSTART_CACHE__MODE", "sometimes")
    code, findings = examined(capsys)
    assert code == 1
    ((verdict, text),) = about(findings, "configuration")
    assert verdict == "problem"
    assert "HEADSTART_CACHE__MODE" in text


@pytest.mark.usefixtures("place")
def test_without_an_upstream_the_other_checks_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADSTART_UPSTREAM")
    code, findings = examined(capsys)
    assert code == 1
    assert about(findings, "configuration")[-1] == ("problem", "no upstream")
    assert about(findings, "port")


def test_a_server_that_options_started_is_known_and_checked_with_the_same_options(
    place: Path,
    provider: Upstream,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [configured] = json.loads(os.environ["HEADSTART_UPSTREAM"])
    monkeypatch.delenv("HEADSTART_UPSTREAM")
    upstream = UpstreamSettings(base_url=configured["base_url"])
    cache = CacheSettings(mode="exact-only", store=f"sqlite:///{place}/headstart.db")
    app = build_sidecar(Settings(upstream=(upstream,), cache=cache))
    with serving_in_thread(app) as url:
        port = url.rpartition(":")[2]
        code, findings = examined(capsys, "--port", port)
        assert code == 0
        [read, (verdict, text)] = about(findings, "configuration")
        assert verdict == "warning"
        assert "a server runs" in text
        code, findings = examined(capsys, "--port", port, "--upstream", configured["base_url"])
        assert code == 0
        assert about(findings, "configuration") == [read]
        assert [each["check"] for each in findings if each["check"].startswith("upstream")]
        assert provider.seen


@pytest.mark.usefixtures("place")
def test_a_missing_key_is_a_problem_and_a_short_one_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("P_KEY")
    monkeypatch.setenv("HEADSTART_SERVER__CLIENT_KEYS", "short")
    code, findings = examined(capsys)
    assert code == 1
    assert about(findings, "keys") == [
        ("problem", "upstream 'p': the variable P_KEY (upstream.api_key_env) is not set"),
        ("warning", "the key of a caller has fewer than 16 characters"),
    ]
    assert "short" not in str(findings).replace("shorter", "")


@pytest.mark.usefixtures("place")
def test_off_loopback_a_server_without_a_token_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSTART_SERVER__HOST", "0.0.0.0")
    monkeypatch.setenv("HEADSTART_SERVER__CLIENT_KEYS", "a-long-random-key-of-a-caller")
    code, findings = examined(capsys)
    assert code == 0
    text = "no admin token: metrics, explain and the live page answer nobody off loopback"
    assert ("warning", text) in about(findings, "keys")


@pytest.mark.usefixtures("place")
def test_a_port_that_another_program_has_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_in_thread(Upstream()) as url:
        monkeypatch.setenv("HEADSTART_SERVER__PORT", url.rpartition(":")[2])
        code, findings = examined(capsys)
    assert code == 1
    ((verdict, text),) = about(findings, "port")
    assert verdict == "problem"
    assert "already in use" in text


@pytest.mark.usefixtures("place")
def test_a_headstart_that_runs_there_is_no_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        cache=CacheSettings(store="memory:", mode="exact-only"),
        upstream=(UpstreamSettings(base_url="http://127.0.0.1:9/v1", name="one"),),
    )
    with serving_in_thread(build_sidecar(settings)) as url:
        monkeypatch.setenv("HEADSTART_SERVER__PORT", url.rpartition(":")[2])
        _, findings = examined(capsys)
    ((verdict, text),) = about(findings, "port")
    assert verdict == "ok"
    assert text.startswith("Headstart runs on")


@pytest.mark.usefixtures("place")
def test_an_upstream_that_cannot_be_reached_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with bind_free_port() as bound:
        base = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        monkeypatch.setenv("HEADSTART_UPSTREAM", json.dumps([{"name": "gone", "base_url": base}]))
        code, findings = examined(capsys)
    assert code == 1
    ((verdict, text),) = about(findings, "upstream gone")
    assert verdict == "problem"
    assert text.startswith("cannot be reached")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("late_s", "side"), [(600.0, "ahead of"), (-600.0, "behind")])
def test_a_wrong_clock_is_a_problem(
    capsys: pytest.CaptureFixture[str], provider: Upstream, late_s: float, side: str
) -> None:
    provider.late_s = late_s
    code, findings = examined(capsys)
    assert code == 1
    ((verdict, text),) = about(findings, "clock")
    assert verdict == "problem"
    assert f"s {side} the providers'" in text


@pytest.mark.usefixtures("place")
def test_a_proxy_of_the_environment_is_not_used_and_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@proxy:3128")
    code, findings = examined(capsys)
    assert code == 0
    assert about(findings, "proxy") == [
        ("warning", "HTTP_PROXY is set, and Headstart does not use it")
    ]
    assert "secret" not in str(findings)


def test_files_that_others_may_read_are_warnings(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = place / "headstart.toml"
    config.write_text('[server]\nclient_keys = ["a-long-random-key-of-a-caller"]\n', "utf-8-sig")
    config.chmod(0o644)
    _, findings = examined(capsys, "--config", str(config))
    assert about(findings, "files") == [
        ("warning", f"the configuration in {config} can be read by others")
    ]
    config.chmod(0o600)
    _, findings = examined(capsys, "--config", str(config))
    assert [verdict for verdict, _ in about(findings, "files")] == ["ok"]


def test_a_sqlite_store_is_opened_and_counted_if_it_exists(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(
        cache=CacheSettings(store="sqlite:///headstart.db", mode="exact-only"),
        upstream=(UpstreamSettings(base_url="http://127.0.0.1:9/v1", name="one"),),
    )
    with serving_in_thread(build_sidecar(settings)):
        pass
    _, findings = examined(capsys)
    assert about(findings, "store") == [("ok", "sqlite:///headstart.db has 0 answers (0.0 MB)")]


def test_a_store_of_a_later_version_is_a_problem_and_says_what_to_do(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3

    from headstart.embeddings.stores.sqlite import APPLICATION_ID

    with contextlib.closing(sqlite3.connect(place / "headstart.db")) as file:
        file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        file.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        file.execute("CREATE TABLE later (x)")
    code, findings = examined(capsys)
    assert code == 1
    ((verdict, text),) = [each for each in about(findings, "store") if each[0] != "ok"]
    assert verdict == "problem"
    assert "written by a newer Headstart" in text
    assert "upgrade" in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_a_problem(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "closed").mkdir(mode=0o500)
    monkeypatch.setenv("HEADSTART_CACHE__STORE", "sqlite:///closed/headstart.db")
    code, findings = examined(capsys)
    assert code == 1
    assert about(findings, "store")[0][0] == "problem"


@pytest.mark.usefixtures("place")
def test_a_redis_that_evicts_is_a_warning_and_one_that_is_away_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server() as server:
        monkeypatch.setenv("HEADSTART_CACHE__STORE", server.url)
        with contextlib.closing(server.client()) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
            code, findings = examined(capsys)
            assert code == 0
            ((verdict, text),) = about(findings, "redis")
            assert verdict == "warning"
            assert "allkeys-lru" in text
            client.config_set("maxmemory-policy", "noeviction")
            _, findings = examined(capsys)
            assert about(findings, "redis") == []
            assert [each for each, _ in about(findings, "store")] == ["ok"]
    code, findings = examined(capsys)
    assert code == 1
    assert "is Redis running there?" in about(findings, "store")[0][1]
    monkeypatch.setenv("HEADSTART_CACHE__STORE", "redis://host:no-port/0")
    code, findings = examined(capsys)
    assert code == 1
    assert about(findings, "store")[0][0] == "problem"


@pytest.mark.usefixtures("place")
def test_a_user_of_redis_with_the_permissions_of_the_docs_can_check_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs/nodes.md"
    (line,) = [each for each in page.read_text().splitlines() if each.startswith("ACL SETUSER")]
    with redis_server() as server, contextlib.closing(server.client()) as client:
        server.command(*line.split())
        client.config_set("maxmemory-policy", "allkeys-lru")
        url = server.url.replace("redis://", "redis://headstart:PASSWORD@")
        monkeypatch.setenv("HEADSTART_CACHE__STORE", url)
        _, findings = examined(capsys)
        ((verdict, text),) = about(findings, "redis")
        assert verdict == "warning"
        assert "allkeys-lru" in text
        server.command("ACL", "SETUSER", "headstart", "-info")
        code, findings = examined(capsys)
        assert code == 0
        ((verdict, text),) = about(findings, "redis")
        assert verdict == "warning"
        assert "not checked" in text


@pytest.mark.usefixtures("place")
def test_the_encoder_is_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADSTART_CACHE__MODE")
    _, findings = examined(capsys)
    ((_, text),) = about(findings, "encoder")
    assert text.endswith(" ms")


@pytest.mark.usefixtures("place")
def test_a_collector_that_does_not_answer_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with bind_free_port() as bound:
        base = f"http://127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", base)
        code, findings = examined(capsys)
    assert code == 0
    ((verdict, text),) = about(findings, "traces")
    assert verdict == "warning"
    assert text.startswith("the collector does not answer")

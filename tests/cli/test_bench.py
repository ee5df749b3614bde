"""``headstart bench`` with simulated providers, and with configured ones."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tomllib
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from click.testing import CliRunner

from headstart.errors import ConfigError
from headstart.lab.commands.bench import bench
from headstart.lab.simulator import Oracle, Simulator, serve
from headstart.lab.simulator.faults import Status
from support.raw_upstream import RawUpstream, raw_upstream

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

QUICK = ("--calls", "8", "--cold", "2", "--max-tokens", "40", "--speed", "20")


def _bench(*options: str, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(bench, [*options, "--json"], catch_exceptions=False)
    assert result.exit_code == code, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_simulated_providers_are_measured_and_a_route_is_recommended() -> None:
    # Slower than the others: a fast answer of groq would come in one read on a busy machine.
    found = _bench("--simulate", "groq,together", *QUICK, "--speed", "2")
    groq, together = found["measured"]
    assert (groq["upstream"], groq["model"], groq["calls"]) == ("groq", "mixtral-8x7b", 10)
    assert groq["errors"] == {}
    assert groq["ttft_s"]["p50"] > 0.05, "simulated seconds, not those on the clock"
    assert groq["tokens_per_s"]["p50"] > 0
    assert 0 < together["cost_usd"] < groq["cost_usd"]
    assert groq["cached_share"] > 0.5, "three prompts of the mix share a long prefix"
    assert set(found["recommended"]["upstreams"]) == {"groq", "together"}
    (route,) = tomllib.loads(found["recommended"]["toml"])["route"]
    assert route["match"] == {"model": "mixtral-8x7b"}


@pytest.mark.parametrize("name", ["anthropic", "google", "cohere"])
def test_a_provider_is_measured_in_its_own_dialect(name: str) -> None:
    (found,) = _bench("--simulate", name, *QUICK)["measured"]
    assert found["errors"] == {}
    assert found["ttft_s"]["p50"] > 0
    assert 16 < found["completion_tokens"] <= 40
    assert not found["estimated"]


def test_the_table_and_the_route_are_printed() -> None:
    result = CliRunner().invoke(bench, ["--simulate", "instant,instant", *QUICK])
    assert result.exit_code == 0
    assert "instant-2" in result.stdout
    assert "first" in result.stdout
    assert '[[route]]\nname = "bench"' in result.stdout


def test_several_steps_find_the_knee_of_a_provider_with_a_queue() -> None:
    found = _bench(
        "--simulate", "queue", "--concurrency", "64,1,16", "--calls", "24", "--cold", "0",
        "--max-tokens", "16", "--speed", "4",
    )  # fmt: skip
    (capacity,) = found["steps"]
    assert [step["concurrency"] for step in capacity["steps"]] == [1, 16, 64]
    assert [step["calls"] for step in capacity["steps"]] == [24, 64, 256]
    # A busy machine makes simulated calls slower: only the order of magnitude is sure here.
    assert capacity["knee"] is None or 24 / 5 < capacity["knee"] < 24 * 5
    assert found["measured"][0]["calls"] == 24, "the table shows the step with the fewest calls"


def test_a_list_of_steps_that_cannot_be_read_is_refused() -> None:
    for wrong in ("", "0", "4,x", "5000"):
        result = CliRunner().invoke(bench, ["--simulate", "instant", "--concurrency", wrong])
        assert result.exit_code == 2
        assert "--concurrency" in result.output


def test_answers_are_checked_and_the_cheapest_good_model_is_named(tmp_path: Path) -> None:
    prompts = tmp_path / "checked.jsonl"
    right = Oracle().truth("Why is the sky blue?").text
    rows: list[dict[str, Any]] = [
        {"prompt": f"Question {n}?", "expect": "no words"} for n in range(2)
    ]
    rows += [{"prompt": "Why is the sky blue?", "expect": [right, "or this"]}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--simulate", "instant", "--prompts", str(prompts), "--calls", "9", "--quality")
    found = _bench(*options, "90%")
    (quality,) = found["quality"]
    assert (quality["prompts"], quality["right"]) == (3, pytest.approx(1 / 3))
    assert found["choice"]["model"] is None
    assert _bench(*options, "1%")["choice"]["upstream"] == "instant"
    table = CliRunner().invoke(bench, [*options, "1%"])
    assert "cheapest with 1% right answers or more: instant" in table.stdout


@pytest.mark.anyio
async def test_a_judge_is_asked_where_the_words_differ(tmp_path: Path) -> None:
    prompts = tmp_path / "checked.jsonl"
    prompts.write_text(json.dumps({"prompt": "Question?", "expect": "nobody says this"}))
    simulator = Simulator()
    async with serve(simulator) as url:
        options = ("--config", str(_configured(tmp_path, url)), "--prompts", str(prompts))
        found = await anyio.to_thread.run_sync(
            lambda: _bench(*options, "--calls", "5", "--cold", "0", "--judge", "judge")
        )
    assert {record.model for record in simulator.stats.ended_calls()} == {"real", "judge"}
    assert simulator.stats.snapshot().calls == 10
    assert found["quality"] == [], "a judge that says neither SAME nor DIFFERENT decides nothing"


def test_checks_need_prompts_that_expect_something() -> None:
    for option in (("--quality", "90%"), ("--judge", "m")):
        result = CliRunner().invoke(bench, ["--simulate", "instant", *option])
        assert result.exit_code == 2
        assert "expect" in result.output


def _configured(tmp_path: Path, *urls: str) -> Path:
    config = tmp_path / "headstart.toml"
    tables = [
        f'[[upstream]]\nname = "u{number}"\nbase_url = "{url}/v1"\n'
        f'[upstream.models]\nalias = "real"\n'
        for number, url in enumerate(urls)
    ]
    config.write_text("\n".join(tables))
    return config


@pytest.mark.anyio
async def test_configured_providers_get_the_users_own_prompts(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Why is the sky blue?\n")
    # The one that the configuration names first answers last.
    good, bad = Simulator("groq", speed=10), Simulator(fault=Status(status=503))
    async with serve(good) as url, serve(bad) as broken:
        config = _configured(tmp_path, url, broken)
        options = ("--config", str(config), "--model", "alias", "--prompts", str(prompts))
        found = await anyio.to_thread.run_sync(lambda: _bench(*options, *QUICK[:4]))
        alone = await anyio.to_thread.run_sync(
            lambda: _bench(*options, *QUICK[:4], "--upstream", "u1", code=1)
        )
    first, second = found["measured"]
    assert first["errors"] == {}
    assert second["errors"] == {"server-error": 10}
    assert found["recommended"]["strategy"] == "single"
    assert found["recommended"]["upstreams"] == ["u0"]
    assert {record.model for record in good.stats.ended_calls()} == {"real"}
    assert {record.prompt_tokens for record in good.stats.ended_calls()} == {5}
    assert alone["recommended"] is None


class ClosesAfterEachAnswer(RawUpstream):
    """A server that announces nothing, and closes when the next request of a connection comes."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._exchange(reader, writer)
            await reader.read(1)
        finally:
            writer.close()


@pytest.mark.anyio
async def test_a_call_whose_connection_had_just_closed_is_made_again(tmp_path: Path) -> None:
    said = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    said += b"data: [DONE]\n\n"
    async with raw_upstream(ClosesAfterEachAnswer(head % len(said) + said)) as url:
        config = _configured(tmp_path, url)
        options = ("--config", str(config), "--concurrency", "1", *QUICK[:4])
        found = await anyio.to_thread.run_sync(lambda: _bench(*options))
    assert [each["errors"] for each in found["measured"]] == [{}]


@pytest.mark.anyio
async def test_a_server_with_a_small_context_is_told_about(tmp_path: Path) -> None:
    said = b'{"error":{"message":"too long","code":"context_length_exceeded"}}'
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
    upstream = RawUpstream(head + b"content-length: %d\r\n\r\n" % len(said) + said)
    async with raw_upstream(upstream) as url:
        options = ["--config", str(_configured(tmp_path, url)), *QUICK[:4]]
        result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(bench, options))
    assert "10 of 10 calls failed: context-too-long; take --prompts that fit" in result.output


def test_options_that_allow_no_measurement_are_refused(tmp_path: Path) -> None:
    config = str(_configured(tmp_path, "http://127.0.0.1:9"))
    for options, reason in (
        (["--simulate", "groqq"], "did you mean 'groq'"),
        (["--simulate", ","], "name one profile"),
        (["--config", config, "--upstream", "x"], "known: u0"),
    ):
        with pytest.raises(ConfigError, match=reason):
            CliRunner().invoke(bench, options, catch_exceptions=False)
    assert CliRunner().invoke(bench, ["--speed", "2"]).exit_code == 2


def _interrupted(config: Path, ready: Callable[[], bool]) -> tuple[int, dict[str, Any]]:
    """Run the command, press Ctrl-C once it is under way, and return its code and its report."""
    arguments = ["bench", "--config", str(config), "--calls", "1000000", "--json"]
    command = [sys.executable, "-m", "headstart", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not ready() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate()
    return process.returncode, json.loads(told)


@pytest.mark.anyio
async def test_ctrl_c_reports_what_was_measured_and_says_so(tmp_path: Path) -> None:
    simulator = Simulator()
    async with serve(simulator) as url:
        code, found = await anyio.to_thread.run_sync(
            _interrupted,
            _configured(tmp_path, url),
            lambda: simulator.stats.snapshot().completed > 10,
        )
    assert code == 130
    assert found["whole"] is False
    assert found["measured"][0]["calls"] >= 1

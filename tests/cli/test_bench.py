"""``headstart bench`` against simulated providers, and as configured ones."""

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
from headstart.lab.simulator import Simulator, serve
from headstart.lab.simulator.faults import Status

if TYPE_CHECKING:
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
    found = _bench("--simulate", "groq,together", *QUICK)
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
    good, bad = Simulator(), Simulator(fault=Status(status=503))
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
    assert {record.model for record in good.stats.records()} == {"real"}
    assert {record.prompt_tokens for record in good.stats.records()} == {5}
    assert alone["recommended"] is None


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
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
    program = "from headstart.cli import main; main()"
    arguments = ["bench", "--config", str(config), "--calls", "1000000", "--json"]
    command = [sys.executable, "-c", program, *arguments]
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

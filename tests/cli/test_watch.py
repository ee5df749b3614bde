"""``headstart watch``: rounds, history, budget, alarms and the proposed route."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from headstart.errors import ConfigError
from headstart.lab.bench import Sample, Subject
from headstart.lab.commands.watch import append_round, propose, read_history, watch
from headstart.lab.quality import Round
from headstart.lab.simulator import Simulator, serve
from headstart.lab.simulator.profiles import ProviderProfile

if TYPE_CHECKING:
    from pathlib import Path

HOUR_S = 3600.0


def _config(path: Path, *urls: str, extra: str = "") -> Path:
    tables = [
        f'[[upstream]]\nname = "u{n}"\nbase_url = "{url}/v1"\nmodels = {{ m = "m" }}\n{extra}'
        for n, url in enumerate(urls)
    ]
    strategy = "fallback" if len(urls) > 1 else "single"
    route = f'# ours\n[[route]]\nname = "all"\nstrategy = "{strategy}"  # in order\n'
    named = ", ".join(f'"u{n}"' for n in range(len(urls)))
    path.write_text("\n".join(tables) + route + f"upstreams = [{named}]\n")
    return path


def _run(config: Path, *options: str) -> Result:
    given = ["--config", str(config), "--model", "m", "--once", "--calls", "4", *options]
    return CliRunner().invoke(watch, given, catch_exceptions=False)


def _earlier(history: Path, upstreams: int, ttft_s: float = 0.001, days: int = 14) -> None:
    """Write hourly rounds of quick providers up to now."""
    now = time.time()  # noqa: TID251 - the command reads the real clock
    for hour in range(days * 24, 0, -1):
        for n in range(upstreams):
            vary = 1 + (hour * 7919 % 100) / 1000
            subject = Subject(f"u{n}", "m", "m", cancels_billing=True)
            sample = Sample(subject=subject, cold=False, ttft_s=ttft_s * vary, total_s=ttft_s * 2)
            found = Round(
                at=now - hour * HOUR_S, upstream=f"u{n}", model="m", calls=4, errors=0,
                ttft_s=ttft_s * vary, tokens_per_s=None, right=None, cost_usd=0.0,
                samples=(sample,) * 4,
            )  # fmt: skip
            append_round(history, found)


@pytest.mark.anyio
async def test_a_slower_provider_is_found_and_the_other_is_proposed(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    slow, quick = ProviderProfile(model="m", ttft_ms=300), ProviderProfile(model="m", ttft_ms=10)
    posted: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        posted.append(await request.json())
        return web.Response()

    app = web.Application()
    app.router.add_post("/hook", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    hook = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"

    def rounds(*urls: str) -> Result:
        # Many earlier rounds: those of one test are all in one part of the day.
        _earlier(history, 2, ttft_s=0.06, days=45)
        config = _config(tmp_path / "headstart.toml", *urls)
        for _ in range(15):
            result = _run(
                config, "--history", str(history), "--webhook", hook, "--every", "1d"
            )  # fmt: skip
            if result.exit_code:
                break
        assert config.read_text().count('"u0", "u1"') == 1, "the file itself is not changed"
        return result

    try:
        async with serve(Simulator(slow)) as one, serve(Simulator(quick)) as other:
            result = await anyio.to_thread.run_sync(rounds, one, other)
    finally:
        await runner.cleanup()
    assert result.exit_code == 3, result.output
    assert re.search(r"Z u0 m: first token 0\.\d\d s, \$", result.stdout)
    assert "ALARM u0 m: first token was 0.06" in result.stdout
    assert '-upstreams = ["u0", "u1"]\n+upstreams = ["u1", "u0"]' in result.stdout
    assert "ALARM u1" not in result.stdout
    assert posted[0]["alarm"]["upstream"] == "u0"
    assert posted[0]["proposal"] in result.stdout


@pytest.mark.anyio
async def test_rounds_are_kept_and_told(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"

    def rounds(url: str) -> None:
        config = _config(tmp_path / "headstart.toml", url)
        for number in (1, 2):
            result = _run(config, "--history", str(history), "--json")
            assert result.exit_code == 0, result.output
            assert json.loads(result.stdout)["round"]["calls"] == 4
            assert len(read_history(history, 0.0)) == number
        assert "Summarise" not in history.read_text(), "no prompt is kept"

    async with serve(Simulator()) as url:
        await anyio.to_thread.run_sync(rounds, url)


def test_a_line_that_was_cut_off_leaves_the_history(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    _earlier(history, 1, days=1)
    with history.open("ab") as file:
        file.write(b'{"at":1,"upst')
    assert len(read_history(history, 0.0)) == 24
    assert history.read_bytes().endswith(b"}\n")
    history.write_text("no JSON\n")
    with pytest.raises(ConfigError, match="line 1"):
        read_history(history, 0.0)


def test_the_budget_is_kept(tmp_path: Path) -> None:
    price = "price.default = { input_per_million = 0.0, output_per_million = 100.0 }\n"
    history = tmp_path / "history.jsonl"
    config = _config(tmp_path / "headstart.toml", "http://api.invalid", extra=price)
    with pytest.raises(ConfigError, match="more than --budget"):
        _run(config, "--history", str(history), "--budget", "0.001")
    result = _run(config, "--history", str(history), "--budget", "0.02")
    assert "allows a round each" in result.stderr
    assert "nobody answered" in result.stdout
    assert "4 of 4 failed" in result.stdout
    spent = Round(
        at=time.time() - 60, upstream="u0", model="m", calls=4, errors=0, ttft_s=1.0,  # noqa: TID251 - the command reads the real clock
        tokens_per_s=None, right=None, cost_usd=0.0199,
    )  # fmt: skip
    append_round(history, spent)
    result = _run(config, "--history", str(history), "--budget", "0.02")
    assert "left out" in result.stderr
    assert result.stdout == ""


def test_rounds_without_a_time_between_them_are_refused(tmp_path: Path) -> None:
    config = _config(tmp_path / "headstart.toml", "http://127.0.0.1:9")
    result = _run(config, "--every", "0h", "--history", str(tmp_path / "history.jsonl"))
    assert result.exit_code == 2
    assert "Invalid value for --every: it has to be above zero" in result.stderr


def test_a_provider_without_a_price_is_refused(tmp_path: Path) -> None:
    config = _config(tmp_path / "headstart.toml", "https://api.example.com")
    with pytest.raises(ConfigError, match=r"set upstream\.price"):
        _run(config, "--history", str(tmp_path / "h.jsonl"))


def _samples(ttfts: dict[str, float]) -> tuple[list[Subject], list[Sample]]:
    subjects = [Subject(name, "m", "m") for name in ttfts]
    samples = [
        Sample(subject=each, cold=False, ttft_s=ttfts[each.upstream], total_s=ttfts[each.upstream])
        for each in subjects
        for _ in range(30)
    ]
    return subjects, samples


def test_only_the_route_of_the_provider_changes() -> None:
    text = (
        '[[route]]\nname = "other"\nupstreams = ["z"]\n\n'
        '[[route]]  # mine\nname = "mine"\nstrategy = "cheapest"\nwithin_s = 3\n'
        'upstreams = [\n  "a",  # first\n  "b",\n]\n'
        '[route.match]\nmodel = "m"\n[cache]\nttl_s = 5\n'
    )
    subjects, samples = _samples({"a": 2.0, "b": 0.5, "c": 0.1})
    assert propose(text, "a", subjects, samples) == (
        '[[route]]\nname = "other"\nupstreams = ["z"]\n\n'
        '[[route]]  # mine\nname = "mine"\nstrategy = "fallback"\n'
        'upstreams = ["b", "a"]\n[route.match]\nmodel = "m"\n[cache]\nttl_s = 5\n'
    )


def test_without_a_route_one_is_added_and_a_good_one_stays() -> None:
    subjects, samples = _samples({"a": 2.0, "b": 0.5})
    added = propose("[cache]\nttl_s = 5\n", "a", subjects, samples)
    assert added is not None
    assert added.startswith("[cache]\nttl_s = 5\n\n#")
    alone = '[[route]]\nname = "r"\nstrategy = "single"\nupstreams = ["a"]\n'
    assert propose(alone, "a", subjects, samples) is None
    good = '[[route]]\nname = "r"\nstrategy = "fallback"\nupstreams = ["b", "a"]\n'
    assert propose(good, "a", subjects, samples) is None

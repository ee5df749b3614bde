"""``headstart cache import --answers``: a server finds what another tool has logged."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from anyio import to_thread

from headstart.__main__ import main
from headstart.cli.cache import read_calls
from support.sidecar import PROMPT, REWORDED, Sidecar, sidecar
from support.simulated import chat

if TYPE_CHECKING:
    from pathlib import Path


NOW = time.time()  # noqa: TID251 - the command runs by the real clock


def answered(text: str, finish: str = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def litellm(question: str, text: str, age_s: float = 0.0, finish: str = "stop") -> dict[str, Any]:
    return {
        **chat(question),
        "status": "success",
        "startTime": NOW - age_s,
        "response": answered(text, finish),
    }


def content(reply: Any) -> str:
    found: str = json.loads(reply.body)["choices"][0]["message"]["content"]
    return found


async def import_into(
    running: Sidecar, folder: Path, rows: list[dict[str, Any]], *more: str
) -> None:
    """Import a log into the store of a running server, by the command."""
    log, config = folder / "log.jsonl", folder / "headstart.toml"
    log.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    config.write_text(
        f'[cache]\nstore = "sqlite:///{folder}/store.db"\n'
        f'[[upstream]]\nname = "sim"\nbase_url = "{running.provider_url}"\n',
        "utf-8",
    )
    arguments = ["cache", "import", str(log), "--answers", "--config", str(config), *more]
    await to_thread.run_sync(main, arguments)


@pytest.mark.anyio
async def test_a_running_server_serves_imported_answers_to_those_who_have_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALLERS_KEY", "sk-test")
    rows = [
        litellm(PROMPT, "Old.", age_s=3600.0),
        litellm(PROMPT, "Open the page and follow it.", age_s=60.0),
        litellm(PROMPT, "Older.", age_s=7200.0),
        litellm("What was last year?", "Long ago.", age_s=366 * 86400.0),
        litellm("What is cut?", "An ans", finish="length"),
        {"messages": [*chat("What is a race?")["messages"], {"role": "assistant", "content": "A."}],
         "model": "m"},
        {"request": {"body": chat("What is mine?")}, "response": {"body": answered("This.")}},
        {"some": "thing"},
    ]  # fmt: skip
    async with sidecar(cache={"store": f"sqlite:///{tmp_path}/store.db"}) as running:
        await import_into(running, tmp_path, rows, "--key-env", "CALLERS_KEY")
        said = capsys.readouterr().out
        assert "4 answers were stored" in said
        for reason in ("1 left out: known", "expired", "length", "no-call"):
            assert reason in said
        reply = await running.ask(PROMPT)
        assert (content(reply), reply.verdict.endswith("detail=exact")) == (
            "Open the page and follow it.",
            True,
        )
        for question, text in (("What is a race?", "A."), ("What is mine?", "This.")):
            assert content(await running.ask(question)) == text
        streamed = await running.ask("What is a race?", stream=True)
        assert b"data: [DONE]" in streamed.body
        await running.indexed(3)
        assert content(await running.ask(REWORDED)) == "Open the page and follow it."
        assert running.provider.calls == 0
        stranger = await running.ask(PROMPT, headers={"authorization": "Bearer another"})
        assert "fwd=miss" in stranger.verdict


@pytest.mark.anyio
async def test_a_newer_answer_of_the_server_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALLERS_KEY", "sk-test")
    cache = {"store": f"sqlite:///{tmp_path}/store.db", "mode": "exact-only"}
    async with sidecar(cache=cache) as running:
        own = content(await running.ask(PROMPT))
        rows = [litellm(PROMPT, "Old.", age_s=60.0)]
        await import_into(running, tmp_path, rows, "--key-env", "CALLERS_KEY")
        assert "1 left out: known" in capsys.readouterr().out
        assert content(await running.ask(PROMPT)) == own


def test_a_log_is_refused_without_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(litellm("q", "a")), "utf-8")
    with pytest.raises(SystemExit) as left:
        main(["cache", "import", str(log), "--store", f"sqlite:///{tmp_path}/store.db"])
    assert left.value.code == 2
    assert "add --answers" in capsys.readouterr().err


def test_lines_that_are_not_calls_are_named_as_such() -> None:
    lines = [b"", b"nonsense", b"[]", b'{"request": 1}', json.dumps(litellm("q", "a")).encode()]
    calls = list(read_calls(lines))
    assert [call is None for call in calls] == [True, True, True, False]

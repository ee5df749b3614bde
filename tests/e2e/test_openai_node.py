"""The official client for Node, where it is installed: ``NODE_PATH`` leads to its modules."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from headstart.decisions import Outcome
from headstart.lab.simulator import Oracle
from support.endings import TEXT, TOKENS, Ending, EndingProvider, ending
from support.proxied import proxied
from support.sidecar import PROMPT, REWORDED, sidecar

NODE = shutil.which("node")


def has_client() -> bool:
    if NODE is None:
        return False
    found = subprocess.run(
        [NODE, "-e", "require.resolve('openai')"], capture_output=True, check=False
    )
    return found.returncode == 0


pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not has_client(), reason="node or its openai package is not here"),
]


async def ask(url: str, question: str, *times: str) -> list[dict[str, Any]]:
    program = Path(__file__).with_name("openai_node.mjs")
    done = await anyio.run_process(["node", str(program), f"{url}/v1", question, *times])
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


async def test_node_gets_the_same_answer_from_the_provider_and_from_the_cache() -> None:
    async with sidecar() as gateway:
        first = await ask(gateway.url, PROMPT)
        await gateway.indexed(1)
        exact = await ask(gateway.url, PROMPT)
        semantic = await ask(gateway.url, REWORDED)
        await gateway.finished(6)
        assert gateway.provider.calls == 1
        assert gateway.outcomes == [
            Outcome.MISS,
            *[Outcome.EXACT] * 3,
            *[Outcome.SEMANTIC] * 2,
        ]
    assert first[0]["text"] == Oracle().truth(PROMPT).text
    assert first == exact == semantic
    assert first[0] == first[1]


@pytest.mark.parametrize("how", [Ending(0.002), Ending(None), Ending(0.0, reset=True)])
async def test_the_second_of_two_streams_is_a_hit_however_the_first_body_ends(how: Ending) -> None:
    provider = EndingProvider(how)
    async with ending(provider), proxied(provider={"base_url": provider.url}) as proxy:
        answers = await ask(proxy.url, "Why?", "2")
        assert answers == [{"text": TEXT, "tokens": sum(TOKENS)}] * 2
        assert provider.calls == 1

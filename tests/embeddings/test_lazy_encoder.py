"""The encoder that loads its model late."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from headstart.embeddings.encoder import DEFAULT_MODEL, GRAPH_FILE, OnnxEncoder
from headstart.errors import ConfigError, EncoderError

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import asyncio, sys
import aiohttp
from headstart import gateway
from headstart.config.loading import load_settings
from headstart.lab.simulator import Simulator, serve
from headstart.lab.simulator.app import serve_app
import uvicorn

QUESTIONS = ("How can I sign up for ChatGPT?", "I want to sign up for ChatGPT", "Can I join?")

async def main():
    async with serve(Simulator()) as url, aiohttp.ClientSession() as session:
        upstream = [{"name": "sim", "base_url": f"{url}/v1"}]
        settings = load_settings(None, {}, {"server.profile": "serverless", "upstream": upstream})
        app = gateway(settings)
        async with serve_app(uvicorn.Config(app, log_level="error")) as (_, root):
            for question in QUESTIONS:
                body = {"model": "m", "messages": [{"role": "user", "content": question}]}
                headers = {"authorization": "Bearer k"}
                asked = session.post(f"{root}/v1/chat/completions", json=body, headers=headers)
                async with asked as reply:
                    assert reply.status == 200
                print("onnxruntime" in sys.modules)
            async with asyncio.timeout(30):
                while "onnxruntime" not in sys.modules:
                    await asyncio.sleep(0.02)
        await app.aclose()
    print("loaded")

asyncio.run(main())
"""


def test_a_lazy_encoder_encodes_like_the_encoder_whichever_caller_is_first() -> None:
    lazy, own = OnnxEncoder(max_tokens=64, lazy=True), OnnxEncoder(max_tokens=64)
    assert (lazy.namespace, lazy.dimension) == (own.namespace, own.dimension)
    texts = ["How do I reset my password?", "What is a hedge?"] * 4
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lazy.encode, texts))
    for text, encoding in zip(texts, found, strict=True):
        assert np.array_equal(encoding.sentence, own.encode(text).sentence)


def test_a_wrong_folder_is_told_at_the_start_and_a_broken_model_later(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"encoder\.model"):
        OnnxEncoder(tmp_path, lazy=True)
    folder = tmp_path / "broken"
    shutil.copytree(DEFAULT_MODEL, folder)
    (folder / GRAPH_FILE).write_bytes(b"no graph")
    with pytest.raises(EncoderError, match="export it again"):
        OnnxEncoder(folder, lazy=True).encode("a question")


def test_a_server_loads_it_with_the_first_question_that_is_compared(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    told = done.stdout.split()
    assert (told[0], told[-1]) == ("False", "loaded")
    assert not list(tmp_path.iterdir())  # nothing is written

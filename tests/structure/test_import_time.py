"""``import headstart`` is quick, and loads nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {
    "aiohttp", "faiss", "litestar", "numpy", "onnxruntime", "prometheus_client", "redis", "rich",
    "tiktoken", "tokenizers", "uvicorn",
}  # fmt: skip
LIMIT_S = 0.1

PROBE = """
import json, sys, time
began = time.process_time()
import headstart
print(json.dumps([time.process_time() - began, sorted(sys.modules)]))
"""


def probe() -> tuple[float, set[str]]:
    """Import headstart in a fresh interpreter; return its CPU seconds and what it loaded."""
    done = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True)
    seconds, loaded = json.loads(done.stdout)
    return seconds, set(loaded)


def test_import_loads_nothing_heavy() -> None:
    _, loaded = probe()
    assert not HEAVY & loaded


def test_import_takes_under_a_tenth_of_a_second_of_cpu() -> None:
    # The best of a few: the first compiles bytecode, and a busy machine only ever adds.
    assert min(probe()[0] for _ in range(3)) < LIMIT_S

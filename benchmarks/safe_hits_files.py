"""The files of ``benchmarks.safe_hits_http``."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.safe_hits_page import page
from headstart.embeddings.stores.store_urls import open_store
from headstart.middleware.learning.certificates import all_labels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.safe_hits_scores import Asked, Sample
    from headstart.decisions import Label


class Question(msgspec.Struct):
    """One line of the stream."""

    prompt: str
    label: str
    query: str | None = None


def read_stream(path: Path, seed: int) -> list[Question]:
    """Return the stream's distinct prompts in a seeded order."""
    found: dict[str, Question] = {}
    for raw in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(raw)
        question = Question(line["prompt"], str(line["class"]), line.get("query"))
        found.setdefault(" ".join(question.prompt.split()).casefold(), question)
    questions = list(found.values())
    random.Random(seed).shuffle(questions)
    return questions


def write_settings(folder: Path, upstream: str, max_error: float | None, wait_ms: float) -> Path:
    """Write the sidecar's settings. All other settings have their defaults."""
    target = "" if max_error is None else f"max_error = {max_error}\n"
    path = folder / "headstart.toml"
    path.write_text(
        f'[cache]\nstore = "sqlite:///{folder}/bench.db"\n{target}'
        f"[encoder]\nmax_wait_ms = {wait_ms}\n[learning]\ncpu_share = 1\n"
        f'[[upstream]]\nname = "sim"\nbase_url = "{upstream}/v1"\n',
        encoding="utf-8",
    )
    return path


async def read_labels(database: Path) -> list[Label]:
    """Return the labels of a stopped sidecar's store."""
    store = open_store(f"sqlite:///{database}")
    await store.open()
    try:
        return [label async for label in all_labels(store)]
    finally:
        await store.aclose()


def write_artefacts(
    out: Path,
    found: dict[str, Any],
    rows: Sequence[Asked],
    samples: Sequence[Sample],
    settings: dict[str, Any],
) -> None:
    """Write the raw log, the settings with seeds, the summary and the plots."""
    encode = msgspec.json.encode
    out.mkdir(parents=True, exist_ok=True)
    (out / "requests.jsonl").write_bytes(b"\n".join(map(encode, rows)))
    (out / "samples.jsonl").write_bytes(b"\n".join(map(encode, samples)))
    (out / "settings.json").write_bytes(encode(settings))
    (out / "summary.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    title = f"Safe hits over HTTP: {found['stream']}"
    drawn = page(title, found, rows, samples, found["max_error"])
    (out / "page.html").write_text(drawn, encoding="utf-8")

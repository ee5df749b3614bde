"""JSON, HTML and logs: saved tokens, CPU time, and kept content."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import time
from typing import TYPE_CHECKING, Any

from headstart import compress
from headstart.compression.logs import reports_problem
from headstart.compression.tokens import count_tokens

if TYPE_CHECKING:
    from pathlib import Path

    from headstart.settings import CompressionMode

MODEL = "gpt-4o"
LINES = 1000
_LINK = re.compile(r"\[([^\[\]]*)\]\([^()\s]*\)")

HEADROOM = """
import json, sys, time
import headroom
cases = json.load(sys.stdin)
out = []
for warm in (True, False):
    for messages in cases[:2] if warm else cases:
        began = time.process_time()
        done = headroom.compress(messages, model="gpt-4o", protect_recent=0)
        spent = time.process_time() - began
        content = done.messages[-1]["content"]
        if not warm:
            out.append([content if isinstance(content, str) else json.dumps(content), spent])
json.dump(out, open(sys.argv[1], "w"))
"""


def payloads(folder: Path) -> dict[str, list[str]]:
    """Return tool results by kind."""
    rows = json.loads((folder / "taubench" / "gpt-4o-airline.json").read_text("utf-8"))
    results = dict.fromkeys(
        message["content"]
        for row in rows
        for message in row["traj"]
        if message["role"] == "tool" and len(message["content"]) > 400
    )
    products = json.loads((folder / "taubench" / "products.json").read_text("utf-8"))
    pages = sorted((folder / "htmlarticles" / "html").iterdir())
    kinds = {
        "tool JSON as sent": list(results)[:200],
        "catalogue, indented": [json.dumps(products, indent=2)],
        "HTML pages": [
            gzip.decompress(page.read_bytes()).decode(errors="replace") for page in pages
        ],
    }
    for path in sorted((folder / "loghub").glob("*.log")):
        lines = path.read_text("utf-8", errors="replace").splitlines()[:LINES]
        kinds[f"log: {path.stem.removesuffix('_2k')}"] = ["\n".join(lines)]
    return kinds


def article_recall(folder: Path) -> float:
    """Return the share of the articles' words that their pages, as they are sent, still hold."""
    truth = json.loads((folder / "htmlarticles" / "ground-truth.json").read_text("utf-8"))
    kept = []
    for page in sorted((folder / "htmlarticles" / "html").iterdir()):
        html = gzip.decompress(page.read_bytes()).decode(errors="replace")
        ((sent, _),) = ours([html], "balanced")
        words = set(truth[page.name.partition(".")[0]]["articleBody"].split())
        kept.append(len(words & set(_LINK.sub(r"\1", sent).split())) / len(words))
    return sum(kept) / len(kept)


def conversation(text: str, words: str = "Is everything in order?") -> list[dict[str, Any]]:
    """Return a conversation that ends with a tool's result; ``words`` are the user's."""
    function = {"name": "lookup", "arguments": "{}"}
    return [
        {"role": "user", "content": words},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": text},
    ]


def ours(texts: list[str], mode: CompressionMode) -> list[tuple[str, float]]:
    """Return each text as it is sent and the CPU seconds it took."""
    out = []
    for text in texts:
        messages = conversation(text)
        began = time.process_time()
        done = compress(messages, mode=mode)
        out.append((done.messages[-1]["content"], time.process_time() - began))
    return out


def headrooms(
    conversations: list[list[dict[str, Any]]], python: Path, scratch: Path
) -> list[tuple[str, float]]:
    """Return what headroom-ai, in an environment of its own, makes of the conversations' ends."""
    file = scratch / "headroom.json"
    subprocess.run(
        [str(python), "-c", HEADROOM, str(file)],
        input=json.dumps(conversations),
        text=True,
        check=True,
        capture_output=True,
    )
    return [(text, seconds) for text, seconds in json.loads(file.read_text("utf-8"))]


def row(texts: list[str], sent: list[tuple[str, float]]) -> dict[str, float]:
    """Return saved tokens, time by token, and the kept lines that report problems."""
    before = sum(count_tokens(text, MODEL).tokens for text in texts)
    after = sum(count_tokens(text, MODEL).tokens for text, _ in sent)
    problems = kept = 0
    for text, (short, _) in zip(texts, sent, strict=True):
        lines = set(short.split("\n"))
        for line in text.split("\n") if len(texts) == 1 else ():
            problems += reports_problem(line)
            kept += reports_problem(line) and line in lines
    return {
        "change": after / before - 1,
        "ms per 1k": sum(seconds for _, seconds in sent) * 1e6 / before,
        "problems": problems,
        "kept": kept,
    }

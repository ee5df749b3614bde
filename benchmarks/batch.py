"""``headstart batch`` beside clients that ask a fixed number at a time, before a limited provider.

    python -m benchmarks.batch [--requests 20000] [--slots 40] [--fixed 8,32,128] [--json FILE]

Of the requests, 30 % repeat an earlier one, 20 % reword an earlier question while there are other
wordings, and the others are new; many of these differ from another one in a number only. The
simulated provider refuses (429, without a time to wait) what exceeds its slots. Equal meaning gets
the equal text, so an answer that belongs to another question is a wrong merge. A fixed client asks
a refused request again after 1, 2, 4 ... 8 s, up to eight times. The batch is killed when a third
is done, and started again. With ``--tier batch`` it is killed when its batch is made at the
provider, which takes 20 s for a batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import uvicorn

from benchmarks.slots import slots_stream
from headstart.lab.simulator import Simulator, find_profile
from headstart.lab.simulator.chat_request import AskedMessage
from headstart.lab.simulator.oracle import AnswerKey, AnswerKeyRow
from headstart.middleware.respond import send_whole
from headstart.sockets import bind, url_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from headstart.types import Receive, Scope, Send

REPEATS, REWORDINGS = 0.3, 0.2
LATENCY_S = 0.4
BATCH_S = 20.0
MOST_TRIES, LONGEST_PAUSE_S = 8, 8.0
COMMAND = [sys.executable, "-m", "headstart", "batch"]


def questions(count: int, seed: int) -> list[AnswerKeyRow]:
    """Return the requests in their order."""
    chance = random.Random(seed)
    wordings: dict[str, list[str]] = {}
    for more in range(4):
        for asked in slots_stream(seed + more):
            known = wordings.setdefault(asked.label, [])
            if asked.text not in known:
                known.append(asked.text)
    fresh = list(wordings)
    chance.shuffle(fresh)
    said: list[AnswerKeyRow] = []
    reworded: list[str] = []
    for number in range(count):
        draw = chance.random()
        if said and draw < REPEATS:
            said.append(chance.choice(said))
            continue
        label = None
        while reworded and draw < REPEATS + REWORDINGS and label is None:
            label = chance.choice(reworded)
            if not wordings[label]:
                reworded.remove(label)
                label = None
        if label is None and fresh:
            label = fresh.pop()
            reworded.append(label)
        text = f"What does the part number {number} cost?"
        if label is not None:
            text = wordings[label].pop()
        said.append(AnswerKeyRow(prompt=text, question=text, label=label or f"part/{number}"))
    return said


class LimitedProvider:
    """A simulated provider that refuses calls beyond its slots."""

    def __init__(self, simulator: Simulator, slots: int) -> None:
        self.simulator, self.slots = simulator, slots
        self.running = self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.running >= self.slots:
            self.refused += 1
            body = b'{"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}'
            length = (b"content-length", b"%d" % len(body))
            return await send_whole(send, 429, (length,), body)
        self.running += 1
        try:
            await self.simulator(scope, receive, send)
        finally:
            self.running -= 1

    def taken(self) -> dict[str, int]:
        """Return the counts since the last look."""
        found = {"calls": self.simulator.stats.snapshot().calls, "refused": self.refused}
        self.simulator.reset()
        self.refused = 0
        return found


async def ask_fixed(url: str, asked: Sequence[AnswerKeyRow], concurrency: int) -> dict[str, Any]:
    """Ask all requests with so many at a time, as a script with retries does."""
    waiting = iter(asked)
    failed = 0

    async def ask(session: aiohttp.ClientSession) -> None:
        nonlocal failed
        for each in waiting:
            for tries in range(MOST_TRIES):
                async with session.post("/v1/chat/completions", json=body_of(each)) as answer:
                    await answer.read()
                    if answer.status == 200:
                        break
                await asyncio.sleep(min(LONGEST_PAUSE_S, 2.0**tries) * random.uniform(0.5, 1.0))
            else:
                failed += 1

    began = time.perf_counter()
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(url, connector=connector) as session,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(concurrency):
            group.create_task(ask(session))
    return {"seconds": round(time.perf_counter() - began, 1), "failed": failed}


def body_of(asked: AnswerKeyRow) -> dict[str, Any]:
    """Return a request."""
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": asked.prompt}]}


def run_batch(
    url: str, asked: Sequence[AnswerKeyRow], key: AnswerKey, folder: Path, *, tier: bool = False
) -> dict[str, Any]:
    """Run the command, kill it, run it again, and check the answers.

    It is killed when a third is done, or with ``tier`` when the batch at the provider is made.
    """
    (folder / "headstart.toml").write_text(
        f'[cache]\nstore = "sqlite:///{folder}/store.db"\n'
        f'[[upstream]]\npreset = "openai"\nbase_url = "{url}/v1"\napi_key_env = []\n'
    )
    file, output = folder / "in.jsonl", folder / "out.jsonl"
    file.write_text("".join(json.dumps({"body": body_of(each)}) + "\n" for each in asked))
    words = [*COMMAND, str(file), "--output", str(output), "--json"]
    words += ["--config", str(folder / "headstart.toml"), *(["--tier", "batch"] if tier else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    journal = Path(f"{output}.journal")
    began = time.perf_counter()
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as first:
        while not journal.exists() or not _is_far_enough(journal.read_bytes(), asked, tier=tier):
            if first.poll() is not None:
                raise RuntimeError("the batch ended before it was killed")
            time.sleep(0.2)
        first.kill()
    kept = journal.read_bytes().count(b'"place"')
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    seconds = round(time.perf_counter() - began, 1)
    summary = json.loads(done.stdout)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    wrong = 0
    for each, row in zip(asked, rows, strict=True):
        said = row["response"]["body"]["choices"][0]["message"]["content"]
        right = key.truth_of_messages([AskedMessage(role="user", content=each.prompt)]).text
        wrong += said != right
    return {
        "seconds": seconds,
        "failed": summary["failed"],
        "kept_at_the_kill": kept,
        "resumed": summary["resumed"],
        "wrong_merges": wrong,
        "second_run": summary,
    }


def _is_far_enough(journal: bytes, asked: Sequence[AnswerKeyRow], *, tier: bool) -> bool:
    return b'"batch":"' in journal if tier else journal.count(b"\n") > len(asked) // 3


@contextmanager
def serving(app: LimitedProvider) -> Generator[str]:
    """Serve the provider in a thread, and yield its URL."""
    with bind("127.0.0.1", 0) as listening:
        config = uvicorn.Config(app, lifespan="off", log_level="error", access_log=False)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield url_of(listening)
        finally:
            server.should_exit = True
            thread.join()


def main() -> None:
    """Print one line for each way, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--slots", type=int, default=40)
    parser.add_argument("--fixed", default="8,32,128")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    asked = questions(given.requests, given.seed)
    key = AnswerKey(asked)
    instant = find_profile("instant")
    profile = msgspec.structs.replace(instant, ttft_ms=LATENCY_S * 1e3, ttft_sigma=0.3)
    simulator = Simulator(profile, oracle=key, batch_s=BATCH_S)
    provider = LimitedProvider(simulator, given.slots)
    found: dict[str, Any] = {
        "requests": len(asked),
        "distinct": len({each.prompt for each in asked}),
        "classes": len({each.label for each in asked}),
        "slots": given.slots,
    }
    print(json.dumps(found))
    with serving(provider) as url:
        for concurrency in [int(each) for each in given.fixed.split(",") if each]:
            row = asyncio.run(ask_fixed(url, asked, concurrency)) | provider.taken()
            print(f"{concurrency} at a time: {json.dumps(row)}", flush=True)
            found[f"fixed {concurrency}"] = row
        with tempfile.TemporaryDirectory(prefix="batch-") as folder:
            row = run_batch(url, asked, key, Path(folder)) | provider.taken()
        print(f"headstart batch: {json.dumps(row)}", flush=True)
        found["batch"] = row
        with tempfile.TemporaryDirectory(prefix="batch-") as folder:
            row = run_batch(url, asked, key, Path(folder), tier=True)
        batches = simulator.batches
        row["batches"], row["requests_in_them"] = batches.submitted, batches.asked.total()
        row["most_often_submitted"] = max(batches.asked.values())
        row |= provider.taken()
        print(f"headstart batch --tier batch: {json.dumps(row)}", flush=True)
        found["tier"] = row
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

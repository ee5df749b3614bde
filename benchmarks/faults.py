"""Answers that callers get when a provider fails: the sixteen faults of failoverbench, and more.

    python -m benchmarks.faults [NAME ...] [--api chat|responses|translated] [--json]

All cases run at once, streaming and at their published timings (under two minutes), through one
``headstart serve``. Each case has a simulated provider with one fault and a healthy fallback,
whose model has another name; the route is ``fallback`` with two retries, a first-token limit
of 10 s and a stall limit of 30 s. ``docs/evidence/faults.md`` has a table that this printed.

The caller uses Chat Completions; with ``--api responses`` it uses Responses and the providers speak
that too, and with ``translated`` the providers speak Chat Completions alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from benchmarks.faults_cases import CATALOGUE, MORE, ORACLE, Case, Heard, Seen
from benchmarks.safe_hits_programs import Program
from headstart.lab.simulator import Simulator, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


KEY = "FAULTS_BENCH_KEY"
PATIENCE_S = 120.0
PRICE = {"default": {"input_per_million": 1.0, "output_per_million": 2.0}}


def toml(value: Any) -> str:
    """Return a value as TOML. Tables are written inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def _table(name: str, values: dict[str, Any]) -> str:
    return "\n".join([f"[[{name}]]", *(f"{key} = {toml(value)}" for key, value in values.items())])


def settings_of(case: Case, urls: tuple[str, str], hurry: float, api: str = "chat") -> str:
    """Return the upstreams and the route of a case."""
    shared = {"first_token_s": 10 / hurry, "stall_s": 30 / hurry, "price": PRICE}
    if api == "responses":
        shared["also_speaks"] = ["responses"]
    primary_url, fallback_url = urls
    port = primary_url.rpartition(":")[2]
    primary = {
        "name": f"{case.name}-primary",
        "base_url": (case.base_url or primary_url).format(port=port),
        "api_key_env": [f"{KEY}_{key}" for key in case.keys] or [KEY],
        "models": {"m": "primary-model"},
        **shared,
        **case.primary,
    }
    fallback = {
        "name": f"{case.name}-fallback",
        "base_url": fallback_url,
        "api_key_env": KEY,
        "models": {"m": "fallback-model"},
        **shared,
        **case.fallback,
    }
    route = {
        "name": case.name,
        "strategy": "single" if case.lone else "fallback",
        "upstreams": [primary["name"], *([] if case.lone else [fallback["name"]])],
        "retries": 2,
        "equal_models": "assume",
        "match": {"header": {"x-case": case.name}},
    }
    members = (primary,) if case.lone else (primary, fallback)
    return "\n".join([*(_table("upstream", each) for each in members), _table("route", route)])


class Bench:
    """A sidecar, and all providers behind it."""

    def __init__(self, url: str, session: aiohttp.ClientSession, api: str) -> None:
        self._url = url
        self._session = session
        self._chats = api == "chat"

    async def ask(self, case: Case, number: int, began: float) -> Heard:
        """Make one call of a case, and say what came of it."""
        prompt = f"Tell me about fault {case.name}, call {number}."
        now = time.monotonic()
        heard = Heard(at=now - began)
        body = {"model": case.model, "stream": True, "temperature": 0}
        if self._chats:
            body["messages"] = [{"role": "user", "content": prompt}]
            body["stream_options"] = {"include_usage": True}
        else:
            body["input"] = prompt
        path = "/v1/chat/completions" if self._chats else "/v1/responses"
        headers = {"x-case": case.name, "authorization": "Bearer bench"}
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                self._session.post(self._url + path, json=body, headers=headers) as response,
            ):
                heard.status = response.status
                heard.upstream = response.headers.get("x-headstart-upstream", "")
                if response.status == 200:
                    await self._read(response, heard, now)
                else:
                    heard.error = (await response.text())[:300]
        except (TimeoutError, aiohttp.ClientError) as error:
            heard.error = heard.error or type(error).__name__
        heard.total_s = time.monotonic() - now
        heard.whole = heard.finished and heard.text == ORACLE.truth(prompt).text
        return heard

    async def _read(self, response: aiohttp.ClientResponse, heard: Heard, began: float) -> None:
        take = _take_chunk if self._chats else _take_event
        buffer = b""
        async for data in response.content.iter_any():
            buffer += data
            *frames, buffer = buffer.split(b"\n\n")
            for frame in frames:
                for line in frame.split(b"\n"):
                    if line.startswith(b"data: ") and line != b"data: [DONE]":
                        take(heard, json.loads(line[6:]), time.monotonic() - began)

    async def booked(self, case: Case) -> dict[str, float]:
        """Return the dollars that the sidecar booked for a case, by upstream."""
        async with self._session.get(self._url + "/_headstart/metrics") as response:
            text = await response.text()
        found = re.findall(
            rf'^headstart_cost_usd_total{{.*upstream="{case.name}-(\w+)".*}} (\S+)$',
            text,
            re.MULTILINE,
        )
        costs: dict[str, float] = {}
        for upstream, dollars in found:
            costs[upstream] = costs.get(upstream, 0.0) + float(dollars)
        return costs


def _take_event(heard: Heard, event: dict[str, Any], after_s: float) -> None:
    """Add an event of Responses."""
    if event["type"] == "error":
        heard.error = f"{event.get('code')}: {event.get('message')}"
    elif event["type"] == "response.output_text.delta":
        heard.first_s = heard.first_s or after_s
        heard.text += event["delta"]
    response = event.get("response", {})
    heard.model = response.get("model") or heard.model
    if used := response.get("usage"):
        prompt, completion = used["input_tokens"], used["output_tokens"]
        heard.usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    if event["type"] in ("response.completed", "response.incomplete"):
        heard.finished = True
        parts = [part for item in response["output"] for part in item.get("content", ())]
        whole = "".join(part.get("text", "") for part in parts)
        # The last event has the whole text, which may have no deltas.
        heard.text = whole if heard.text in ("", whole) else ""


def _take_chunk(heard: Heard, event: dict[str, Any], after_s: float) -> None:
    """Add a chunk of Chat Completions."""
    if error := event.get("error"):
        heard.error = f"{error.get('code')}: {error.get('message')}"
    heard.model = event.get("model") or heard.model
    heard.usage = event.get("usage") or heard.usage
    for choice in event.get("choices", ()):
        if text := choice["delta"].get("content"):
            heard.first_s = heard.first_s or after_s
            heard.text += text
        heard.finished |= choice.get("finish_reason") is not None


async def _run(bench: Bench, case: Case, primary: Simulator, fallback: Simulator) -> dict[str, Any]:
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        calls = []
        for number in range(case.calls):
            calls.append(group.create_task(bench.ask(case, number, began)))
            await asyncio.sleep(case.every_s)
    heard = [call.result() for call in calls]
    await asyncio.sleep(0.3)  # what was cancelled is recorded when its provider sees it
    seen = Seen(heard, None, primary.stats.ended_calls(), fallback.stats.ended_calls())
    seen.costs = await bench.booked(case)
    await asyncio.sleep(case.pause_s)
    seen.after = await bench.ask(case, case.calls, began)
    verdict, reason = case.verdict(seen)
    last = heard[-1]
    return {
        "case": case.name,
        "provider": case.what,
        "verdict": verdict,
        "reason": reason,
        "status": last.status,
        "whole": sum(each.whole for each in heard),
        "calls": len(heard),
        "error": last.error,
        "upstream": last.upstream,
        "model": last.model,
        "first_s": last.first_s,
        "longest_s": max(each.total_s for each in heard),
        "attempts": [len(seen.primary), len(seen.fallback)],
        "gaps_s": [round(gap, 2) for gap in seen.gaps],
        "costs": seen.costs,
        "after": seen.after.upstream,
    }


@contextlib.asynccontextmanager
async def _sidecar(configuration: str) -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "headstart.toml")
        await asyncio.to_thread(path.write_text, configuration, encoding="utf-8")
        program = Program(["serve", "--config", str(path), "--port", "0"])
        try:
            yield await program.start()
        finally:
            await program.stop()


async def bench(
    cases: Sequence[Case], hurry: float = 1.0, api: str = "chat"
) -> list[dict[str, Any]]:
    """Run all cases at once. Returns a row for each.

    ``hurry`` divides all of the providers' times and our limits on them, not our own pauses.
    """
    async with contextlib.AsyncExitStack() as stack:
        pairs = [case.simulators(hurry) for case in cases]
        tables = []
        for case, pair in zip(cases, pairs, strict=True):
            first, second = [await stack.enter_async_context(serve(each)) for each in pair]
            tables.append(settings_of(case, (first, second), hurry, api))
            os.environ.update({f"{KEY}_{key}": key for key in case.keys})
        os.environ[KEY] = "bench"
        store = '[cache]\nstore = "memory:"\nmode = "exact-only"\n'
        url = await stack.enter_async_context(_sidecar("\n".join([store, *tables])))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        )
        running = Bench(url, session, api)
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(_run(running, case, *pair))
                for case, pair in zip(cases, pairs, strict=True)
            ]
        return [run.result() for run in runs]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [
        "| # | the provider | verdict | the caller got | first token | longest | attempts | gaps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        got = f"{row['whole']} of {row['calls']}, {row['model'] or '-'}"
        if row["error"]:
            got = f"{row['status']} {row['error'][:70]}"
        first = "-" if row["first_s"] is None else f"{row['first_s']:.1f} s"
        gaps = ", ".join(f"{gap:.1f}" for gap in row["gaps_s"][:8]) or "-"
        verdict = row["verdict"] + (f": {row['reason']}" if row["reason"] else "")
        lines.append(
            f"| {row['case']} | {row['provider']} | {verdict} | {got} | {first} "
            f"| {row['longest_s']:.1f} s | {row['attempts'][0]} + {row['attempts'][1]} | {gaps} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these cases")
    parser.add_argument("--api", choices=("chat", "responses", "translated"), default="chat")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    every = (*CATALOGUE, *MORE)
    cases = [case for case in every if not arguments.names or case.name in arguments.names]
    rows = asyncio.run(bench(cases, api=arguments.api))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
        return
    names = {case.name for case in CATALOGUE}
    counted = [row for row in rows if row["case"] in names]
    passed = sum(row["verdict"] == "pass" for row in counted)
    print(table(rows))
    print(f"\n{passed} of {len(counted)} faults of the catalogue pass, streaming.")


if __name__ == "__main__":
    main()

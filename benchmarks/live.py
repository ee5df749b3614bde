"""Does an answer come sooner if the prompt is known while it is typed, and what does that cost?

    python -m benchmarks.live [--prompts FILE.jsonl] [--count 100] [--concurrency 25] [--out FILE]

Prompts are typed as ``headstart.lab.simulator.oracle`` says (240 characters a minute, with
corrections) and sent with Enter as an ordinary streamed call. A sidecar stands before a simulated
provider with a prompt cache. Each stage of the live drafts is off in one run and on in another,
with the same prompts, the same typing and a fresh provider: the time from Enter to the first token
and to the end, how many early calls were used, the tokens of all calls, and the provider's bill.

``--prompts``: lines of ``{"context", "question"}`` as ``benchmarks/convert.py hotpot`` makes them.
Contexts are joined until a prompt has ``--context`` tokens. Without it the prompts are made up.
Each prompt has a context of its own, so no prompt cache is warm before. The time is real: nothing
is sped up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.racing_site import WORDS, Provider, Site, load, quantiles, site
from benchmarks.safe_hits_programs import metric
from headstart.clients import LiveDraft
from headstart.lab.simulator import EndedCall, find_profile
from headstart.lab.simulator.oracle import type_prompt
from headstart.policies.live_drafts import PLACEHOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence


STAGES: dict[str, list[str]] = {
    "off": [],
    "lookup": ["lookup"],
    "warm": ["lookup", "warm"],
    "answer": ["lookup", "answer"],
    "all": ["lookup", "warm", "answer"],
}
PRICE = {"input_per_million": 1.25, "output_per_million": 10.0, "cached_per_million": 0.125}
"""The price of OpenAI's GPT-5."""
CHARACTERS_PER_TOKEN = 4
KEY = {"authorization": "Bearer bench"}
_QUESTIONS = (
    "Which of the {a} was mentioned before the {b}?",
    "How often does the report name the {a}?",
    "Summarise what is said about the {a} in two sentences.",
    "Is there anything about a {a} near the {b}? If so, where?",
    "What would you change in the part about the {a}",
    "List every {a} that stands before a {b}.",
)


class Prompt(NamedTuple):
    """A prompt and the text that it is about."""

    context: str
    question: str


@dataclass(frozen=True)
class Result:
    """One prompt that was typed and sent. Seconds count from Enter."""

    first_s: float
    total_s: float
    text: str
    live: bool
    """An early call answered it."""
    state: str = ""
    """What had become of the stages ``warm`` and ``answer`` at Enter."""


def made_up(count: int, tokens: int, seed: int) -> list[Prompt]:
    """Return prompts about texts of words."""
    draw = random.Random(seed)
    prompts = []
    for number in range(count):
        words = draw.choices(WORDS, k=tokens * CHARACTERS_PER_TOKEN // 7)
        asked = draw.choice(_QUESTIONS).format(a=draw.choice(WORDS), b=draw.choice(WORDS))
        prompts.append(Prompt(f"Report {number}. " + " ".join(words), asked))
    return prompts


def read_prompts(path: Path, count: int, tokens: int) -> list[Prompt]:
    """Return the prompts of a file, with contexts of at least so many tokens."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    prompts = []
    for number in range(min(count, len(rows))):
        context, place = rows[number]["context"], number
        while len(context) < tokens * CHARACTERS_PER_TOKEN:
            place = (place + 1) % len(rows)
            context += "\n\n" + rows[place]["context"]
        prompts.append(Prompt(f"Document {number}.\n{context}", rows[number]["question"]))
    return prompts


def request(prompt: Prompt, text: str) -> dict[str, Any]:
    """Return the body of the call."""
    return {
        "model": "bench",
        "messages": [
            {"role": "system", "content": prompt.context},
            {"role": "user", "content": text},
        ],
        "stream": True,
    }


async def type_and_send(running: Site, prompt: Prompt, number: int, *, live: bool) -> Result:
    """Type a prompt, send it, and read the answer."""
    typed = type_prompt(prompt.question, f"live {number}")
    headers = dict(KEY)
    began = time.perf_counter()
    if not live:
        await asyncio.sleep(typed.submitted_s)
        return await send(running, prompt, headers)
    async with LiveDraft(running.url, request(prompt, PLACEHOLDER), headers=headers) as draft:
        for at, text in typed.states:
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            draft.write(text)
        await asyncio.sleep(max(0.0, began + typed.submitted_s - time.perf_counter()))
        state = "{warm}/{answer}".format(**draft.state)
        return replace(await send(running, prompt, {**headers, **draft.call_headers}), state=state)


async def send(running: Site, prompt: Prompt, headers: dict[str, str]) -> Result:
    """Make the final call."""
    began, first, parts, pending = time.perf_counter(), 0.0, [], b""
    url = running.url + "/v1/chat/completions"
    body = request(prompt, prompt.question)
    async with running.session.post(url, json=body, headers=headers) as response:
        response.raise_for_status()
        live = "live-draft" in response.headers.get("cache-status", "")
        async for data in response.content.iter_any():
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:])["choices"]
                    text = choices[0]["delta"].get("content") if choices else None
                    if text:
                        first = first or time.perf_counter() - began
                        parts.append(text)
    return Result(first, time.perf_counter() - began, "".join(parts), live)


def bill(records: Sequence[EndedCall]) -> float:
    """Return the provider's charge in dollars."""
    total = 0.0
    for each in records:
        prompt, completion = each.billed(cancels_billing=True)
        cached = min(prompt, each.cached_tokens)
        total += (prompt - cached) * PRICE["input_per_million"]
        total += cached * PRICE["cached_per_million"]
        total += completion * PRICE["output_per_million"]
    return total / 1e6


async def run_stage(
    name: str, prompts: list[Prompt], arguments: argparse.Namespace
) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of one setting, and the answers."""
    provider = _PricedProvider(
        "openai", find_profile(arguments.profile), seed=1, answer_tokens=arguments.answer_tokens
    )
    live = {"enabled": True, "stages": STAGES[name] or ["lookup"]}
    places = asyncio.Semaphore(arguments.concurrency)
    async with site([provider], (), live=live) as running:

        async def one(number: int) -> Result:
            async with places:
                return await type_and_send(running, prompts[number], number, live=name != "off")

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number)) for number in range(len(prompts))]
        results = [task.result() for task in tasks]
        await asyncio.sleep(1.0)  # cancelled calls end
        records = [each for each in (await running.records())["openai"] if each.answer_tokens]
        metrics = await running.metrics()
    finals = len(prompts)
    early = len(records) - sum(not each.live for each in results)
    return {
        "stages": name,
        "prompts": finals,
        "first_s": quantiles([each.first_s for each in results]),
        "total_s": quantiles([each.total_s for each in results]),
        "calls": len(records),
        "early_calls": early,
        "used": sum(each.live for each in results),
        "states": Counter(each.state for each in results),
        "usd": bill(records),
        "sidecar_usd": metric(metrics, "headstart_spent_usd_total"),
        "by_kind": {
            kind: round(metric(metrics, f'headstart_draft_calls_total{{kind="{kind}"}}'))
            for kind in ("used", "unused", "warm")
        },
        "tokens": sum(sum(each.billed(cancels_billing=True)) for each in records),
    }, [each.text for each in results]


class _PricedProvider(Provider):
    """The provider with the price of cached tokens."""

    def settings(self, url: str) -> dict[str, Any]:
        return {**super().settings(url), "price": {"default": PRICE}}


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run every setting."""
    prompts = (
        made_up(arguments.count, arguments.context, 7)
        if arguments.prompts is None
        else read_prompts(arguments.prompts, arguments.count, arguments.context)
    )
    rows: list[dict[str, Any]] = []
    plain: list[str] = []
    for name in arguments.stages:
        row, texts = await run_stage(name, prompts, arguments)
        plain = plain or texts
        row["equal_answers"] = sum(a == b for a, b in zip(plain, texts, strict=True))
        rows.append(row)
        print(_line(row, rows[0]), file=sys.stderr)
    return {"load": load(), "context_tokens": arguments.context, "rows": rows}


def _line(row: dict[str, Any], off: dict[str, Any]) -> str:
    first, total = row["first_s"], row["total_s"]
    return (
        f"{row['stages']:8} first token p50 {first['p50']:.3f} p95 {first['p95']:.3f} s, whole p50 "
        f"{total['p50']:.2f} p95 {total['p95']:.2f} s; early calls {row['by_kind']}; "
        f"cost {row['usd'] / off['usd'] - 1:+.1%}; "
        f"{row['equal_answers']} of {row['prompts']} answers equal"
    )


def main() -> None:
    """Parse the command line, run, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--context", type=int, default=2000, help="tokens of each context")
    parser.add_argument("--concurrency", type=int, default=25, help="people who type at a time")
    parser.add_argument("--profile", default="openai", help="of the simulated provider")
    parser.add_argument("--answer-tokens", type=int, default=150)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments))
    text = json.dumps(result, indent=1)
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

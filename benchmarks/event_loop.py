"""The CPU of the event loop for a question without a near neighbour, compared with exact-only.

    python benchmarks/convert.py naturalqa NQ.json > questions.jsonl
    python -m benchmarks.event_loop questions.jsonl [--warm 3000] [--requests 3000] [--opcodes 200]

Three gateways get the same questions and take turns, fifty questions each: ``exact-only``,
``default``, and ``stopped``, whose gate lets only sketches of 0.95 pass and samples none. Each
wraps an app that answers at once, with a store in memory. Requests come one at a time. The first
questions are not measured: from them the domain learns.

The times are CPU seconds of the thread of the event loop; other threads encode. They are trimmed
means of the difference to ``exact-only`` in the same turn. On a busy machine all times are longer,
so look at ``--opcodes`` there: it counts the bytecodes of Python on this thread for so many more
questions, and shows the functions in which most of them are. The counts of functions on the path of
a request hardly differ between runs. The sums do, by hundreds: they include the background tasks of
all three gateways, which wake by the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.overhead import CHAT
from headstart.config.loading import load_settings
from headstart.decisions import Gate
from headstart.mount import HeadstartMiddleware
from headstart.observe import Encoded, Gated, GateOutcome, Observation
from headstart.policies.match import VerifiedMatch
from headstart.sidecar import settle_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType, FrameType

MODES = ("exact-only", "default", "stopped")
TURN = 50
"""The questions of a gateway in one turn."""
STOPPED = Gate(least=0.95, share=0.0)
TRIM = 0.1
"""The share of the turns that is left out at each end."""
SETTLE_S = 0.1
"""After each turn: what was put off is done, and counts."""
MOST_FUNCTIONS = 40


def answer(question: str, vocabulary: Sequence[str]) -> bytes:
    """Return the completion for a question: 20 words, other ones for each question."""
    words = random.Random(question).choices(vocabulary, k=20)
    message = {"role": "assistant", "content": " ".join(words)}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 9, "completion_tokens": 30, "total_tokens": 39}
    done = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**done, "choices": choices, "usage": usage}).encode()


def app_of(vocabulary: Sequence[str]) -> Any:
    """Return an app that answers a chat request at once, in words of a vocabulary."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        content = answer(json.loads(body)["messages"][-1]["content"], vocabulary)
        length = b"%d" % len(content)
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return app


class Seen:
    """Counts the questions that were encoded, and all encodings: also those of entries."""

    def __init__(self) -> None:
        self.questions = 0
        self.encodings = 0

    def notify(self, observation: Observation) -> None:
        """Count an observation."""
        if isinstance(observation, Encoded):
            self.encodings += 1
        elif isinstance(observation, Gated):
            kept = observation.outcome in (GateOutcome.STOPPED, GateOutcome.SKIPPED)
            self.questions += not kept


class Gateway:
    """A gateway around the app, and what it has cost. ``aclose`` it."""

    def __init__(self, mode: str, app: Any) -> None:
        self.seen = Seen()
        settings = {"cache.store": "memory:"}
        if mode == "exact-only":
            settings["cache.mode"] = "exact-only"
        self._app = HeadstartMiddleware(
            app, load_settings(None, {}, settings), observers=[self.seen]
        )
        self.aclose = self._app.aclose
        self.turns_us: list[float] = []

    async def ask(self, question: str) -> None:
        """Send one request and wait for its answer."""
        message = {"role": "user", "content": question}
        body = json.dumps({"model": "m", "temperature": 0, "messages": [message]}).encode()
        done, asked = asyncio.Event(), False

        async def receive() -> Any:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": body, "more_body": False}
            await done.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] != 200:
                raise RuntimeError(message)

        path = CHAT.encode()
        headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer k")]
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "path": CHAT, "raw_path": path, "query_string": b"", "scheme": "http",
            "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 9), "headers": headers,
        }  # fmt: skip
        await self._app(scope, receive, send)
        done.set()

    async def turn(self, questions: Sequence[str]) -> None:
        """Ask some questions one after the other, and note the CPU time of each on average."""
        began = time.thread_time()
        for question in questions:
            await self.ask(question)
        await asyncio.sleep(SETTLE_S)
        self.turns_us.append((time.thread_time() - began) / len(questions) * 1e6)


_LEARNED_GATE = VerifiedMatch.gate


def use_gate(mode: str) -> None:
    """Let the policies of all gateways use the gate of a mode from now on."""
    gate = (lambda _policy, _context: STOPPED) if mode == "stopped" else _LEARNED_GATE
    VerifiedMatch.gate = gate  # type: ignore[method-assign]


def turns_of(questions: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divide questions among turns."""
    for start in range(0, len(questions), TURN):
        yield questions[start : start + TURN]


async def measure(gateways: dict[str, Gateway], questions: Sequence[str]) -> None:
    """Let the gateways take turns with the same questions, in both orders."""
    order = list(gateways)
    for turn in turns_of(questions):
        for mode in order:
            use_gate(mode)
            await gateways[mode].turn(turn)
        order.reverse()
    use_gate("default")


async def count_opcodes(
    gateways: dict[str, Gateway], questions: Sequence[str]
) -> dict[str, Counter[CodeType]]:
    """Count the bytecodes on this thread by function."""
    found = {}
    for mode, gateway in gateways.items():
        counts: Counter[CodeType] = Counter()

        def trace(frame: FrameType, event: str, _: object, counts: Any = counts) -> Any:
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            if event == "opcode":
                counts[frame.f_code] += 1
            return trace

        use_gate(mode)
        sys.settrace(trace)
        try:
            await gateway.turn(questions)
        finally:
            sys.settrace(None)
            use_gate("default")
        found[mode] = counts
    return found


def print_times(gateways: dict[str, Gateway], warm: int, seen: dict[str, tuple[int, int]]) -> None:
    """Print the CPU time of each gateway, and its difference to the first one."""
    first = warm // TURN
    base = gateways["exact-only"].turns_us[first:]
    count = len(base) * TURN
    load = os.getloadavg()[0]
    print(f"{count} questions after {warm}; load of the machine {load:.1f}")
    print(f"{'':12}{'loop us':>9}{'more us':>9}{'error':>7}{'encoded %':>11}{'encodings':>11}")
    for mode, gateway in gateways.items():
        turns = gateway.turns_us[first:]
        more = sorted(one - other for one, other in zip(turns, base, strict=True))
        cut = int(len(more) * TRIM)
        kept = more[cut : len(more) - cut]
        error = statistics.stdev(kept) / len(kept) ** 0.5 if len(kept) > 1 else 0.0
        asked, encodings = (
            now - then
            for now, then in zip(
                (gateway.seen.questions, gateway.seen.encodings), seen[mode], strict=True
            )
        )
        print(
            f"{mode:12}{statistics.median(turns):>9.0f}{statistics.mean(kept):>9.0f}{error:>7.0f}"
            f"{asked / count:>11.1%}{encodings / count:>11.3f}"
        )


def print_opcodes(found: dict[str, Counter[CodeType]], count: int) -> None:
    """Print the bytecodes of a request, and the functions with most more than exact-only."""
    base = found["exact-only"]
    totals = ", ".join(f"{mode} {counts.total() / count:.0f}" for mode, counts in found.items())
    print(f"bytecodes of a request: {totals}")
    for mode in MODES[1:]:
        print(f"{mode}: more than exact-only, by function")
        more = Counter({code: n - base[code] for code, n in found[mode].items()})
        for code, extra in more.most_common(MOST_FUNCTIONS):
            file = code.co_filename.rpartition("/headstart/")[2]
            print(f"{extra / count:>8.1f}  {file}:{code.co_firstlineno} {code.co_qualname}")


def read(path: Path) -> list[str]:
    """Return the prompts of a file, each once."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return list(dict.fromkeys(line["prompt"] for line in lines))


async def bench(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    questions = read(arguments.questions)
    last = arguments.warm + arguments.requests
    app = app_of(sorted({word for question in questions for word in question.split()}))
    gateways = {mode: Gateway(mode, app) for mode in MODES}
    await measure(gateways, questions[: arguments.warm])
    settle_memory()  # as ``headstart serve`` does
    seen = {mode: (each.seen.questions, each.seen.encodings) for mode, each in gateways.items()}
    await measure(gateways, questions[arguments.warm : last])
    print_times(gateways, arguments.warm, seen)
    traced = questions[last : last + arguments.opcodes]
    if traced:
        print_opcodes(await count_opcodes(gateways, traced), len(traced))
    for gateway in gateways.values():
        await gateway.aclose()


def main() -> None:
    """Parse arguments, run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("questions", type=Path, help="lines with a prompt")
    parser.add_argument("--warm", type=int, default=1500, help="questions before the measured ones")
    parser.add_argument("--requests", type=int, default=1500, help="measured questions")
    parser.add_argument("--opcodes", type=int, default=0, help="further questions, to count with")
    asyncio.run(bench(parser.parse_args()))


if __name__ == "__main__":
    main()

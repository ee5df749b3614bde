"""Measure edits by search/replace blocks on real changes (``docs/output-edits.md``).

    python -m benchmarks.edits [REPOSITORY] [--at HEAD] [--pairs 200] [--faults 0.3] [--json]

Pairs are versions of .py and .md files in the repository's history before and after a commit. A
simulated model answers the calls of the real ``AskForEdits`` step with blocks made from the real
change, with errors in the stated share of the answers, or with the whole file if it is not asked
for blocks. Tokens are counted as gpt-4o counts them; seconds are those of a model that needs
``--ttft`` seconds to its first token and writes ``--speed`` tokens a second, plus our own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from benchmarks.edits_pairs import FAULTS, Pair, ideal_blocks, read_pairs, spoil
from headstart.attempts import RoutingEstimate
from headstart.compression.tokens import count_tokens
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.middleware.observers import Observers
from headstart.middleware.shaping.edits import INSTRUCTION, AskForEdits
from headstart.middleware.shaping.steps import ShapedCandidate, StepContext
from headstart.policies.output.document_edits import EditReader
from headstart.reply import Reply, Transcript
from headstart.types import Call, Ended, Finished, Piece, Started, StreamEvent, TextDelta

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable


MODEL = "gpt-4o-mini"
CHUNK = 4
"""Characters of a simulated delta."""
DIVIDER = "\n=======\n"
REMARK = "Here it is:\n"
SIZES = ((0.02, "up to 2 %"), (0.1, "2 to 10 %"), (0.3, "10 to 30 %"), (9.0, "more"))
CHAT = OPENAI_CHAT


class Row(NamedTuple):
    """The result of one change."""

    size: str
    fault: str
    outcome: str
    """The transform of the answer."""
    right: bool
    whole_tokens: int
    """The tokens of the answer with the whole new file."""
    tokens: int
    """The tokens that the model wrote, over all calls."""
    whole_s: float
    seconds: float
    own_s: float
    first_s: float
    """The time until the client got the first text."""
    ahead_s: float
    """The time that would be saved if the first block was sent to the client at once, unchecked."""
    regretted: bool
    """Whether this would have been a mistake, because a later block could not be applied."""


@dataclass
class SimulatedModel:
    """A Candidate that answers at once, and remembers how much of each answer was read."""

    blocks: str
    whole: str
    read: list[str] = field(default_factory=list)

    name = "simulated"
    identity = "simulated"
    names = frozenset({"simulated"})

    def estimate(self, call: Call) -> RoutingEstimate:
        return RoutingEstimate(name=self.name)

    async def send(self, call: Call) -> Reply:
        asked = msgspec.json.encode(INSTRUCTION)[1:-1] in call.body
        transcript = Transcript()
        return Reply(
            self.name,
            200,
            ((b"content-type", b"text/event-stream"),),
            _answer(self.blocks if asked else self.whole, self.read, transcript),
            transcript=transcript,
        )


async def _answer(text: str, read: list[str], transcript: Transcript) -> AsyncGenerator[Piece]:
    encoder = CHAT.encoder("id", 1, include_usage=False)

    def piece(*events: StreamEvent) -> Piece:
        made = Piece(encoder.feed(events), events)
        transcript.add(made)
        return made

    read.append("")
    yield piece(Started(id="id", model=MODEL, created=1))
    for at in range(0, len(text), CHUNK):
        read[-1] = text[: at + CHUNK]
        yield piece(TextDelta(text=text[at : at + CHUNK]))
    yield piece(Finished(reason="stop"), Ended())


def a_call(document: str) -> Call:
    """Return a request to make this change."""
    asked = f"Change the file as we discussed.\n\n{document}"
    messages = [{"role": "user", "content": asked}]
    body = msgspec.json.encode({"model": MODEL, "stream": True, "messages": messages})
    return Call(
        id="call",
        method="POST",
        path=b"/v1/chat/completions",
        query_string=b"",
        headers=(),
        body=body,
        dialect=CHAT.name,
        endpoint="chat",
        request=CHAT.parse_request(body),
    )


def bordered(pair: Pair, text: str) -> str:
    """Return a version as its author's editor would quote it; Markdown may hold fences itself."""
    if pair.path.endswith(".md"):
        return f'<document path="{pair.path}">\n{text}\n</document>'
    return f"```python\n{text}\n```"


async def change(pair: Pair, fault: str, answer: str, args: argparse.Namespace) -> Row:
    """Send one change through the step."""
    wanted = bordered(pair, pair.new)
    model = SimulatedModel(answer, wanted)
    context = StepContext(Observers(), lambda: 1.0)
    candidate = ShapedCandidate(model, [AskForEdits()], context)
    call = a_call(bordered(pair, pair.old))
    async with await candidate.send(call) as reply:
        events = [event async for piece in reply.pieces for event in piece.events]
        transforms = reply.transforms
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    own_s = sum(row.own_s for row in call.log.shaped)
    counts = [_tokens(each) for each in model.read]
    whole = _tokens(wanted)
    believed = EditReader(pair.old)
    ahead = answer[: answer.find(DIVIDER) + len(DIVIDER)]
    believed.feed(ahead)
    again = transforms == ("edits:again",)
    first_s = len(counts) * args.ttft + counts[0] / args.speed + own_s
    return Row(
        size=next(name for most, name in SIZES if pair.changed <= most),
        fault=fault,
        outcome=transforms[0] if transforms else "not asked for",
        right=text.removeprefix(REMARK) == wanted,
        whole_tokens=whole,
        tokens=sum(counts),
        whole_s=args.ttft + whole / args.speed,
        seconds=len(counts) * args.ttft + sum(counts) / args.speed + own_s,
        own_s=own_s,
        first_s=first_s,
        ahead_s=0.0 if again else first_s - args.ttft - _tokens(ahead) / args.speed,
        regretted=again and believed.doubt is None,
    )


def summarise(rows: Iterable[Row]) -> dict[str, Any]:
    """Return figures over some changes."""
    rows = list(rows)
    tokens, whole = sum(row.tokens for row in rows), sum(row.whole_tokens for row in rows)
    return {
        "pairs": len(rows),
        "applied": sum(row.outcome == "edits" for row in rows),
        "again": sum(row.outcome == "edits:again" for row in rows),
        "whole": sum(row.outcome == "edits:whole" for row in rows),
        "wrong": sum(not row.right for row in rows),
        "tokens": tokens,
        "tokens_whole": whole,
        "tokens_share": round(tokens / whole, 3),
        "seconds_mean": round(statistics.mean(row.seconds for row in rows), 2),
        "seconds_whole_mean": round(statistics.mean(row.whole_s for row in rows), 2),
        "own_ms_max": round(1000 * max(row.own_s for row in rows), 2),
        "first_s_median": round(statistics.median(row.first_s for row in rows), 2),
        "ahead_s_median": round(
            statistics.median([row.ahead_s for row in rows if row.outcome == "edits"] or [0.0]), 2
        ),
        "regretted": sum(row.regretted for row in rows),
    }


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run every pair without a fault, and again with some."""
    draw = random.Random(args.seed)
    pairs = read_pairs(args.repository, args.at, args.pairs, draw)
    report: dict[str, Any] = {"pairs": len(pairs), "speed": args.speed, "ttft": args.ttft}
    for name, rate in (("without faults", 0.0), (f"faults in {args.faults:.0%}", args.faults)):
        rows = []
        for pair in pairs:
            blocks = ideal_blocks(pair)
            fault, answer = "none", "\n\n".join(block.text() for block in blocks)
            if draw.random() < rate:
                fault = draw.choice(FAULTS)
                answer = spoil(blocks, fault, pair.old, draw)
            if fault == "whole file":
                answer = REMARK + bordered(pair, pair.new)
            rows.append(await change(pair, fault, answer, args))
        report[name] = {
            "all": summarise(rows),
            "by size": {
                size: summarise(row for row in rows if row.size == size)
                for _, size in SIZES
                if any(row.size == size for row in rows)
            },
            "by fault": {
                kind: dict(Counter(row.outcome for row in rows if row.fault == kind))
                for kind in ("none", *FAULTS)
                if any(row.fault == kind for row in rows)
            },
            "wrong": [(row.fault, row.outcome) for row in rows if not row.right],
        }
    return report


def show(report: dict[str, Any]) -> None:
    """Print a table."""
    for name, run in report.items():
        if not isinstance(run, dict):
            continue
        print(f"\n{name}")
        print(f"{'changed lines':16}{'pairs':>6}{'applied':>9}{'again':>7}{'whole':>7}{'wrong':>7}"
              f"{'tokens':>9}{'s':>7}{'s whole':>9}{'first s':>9}{'ahead s':>9}"
              f"{'regret':>8}")  # fmt: skip
        for size, row in {**run["by size"], "all": run["all"]}.items():
            print(f"{size:16}{row['pairs']:6}{row['applied']:9}{row['again']:7}{row['whole']:7}"
                  f"{row['wrong']:7}{row['tokens_share']:9.1%}{row['seconds_mean']:7.1f}"
                  f"{row['seconds_whole_mean']:9.1f}{row['first_s_median']:9.1f}"
                  f"{row['ahead_s_median']:9.1f}{row['regretted']:8}")  # fmt: skip
        for fault, outcomes in run["by fault"].items():
            print(f"  {fault}: {outcomes}")


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("repository", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--at", default="HEAD", help="revision to which the history is read")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--faults", type=float, default=0.3)
    parser.add_argument("--speed", type=float, default=80.0, help="tokens a second")
    parser.add_argument("--ttft", type=float, default=0.4, help="seconds to the first token")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report = asyncio.run(measure(args))
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)


def _tokens(text: str) -> int:
    return count_tokens(text, MODEL).tokens


if __name__ == "__main__":
    main()

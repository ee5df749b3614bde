"""The effect of limits on answers: the real step in front of a simulated model.

    python -m benchmarks.output_guard [--answers N] [--seed N] [--json FILE]

All parts run in one process, without a real clock: a call takes 0.4 s until its first token, and
1/80 s for each token. The lengths of answers are lognormal. One answer in a hundred repeats itself
up to the model's own maximum, one in two hundred is long and right, and one in ten has hidden
reasoning before it. Half of the clients stream; some name limits or tools of their own, and one
answer in ten reports no usage. If the model is asked to continue a cut answer, it mostly repeats
its last words as the request says, in half of these cases after a code fence, a mark or a sentence
of its own. Sometimes it continues at the exact character, or at the beginning of the cut word. The
text that each client reads is compared with the model's whole answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.attempts import RoutingEstimate, Tokens
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import UpstreamError
from headstart.middleware.observers import Observers
from headstart.middleware.reading import FrameReader
from headstart.middleware.shaping.answer_length import LimitAnswers
from headstart.middleware.shaping.steps import ShapedCandidate, StepContext
from headstart.policies.output.answer_limits import LengthKey, Lengths
from headstart.policies.output.continuation import INSTRUCTION
from headstart.policies.routing.failures import FailureKind
from headstart.reply import AnswerWithheld, Reply, Transcript
from headstart.settings import MaxOutput, OutputSettings
from headstart.types import Call, Ended, Finished, Piece, Started, TextDelta, UsageReported

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headstart.types import Completion, StreamEvent

CHAT = OPENAI_CHAT
TTFT_S = 0.4
TOKENS_PER_S = 80.0
CHARACTERS = 4
"""The characters of a token; limits may cut words in two."""
MOST_TOKENS = 8192
"""The model's own maximum."""
PROSE = (
    "the of to and in that for it as was with be by on not his but at are this have from or had an "
    "which one you were all her she there would their we him been has when who will no more if out "
    "so up said what its about than into them can only other time new some could these two first "
    "then do any like my now over such our man even most made after also did many off before must "
    "well back through years much where your way down should because long each just state people "
    "between being under three never know same last another while might great since against however"
)
WORDS = PROSE.split()
LEADS = (
    "```python\n", "...", "\u2026 ", '"', "**", "Continuing from where I left off:\n\n",
    "Sure! Here is the rest of the answer:\n\n```\n",
)  # fmt: skip
"""The words of models before they repeat the last words."""


@dataclass
class Meant:
    """The whole answer of the model."""

    text: str
    kind: str
    reasoning: int
    reports: bool


def prose(draw: random.Random, tokens: int) -> str:
    words: list[str] = []
    size = 0
    while size < tokens * CHARACTERS:
        word = draw.choice(WORDS) if draw.random() < 0.97 else str(draw.randrange(2000))
        end = draw.choices(("", ",", ".", ".\n", ":\n- "), (80, 8, 10, 1, 1))[0]
        words.append(word + end)
        size += len(words[-1]) + 1
    return " ".join(words)[: tokens * CHARACTERS].rstrip()


def meant(draw: random.Random) -> Meant:
    kind = draw.choices(("usual", "long", "runaway"), (0.985, 0.005, 0.01))[0]
    tokens = max(1, round(draw.lognormvariate(5.5, 0.7)))
    reasoning = round(draw.lognormvariate(5.0, 0.7)) if draw.random() < 0.1 else 0
    if kind == "long":
        tokens = draw.randrange(2500, 5000)
    text = prose(draw, tokens)
    if kind == "runaway":
        loop = " " + prose(draw, 12)
        text += loop * (2 * MOST_TOKENS * CHARACTERS // len(loop))
    return Meant(text, kind, reasoning, reports=draw.random() < 0.9)


async def _read(pieces: list[Piece], transcript: Transcript) -> AsyncGenerator[Piece]:
    for piece in pieces:
        transcript.add(piece)
        yield piece


def _reply_of(pieces: list[Piece], content_type: bytes) -> Reply:
    transcript = Transcript()
    headers = ((b"content-type", content_type),)
    return Reply("model", 200, headers, _read(pieces, transcript), transcript=transcript)


@dataclass
class Model:
    """Answers until a limit cuts the answer."""

    draw: random.Random
    answers: dict[str, Meant]
    name: str = "model"
    identity: str = "model"
    names: frozenset[str] = frozenset({"model"})
    spent: Counter[str] = field(default_factory=Counter)
    stops: set[str] = field(default_factory=set)
    """Runaways that came to an end when they were asked to go on."""
    limits: dict[str, int | None] = field(default_factory=dict)
    """Limits of the last calls."""

    def estimate(self, call: Call) -> RoutingEstimate:
        return RoutingEstimate(name=self.name)

    async def send(self, call: Call) -> Reply:
        assert call.request is not None
        document = call.request.document
        question, *more = document["messages"]
        answer = self.answers[question["content"]]
        so_far = more[0]["content"] if more else ""
        rest, repeated = self._rest(question["content"], answer, so_far, more)
        reasoning = 0 if so_far else answer.reasoning
        room = min(call.request.max_tokens or MOST_TOKENS, MOST_TOKENS)
        used = min(room, reasoning + -(-len(repeated + rest) // CHARACTERS))
        text = (repeated + rest)[: max(0, room - reasoning) * CHARACTERS]
        circles = answer.kind == "runaway" and question["content"] not in self.stops
        cut = circles or text != repeated + rest
        self.limits[question["content"]] = call.request.max_tokens
        self.spent["calls"] += 1
        self.spent["tokens"] += used
        self.spent["seconds"] += TTFT_S + used / TOKENS_PER_S  # type: ignore[assignment]
        self.spent["cut"] += cut
        reply = self._reply(call, text, used if answer.reports else None, cut=cut)
        if not text:
            raise AnswerWithheld("nothing", kind=FailureKind.EMPTY, reply=reply)
        return reply

    def _rest(
        self, question: str, answer: Meant, so_far: str, more: list[dict[str, Any]]
    ) -> tuple[str, str]:
        """Return the rest of the answer, and the words that are repeated before it."""
        if not so_far:
            return answer.text, ""
        if answer.kind == "runaway" and self.draw.random() < 0.5:
            self.stops.add(question)
            answer.text = so_far + " and that is all."
        assert answer.text.startswith(so_far)
        rest, way = answer.text[len(so_far) :], self.draw.random()
        if way < 0.7:
            words = more[1]["content"].removeprefix(INSTRUCTION)
            lead = self.draw.choice(LEADS) if way < 0.35 else ""
            return rest, lead + words + so_far[len(so_far.rstrip()) :]
        if way < 0.85:
            return rest, ""
        return rest, so_far[len(so_far.rstrip().rpartition(" ")[0]) :].lstrip()

    def _reply(self, call: Call, text: str, used: int | None, *, cut: bool) -> Reply:
        assert call.request is not None
        start, pieces = 0, []
        while start < len(text):
            size = self.draw.randrange(4, 160)
            pieces.append(TextDelta(text=text[start : start + size]))
            start += size
        usage = CHAT.usage(Tokens(prompt=50, completion=used or 0))
        said: list[StreamEvent] = [
            Started(id="chatcmpl-1", model="m", created=1),
            TextDelta(text=""),
            *pieces,
            Finished(reason="length" if cut else "stop"),
            *(() if used is None else (UsageReported(usage=usage),)),
            Ended(),
        ]
        if call.request.stream:
            encoder = CHAT.encoder("chatcmpl-1", 1, include_usage=True)
            written = [Piece(encoder.feed([event]), (event,)) for event in said]
            return _reply_of(written, b"text/event-stream")
        body = CHAT.render(_completion(said)).json("chatcmpl-1", 1)
        pieces_ = [Piece(body), Piece(b"", tuple(said))]
        return _reply_of(pieces_, b"application/json")


def _completion(said: Any) -> Completion:
    transcript = Transcript()
    transcript.feed(said)
    completion = transcript.completion(1.0)
    assert completion is not None
    return completion


def ask(draw: random.Random, number: int) -> Call:
    """Return a client's call: some name a limit of their own, some ask for tools."""
    kind = draw.choices(("free", "own limit", "tools"), (0.75, 0.15, 0.1))[0]
    fields: dict[str, Any] = {}
    if kind == "own limit":
        fields["max_tokens"] = draw.choice((50, 500, 4000))
    elif kind == "tools":
        fields["tools"] = [{"type": "function", "function": {"name": "f"}}]
    document = {
        "model": "m",
        "messages": [{"role": "user", "content": f"Question {number}"}],
        "stream": draw.random() < 0.5,
        **fields,
    }
    body = msgspec.json.encode(document)
    return Call(
        id=str(number), method="POST", path=b"/v1/chat/completions", query_string=b"", headers=(),
        body=body, dialect=CHAT.name, endpoint="chat", request=CHAT.parse_request(body),
    )  # fmt: skip


async def served(guard: ShapedCandidate | Model, call: Call) -> tuple[str, str, tuple[str, ...]]:
    """Return the text and the finish reason that a client reads, and the answer's transforms."""
    try:
        async with await guard.send(call) as reply:
            data = b"".join([piece.data async for piece in reply.pieces])
            transforms = reply.transforms
    except AnswerWithheld as withheld:
        data = b"".join([piece.data async for piece in withheld.reply.pieces])
        transforms = withheld.reply.transforms
    except UpstreamError as error:
        return "", f"error: {error}", ()
    assert call.request is not None
    if call.request.stream:
        reader = FrameReader(CHAT, "1")
        said = reader.feed(data).events
    else:
        said = CHAT.decode_body(200, data)
    choice = _completion(said).choices[0]
    return "".join(getattr(part, "text", "") for part in choice.parts), choice.finish, transforms


async def run(budget: MaxOutput | None, answers: int, seed: int) -> dict[str, Any]:
    """Return the clients' answers and their cost."""
    draw = random.Random(seed)
    calls = [ask(draw, number) for number in range(answers)]
    meanings = {f"Question {number}": meant(draw) for number in range(answers)}
    model, lengths = Model(random.Random(seed + 1), meanings), Lengths()
    guard: ShapedCandidate | Model = model
    if budget is not None:
        context = StepContext(Observers(), lambda: 1.0)
        step = LimitAnswers("route", lengths, OutputSettings(max_tokens=budget))
        guard = ShapedCandidate(model, [step], context)
    found: Counter[str] = Counter()
    for call in calls:
        assert call.request is not None
        question = call.request.document["messages"][0]["content"]
        text, finish, transforms = await served(guard, call)
        wanted = model.answers[question]
        found["limited"] += bool({"guard", "tight"} & set(transforms))
        found["continued"] += "continued" in transforms
        if finish.startswith("error"):
            found["errors in runaways" if wanted.kind == "runaway" else "other errors"] += 1
            continue
        if finish == "length" and model.limits[question] == call.request.max_tokens:
            found["cut by their own limit"] += 1
        elif finish == "length" or len(text) < 0.95 * len(wanted.text):
            found["truncations"] += 1
        else:
            found["seams that do not fit"] += text != wanted.text
    return {
        "budget": "off" if budget is None else budget,
        "limit": None if budget is None else lengths.limit(LengthKey("route", "m"), budget),
        "answers": answers,
        **found,
        **model.spent,
    }


ROWS = (
    "limit", "limited", "continued", "truncations", "errors in runaways", "other errors",
    "seams that do not fit", "cut by their own limit", "calls", "tokens", "seconds",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    budgets: tuple[MaxOutput | None, ...] = (None, "guard", "tight")
    figures = [asyncio.run(run(budget, args.answers, args.seed)) for budget in budgets]
    print(f"{'':24}" + "".join(f"{each['budget']:>14}" for each in figures))
    for row in ROWS:
        print(f"{row:24}" + "".join(f"{each.get(row) or 0:14,.0f}" for each in figures))
    for row in ("tokens", "seconds"):
        shares = (each[row] / figures[0][row] - 1 for each in figures)
        print(f"{row + ', against off':24}" + "".join(f"{share:14.1%}" for share in shares))
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

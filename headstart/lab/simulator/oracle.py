"""Prompts with their right answers, and traffic that is made of them.

``AnswerKey`` has the right answers to a labelled stream: made-up facts of each class, in varying
words.

**A person at a keyboard**: ``type_prompt`` returns each state of the text while a prompt is typed,
with its time. The speed is 240 characters a minute over the whole text, corrections and pauses
included, as in LiveMind (arXiv 2406.14319), whose typing is uniform. Here the times between two
keys vary: they are log-normal, longer before a word and after a sentence, and now and then the
writer thinks. Some letters are wrong at first and are deleted. After the last letter the writer
reads the text once more and presses Enter: a log-normal time with a median of 0.6 s. The constants
of this part were set before the live drafts were tuned, and no result has changed them.

**The simulated model**: ``generate`` makes the text, tool calls, reasoning and log-probabilities of
an answer.
"""

from __future__ import annotations

import math
import random
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from headstart.errors import ConfigError
from headstart.lab.simulator.chat_request import AskedMessage, ChatBody, Function, NamedTool
from headstart.lab.simulator.profiles import read_table
from headstart.types import UNDECODABLE, Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


TrapKind = Literal["negation", "number", "entity", "date", "role", "unit", "antonym"]


class Trap(Frozen, forbid_unknown_fields=True):
    """A prompt that has nearly the words of a topic, but another right answer."""

    text: str
    kind: TrapKind
    answer: str
    """The first sentence of the right answer; filler text follows."""


class Topic(Frozen, forbid_unknown_fields=True):
    """Prompts that mean the same, their answer, and the traps beside them."""

    id: str
    answer: str
    wordings: tuple[str, ...]
    traps: tuple[Trap, ...] = ()
    refusal: bool = False
    """The provider refuses: the answer travels in the ``refusal`` field."""


class Truth(Frozen):
    """The right answer to a prompt and the class of all prompts that share it."""

    class_id: str
    text: str
    refusal: bool = False


class _CatalogueFile(Frozen, forbid_unknown_fields=True):
    topic: tuple[Topic, ...]
    openings: tuple[str, ...]
    sentences: tuple[str, ...]
    tasks: tuple[str, ...]
    things: tuple[str, ...]


_FILE = read_table("catalogue.toml", _CatalogueFile)
TOPICS = _FILE.topic
"""The scripted topics of ``catalogue.toml``."""
_TOKEN = re.compile(r"\s*\S+")


def split_tokens(text: str) -> tuple[str, ...]:
    """Cut a text into simulated tokens: words with the white space before them."""
    return tuple(_TOKEN.findall(text))


def paragraph(source: str, lead: str = "", *, tokens: int | None = None) -> str:
    """Return a paragraph of 40 to 200 tokens, which depends on the arguments alone.

    It begins with ``lead``, which is shortened only where ``tokens`` sets an exact length.
    """
    rng = _seeded(source)
    wanted = tokens or rng.randint(40, 180)
    words = lead.split() + rng.choice(_FILE.openings).split()
    while len(words) < wanted:
        for sentence in rng.sample(_FILE.sentences, k=len(_FILE.sentences)):
            if len(words) >= wanted:
                break
            words += sentence.split()
    return " ".join(words[:tokens])


def reference(source: str) -> str:
    """Return eight hexadecimal digits for a text, so that no two answers are equal."""
    return sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _normalized(text: str) -> str:
    return " ".join(text.split()).casefold()


def transcript(messages: Sequence[AskedMessage]) -> str:
    """Return a conversation as one text; a single question is its own text."""
    turns = [message for message in messages if message.role not in {"system", "developer"}]
    if len(turns) == 1:
        return turns[0].text
    return "\n".join(f"{turn.role}: {turn.text}" for turn in turns)


class Oracle:
    """Knows the class and the right answer of every prompt.

    All prompts of a topic have the topic's class; letter case and white space do not matter. Any
    other prompt has a class of its own, and its answer depends on a hash of its text.
    """

    def __init__(
        self, topics: Iterable[Topic] = TOPICS, *, answer_tokens: int | None = None
    ) -> None:
        self._answer_tokens = answer_tokens
        self._truths: dict[str, Truth] = {}
        for topic in topics:
            truth = Truth(
                class_id=topic.id, text=" ".join(topic.answer.split()), refusal=topic.refusal
            )
            for wording in topic.wordings:
                self._add(wording, truth)
            for place, trap in enumerate(topic.traps, 1):
                class_id = f"{topic.id}/{trap.kind}-{place}"
                text = paragraph(class_id, trap.answer)
                self._add(trap.text, Truth(class_id=class_id, text=text))

    def _add(self, prompt: str, truth: Truth) -> None:
        if self._truths.setdefault(_normalized(prompt), truth) is not truth:
            raise ValueError(f"the catalogue puts this prompt into two classes: {prompt!r}")

    def truth(self, prompt: str) -> Truth:
        """Return the right answer to a prompt without earlier turns."""
        return self._truths.get(_normalized(prompt)) or self._derive(prompt)

    def truth_of_messages(self, messages: Sequence[AskedMessage], occasion: str = "") -> Truth:
        """Return the right answer to a conversation, in the words of the ``occasion``.

        A system prompt never changes the class. A conversation with earlier turns is one prompt, so
        that the same last question has two answers in two conversations. Here every occasion has
        the same words.
        """
        return self.truth(transcript(messages))

    def judge(self, prompt: str, answer: str) -> bool:
        """Return whether ``answer`` is the right answer to ``prompt`` without earlier turns."""
        return self.truth(prompt).text == answer

    def _derive(self, prompt: str) -> Truth:
        mark = reference(prompt)
        lead = f"Simulated answer {mark}."
        text = paragraph(prompt, lead, tokens=self._answer_tokens)
        return Truth(class_id=f"unknown-{mark}", text=text)


# --- traffic --------------------------------------------------------------------------------------

Kind = Literal["new", "repeat", "reword", "trap"]


class TrafficPrompt(Frozen):
    """One prompt of the traffic, its class, and its kind.

    ``repeat``: the same words came before. ``reword``: the same meaning came before, in other
    words. ``trap``: a topic with nearly these words came before, with another right answer.
    ``new``: neither the words nor the meaning came before.
    """

    text: str
    class_id: str
    kind: Kind


def traffic(
    seed: int, n: int, repeat_share: float, reword_share: float, trap_share: float
) -> Iterator[TrafficPrompt]:
    """Yield ``n`` prompts, which depend on the arguments alone.

    The shares are targets. A kind that is not possible yet or is used up (the catalogue has about
    240 rewordings and 75 traps) becomes a new prompt, and later a repeat. Early prompts are
    repeated most.
    """
    script = _Script(random.Random(seed))
    kinds: tuple[Kind, ...] = ("repeat", "reword", "trap", "new")
    rest = max(0.0, 1 - repeat_share - reword_share - trap_share)
    for _ in range(n):
        wanted = script.rng.choices(kinds, (repeat_share, reword_share, trap_share, rest))[0]
        yield script.next(wanted)


class _Script:
    """The prompts that are left, and the prompts that were used."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._oracle = Oracle()
        self._topics = list(TOPICS)
        self._others = [task.format(thing) for task in _FILE.tasks for thing in _FILE.things]
        rng.shuffle(self._topics)
        rng.shuffle(self._others)
        self._rewordings: list[str] = []
        self._traps: list[str] = []
        self._asked: list[str] = []

    def next(self, wanted: Kind) -> TrafficPrompt:
        match wanted:
            case "repeat" if self._asked:
                return self._repeat()
            case "reword" if self._rewordings:
                return self._say(self._draw(self._rewordings), "reword")
            case "trap" if self._traps:
                return self._say(self._draw(self._traps), "trap")
        if self._topics:
            return self._say(self._open(self._topics.pop()), "new")
        if self._others:
            return self._say(self._others.pop(), "new")
        return self._repeat()

    def _open(self, topic: Topic) -> str:
        wordings = self.rng.sample(topic.wordings, k=len(topic.wordings))
        self._rewordings += wordings[1:]
        self._traps += [trap.text for trap in topic.traps]
        return wordings[0]

    def _draw(self, texts: list[str]) -> str:
        return texts.pop(self.rng.randrange(len(texts)))

    def _repeat(self) -> TrafficPrompt:
        return self._prompt(self._asked[int(len(self._asked) * self.rng.random() ** 2)], "repeat")

    def _say(self, text: str, kind: Kind) -> TrafficPrompt:
        self._asked.append(text)
        return self._prompt(text, kind)

    def _prompt(self, text: str, kind: Kind) -> TrafficPrompt:
        return TrafficPrompt(text=text, class_id=self._oracle.truth(text).class_id, kind=kind)


# --- answer keys of labelled streams --------------------------------------------------------------

_SLOT = re.compile(r"\{(\w+)\}")
_CHOICE = re.compile(r"\[([^\]]*)\]")
_OWN = (1, 1, 2, 3)
"""The number of facts in which a class differs from its family; often a single one."""
_REMARKS = 3
"""The number of sentences of a class that state no fact; each wording leaves out one."""
_ECHO = 0.6
"""The share of answers that begin with the question; the others end with it."""


class Form(Frozen, forbid_unknown_fields=True):
    """The statements of one kind of answers, each in several wordings."""

    statements: tuple[tuple[str, ...], ...]

    @property
    def slots(self) -> tuple[str, ...]:
        """The facts' names, sorted."""
        return tuple(sorted({name for each in self.statements for name in _SLOT.findall(each[0])}))


class _AnswersFile(Frozen, forbid_unknown_fields=True):
    openings: tuple[str, ...]
    echoes: tuple[str, ...]
    summaries: tuple[str, ...]
    closings: tuple[str, ...]
    remarks: tuple[str, ...]
    numbers: dict[str, tuple[int, int]]
    values: dict[str, tuple[str, ...]]
    form: tuple[Form, ...]


_KEY_FILE = read_table("answers.toml", _AnswersFile)
FORMS = _KEY_FILE.form


class Facts(Frozen):
    """The right answer of a class: the place of its form in ``FORMS``, and its values."""

    form: int
    values: tuple[tuple[str, str], ...]
    remarks: tuple[int, ...]
    """The places of its sentences that state no fact."""


def draw_facts(class_id: str, attempt: int = 0) -> Facts:
    """Return a class's facts, which depend on its name alone.

    The classes ``family/…`` have the form and the facts of their family, except for one to three
    facts of their own. So their answers are near-duplicates, like the answers to questions that
    differ in one name. Another ``attempt`` gives other facts, for the case that a class has these
    facts already.
    """
    family, own = class_id.rpartition("/")[0], _seeded(f"{class_id}#{attempt}")
    shared = _seeded(family) if family else own
    form = shared.randrange(len(FORMS))
    values = {name: _draw(shared, name) for name in FORMS[form].slots}
    remarks = shared.sample(range(len(_KEY_FILE.remarks)), _REMARKS)
    if family:
        for name in own.sample(sorted(values), own.choice(_OWN)):
            values[name] = _draw(own, name, but=values[name])
    return Facts(form=form, values=tuple(values.items()), remarks=tuple(remarks))


def write_answer(facts: Facts, seed: str, asked: str = "") -> str:
    """Return the facts in words. Another seed gives other words in another order.

    The question ``asked`` is repeated at the beginning or the end.
    """
    rng = _seeded(seed)
    statements = [rng.choice(wordings) for wordings in FORMS[facts.form].statements]
    statements += [_KEY_FILE.remarks[place] for place in rng.sample(facts.remarks, _REMARKS - 1)]
    rng.shuffle(statements)
    openings, closings = _KEY_FILE.openings, _KEY_FILE.closings
    if asked and rng.random() < _ECHO:
        openings = _KEY_FILE.echoes
    elif asked:
        closings = _KEY_FILE.summaries
    sentences = (rng.choice(openings), *statements, rng.choice(closings))
    values = {**dict(facts.values), "asked": asked.strip(" .?!")}
    return " ".join(_fill(sentence, values, rng) for sentence in sentences if sentence)


def _fill(sentence: str, values: dict[str, str], rng: random.Random) -> str:
    chosen = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), sentence)
    text = _SLOT.sub(lambda match: values[match[1]], chosen)
    return text[0].upper() + text[1:]


def _draw(rng: random.Random, name: str, but: str | None = None) -> str:
    """Return a value of the slot's kind, which is its name without the number at its end."""
    kind = name.rstrip("0123456789")
    while True:
        if kind in _KEY_FILE.numbers:
            value = str(rng.randint(*_KEY_FILE.numbers[kind]))
        else:
            value = rng.choice(_KEY_FILE.values[kind])
        if value != but:
            return value


def _seeded(source: str) -> random.Random:
    return random.Random(sha256(source.encode("utf-8", "surrogatepass")).digest())


_ECHOED_WORDS = 40
"""An answer does not repeat a longer question."""
_WORDINGS = 3
"""The number of questions of a class that its answers may repeat, beside the asked one."""


class AnswerKeyRow(Frozen):
    """One line of a stream: a prompt, the question in it, and the class of its answer."""

    prompt: str
    question: str
    label: str


class _KeyLine(Frozen):
    prompt: str | tuple[AskedMessage, ...]
    label: str | int = msgspec.field(name="class")
    query: str | None = None


_decoder = msgspec.json.Decoder(_KeyLine)


def read_answer_key(lines: Iterable[bytes]) -> list[AnswerKeyRow]:
    """Read a stream of lines ``{"prompt", "class"}``, as ``headstart evaluate`` does.

    A list of messages is stored under its ``transcript``. The ``query`` of a line is the question
    in its prompt. Other fields are ignored. Raises ConfigError for a line that cannot be read.
    """
    rows = []
    for number, raw in enumerate(lines, 1):
        if raw.strip():
            try:
                rows.append(_scripted(_decoder.decode(raw)))
            except UNDECODABLE as error:
                raise ConfigError(
                    f"line {number} is not a labelled prompt: {error}; give {{'prompt', 'class'}}"
                ) from error
    return rows


def _scripted(line: _KeyLine) -> AnswerKeyRow:
    if isinstance(line.prompt, str):
        prompt = question = line.prompt
    else:
        prompt = transcript(line.prompt)
        question = line.prompt[-1].text if line.prompt else ""
    return AnswerKeyRow(prompt=prompt, question=line.query or question, label=str(line.label))


class AnswerKey(Oracle):
    """An Oracle of a labelled stream. Other prompts get the answers of a plain Oracle.

    Two classes never have the same facts. With ``vary`` every answer has new words, like the
    answers of a model at a temperature above zero, and repeats the question in some words of its
    class. Raises ConfigError for a prompt with two classes.
    """

    def __init__(
        self,
        rows: Iterable[AnswerKeyRow],
        *,
        vary: bool = False,
        answer_tokens: int | None = None,
    ) -> None:
        super().__init__(answer_tokens=answer_tokens)
        self._rows: dict[str, AnswerKeyRow] = {}
        self._wordings: dict[str, list[str]] = {}
        for row in rows:
            if self._rows.setdefault(row.prompt, row).label != row.label:
                raise ConfigError(f"one prompt has two classes: {row.label!r} and another")
            wordings = self._wordings.setdefault(row.label, [])
            if len(wordings) < _WORDINGS:
                wordings.append(row.question)
        self._facts = _distinct_facts(sorted(self._wordings))
        self._vary = vary

    def truth_of_messages(self, messages: Sequence[AskedMessage], occasion: str = "") -> Truth:
        """Return the right answer, in words that depend on the occasion."""
        row = self._rows.get(transcript(messages))
        if row is None:
            return super().truth_of_messages(messages, occasion)
        facts, seed = self._facts[row.label], row.label
        wordings = self._wordings[row.label][:1]
        if self._vary:
            seed = occasion
            wordings = [row.question, *self._wordings[row.label]]
        asked = random.Random(seed).choice(wordings)
        if len(asked.split()) > _ECHOED_WORDS:
            asked = ""
        return Truth(class_id=row.label, text=write_answer(facts, seed, asked))


def _distinct_facts(labels: Iterable[str]) -> dict[str, Facts]:
    facts: dict[str, Facts] = {}
    taken: set[Facts] = set()
    for label in labels:
        attempt = 0
        while (found := draw_facts(label, attempt)) in taken:
            attempt += 1
        taken.add(found)
        facts[label] = found
    return facts


# --- a person at a keyboard -----------------------------------------------------------------------

CHARACTERS_PER_MINUTE = 240
SPREAD = 0.5
"""Standard deviation of the logarithm of a time between two keys."""
WORD_FACTOR = 1.5
"""The first key of a word takes longer by this factor."""
SENTENCE_FACTOR = 3.0
"""The first key of a sentence takes longer by this factor."""
THOUGHTS = 0.05
"""Share of the words before which the writer thinks."""
THOUGHT_FACTOR = 8.0
"""A pause to think is longer than a key by this factor."""
TYPOS = 0.02
"""Share of the letters that are wrong at first."""
MOST_WRONG = 3
"""Most letters after which a typo is noticed."""
ENTER_MEDIAN_S = 0.6
ENTER_SPREAD = 0.4
"""Median, and standard deviation of the logarithm, of the time from the last key to Enter."""


class TypedPrompt(NamedTuple):
    """One prompt as it is typed."""

    states: tuple[tuple[float, str], ...]
    """Seconds since the first key, and the text after that key."""
    submitted_s: float
    """When Enter is pressed."""


def type_prompt(prompt: str, seed: str) -> TypedPrompt:
    """Return how a prompt is typed; the same for the same ``seed``."""
    draw = random.Random(seed)
    weights: list[tuple[float, str]] = []
    for place, letter in enumerate(prompt):
        if letter.isalpha() and draw.random() < TYPOS:
            wrong = _wrong_letters(draw, prompt, place)
            weights += [
                (_weight(draw, prompt, place), prompt[:place] + wrong[: n + 1])
                for n in range(len(wrong))
            ]
            weights += [
                (_weight(draw, prompt, place), prompt[:place] + wrong[:n])
                for n in reversed(range(len(wrong)))
            ]
        weights.append((_weight(draw, prompt, place), prompt[: place + 1]))
    whole_s = 60.0 * len(prompt) / CHARACTERS_PER_MINUTE
    unit_s = whole_s / sum(weight for weight, _ in weights)
    at, states = 0.0, []
    for weight, text in weights:
        at += weight * unit_s
        states.append((at, text))
    enter_s = ENTER_MEDIAN_S * math.exp(draw.gauss(0.0, ENTER_SPREAD))
    return TypedPrompt(tuple(states), at + enter_s)


def _wrong_letters(draw: random.Random, prompt: str, place: int) -> str:
    """Return a wrong letter and the right ones that follow it before the typo is noticed."""
    wrong = draw.choice([c for c in "abcdefghijklmnopqrstuvwxyz" if c != prompt[place].lower()])
    more = draw.randrange(MOST_WRONG)
    return wrong + prompt[place + 1 : place + 1 + more]


def _weight(draw: random.Random, prompt: str, place: int) -> float:
    """Return the relative time before a key."""
    weight = math.exp(draw.gauss(0.0, SPREAD))
    before = prompt[place - 1] if place else ""
    if before.isspace():
        ends = prompt[:place].rstrip().endswith((".", "?", "!"))
        weight *= SENTENCE_FACTOR if ends else WORD_FACTOR
        if draw.random() < THOUGHTS:
            weight *= THOUGHT_FACTOR
    return weight


# --- the simulated model --------------------------------------------------------------------------

_SCALARS: dict[str, Any] = {
    "string": "example",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "null": None,
}
_MAX_DEPTH = 16
"""A recursive schema ends with null below this depth."""


def example(schema: dict[str, Any]) -> object:
    """Return a small value for a schema: enums, objects, arrays, unions and local references."""
    return _example(schema, schema, 0)


def _example(schema: dict[str, Any], root: dict[str, Any], depth: int) -> object:
    if depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return _example(_resolve(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return _example(schema[union][0], root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: dict[str, Any], root: dict[str, Any], depth: int) -> object:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "array":
        return [_example(schema.get("items", {}), root, depth + 1)]
    if kind != "object":
        return _SCALARS.get(kind)
    required = schema.get("required", ())
    return {
        name: _example(value, root, depth + 1)
        for name, value in schema.get("properties", {}).items()
        if name in required
    }


def _resolve(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    found: Any = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(name, {})
    return found if isinstance(found, dict) else {}


_FRAGMENT = 8
"""The number of characters of tool arguments in one delta."""


class CalledTool(Frozen):
    id: str
    name: str
    fragments: tuple[str, ...]
    """The JSON arguments, cut into the pieces that are streamed."""

    @property
    def arguments(self) -> str:
        return "".join(self.fragments)


class Alternative(Frozen):
    """One choice of an answer; every string and fragment in it counts as one token."""

    tokens: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    refusal: bool = False
    """True: ``tokens`` are a refusal, not content."""
    tool_calls: tuple[CalledTool, ...] = ()
    finish: str = "stop"

    @property
    def completion_tokens(self) -> int:
        arguments = sum(len(call.fragments) for call in self.tool_calls)
        return len(self.tokens) + len(self.reasoning) + arguments

    @property
    def text(self) -> str:
        return "".join(self.tokens)


class Generation(Frozen):
    """A whole answer and the class of prompts that share it."""

    class_id: str
    alternatives: tuple[Alternative, ...]


def generate(
    chat: ChatBody, oracle: Oracle, occasion: str = "", *, continues: bool = False
) -> Generation:
    """Answer a request. The same body gets the same answer on the same occasion.

    With ``continues`` a last message of the assistant is the beginning of the answer, and the rest
    of the answer is returned.
    """
    prefill = chat.prefill if continues else None
    messages = chat.messages if prefill is None else chat.messages[:-1]
    truth = oracle.truth_of_messages(messages, occasion)
    if prefill is not None:
        truth = msgspec.structs.replace(truth, text=truth.text.removeprefix(prefill))
    called = _call_tools(chat)
    if called:
        first = Alternative(tool_calls=called, finish="tool_calls")
        return Generation(class_id=truth.class_id, alternatives=(first,) * (chat.n or 1))
    reasoning = _reason(chat, truth)
    alternatives = tuple(
        _limit(
            Alternative(
                tokens=split_tokens(_phrase(chat, truth, place)),
                reasoning=reasoning,
                refusal=truth.refusal,
            ),
            chat.limit,
        )
        for place in range(chat.n or 1)
    )
    return Generation(class_id=truth.class_id, alternatives=alternatives)


def _phrase(chat: ChatBody, truth: Truth, place: int) -> str:
    text = truth.text if place == 0 else f"Put another way, variant {place}: {truth.text}"
    wanted = chat.response_format
    if wanted is None or truth.refusal:
        return text
    if wanted.type == "json_schema" and wanted.json_schema:
        return msgspec.json.encode(example(wanted.json_schema.schema)).decode()
    if wanted.type == "json_object":
        return msgspec.json.encode({"answer": text}).decode()
    return text


def _reason(chat: ChatBody, truth: Truth) -> tuple[str, ...]:
    if chat.reasoning_effort in {None, "none"}:
        return ()
    return split_tokens(paragraph(f"reasoning/{truth.class_id}", "Let me think.", tokens=20))


def _limit(choice: Alternative, limit: int | None) -> Alternative:
    if limit is None or choice.completion_tokens <= limit:
        return choice
    reasoning = choice.reasoning[:limit]
    tokens = choice.tokens[: limit - len(reasoning)]
    return Alternative(tokens=tokens, reasoning=reasoning, refusal=choice.refusal, finish="length")


def _call_tools(chat: ChatBody) -> tuple[CalledTool, ...]:
    """Call the forced function, or every one that the last user message mentions."""
    asked = [place for place, message in enumerate(chat.messages) if message.role == "user"]
    turn = chat.messages[asked[-1] if asked else -1 :]
    # Some clients send a system message after the result of a tool.
    if not chat.tools or chat.tool_choice == "none" or any(each.role == "tool" for each in turn):
        return ()
    functions = [tool.function for tool in chat.tools if tool.function]
    prompt = turn[0].text
    if isinstance(chat.tool_choice, NamedTool):
        forced = chat.tool_choice.function
        chosen = [function for function in functions if forced and function.name == forced.name]
    else:
        chosen = [function for function in functions if _mentions(prompt, function.name)]
        if chat.tool_choice == "required":
            chosen = chosen or functions[:1]
    if chat.parallel_tool_calls is False:
        chosen = chosen[:1]
    return tuple(_call(prompt, function) for function in chosen)


def _mentions(prompt: str, name: str) -> bool:
    """Return whether a prompt has the name of a function in it, or a longer word of the name."""
    words = [word for word in name.casefold().split("_") if len(word) > 3]
    return any(word in prompt.casefold() for word in (name.casefold(), *words))


def _call(prompt: str, function: Function) -> CalledTool:
    schema = function.parameters or {"type": "object"}
    arguments = msgspec.json.encode(example(schema)).decode()
    return CalledTool(
        id=f"call_{reference(f'{function.name}/{prompt}')}",
        name=function.name,
        fragments=tuple(
            arguments[start : start + _FRAGMENT] for start in range(0, len(arguments), _FRAGMENT)
        ),
    )


class Likelihood(Frozen):
    """A token, its natural log-probability, and the likeliest tokens in its place, best first."""

    token: str
    logprob: float
    ranked: tuple[tuple[str, float], ...] = ()


def likelihoods(source: str, tokens: tuple[str, ...], top: int = 0) -> tuple[Likelihood, ...]:
    """Return a likelihood for each token, which depends on the arguments alone.

    ``source``, the class of the answer, decides how certain the answer is: the mean probability of
    its tokens lies between 0.5 and 1, and single tokens scatter around it.
    """
    sure = random.Random(f"sure/{source}").uniform(0.5, 1.0)
    rng = random.Random(f"tokens/{source}")
    return tuple(_draw_likelihood(token, -math.log(sure), rng, top) for token in tokens)


def _draw_likelihood(token: str, surprise: float, rng: random.Random, top: int) -> Likelihood:
    logprob = round(-min(rng.expovariate(1 / max(surprise, 1e-6)), 9.0), 6)
    ranked = tuple((token if place == 0 else f"{token}{place}", logprob - place)
                   for place in range(top))  # fmt: skip
    return Likelihood(token=token, logprob=logprob, ranked=ranked)

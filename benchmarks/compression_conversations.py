"""Random conversations with all kinds of text that compression must keep or may shorten."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from benchmarks.compression_formats import Made, made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Message = dict[str, Any]

_NOUNS = ["river", "museum", "engine", "treaty", "garden", "captain", "ledger", "harbour"]
_VERBS = ["opened", "signed", "crossed", "designed", "measured", "refused", "recorded", "founded"]
_NAMES = ["Ada Hale", "Ben Okoro", "Clara Wu", "Dmitri Volkov", "Elif Demir", "Farid Nasser"]
_FOREIGN = (
    "\u8fd9\u5ea7\u535a\u7269\u9986\u4e8e 1923 \u5e74\u5f00\u653e\uff0c\u6709\u4e50\u5668\u3002",
    "\u041c\u0443\u0437\u0435\u0439 \u043e\u0442\u043a\u0440\u044b\u043b\u0441\u044f 1923.",
    "Das Museum wurde 1923 eröffnet und bewahrt alte Instrumente sowie Logbücher auf.",
)
_FOREIGN_QUESTION = "\u535a\u7269\u9986\u4ec0\u4e48\u65f6\u5019\u5f00\u653e\uff1f"
_KEYS = ["columns", "rows", "clé", "id", "name", "size", *(f"key {n}" for n in range(12))]
_CODE = """def total(rows):
    # not a comment to lose, nor the spaces after it:   \n\
    return sum(row.price for row in rows)



"""


class Generator:
    """Makes one conversation from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.own_words: list[str] = []
        """The text outside of documents, for each of the user's messages."""
        self.made: dict[str, Made] = {}
        """Texts of known formats, by text."""
        self._texts: list[str] = []
        self._calls = 0

    def conversation(self) -> list[Message]:
        messages: list[Message] = []
        if self.random.random() < 0.7:
            messages.append({"role": "system", "content": self.prose(3) + "  \n\n\n\nNever lie."})
        for _ in range(self.random.randint(1, 4)):
            messages += self._turn()
        return messages

    def _turn(self) -> Iterator[Message]:
        yield {"role": "user", "content": self._user_content()}
        for _ in range(self.random.randint(0, 3)):
            yield from self._tool_use()
        if self.random.random() < 0.7:
            answer: Message = {"role": "assistant", "content": self.prose(2)}
            if self.random.random() < 0.3:
                answer["reasoning_content"] = self.prose(2) + "   "
                answer["thinking_blocks"] = [{"thinking": "…", "signature": "EqQB=="}]
            yield answer

    def _user_content(self) -> Any:
        pick = self.random.random
        question = self.question()
        if pick() < 0.3:
            question += "\n\n" + self.payload()  # pasted without a border: the user's own words
        self.own_words.append(question)
        if pick() < 0.4:
            question = self.retrieved() + "\n\n" + question
        if pick() < 0.75:
            return question
        parts: list[Message] = [{"type": "text", "text": question}]
        if pick() < 0.5:
            parts.append({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}})
        if pick() < 0.5:
            text = self.retrieved()
            parts.append({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}})
        return parts

    def _tool_use(self) -> Iterator[Message]:
        self._calls += 1
        name, arguments = self.random.choice(
            (
                ("search", {"query": self.question()}),
                ("read_file", {"path": "src/ledger.json"}),
                ("bash", {"command": "cat notes/plan.md"}),
                ("bash", {"command": "tail -n 500 /var/log/app.log"}),
                ("fetch_page", {"address": "https://example.org/a"}),
                ("orders", {"customer": "C-1"}),
            )
        )
        function = {"name": name, "arguments": json.dumps(arguments, indent=self.choice(None, 2))}
        call = {"id": f"call_{self._calls}", "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        content: Any = self.payload()
        if self.random.random() < 0.15:
            content = [{"type": "text", "text": content}]
        yield {"role": "tool", "tool_call_id": call["id"], "content": content}

    def choice(self, *options: Any) -> Any:
        return self.random.choice(options)

    def year(self) -> int:
        return self.random.randint(1800, 1999)

    def question(self) -> str:
        question: str = self.choice(
            f"Who {self.choice(*_VERBS)} the {self.choice(*_NOUNS)} in {self.year()}?",
            f"When was the {self.choice(*_NOUNS)} of {self.choice(*_NAMES)} founded?",
            "Summarize all of it.",
            "Translate this into French, verbatim.",
            "Why did request req-4711 fail?",
            "How many lines are there?",
            "",
            _FOREIGN_QUESTION,
        )
        return question

    def payload(self) -> str:
        """Return an output of a tool; sometimes an earlier one again, or a part of it."""
        if self._texts and self.random.random() < 0.3:
            text: str = self.random.choice(self._texts)
            return text if self.random.random() < 0.5 else text[len(text) // 3 :] + self.prose(1)
        makers: tuple[Callable[[], str], ...] = (
            self.json, self.json, self.log, self.html, self.code, self.foreign, self.noise,
            self.listing, self.build,
            self.formatted, self.formatted, self.formatted,
            lambda: self.prose(self.random.randint(1, 80)),
        )  # fmt: skip
        text = self.random.choice(makers)()
        self._texts.append(text)
        return text

    def prose(self, sentences: int) -> str:
        pick = self.choice
        return " ".join(
            f"The {pick(*_NOUNS)} was {pick(*_VERBS)} by {pick(*_NAMES)} in {self.year()}"
            f" and it is not the {pick(*_NOUNS)} of the {pick(*_NOUNS)}."
            + pick("", "", "\n", "   \n\n\n\n")
            for _ in range(sentences)
        )

    def retrieved(self) -> str:
        bodies = [self.prose(self.random.randint(2, 12)) for _ in range(8)]
        bodies += self.random.sample(bodies, 2)
        style = self.choice("numbered", "tagged", "headed")
        if style == "numbered":
            return "\n".join(
                f"Document [{number}](Title: {self.choice(*_NAMES)}) {' '.join(body.split())}"
                for number, body in enumerate(bodies, 1)
            )
        if style == "tagged":
            return "\n".join(f"<document>\n{body}\n</document>" for body in bodies)
        return "Context:\n" + "\n\n".join(bodies) + "\n\nQuestion: "

    def json(self) -> str:
        value = self._value(3)
        rows = self.random.randint(0, 12)
        if rows:
            value = [
                {"id": n, "name": self.choice(*_NAMES), "x": self._value(1)} for n in range(rows)
            ]
            value = self.choice(value, {"rows": value}, {str(row["id"]): row for row in value})
        layout = self.random.randint(0, 6)
        if layout == 5 and isinstance(value, list):
            return self._keep(Made("\n".join(json.dumps(row) for row in value), "json"))
        if layout == 6:
            return '{ "price": 1.50,\n "a": 1e5, "a": 2,  "text": "' + "\\u00e9 x" * 60 + '" }'
        text = json.dumps(
            value,
            indent=(None, None, 1, 2, "\t", None, None)[layout],
            separators=(",", ":") if layout == 0 else None,
            ensure_ascii=self.random.random() < 0.5,
        )
        text += "\n" if self.random.random() < 0.5 else ""
        return self._keep(Made(text, "json"))

    def _value(self, depth: int) -> Any:
        scalars = (0, -1, 1.5, 1e300, True, None, "", "naïve é", "a\nb", '"quoted"', "not  now   ")
        if depth == 0 or self.random.random() < 0.2:
            return self.random.choice(scalars)
        if self.random.random() < 0.5:
            return [self._value(depth - 1) for _ in range(self.random.randint(0, 4))]
        keys = self.random.sample(_KEYS, 3)
        return {key: self._value(depth - 1) for key in keys}

    def formatted(self) -> str:
        return self._keep(made(self.random))

    def _keep(self, made: Made) -> str:
        self.made[made.text] = made
        return made.text

    def log(self) -> str:
        lines = []
        trouble: list[str] = []
        for number in range(self.random.randint(5, 120)):
            stamp = f"2026-03-0{number % 9 + 1} 10:{number % 60:02d}:01,{number:03d}"
            what = self.choice(
                f"INFO worker-{number % 4} served request req-{4700 + number} in {number} ms",
                f"DEBUG cache lookup {number:x}f took {number} us",
                f"INFO worker-{number % 4} heartbeat",
                f"ERROR worker-{number % 4} failed: connection to 10.0.0.{number} refused",
                f"WARN queue is {number} long\n    at Queue.push (queue.js:{number})",
            )
            lines.append(f"{stamp} {what}")
            trouble += lines[-1].split("\n") if what.startswith(("ERROR", "WARN")) else ()
        return self._keep(Made("\n".join(lines), "log", tuple(trouble)))

    def html(self) -> str:
        items = "".join(
            f"<li class='c{n}'><a href='/p/{n}'>{self.prose(1)}</a></li>" for n in range(20)
        )
        return (
            "<!DOCTYPE html><html><head><title>A &amp; B</title><style>p{}</style></head><body>"
            f"<script>var a = '<p>';</script><h1>Title</h1><p>{self.prose(4)}</p><ul>{items}</ul>"
            "<pre>  kept   as is </pre></body></html>"
        )

    def code(self) -> str:
        fence = "```python\n" if self.random.random() < 0.5 else ""
        return fence + _CODE * self.random.randint(2, 12)

    def listing(self) -> str:
        """Return a file with line numbers, as a reading tool shows it."""
        first, sign = self.choice(1, 95, 998), self.choice("\t", "\u2192", " | ")
        rows = (_CODE * self.random.randint(2, 9)).split("\n")
        lines = [f"{number:6}{sign}{row.strip()}" for number, row in enumerate(rows, first)]
        note: str = self.choice("", "\n\n<note>The file ends here.</note>")
        return "\n".join(lines) + note

    def build(self) -> str:
        """Return what a build wrote, with progress bars."""
        end = self.choice("\r", "\n")
        steps = end.join(
            f"fetch |{'#' * (n // 5):20}| {n}/100 [{n // 60:02}:{n % 60:02}]" for n in range(1, 101)
        )
        return f"Building {self.prose(2)}\n{steps}\nDone: {self.year()} files, exit 0\n"

    def foreign(self) -> str:
        return f"{self.random.choice(_FOREIGN)} " * self.random.randint(1, 120)

    def noise(self) -> str:
        letters = "ab 01\n\t{}[]<>\"'\\,:.…é界\u202e\x00"
        return "".join(self.random.choices(letters, k=self.random.randint(0, 600)))

"""Seeded documents as programs and sites write them, with questions whose answers are known.

A question names what must stand in the text that is sent: literals in one line, in this order. It
also names what must not stand there, because it would be a wrong fact. Nothing here uses the
package: the documents show how logs, pages, JSON and notes look, not what a transform can do.
"""

# ruff: noqa: E501 - a line of a log reads best in one line

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.compression_pages import page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GAP = r"[^\n]{0,400}?"


class Question(NamedTuple):
    """A question, the patterns that its answer needs, and those of wrong facts."""

    words: str
    needs: tuple[str, ...]
    wrong: tuple[str, ...] = ()
    topic: str = ""

    def is_answered(self, text: str) -> bool:
        """Tell whether all that the answer needs stands in ``text``."""
        return all(re.search(need, text) for need in self.needs)

    def is_falsified(self, text: str) -> bool:
        """Tell whether ``text`` holds a wrong fact."""
        return any(re.search(wrong, text) for wrong in self.wrong)


class Document(NamedTuple):
    """A tool's result and questions about it."""

    kind: str
    text: str
    questions: tuple[Question, ...]


def documents(kind: str, count: int) -> Iterator[Document]:
    """Yield documents of a kind; the same ones each time."""
    for seed in range(count):
        yield KINDS[kind](random.Random(f"{kind} {seed}"))


def line_with(*parts: object) -> str:
    """Return the pattern of a line that holds these literals in order, as whole words."""
    return _GAP.join(rf"(?<![\w.]){re.escape(str(part))}(?![\w])" for part in parts)


# --- logs ----------------------------------------------------------------------------------------


class _Event(NamedTuple):
    at: datetime
    level: str
    source: str
    text: str


_WORKERS = ("api-1", "api-2", "api-3", "worker-1", "worker-2")
_PEOPLE = ("alice", "bernd", "chiara", "devika", "emeka", "fatou", "greta", "hiro")
_LETTER = {"DEBUG": "D", "INFO": "I", "WARNING": "W", "ERROR": "E"}


def _journald(event: _Event, number: int) -> str:
    return (
        f"{event.at:%b %d %H:%M:%S} web01 {event.source}[{900 + number % 3}]: {event.text}"
        if event.level == "INFO"
        else f"{event.at:%b %d %H:%M:%S} web01 {event.source}[901]: {event.level}: {event.text}"
    )


def _python(event: _Event, number: int) -> str:
    return f"{event.at:%Y-%m-%d %H:%M:%S},{number % 1000:03} {event.level} {event.source}: {event.text}"


def _ci(event: _Event, number: int) -> str:
    return f"test\tRun integration tests\t{event.at:%Y-%m-%dT%H:%M:%S}.{number:07}Z {event.level} {event.source} {event.text}"


def _logfmt(event: _Event, number: int) -> str:
    return f'time={event.at:%Y-%m-%dT%H:%M:%SZ} level={event.level.lower()} component={event.source} seq={number} msg="{event.text}"'


def _glog(event: _Event, number: int) -> str:
    return f"{_LETTER[event.level]}{event.at:%m%d %H:%M:%S}.{number:06} 4242 {event.source}.go:{80 + len(event.text)}] {event.text}"


def _compose(event: _Event, _: int) -> str:
    return f"{event.source:10} | {event.at:%Y-%m-%dT%H:%M:%SZ} {event.level:7} {event.text}"


def _slashed(event: _Event, _: int) -> str:
    return f"{event.at:%y/%m/%d %H:%M:%S} {event.level} {event.source}: {event.text}"


def _dotted(event: _Event, _: int) -> str:
    return f"{event.at:%d.%m.%Y %H:%M:%S} [{event.level}] ({event.source}) {event.text}"


def _kernel(event: _Event, number: int) -> str:
    seconds = (event.at - datetime(2025, 12, 12, tzinfo=UTC)).total_seconds()
    return f"[{seconds:12.6f}] {event.source}: {event.level.lower()} {event.text} #{number}"


def _syslog(event: _Event, _: int) -> str:
    priority = {"ERROR": 131, "WARNING": 132, "DEBUG": 135}.get(event.level, 134)
    return (
        f"<{priority}>1 {event.at:%Y-%m-%dT%H:%M:%S.000Z} web01 {event.source} 77 - - {event.text}"
    )


def _json_line(event: _Event, number: int) -> str:
    return json.dumps(
        {
            "ts": f"{event.at:%Y-%m-%dT%H:%M:%SZ}",
            "level": event.level,
            "logger": event.source,
            "message": event.text,
            "seq": number,
        }
    )


def _java(event: _Event, number: int) -> str:
    return f"{event.at:%H:%M:%S}.{number % 1000:03} [{event.source}] {event.level:5} c.e.Service - {event.text}"


_FORMATS = (
    _journald, _python, _ci, _logfmt, _glog, _compose, _slashed, _dotted, _kernel, _syslog,
    _json_line, _java,
)  # fmt: skip


def _log(rng: random.Random) -> Document:
    """An application's log: requests, heartbeats, gauges, logins, payments; something happened."""
    if rng.random() < 0.15:
        return _access_log(rng)
    write = rng.choice(_FORMATS)
    machine = _Machine(rng)
    machine.run(rng.randint(250, 700))
    lines = [write(event, number) for number, event in enumerate(machine.events)]
    questions = _log_questions(rng, machine.events, lines, machine.facts, machine.doubled)
    return Document("log", "\n".join(lines), tuple(questions))


class _Machine:
    """A machine that writes events. Some of them are remembered as facts, by their numbers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.at = datetime(2025, 12, 12, 9, rng.randint(0, 59), tzinfo=UTC)
        self.events: list[_Event] = []
        self.facts: dict[str, list[int]] = {}
        self.doubled = 0
        """The order that was charged twice."""
        self._memory = rng.randint(180, 260)
        self._order = rng.randint(40_000, 50_000)
        self._leaks = rng.random() < 0.5

    def run(self, size: int) -> None:
        rng = self.rng
        version = f"4.{rng.randint(0, 30)}.{rng.randint(0, 9)}"
        self._add("INFO", "main", f"service started, version {version}", "start")
        gap_at = rng.randint(size // 3, size // 2)
        slow_at, hot_at, big_at, crash_at = rng.sample(range(20, size - 20), 4)
        special = {slow_at: self._slow, hot_at: self._hot, big_at: self._big}
        if rng.random() < 0.5:
            special[crash_at] = self._crash
        for number in range(size):
            pause = rng.randint(240, 900) if number == gap_at else rng.choice((0, 1, 1, 1, 2, 3))
            self.at += timedelta(seconds=pause)
            special.get(number, self._usual)()

    def _add(self, level: str, source: str, text: str, kind: str = "") -> None:
        self.facts.setdefault(kind, []).append(len(self.events))
        self.events.append(_Event(self.at, level, source, text))

    def _slow(self) -> None:
        path, took = f"/api/orders/{self.rng.randint(100, 999)}/export", self.rng.randint(20, 60)
        worker = self.rng.choice(_WORKERS)
        self._add("INFO", worker, f"GET {path} 200 took {took * 997}ms", "slow")

    def _hot(self) -> None:
        heat, fan = self.rng.randint(86, 99), self.rng.randint(2000, 4000)
        self._add("INFO", "sensors", f"cpu temperature {heat} C fan {fan} rpm", "hot")

    def _big(self) -> None:
        self._pay(self.rng.randint(60_000, 99_000), "big")

    def _crash(self) -> None:
        worker, number = self.rng.choice(_WORKERS), self.rng.randint(1000, 9999)
        self._add("INFO", worker, f"GET /api/reports/{number} started", "before crash")
        after = self.rng.randint(100, 900)
        self._add("ERROR", worker, f"process exited with signal 11 after {after} requests", "crash")

    def _pay(self, amount: int, kind: str, *, again: bool = False) -> None:
        self._order += not again
        text = f"payment of {amount} EUR for order {self._order} captured"
        self._add("INFO", "billing", text, kind)

    def _usual(self) -> None:
        usual = (
            self._request, self._beat, self._gauge, self._login, self._payment, self._sensor,
            self._queue,
        )  # fmt: skip
        self.rng.choices(usual, (50, 10, 8, 8, 12, 5, 7))[0]()
        if self.rng.random() < 0.004:
            attempt = self.rng.randint(2, 5)
            self._add("WARNING", "api-1", f"retrying upstream call, attempt {attempt}")

    def _request(self) -> None:
        rng = self.rng
        path = f"/api/{rng.choice(('orders', 'users', 'items'))}/{rng.randint(1, 999)}"
        status, took = rng.choice((200, 200, 200, 304)), rng.randint(8, 240)
        self._add("INFO", rng.choice(_WORKERS), f"GET {path} {status} took {took}ms")

    def _beat(self) -> None:
        self._add("DEBUG", self.rng.choice(_WORKERS), f"heartbeat {len(self.events)} ok")

    def _gauge(self) -> None:
        self._memory += self.rng.randint(4, 30) if self._leaks else self.rng.randint(-6, 6)
        threads = self.rng.randint(30, 90)
        self._add("INFO", "runtime", f"memory rss {self._memory} MB, {threads} threads", "memory")

    def _login(self) -> None:
        address = f"10.0.{self.rng.randint(0, 2)}.{self.rng.randint(2, 5)}"
        who = self.rng.choice(_PEOPLE)
        self._add("INFO", "auth", f"user {who} logged in from {address}", "login")

    def _payment(self) -> None:
        self._pay(self.rng.randint(5, 900), "payment")
        if not self.doubled and self.rng.random() < 0.1:
            self.doubled = self._order
            self._pay(self.rng.randint(5, 900), "payment", again=True)

    def _sensor(self) -> None:
        heat, fan = self.rng.randint(48, 66), self.rng.randint(900, 1800)
        self._add("INFO", "sensors", f"cpu temperature {heat} C fan {fan} rpm")

    def _queue(self) -> None:
        depth, lag = self.rng.randint(0, 40), self.rng.randint(1, 90)
        self._add("INFO", "queue", f"depth {depth} lag {lag} ms")


def _log_questions(
    rng: random.Random,
    events: list[_Event],
    lines: list[str],
    facts: dict[str, list[int]],
    doubled: int,
) -> Iterator[Question]:
    def line(number: int) -> str:
        return line_with(*re.findall(r"[\w./@:-]*\w", events[number].text))

    yield Question("Why is the service slow?", (line(facts["slow"][0]),), topic="outlier")
    yield Question("Did anything overheat?", (line(facts["hot"][0]),), topic="outlier")
    yield Question("What was the largest payment?", (line(facts["big"][0]),), topic="outlier")
    yield Question(
        "Is the service still alive?", (line(len(events) - 1), _clock(lines[-1])), topic="last line"
    )
    yield Question(
        "When did it start, and which version is it?",
        (line(0), _clock(lines[0])),
        topic="first line",
    )
    if len(facts.get("memory", ())) > 1:
        first, last = facts["memory"][0], facts["memory"][-1]
        yield Question("Is there a memory leak?", (line(first), line(last)), topic="trend")
    if "crash" in facts:
        yield Question(
            "Which request crashed the worker?",
            (line(facts["before crash"][0]), line(facts["crash"][0])),
            topic="around trouble",
        )
    people: dict[str, list[int]] = {}
    for number in facts.get("login", ()):
        people.setdefault(events[number].text.split()[1], []).append(number)
    if people:
        name = rng.choice(sorted(people))
        last = people[name][-1]
        yield Question(
            f"When did {name} log in last?", (line(last), _clock(lines[last])), topic="name"
        )
        first = people[name][0]
        yield Question(
            f"When did {name} first log in?", (line(first), _clock(lines[first])), topic="name"
        )
    gaps = [(b.at - a.at, number) for number, (a, b) in enumerate(pairwise(events))]
    _, number = max(gaps, key=lambda each: each[0])
    yield Question(
        "Was there a time when nothing happened?",
        (_clock(lines[number]), _clock(lines[number + 1])),
        topic="gap",
    )
    if doubled:
        twice = [n for n, event in enumerate(events) if f"order {doubled} " in event.text]
        yield Question("Was a customer charged twice?", tuple(map(line, twice)), topic="repeated")
    paid = rng.choice(facts.get("payment", facts["big"]))
    id = events[paid].text.split()[6]
    yield Question(f"What did order {id} cost?", (line(paid),), topic="id")


def _clock(line: str) -> str:
    """Return a pattern of the time of a line, as the line has it."""
    found = re.search(r"\d\d:\d\d:\d\d(?:[.,]\d+)?|\d+\.\d{6}", line)
    assert found
    return re.escape(found[0])


def _access_log(rng: random.Random) -> Document:
    at = datetime(2025, 12, 12, 9, rng.randint(0, 59), tzinfo=UTC)
    clients = [f"203.0.113.{n}" for n in rng.sample(range(1, 250), rng.randint(4, 8))]
    lines, parts = [], []
    size = rng.randint(250, 700)
    big_at, slow_at = rng.sample(range(5, size - 5), 2)
    for number in range(size):
        at += timedelta(seconds=rng.choice((0, 0, 1, 1, 2)))
        client = rng.choice(clients)
        path = rng.choice(("/", "/index.html", f"/item/{rng.randint(1, 400)}", "/static/app.js"))
        sent, took = rng.randint(300, 9000), rng.randint(2, 300) / 1000
        if number == big_at:
            path, sent = "/export/all.csv", rng.randint(40_000_000, 90_000_000)
        if number == slow_at:
            path, took = "/search?q=boots", float(rng.randint(20, 60))
        lines.append(
            f'{client} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "GET {path} HTTP/1.1" 200 {sent} "-" '
            f'"Mozilla/5.0 (X11; Linux x86_64)" {took:.3f}'
        )
        parts.append((client, path, sent, f"{took:.3f}"))
    questions = [
        Question(
            "Which download used most of the traffic?",
            (line_with("/export/all.csv", parts[big_at][2]),),
            topic="outlier",
        ),
        Question(
            "Which request was the slowest?",
            (line_with("/search?q=boots", parts[slow_at][3]),),
            topic="outlier",
        ),
        Question(
            "Which addresses did requests come from?",
            tuple(map(line_with, sorted({p[0] for p in parts}))),
            topic="distinct",
        ),
        Question(
            "What was the last request?",
            (line_with(parts[-1][0], parts[-1][2]), _clock(lines[-1])),
            topic="last line",
        ),
        Question("When does the log begin?", (_clock(lines[0]),), topic="first line"),
    ]
    return Document("log", "\n".join(lines), tuple(questions))


# --- JSON ----------------------------------------------------------------------------------------


def _json(rng: random.Random) -> Document:
    count = rng.randint(8, 60)
    rows: list[dict[str, Any]] = [
        {
            "id": 1000 + n,
            "name": f"{rng.choice(('Trail', 'City', 'Alpine'))} {rng.choice(('Boot', 'Jacket', 'Pack'))} {n}",
            "price": {
                "amount": round(rng.uniform(5, 400), 2),
                "currency": rng.choice(("EUR", "USD")),
            },
            "stock": rng.choice((0, 3, 17, None)),
            "tags": rng.sample(("new", "sale", "wool", "vegan"), rng.randint(0, 3)),
        }
        for n in range(count)
    ]
    if rng.random() < 0.3:
        rows[rng.randrange(count)]["recalled"] = "2025-11-30"
    one = rng.choice(rows)
    style = rng.choice(("indent", "compact", "lines", "wrapped"))
    if style == "lines":
        text = "\n".join(json.dumps(row) for row in rows)
    elif style == "compact":
        text = json.dumps(rows)
    else:
        text = json.dumps({"items": rows, "next": None} if style == "wrapped" else rows, indent=2)
    amount = one["price"]["amount"]
    prices = [row["price"]["amount"] for row in rows]
    questions = [
        Question(
            f"What is the price of {one['name']}?",
            (rf"(?s){re.escape(one['name'])}\".{{0,120}}?\b{re.escape(str(amount))}\b",),
            topic="value",
        ),
        Question("What is the last item?", (re.escape(rows[-1]["name"]),), topic="last line"),
        Question("Which item is the dearest?", (re.escape(str(max(prices))),), topic="outlier"),
        Question("Which item is the cheapest?", (re.escape(str(min(prices))),), topic="outlier"),
    ]
    recalled = [row for row in rows if "recalled" in row]
    if recalled:
        questions.append(Question("Was anything recalled?", ("2025-11-30",), topic="outlier"))
    return Document("json", text, tuple(questions))


# --- notes: plain text with white space that has a meaning -----------------------------------------


def _notes(rng: random.Random) -> Document:
    """A CSV with quoted line breaks, a poem, a script with a heredoc, or a mail thread."""
    style = rng.choice(("csv", "mail", "script", "minutes"))
    tail = "   " if rng.random() < 0.5 else " "
    if style == "csv":
        note = f"first{tail}\n\n\n\nsecond {rng.randint(10, 99)}"
        rows = [f'{n},"item {n}",{rng.randint(1, 900):<12}' for n in range(rng.randint(20, 60))]
        at = rng.randrange(len(rows))
        rows[at] = f'{at},"{note}",{rng.randint(1, 900):<12}'
        text = "id,note,amount\n" + "\n".join(rows)
        asked = [
            Question(
                f"What does the note of row {at} say, with its line breaks?",
                (re.escape(note),),
                topic="white space",
            ),
            Question(
                f"Which amount has row {len(rows) - 1}?",
                (re.escape(rows[-1].split(",")[-1].strip()),),
                topic="value",
            ),
        ]
        return Document("notes", text, tuple(asked))
    people = ("Ada Hale", "Ben Okoro", "Clara Wu")
    if style == "script":
        code = rng.randint(10, 99)
        text = "\n".join(
            [
                "#!/bin/bash", "set -e", "if [ -z \"$HOST\" ]; then", "  echo \"no host\"", "  exit 2", "fi",
                "cat > /etc/motd <<EOT", f"Welcome{tail}", "", "", "", f"Build {code}{tail}", "EOT",
                *(f"systemctl restart app-{n}" for n in range(rng.randint(5, 20))), "exit 0",
            ]
        )  # fmt: skip
        return Document(
            "notes",
            text,
            (
                Question(
                    "What does the script write to the message of the day?",
                    (re.escape(f"Welcome{tail}\n\n\n\nBuild {code}{tail}\n"),),
                    topic="white space",
                ),
            ),
        )
    paragraph = (
        "We agreed to move the release of the portal to the week after the audit, because the"
        " payment tests do not pass yet and nobody wants to ship them on a Friday afternoon. The"
        " hosting contract runs until spring, so there is no hurry, and the translators may go on"
        " with their work as planned."
    )
    days = [f"2025-11-{n:02}" for n in range(1, rng.randint(6, 14))]
    blocks = []
    for day in days:
        who = rng.choice(people)
        blocks.append(
            f"{day} {who}{tail}\n{paragraph}\nBudget left: {rng.randint(100, 9000)} EUR{tail}\n\n\n"
        )
        if style == "mail":
            blocks.append(f"> {paragraph}\n> Thanks, {who}\n\n\n")
    text = "\n".join(blocks)
    asked = []
    for day in (days[0], days[-1]):
        block = next(each for each in blocks if each.startswith(day))
        who = block.split("\n")[0][11:].strip()
        left = block.split("Budget left: ")[1].split()[0]
        asked.append(
            Question(
                f"Who wrote on {day}, and how much budget was left?",
                (line_with(day, *who.split()), line_with("Budget left:", left)),
                topic="value",
            )
        )
    asked.append(
        Question(
            "What was decided about the release?",
            ("move the release of the portal to the week after the audit",),
            topic="value",
        )
    )
    return Document("notes", text, tuple(asked))


# --- what coding agents read ---------------------------------------------------------------------


def _listing(rng: random.Random) -> Document:
    """A file as a reading tool shows it, with numbers before its lines."""
    sign, first, count = rng.choice(("\u2192", "\t")), rng.randint(1, 1200), rng.randint(20, 200)
    rows = [f"limit_{n} = {rng.randint(100, 9999)}" for n in range(count)]
    for at in range(0, count, 7):
        rows[at] = rng.choice(("", "def check(value):", "    return value < limit"))
    lines = [f"{number:6}{sign}{row}" for number, row in enumerate(rows, first)]
    at = rng.choice([n for n in range(count) if n % 7])
    asked = (
        Question(
            f"What is on line {first + at}?",
            (rf"(?m)^ *{first + at}{sign}{re.escape(rows[at])}$",),
            topic="value",
        ),
        Question("How does the part end?", (re.escape(rows[-1]),), topic="last line"),
    )
    return Document("listing", "\n".join(lines), asked)


def _build(rng: random.Random) -> Document:
    """What a build wrote on a terminal, with progress bars and one warning."""
    end, total = rng.choice(("\r", "\n")), rng.randint(40, 400)
    steps = [
        f"Downloading [{'=' * (20 * n // total):20}] {n}/{total} MB {rng.randint(5, 60)} MB/s"
        for n in range(1, total + 1)
    ]
    tests, seconds = rng.randint(20, 900), rng.randint(10, 99)
    git = "\r".join(f"Receiving objects: {n:3}% ({n * 13}/1300)" for n in range(101))
    text = "\n".join(
        (
            "Cloning into 'app'...", git + ", done.", end.join(steps),
            f"warning: package left-pad {seconds}.0.1 is deprecated",
            f"Ran {tests} tests in {seconds}s", "OK", "",
        )
    )  # fmt: skip
    asked = (
        Question("Was all of it downloaded?", (rf"{total}/{total} MB",), topic="last line"),
        Question("Was the clone complete?", (r"100% \(1300/1300\), done",), topic="last line"),
        Question("Which package is old?", (rf"left-pad {seconds}\.0\.1",), topic="value"),
        Question("How long did the tests take?", (rf"{tests} tests in {seconds}s",), topic="value"),
    )
    return Document("build", text, asked)


def _page(rng: random.Random) -> Document:
    text, asked = page(rng)
    return Document("page", text, tuple(Question(*each) for each in asked))


KINDS: dict[str, Callable[[random.Random], Document]] = {
    "log": _log,
    "page": _page,
    "json": _json,
    "notes": _notes,
    "listing": _listing,
    "build": _build,
}

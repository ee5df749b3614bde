"""Steady traffic for a long time: is the memory flat?

    python -m benchmarks.soak --minutes 30 --rate 20

A third of the requests are repeats, a third rewordings and a third new questions, and every fifth
new one is long. The command prints CPU, memory and the hits of each minute. In a leak-free run the
memory of the second half is flat; the caches of the default settings fill in the first.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter, deque
from http.server import ThreadingHTTPServer
from typing import NamedTuple

from benchmarks.start import Provider, cost_of, exchange, running

FRAMES = ("How do I {} my {}?", "How can I {} my {}?", "What must I do to {} my {}?")
VERBS = "reset change cancel renew update delete verify freeze report download share move"
NOUNS = "password card account ticket order contract phone email loan pension refund voucher"
FILLER = " I have looked through the manual already, and nothing in it helped me at all."


class Ask(NamedTuple):
    """What a question is about; every fifth is long."""

    verb: str
    noun: str
    number: int


def question(ask: Ask, frame: str) -> str:
    """Write a question about one of many things."""
    text = frame.format(ask.verb, f"{ask.noun} of branch {ask.number}")
    return text + FILLER * (ask.number % 5 == 0)


def asked(dice: random.Random, known: deque[Ask]) -> str:
    """Return the next question, and remember a new one."""
    kind = dice.randrange(3) if known else 2
    if kind < 2:
        return question(dice.choice(known), FRAMES[kind])
    ask = Ask(dice.choice(VERBS.split()), dice.choice(NOUNS.split()), dice.randrange(10**6))
    known.append(ask)
    return question(ask, FRAMES[0])


def main() -> None:
    """Send traffic and print what each minute took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("serve", nargs="*", help="arguments of headstart serve")
    options = parser.parse_args()
    provider = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    dice, known, began = random.Random(1), deque[Ask](maxlen=2000), time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(
            options.serve,
            f"http://127.0.0.1:{provider.server_port}/v1",
            folder,
            f"{folder}/modules",
        ) as server,
    ):
        sent, last = 0, cost_of(server.pid, began)
        for minute in range(1, options.minutes + 1):
            statuses = Counter[int]()
            until = began + 60 * minute
            while time.monotonic() < until:
                due = began + sent / options.rate
                time.sleep(max(0.0, due - time.monotonic()))
                statuses[exchange(server.port, asked(dice, known))] += 1
                sent += 1
            now = cost_of(server.pid, began)
            cpu_ms = (now.cpu_s - last.cpu_s) / max(statuses.total(), 1) * 1000
            print(
                f"minute {minute:3}  {statuses.total():6} requests  {dict(statuses)}"
                f"  {cpu_ms:6.2f} ms CPU each  {now.rss_mb:7.1f} MB",
                flush=True,
            )
            last = now
    provider.shutdown()


if __name__ == "__main__":
    main()

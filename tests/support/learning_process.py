"""A process that labels and learns. Tests run several of them on one store, and kill some.

``python -m support.learning_process URL NAME COUNT TOTAL`` writes ``COUNT`` labels, one after the
other, as ``NAME``, and prints ``wrote N`` after each one that the store acknowledged. Then it waits
until it has learned from ``TOTAL`` labels, and prints a digest of its knowledge.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio

from headstart.embeddings.stores.store_urls import open_store
from headstart.middleware.learning import domains as domains_module
from support.learned import digest, make_domains, make_label

if TYPE_CHECKING:
    from headstart.decisions import Label


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def label_at(number: int, name: str) -> Label:
    """Every other pair has the same words and equal answers; of the others, a third differ."""
    same_words = number % 2 == 1
    same = same_words or number % 3 != 0
    return make_label(number, same=same, closeness=number % 3, by=name, same_words=same_words)


async def main(url: str, name: str, count: int, total: int) -> None:
    store = open_store(url)
    await store.open()
    domains = make_domains(store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(domains.run)
        domain = await domains.load("d")
        for number in range(count):
            label = label_at(number, name)
            await store.add_labels([label])
            domains.wake()
            say(f"wrote {number + 1}")
        while domain.labels < total:
            await anyio.sleep(0.01)
        say(f"learned {digest(domain)}")
        tasks.cancel_scope.cancel()
    await domains.aclose()
    await store.aclose()


if __name__ == "__main__":
    domains_module.SAVE_S = 0.02
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

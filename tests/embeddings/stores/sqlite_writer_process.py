"""A process to be killed: ``FILE NAME`` appends entries for ever, several at a time.

Prints the id of each entry once it is acknowledged, one a line, each in a write of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from headstart.embeddings.stores.sqlite import SQLiteStore
from headstart.types import CacheKey, Choice, Completion, Entry, Origin, Put, Text

APPENDERS = 8


async def append_forever(store: SQLiteStore, name: str) -> None:
    number = 0
    while True:
        id = f"{name}-{number:06}"
        await store.append([Put(entry=make_entry(id), vector=bytes(768))])
        os.write(1, f"{id}\n".encode())
        number += 1


def make_entry(id: str) -> Entry:
    choice = Choice(index=0, parts=(Text(text=id * 200),), finish="stop")
    return Entry(
        id=id,
        key=CacheKey(scope="s", partition="p", exact=id),
        answer=Completion(model="m", choices=(choice,), created=0),
        origin=Origin(model="m", upstream="u", ttft_s=0.1, total_s=1.0),
        created=time.time(),  # noqa: TID251 - the root of this process
    )


async def main(path: str, name: str) -> None:
    store = SQLiteStore(path)
    await store.open()
    async with asyncio.TaskGroup() as tasks:
        for appender in range(APPENDERS):
            tasks.create_task(append_forever(store, f"{name}-{appender}"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""The opt-in record: requests and their fresh answers, one JSON line each, for ``headstart tune``.

``{"at": Unix seconds, "id", "scope": its hash, "request": body, "response": body}``, both bodies
whole and in the clear; headers, and with them credentials, are left out. Each day (UTC) has its
file, ``headstart-record-2026-11-21.jsonl``, which its owner alone may read.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import sys
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.errors import ConfigError
from headstart.middleware.concurrency import Spawn, delete_regularly, lock_file
from headstart.observe import Observer, StageFailed, logger
from headstart.types import Call, Completion, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headstart.dialects.dialect import Dialect


FLUSH_S = 0.25
"""Seconds that a line waits for others before it is written."""
MAX_WAITING = 1000
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""The most bytes of request bodies that wait to be written. If the disk is too slow, further lines
are dropped."""


@dataclass(eq=False, repr=False)
class Recorder:
    """Appends answers to the day's file, off the event loop, and deletes files that are too old.

    ``retention_days`` files are kept, including the file of today. Lines that cannot be written are
    lost, and requests go on. Observers are told once, and again after a success. Several processes
    may share ``path``: each line is one append.
    """

    path: Path
    _: KW_ONLY
    retention_days: InitVar[int]
    spawn: Spawn
    clock: Callable[[], float]
    observer: Observer
    _waiting: list[_RecordLine] = field(default_factory=list)
    _waiting_bytes: int = 0
    _flushing: bool = False
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _failing: bool = False

    def __post_init__(self, retention_days: int) -> None:
        self._retention_s = timedelta(days=retention_days).total_seconds()
        self._dated = re.compile(
            rf"{re.escape(self.path.stem)}-(\d{{4}}-\d\d-\d\d){re.escape(self.path.suffix)}"
        )

    async def open(self) -> None:
        """Create today's file. Raises ConfigError when it cannot be written."""
        try:
            os.close(await asyncio.to_thread(self._open))
        except OSError as error:
            raise ConfigError(f"record.path: {error}") from error

    def add(self, call: Call, dialect: Dialect | None, entry: Entry) -> None:
        """Take a fresh answer; it is written within a quarter of a second.

        Only answers in a dialect are recorded.
        """
        if dialect is None or call.request is None or not isinstance(entry.answer, Completion):
            return
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            return self._failed(asyncio.QueueFull("too many lines wait for the disk"))
        self._waiting.append(_RecordLine(entry, entry.answer, call.request.document, dialect))
        self._waiting_bytes += len(call.body)
        if not self._flushing:
            self._flushing = True
            self.spawn(self._flush_soon)

    async def aclose(self) -> None:
        """Write the waiting lines."""
        await self._flush()

    async def prune(self, every_s: float = 3600.0) -> None:
        """Delete the files of days past retention, now and every ``every_s``, until cancelled.

        Nothing is deleted while the clock cannot be believed.
        """
        await delete_regularly(self.clock, self._last, self._prune, self._failed, every_s)

    async def _flush_soon(self) -> None:
        try:
            await asyncio.sleep(FLUSH_S)
        finally:
            self._flushing = False
        await self._flush()

    async def _flush(self) -> None:
        async with self._writing:
            waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
            if not waiting:
                return
            try:
                await asyncio.to_thread(self._write, waiting)
            except OSError as error:
                self._failed(error)
            else:
                self._failing = False

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            logger.warning("the record cannot be kept: %s", error)
            self.observer.notify(StageFailed(stage="record", error=type(error).__name__))

    def _open(self) -> int:
        today = datetime.fromtimestamp(self.clock(), UTC).date()
        name = f"{self.path.stem}-{today}{self.path.suffix}"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        if sys.platform == "win32":
            flags |= os.O_BINARY  # lines end with \n on each system
        return os.open(self.path.with_name(name), flags, 0o600)

    def _write(self, waiting: Sequence[_RecordLine]) -> None:
        # The file is opened for each batch: the day may have changed, or the file was moved.
        file = self._open()
        try:
            # A line that another process is about to write would look as if it had been cut off.
            with contextlib.suppress(OSError):  # not all file systems have locks
                lock_file(file, wait=True)
            if _ends_inside_a_line(file):
                os.write(file, b"\n")
            for answered in waiting:
                line = answered.line()
                if os.write(file, line) < len(line):
                    raise OSError(errno.ENOSPC, "a line was cut off")
        finally:
            os.close(file)

    def _last(self) -> float | None:
        """Return the time of the last line; None if there is none."""
        found = [file.stat() for file, _ in self._files()]
        return max([each.st_mtime for each in found if each.st_size], default=None)

    def _prune(self, now: float) -> None:
        newest_deleted = now - self._retention_s
        for file, day in self._files():
            if datetime.combine(day, time.min, UTC).timestamp() <= newest_deleted:
                file.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[Path, date]]:
        """Yield the files with their days."""
        for file in self.path.parent.iterdir():
            named = self._dated.fullmatch(file.name)
            day = _day(named[1]) if named is not None else None
            if day is not None:
                yield file, day


class _RecordLine(NamedTuple):
    entry: Entry
    answer: Completion
    asked: dict[str, object]
    dialect: Dialect

    def line(self) -> bytes:
        response = self.dialect.write_body(self.answer, self.dialect.new_id(), self.answer.created)
        document = {
            "at": self.entry.created,
            "id": self.entry.id,
            "scope": self.entry.key.scope,
            "dialect": self.dialect.name,
            "request": self.asked,
            "response": msgspec.Raw(response),
        }
        return msgspec.json.encode(document) + b"\n"


def _ends_inside_a_line(file: int) -> bool:
    """Return whether the last write was cut off, by a full disk or a killed process."""
    if os.lseek(file, 0, os.SEEK_END) == 0:
        return False
    os.lseek(file, -1, os.SEEK_END)
    return os.read(file, 1) != b"\n"


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None

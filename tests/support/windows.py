"""Run the ``headstart`` command without the functions that Windows lacks.

    python -m support.windows serve …

A call of such a function fails as it would on Windows.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import os
import select
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# Other libraries load as on the real system.
for name in (
    "aiohttp", "anyio", "click", "faiss", "litestar", "numpy", "onnxruntime", "prometheus_client",
    "redis.asyncio", "rich.console", "tokenizers", "uvicorn.server", "uvicorn.loops.asyncio",
    "uvicorn.lifespan.on", "websockets.server", "multiprocessing.shared_memory", "sqlite3",
    "anyio._backends._asyncio", "concurrent.futures.thread", "shutil", "tempfile", "getpass",
):  # fmt: skip
    importlib.import_module(name)

ABSENT = ("fcntl", "resource", "termios", "tty", "pty", "grp", "pwd", "uvloop")
LACKING: dict[Any, tuple[str, ...]] = {
    os: ("fork", "geteuid", "getuid", "sched_yield", "sched_getaffinity", "memfd_create",
         "O_NOCTTY", "killpg"),
    select: ("poll", "epoll"),
    signal: ("SIGHUP", "SIGUSR1", "SIGKILL"),
    socket: ("SO_REUSEPORT",),  # asyncio here needs AF_UNIX
    asyncio: ("open_unix_connection", "start_unix_server"),
}  # fmt: skip


class Locks(ModuleType):
    """The module ``msvcrt``, which locks bytes from the present position of a file."""

    LK_LOCK = 1
    LK_NBLCK = 2

    @staticmethod
    def locking(file: int, mode: int, count: int, fcntl: ModuleType = fcntl) -> None:
        """Lock bytes."""
        place = os.lseek(file, 0, os.SEEK_CUR)
        assert os.fstat(file).st_size < place < 2**31, "others cannot read a locked byte"
        assert count == 1
        fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if mode == Locks.LK_NBLCK else 0))


def refuse(*_: object) -> None:
    """Take the place of a method that the event loops of Windows lack."""
    raise NotImplementedError


def become_windows() -> None:
    """Remove the functions and modules that Windows lacks."""
    asyncio.new_event_loop().close()  # Python 3.14 now chooses the loops of the real system
    for absent in ABSENT:
        sys.modules[absent] = None  # type: ignore[assignment]
    for holder, lacks in LACKING.items():
        for each in lacks:
            if hasattr(holder, each):
                delattr(holder, each)
    sys.modules["msvcrt"] = Locks("msvcrt")
    for each in ("add_signal_handler", "remove_signal_handler"):
        setattr(asyncio.unix_events._UnixSelectorEventLoop, each, refuse)
    asyncio.ProactorEventLoop = asyncio.SelectorEventLoop  # type: ignore[attr-defined]
    os.O_BINARY = 0  # type: ignore[attr-defined]
    # Python 3.13 chose the form for Linux when it started, which asks sched_getaffinity.
    os.process_cpu_count = os.cpu_count  # type: ignore[attr-defined,unused-ignore]
    socket.SO_EXCLUSIVEADDRUSE = socket.SO_REUSEADDR  # type: ignore[attr-defined]
    sys.platform = "win32"


def import_all() -> None:
    """Import each module of the package except those for several workers."""
    import headstart
    from headstart.errors import MissingExtra

    package = Path(headstart.__file__).parent
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        alone = not parts[-1].startswith("worker") and parts[-1] != "shared_states"
        if alone and parts[-1] not in ("__main__", "__init__"):
            with contextlib.suppress(MissingExtra):
                importlib.import_module(".".join(parts))


if __name__ == "__main__":
    become_windows()
    if sys.argv[1:] == ["import-all"]:
        import_all()
    else:
        from headstart.__main__ import main

        main()

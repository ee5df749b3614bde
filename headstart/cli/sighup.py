"""When the server reads its configuration again: on SIGHUP, or when it is asked to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

from headstart.errors import HeadstartError
from headstart.observe import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Reloads:
    """Reloads on SIGHUP, and logs what became of it.

    A terminal that is closed sends the same signal. Then ``stop`` is called, unless the process was
    told to ignore that (``nohup``).
    """

    def __init__(self, reload: Callable[[], Awaitable[None]], stop: Callable[[], object]) -> None:
        self._reload = reload
        self._stop = stop
        self._has_terminal = _has_terminal()

    def listen(self, spawn: Callable[..., object]) -> None:
        """Handle SIGHUP in the running loop; systems without the signal reload by command."""
        if not hasattr(signal, "SIGHUP"):
            return
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            self._has_terminal = False
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: spawn(self._on_signal))

    async def _on_signal(self) -> None:
        if self._has_terminal and not _has_terminal():
            logger.warning("the terminal was closed, so the server stops")
            self._stop()
            return
        with contextlib.suppress(HeadstartError):
            await self()

    async def __call__(self) -> None:
        """Reload. Raises HeadstartError after it was logged: nothing has changed."""
        try:
            await self._reload()
        except HeadstartError as error:
            logger.error("the configuration was not reloaded, and nothing has changed: %s", error)
            raise


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True

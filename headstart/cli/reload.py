"""``headstart reload`` asks a running server, over its admin API, to read its configuration again.

SIGHUP does the same. ``ReloadOnSignal`` is the part of the server that handles this signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
import click

from headstart.cli import data_sources
from headstart.cli.options import command, config_field, token_field, url_field
from headstart.errors import HeadstartError
from headstart.observe import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


class ReloadOnSignal:
    """Reloads on SIGHUP, and logs the result.

    A terminal that is closed sends the same signal. Then ``stop`` is called, unless the process was
    told to ignore that (``nohup``).
    """

    def __init__(self, reload: Callable[[], Awaitable[None]], stop: Callable[[], object]) -> None:
        self._reload = reload
        self._stop = stop
        self._has_terminal = _has_terminal()

    def listen(self, spawn: Callable[..., object]) -> None:
        """Handle SIGHUP in the running loop; systems without the signal reload by command."""
        if sys.platform == "win32":
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


def survive_hangups() -> None:
    """Ignore SIGHUP until the server can reload, unless a closed terminal may send it."""
    if sys.platform == "win32" or _has_terminal():
        return
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: None)


def _has_terminal() -> bool:
    if sys.platform == "win32":
        return True
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class ReloadOptions:
    """The options of ``headstart reload``."""

    url: str | None = url_field()
    config: Path | None = config_field()
    token_env: str | None = token_field()


@command(ReloadOptions)
def reload(options: ReloadOptions) -> None:
    """Make a running server read its configuration again, without a lost request.

    New requests use the new configuration as soon as it has started; running requests end under the
    old one. If the configuration is wrong, the command prints the reason and exits with 1, and the
    server goes on as before. SIGHUP does the same, and writes the result to the log.

    Examples:
      headstart reload
      headstart reload --url http://127.0.0.1:9000
    """
    server = data_sources.running_server(options.url, options.token_env, options.config)
    anyio.run(partial(server.ask, method="POST", timeout_s=600.0), "reload")
    click.echo("the configuration was reloaded")

"""One worker process: it serves on the parent process's socket and answers its questions."""

from __future__ import annotations

import sys

assert sys.platform != "win32", "Windows runs one worker"

import asyncio
import dataclasses
import logging
import mmap
import os
import signal
import socket
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec

from headstart.cli.sidecar_server import Acceptor, SidecarServer, end_process
from headstart.cli.worker_channel import Channel, ParentLink, WorkerExchange
from headstart.cli.workers import WorkerTask, connection_counts, lease_table, share_of
from headstart.errors import ConfigError, HeadstartError
from headstart.middleware.admin_front import WorkerAnswers
from headstart.middleware.upstreams.shared_states import SharedUpstreamStates
from headstart.observe import logger
from headstart.settings import Settings
from headstart.sidecar import Sidecar, lasting_parts

if TYPE_CHECKING:
    from headstart.interfaces import Store

UPDATES_S = 0.5
"""Seconds between two exchanges of learned figures among workers."""


class WorkerSide:
    """One worker: it serves, and answers the parent process."""

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._link = ParentLink()
        self._leases = lease_table(task.shared)
        self._states = SharedUpstreamStates(task.shared, mmap.PAGESIZE)
        lasting = dataclasses.replace(
            lasting_parts(self._states),
            reload=self._ask_to_reload,
            gather=self._gather,
            exchange=self._exchange,
        )
        self._sidecar = Sidecar(self._own(task.settings), lasting)
        self.server = SidecarServer(
            self._sidecar,
            socket.socket(fileno=task.listening),
            log_level=task.log_level,
            on_start=self._announce,
            on_drain=lambda _: None,
            accept=partial(
                Acceptor, counts=connection_counts(task.shared, task.count), index=task.index
            ),
        )

    def _own(self, settings: Settings) -> Settings:
        return share_of(settings, self._task.index, self._task.count)

    async def _announce(self, server: SidecarServer) -> None:
        """Open the channel, and say that this worker serves."""
        ends = socket.socket(fileno=self._task.channel)
        channel = await Channel.over(ends, self._answer)
        self._link.open(channel)
        server.spawn(self._follow, channel)
        server.spawn(self._tell_updates, channel)
        channel.tell("ready")

    async def _follow(self, channel: Channel) -> None:
        await channel.run()
        self._link.close()
        logger.warning(
            "the parent process has ended; this worker (process %d) goes on alone, without "
            "reloads: stop it with SIGTERM",
            os.getpid(),
        )

    async def _tell_updates(self, channel: Channel) -> None:
        """Tell the other workers what this one has learned of the upstreams."""
        while self._link.channel is not None:
            await asyncio.sleep(UPDATES_S)
            if updates := self._states.take_updates():
                channel.tell("learned", updates)

    async def _answer(self, kind: str, payload: bytes) -> bytes:
        """Answer the parent process."""
        if kind == "show":
            return await self._sidecar.show(payload.decode())
        if kind == "mail":
            return self._link.deliver(payload)
        if kind == "learn":
            self._states.learn(payload)
        if kind == "replace":
            settings = msgspec.msgpack.decode(payload, type=Settings)
            await self.server.replace(self._own(settings))
        return b""

    def _exchange(self, store: Store) -> WorkerExchange:
        """Return the way to the other workers for one engine."""
        return WorkerExchange(self._task.index, store, self._link, self._leases)

    async def _ask_to_reload(self) -> None:
        if self._link.channel is None:
            raise ConfigError("the parent process has ended, and only a restart reloads")
        await self._link.channel.ask("reload")

    async def _gather(self, what: str) -> WorkerAnswers:
        """Return the figures of all workers, and the last metrics of workers that have ended."""
        if self._link.channel is None:
            return WorkerAnswers(live=[await self._sidecar.show(what)])
        found = await self._link.channel.ask("gather", what.encode())
        return msgspec.msgpack.decode(found, type=WorkerAnswers)


def main() -> None:
    """Run one worker: the parent process starts this process, and writes its task to it."""
    for ignored in ("SIGHUP", "SIGUSR1"):
        if hasattr(signal, ignored):
            signal.signal(getattr(signal, ignored), signal.SIG_IGN)
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=WorkerTask)
    logging.basicConfig(
        level=task.log_level.upper(),
        format=f"%(levelname)s worker {task.index} %(name)s: %(message)s",
    )
    # uvicorn sends the signal once more after a whole shutdown.
    signal.signal(signal.SIGINT, end_process)
    try:
        WorkerSide(task).server.run()
    except HeadstartError as error:
        click.echo(f"headstart: {error}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


if __name__ == "__main__":
    main()

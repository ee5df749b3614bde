"""A simulated provider that keeps its callers waiting until a test lets it answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from headstart.lab.simulator import Simulator


class Held(Simulator):
    """Keeps its callers waiting until ``open`` is set. It may run in a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.began = 0
        """Calls that have come."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.began += scope["type"] == "http"
        while not self.open.is_set():
            await asyncio.sleep(0.005)
        await super().__call__(scope, receive, send)

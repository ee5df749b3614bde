"""The ``headstart`` commands that ``benchmarks.safe_hits_http`` runs beside itself."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from dataclasses import dataclass
from typing import Any


@dataclass
class Program:
    """A ``headstart`` command in a process of its own."""

    arguments: list[str]
    process: asyncio.subprocess.Process | None = None
    url: str = ""

    async def start(self) -> str:
        """Start it and wait for the address it announces."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-u", "-m", "headstart", *self.arguments, stdout=asyncio.subprocess.PIPE
        )
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if found := re.search(rb"http://[\d.]+:\d+", line):
                self.url = found[0].decode()
                return self.url
        raise SystemExit(f"headstart {self.arguments[0]} did not start")

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        assert self.process is not None
        self.process.send_signal(number)
        await self.process.wait()


def thresholds(learning: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rule of each learning domain."""
    return {
        view["domain"][:8]: {
            name: view["status"][name] for name in ("rule", "threshold", "labels", "audits")
        }
        for view in learning
    }


def count_labels(metrics: str) -> int:
    """Return how many labels a sidecar wrote."""
    return int(metric(metrics, "headstart_labels_total"))


def count_dropped(metrics: str) -> int:
    """Return how often its learner failed, mostly comparisons lost to a full queue."""
    return int(metric(metrics, 'headstart_stage_errors_total{stage="learner"}'))


def metric(text: str, name: str) -> float:
    """Return a metric, summed over its labels."""
    wanted = re.compile(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", re.MULTILINE)
    return sum(map(float, wanted.findall(text)))

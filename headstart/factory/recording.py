"""The opt-in record from its settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headstart.factory.clock import clock
from headstart.middleware.record import Recorder

if TYPE_CHECKING:
    from headstart.factory.site import Site


async def open_recorder(site: Site) -> Recorder | None:
    """Return what writes the record, or None unless it is asked for. Raises ConfigError."""
    record = site.settings.record
    if not record.enabled:
        return None
    recorder = Recorder(
        Path(record.path),
        retention_days=record.retention_days,
        spawn=site.supervisor.spawn,
        clock=clock,
        observer=site.observers,
    )
    await recorder.open()
    site.stack.push_async_callback(recorder.aclose)
    site.supervisor.spawn(recorder.prune)
    return recorder

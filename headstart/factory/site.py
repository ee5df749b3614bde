"""What all parts are opened with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from headstart.config import Settings
    from headstart.interfaces import Store
    from headstart.middleware.supervisor import Supervisor
    from headstart.observe import Observers


@dataclass(frozen=True)
class Site:
    """Settings, the parts that others stand on, and the stack that closes what was opened."""

    settings: Settings
    store: Store
    observers: Observers
    supervisor: Supervisor
    stack: AsyncExitStack

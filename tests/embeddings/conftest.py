"""A cache over a store that can fail."""

from __future__ import annotations

import pytest

from support.caches import CacheRig
from support.fakes import FaultyStore


@pytest.fixture
async def rig() -> CacheRig:
    rig = CacheRig(FaultyStore())
    await rig.cache.open()
    return rig

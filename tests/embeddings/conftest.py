"""A cache over a store that can fail."""

from __future__ import annotations

import pytest

from support.caches import House
from support.fakes import FaultyStore


@pytest.fixture
async def house() -> House:
    house = House(FaultyStore())
    await house.cache.open()
    return house

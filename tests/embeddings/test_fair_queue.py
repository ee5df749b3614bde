"""The encoder's queue: which tenant is next, whatever the tenants send."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from headstart.embeddings.encoder_worker import IDLE_TENANTS, FairQueue


class Ask(NamedTuple):
    """A job that is only queued."""

    tenant: str
    text: str
    priority: float = 0.0


@given(
    costs=st.lists(st.integers(1, 30), min_size=2, max_size=6),
    depths=st.lists(st.integers(1, 20), min_size=6, max_size=6),
    others=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=60),
)
def test_tenants_that_always_have_a_job_take_equal_times(
    costs: list[int], depths: list[int], others: list[tuple[int, int]]
) -> None:
    """However many jobs each keeps queued, and whoever comes and goes beside them."""
    cost = {f"steady {number}": each for number, each in enumerate(costs)}
    steady = tuple(cost)
    numbers = itertools.count()
    queue = FairQueue[Ask]()
    taken = dict.fromkeys(steady, 0)
    apart: dict[tuple[str, str], list[int]] = {
        pair: [] for pair in itertools.combinations(steady, 2)
    }
    served: dict[str, list[str]] = {}

    def ask(tenant: str) -> None:
        queue.add(Ask(tenant, f"{next(numbers):04}"))

    for name, depth in zip(steady, depths, strict=False):
        for _ in range(depth):
            ask(name)
    coming = iter(others)
    for _ in range(200):
        if (comes := next(coming, None)) is not None:
            name = f"guest {comes[0]}"
            cost[name] = comes[1]
            ask(name)
        job = queue.take()
        served.setdefault(job.tenant, []).append(job.text)
        queue.charge(job.tenant, cost[job.tenant])
        if job.tenant in taken:
            taken[job.tenant] += cost[job.tenant]
            ask(job.tenant)
        for (one, other), seen in apart.items():
            seen.append(taken[one] - taken[other])
    for (one, other), seen in apart.items():
        assert max(seen) - min(seen) <= cost[one] + cost[other]
    assert len(queue) == next(numbers) - 200
    assert all(texts == sorted(texts) for texts in served.values())


def test_a_tenant_that_stayed_away_has_saved_up_no_turns() -> None:
    queue = FairQueue[Ask]()
    for number in range(10):
        queue.add(Ask("busy", str(number)))
        queue.charge(queue.take().tenant, 1.0)
    for number in range(3):
        queue.add(Ask("busy", str(number)))
    for number in range(3):
        queue.add(Ask("late", str(number)))
    order = []
    for _ in range(6):
        order.append(queue.take().tenant)
        queue.charge(order[-1], 1.0)
    assert order == ["late", "busy", "late", "busy", "late", "busy"]


def test_ever_new_tenants_do_not_keep_an_old_one_waiting() -> None:
    """Sixteen connections, each of which takes another key for each request."""
    queue = FairQueue[Ask]()
    queue.add(Ask("old", ""))
    for number in range(16):
        queue.add(Ask(f"new {number}", ""))
    waited = [0]
    for number in range(16, 1000):
        tenant = queue.take().tenant
        queue.charge(tenant, 1.0)
        if tenant == "old":
            waited.append(0)
            queue.add(Ask("old", ""))
        else:
            waited[-1] += 1
            queue.add(Ask(f"new {number}", ""))
    assert max(waited) <= 2 * 16
    assert len(waited) > 50


def test_a_tenant_that_is_away_for_a_moment_keeps_its_time() -> None:
    """One caller with long prompts, one at a time, against one with short prompts."""
    queue = FairQueue[Ask]()
    taken = {"long": 0.0, "short": 0.0}
    for name in taken:
        queue.add(Ask(name, ""))
    for _ in range(310):
        tenant = queue.take().tenant
        seconds = 30.0 if tenant == "long" else 1.0
        taken[tenant] += seconds
        queue.charge(tenant, seconds)
        queue.add(Ask(tenant, ""))
    assert abs(taken["long"] - taken["short"]) <= 31.0


def test_tenants_that_left_are_forgotten() -> None:
    queue = FairQueue[Ask]()
    for number in range(10_000):
        queue.add(Ask(f"tenant {number}", ""))
        queue.charge(queue.take().tenant, 1.0)
    assert len(queue._accounts) <= 2 * IDLE_TENANTS

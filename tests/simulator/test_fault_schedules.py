"""The times at which a changed reply is due; pure functions without a clock."""

from __future__ import annotations

import msgspec
import pytest

from headstart.lab.simulator.app import OPENAI
from headstart.lab.simulator.faults import Cut, ErrorFrame, Fault, Gzip, Stall, Status, decode_fault
from headstart.lab.simulator.simulated_calls import ScriptedReply, TimedPiece


def _reply() -> ScriptedReply:
    pieces = tuple(TimedPiece(at_s, b"data: {}\n\n", delta=True) for at_s in (1.0, 1.5, 2.0))
    return ScriptedReply(status=200, headers=(), pieces=pieces, stream=True, head_at_s=1.0)


@pytest.mark.parametrize(
    ("fault", "head", "pieces", "ending"),
    [
        (Stall(seconds=20), 21.0, [21.0, 21.5, 22.0], 0.0),
        (Stall(seconds=20, after=0), 1.0, [21.0, 21.5, 22.0], 0.0),
        (Stall(seconds=20, after=2), 1.0, [1.0, 1.5, 22.0], 0.0),
        (Cut(after=2, delay_s=30), 1.0, [1.0, 1.5], 31.5),
        (Cut(delay_s=30), None, [], 31.0),
        (ErrorFrame(after=1), 1.0, [1.0, 1.0], 0.0),
    ],
)
def test_a_faults_schedule(
    fault: Fault, head: float | None, pieces: list[float], ending: float
) -> None:
    changed = fault.change_reply(_reply(), OPENAI)
    assert changed.head_at_s == head
    assert [piece.at_s for piece in changed.pieces] == pieces
    assert changed.ending_at_s == ending


@pytest.mark.parametrize(
    "fault", [Status(status=418, headers={"a": "b"}), Cut(after=3), Stall(), Gzip(times=2)]
)
def test_a_fault_survives_its_header(fault: Fault) -> None:
    assert decode_fault(fault.header().encode()) == fault
    assert msgspec.json.decode(fault.header())["fault"]

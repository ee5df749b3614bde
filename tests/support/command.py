"""Runs the ``headstart`` command in this process or in another one."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from headstart.__main__ import main

if TYPE_CHECKING:
    import pytest

COMMAND = [sys.executable, "-m", "headstart"]


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Run the command here; return its exit status and the JSON object that it printed."""
    status = 0
    try:
        main(arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    return status, json.loads(capsys.readouterr().out or "{}")

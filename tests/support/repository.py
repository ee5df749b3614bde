"""Where this checkout lies and which files belong to it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "headstart"
ROOMS = ("compression", "embeddings", "middleware", "policies")


def tracked_files() -> list[Path]:
    """Return the files under version control, links left out; all files where git is absent."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        return [*(path for path in PACKAGE.rglob("*") if path.is_file())]
    paths = (ROOT / name for name in listed if name)
    return [path for path in paths if path.is_file() and not path.is_symlink()]

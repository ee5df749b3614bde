"""What is published works: sdist, wheel built from it, each module in a clean environment."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from support.repository import PACKAGE, ROOMS, ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

IMPORT_ALL = """
import importlib, pathlib, sys
from headstart.errors import MissingExtra
for name in sys.stdin.read().split():
    try:
        module = importlib.import_module(name)
    except MissingExtra:
        print(name)
        continue
    assert pathlib.Path(module.__file__).is_relative_to(sys.prefix), module.__file__
"""

NEED_AN_EXTRA = {
    "headstart.embeddings.stores.encryption",
    "headstart.langchain_cache",
    "headstart.middleware.telemetry",
}
"""Modules that no other module may import at its start: they need a package of an extra."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, then the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return folder


@pytest.fixture(scope="module")
def sdist(dist: Path) -> set[str]:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        return {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel_files(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def run(*command: str, stdin: str | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, input=stdin, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def package_files() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and not _is_cache(path.relative_to(ROOT))
    }


def _is_cache(path: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") for part in path.parts)


def test_sdist_holds_the_whole_package_and_no_root_link(sdist: set[str]) -> None:
    assert package_files() <= sdist
    assert not {name for name in sdist if name.split("/")[0] in ROOMS}
    assert {"tests/conftest.py", "Makefile", "LICENSE", "NOTICE"} <= sdist


def test_wheel_built_from_the_sdist_holds_the_whole_package_alone(wheel_files: set[str]) -> None:
    packed = {name for name in wheel_files if ".dist-info/" not in name}
    assert packed == package_files()
    assert "headstart/py.typed" in packed


def test_wheel_carries_the_encoder(wheel: Path, wheel_files: set[str]) -> None:
    model = {name for name in wheel_files if name.startswith("headstart/embeddings/model/")}
    assert {name for name in model if name.endswith(".onnx")}
    assert wheel.stat().st_size > 10_000_000


def test_wheel_carries_the_licence_of_the_rank_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        notice = packed.read("headstart/compression/ranks/NOTICE").decode()
    assert "Copyright (c) 2022 OpenAI, Shantanu Jain" in notice
    assert "Permission is hereby granted, free of charge" in notice
    assert 'THE SOFTWARE IS PROVIDED "AS IS"' in notice


def test_every_module_imports_in_a_clean_environment(
    wheel: Path, wheel_files: set[str], tmp_path: Path
) -> None:
    home = tmp_path / "venv"
    python = str(home / "bin" / "python")
    uv = [sys.executable, "-m", "uv", "--quiet"]
    run(*uv, "venv", "--python", sys.executable, str(home))
    lock = str(ROOT / "requirements.txt")
    run(*uv, "pip", "install", "--python", python, "--require-hashes", "-r", lock)
    run(*uv, "pip", "install", "--python", python, "--no-deps", str(wheel))
    names = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in wheel_files
        if name.endswith(".py") and not name.endswith("__main__.py")
    )
    lacking = run(python, "-W", "error", "-c", IMPORT_ALL, stdin="\n".join(names), cwd=tmp_path)
    assert set(lacking.split()) == NEED_AN_EXTRA
    assert "serve" in run(str(home / "bin" / "headstart"), "--help")

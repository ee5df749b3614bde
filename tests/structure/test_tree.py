"""The tree keeps its shape: rooms and their links, file sizes, nothing of one machine."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.repository import PACKAGE, ROOMS, ROOT, tracked_files

MAX_LINES = 800
"""A file may be long if it is one thing: the limit only stops a heap."""
LONG = {"headstart/settings.py": 1000}
"""The table of all settings is one thing: each setting is said there, with its help."""

HOSTS = ("py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "npm" + "js.com")
HOMES = ("/wor" + "k/", "/roo" + "t/", "/Use" + "rs/", "/ho" + "me/", "/opt/py" + "pi")
OF_ONE_MACHINE = re.compile(
    "|".join([*map(re.escape, HOSTS), *(rf"(?<![\w.-]){re.escape(home)}\w" for home in HOMES)])
)


@pytest.mark.parametrize("room", ROOMS)
def test_root_link_leads_to_the_room(room: str) -> None:
    assert (ROOT / room).readlink() == Path("headstart", room)
    assert (ROOT / room).is_dir()


@pytest.mark.parametrize("room", ROOMS)
def test_room_has_no_init_file(room: str) -> None:
    assert not list((PACKAGE / room).rglob("__init__.py"))


def test_root_on_the_path_hides_no_standard_module() -> None:
    # Python 3.14 has its own ``compression``, which gzip imports.
    subprocess.run([sys.executable, "-c", "import gzip, bz2, lzma, zlib"], cwd=ROOT, check=True)


def test_no_file_grows_into_a_heap() -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8").count("\n")
        for path in tracked_files()
        if path.suffix == ".py"
    }
    assert not {name: n for name, n in lines.items() if n > LONG.get(name, MAX_LINES)}


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # the encoder and other binary files
        found += [f"{path.relative_to(ROOT)}: {hit[0]}" for hit in OF_ONE_MACHINE.finditer(text)]
    assert not found


def test_a_folder_with_binary_files_is_named_here() -> None:
    """A package or an archive that was added with other files would stay in each clone."""
    known = {"headstart/compression/ranks", "headstart/embeddings/model", "tests/embeddings"}
    binary = [path for path in tracked_files() if b"\0" in path.read_bytes()[:8192]]
    assert {path.parent.relative_to(ROOT).as_posix() for path in binary} == known


@pytest.mark.parametrize(
    "name", ["requirements.txt", "requirements-dev.txt", "deploy/requirements.txt"]
)
def test_lock_pins_versions_and_hashes_alone(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    pins = re.findall(r"^[a-z0-9].*(?:\n    --hash=sha256:.*)*", text, re.MULTILINE)
    assert pins
    assert all(
        re.match(r"[\w.\[\],-]+==\S+.* \\\n    --hash=sha256:[0-9a-f]{64}", pin) for pin in pins
    )
    assert not re.search(r"^--|://|^torch\b", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_lock_covers_what_pyproject_asks_for(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = list(project["dependencies"])
    if name == "requirements-dev.txt":
        wanted += project["optional-dependencies"]["dev"]
    text = (ROOT / name).read_text("utf-8")
    locked = set(re.findall(r"^([\w.-]+)(?:\[.*\])?==", text, re.MULTILINE))
    assert {re.split(r"[\[<>=;! ]", line)[0].lower() for line in wanted} <= locked


LOCKED = re.compile(r"^([\w.-]+)(?:\[(.*)\])?==", re.MULTILINE)


def test_lock_pins_the_extras_that_a_package_asks_of_another() -> None:
    """With a pin of `name` only, pip 23 takes the newest `name[extra]`, and then refuses it."""
    found = LOCKED.findall((ROOT / "requirements-dev.txt").read_text("utf-8"))
    locked = {name: set(filter(None, extras.split(","))) for name, extras in found}
    missing = []
    for name, own_extras in locked.items():
        try:
            needed = map(Requirement, requires(name) or ())
        except PackageNotFoundError:
            continue  # of another platform
        for need in needed:
            asked = any(
                need.marker is None or need.marker.evaluate({"extra": extra})
                for extra in ("", *own_extras)
            )
            lacks = need.extras - locked.get(canonicalize_name(need.name), set())
            if asked and lacks:
                missing.append(f"{name} asks for {need}")
    assert missing == []

"""Builds a release: sdist, wheel, list of components, checksums. ``python -m scripts.release``.

It builds what is committed, twice, and fails if the two builds differ by one byte.
``SOURCE_DATE_EPOCH`` is the time of the commit, unless it is set. The list of components (an SBOM
in CycloneDX's form) names each package of ``requirements.txt``, and what others made in ours.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cyclonedx.model.license import License

ROOT = Path(__file__).resolve().parents[1]
_PIN = re.compile(r"^([\w.-]+)==([^\s;\\]+)(?: ; ([^\\\n]+?))? ?\\?$", re.MULTILINE)
_INSIDE = (
    ("all-MiniLM-L6-v2", "Apache-2.0", "headstart/embeddings/model/model.onnx"),
    ("tiktoken-ranks", "MIT", "headstart/compression/ranks"),
)
"""What others made and our package contains: its name, its licence, its file or folder."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Build a release into a folder."""
    parser = argparse.ArgumentParser(description="Build a release of the last commit.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder  [dist]")
    parser.add_argument("--draft", action="store_true", help="do not check that it may be released")
    options = parser.parse_args(arguments)
    problems = [] if options.draft else list(unready())
    if problems:
        sys.exit("\n".join(f"release: {each}" for each in problems))
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        made, again = build(Path(first), epoch), build(Path(second), epoch)
        if digests(made) != digests(again):
            sys.exit("release: two builds of one commit differ")
        files = [options.output / path.name for path in made]
        for source, target in zip(made, files, strict=True):
            target.write_bytes(source.read_bytes())
    sbom = options.output / f"headstart-{version()}.cdx.json"
    sbom.write_text(components(files, epoch), "utf-8")
    lines = [f"{digest}  {name}\n" for name, digest in digests([*files, sbom]).items()]
    (options.output / "SHA256SUMS").write_text("".join(lines), "utf-8")
    sys.stdout.write("".join(lines))


def unready() -> Iterator[str]:
    """Yield what keeps the last commit from being a release."""
    if _git("status", "--porcelain"):
        yield "there are changes that are not committed"
    if f"\n## [{version()}]" not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        yield f"CHANGELOG.md has no section [{version()}]: name the one of [Unreleased] so"


def version() -> str:
    """Return the version of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def build(place: Path, epoch: int) -> list[Path]:
    """Build sdist and wheel of the last commit in ``place``; return their paths."""
    source, output = place / "source", place / "dist"
    archive = place / "source.tar"
    _git("archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4; later versions warn without a filter
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(source)  # noqa: S202 - an archive of this repository
    subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), str(source)],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
    )
    return sorted(output.iterdir())


def digests(files: Sequence[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file, by its name."""
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in files}


def components(files: Sequence[Path], epoch: int) -> str:
    """Return the list of components of a release as JSON: CycloneDX 1.6."""
    licences = LicenseFactory()
    own = Component(
        name="headstart",
        version=version(),
        type=ComponentType.APPLICATION,
        bom_ref="headstart",
        licenses=[licences.make_from_string("Apache-2.0")],
        purl=PackageURL("pypi", None, "headstart", version()),
        hashes=[_hash(path) for path in files if path.suffix == ".whl"],
    )
    bom = Bom(
        # Equal files have an equal number.
        serial_number=uuid5(NAMESPACE_URL, " ".join(digests(files).values())),
        metadata=BomMetaData(component=own, timestamp=datetime.fromtimestamp(epoch, UTC)),
        components=[*_locked(licences), *_inside(licences)],
    )
    bom.register_dependency(own, bom.components)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)


def _locked(licences: LicenseFactory) -> Iterator[Component]:
    """Yield the packages of the lock that the release was tested with."""
    lock = (ROOT / "requirements.txt").read_text("utf-8")
    builds = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    builders = {re.split(r"[<>=]", each)[0] for each in builds}
    for name, number, marker in _PIN.findall(lock):
        if name in builders:
            continue
        yield Component(
            name=name,
            version=number,
            bom_ref=f"{name}=={number}",
            purl=PackageURL("pypi", None, name, number),
            licenses=_licences(name, licences),
            properties=[Property(name="headstart:marker", value=marker)] if marker else (),
        )


def _licences(name: str, licences: LicenseFactory) -> list[License]:
    """Return the licence that an installed package names; none where it is not installed."""
    try:
        told = metadata(name).json
    except PackageNotFoundError:
        return []
    classified = (each for each in told.get("classifier", ()) if each.startswith("License :: "))
    named = (
        told.get("license_expression")
        or next(classified, "").rpartition(" :: ")[2]
        or str(told.get("license", "")).partition("\n")[0]  # some give the whole text
    )
    return [licences.make_from_string(str(named))] if named else []


def _inside(licences: LicenseFactory) -> Iterator[Component]:
    for name, licence, place in _INSIDE:
        path = ROOT / place
        yield Component(
            name=name,
            type=ComponentType.MACHINE_LEARNING_MODEL if path.is_file() else ComponentType.DATA,
            bom_ref=place,
            licenses=[licences.make_from_string(licence)],
            hashes=[_hash(path)] if path.is_file() else (),
        )


def _hash(path: Path) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=sha256(path.read_bytes()).hexdigest())


def _git(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own arguments
        ["git", *arguments],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()

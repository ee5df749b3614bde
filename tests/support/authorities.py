"""Which authorities HTTP clients trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trustme

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let HTTP clients and commands trust one authority, in place of the system's hundreds.

    This saves time: each new client of an SDK reads all authorities (25 ms of CPU), and each
    command reads them twice. Use it where no test calls a server outside this machine.
    """
    file = tmp_path_factory.mktemp("authority") / "authority.pem"
    trustme.CA().cert_pem.write_to_path(file)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(file))
        yield

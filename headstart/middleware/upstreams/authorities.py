"""Whose certificates an upstream may show, where that is not the system's choice."""

from __future__ import annotations

import ssl

from headstart.errors import ConfigError


def trusting(upstream: str, ca_file: str) -> ssl.SSLContext:
    """Return what trusts the authorities in a PEM file, and no others. Raises ConfigError."""
    setting = f"upstream {upstream!r}: ca_file: {ca_file}"
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise ConfigError(f"{setting} holds no certificate in PEM format") from error
    except OSError as error:
        raise ConfigError(f"{setting} cannot be read: {error.strerror}") from error

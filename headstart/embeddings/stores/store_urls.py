"""Makes the store that ``cache.store`` names."""

from __future__ import annotations

import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headstart.embeddings.stores.records import StoreCipher, StoreLimits
from headstart.errors import ConfigError
from headstart.interfaces import REDIS_SCHEMES, STORES, Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.observe import Observer
    from headstart.settings import OnCorrupt


def open_store(
    url: str,
    *,
    ttl_s: float | None = None,
    max_entries: int | None = None,
    max_bytes: int | None = None,
    clock: Callable[[], float] = time.time,  # noqa: TID251 - the default
    observer: Observer | None = None,
    on_corrupt: OnCorrupt = "fail",
    new_secret: bytes | None = None,
    cipher: StoreCipher | None = None,
) -> Store:
    """Return the store of a URL. Its method ``open`` makes the connection.

    The URL is ``memory:``, ``sqlite:///relative.db``, ``sqlite:////absolute.db``, one of Redis
    (``redis_client``), or it has a scheme of an installed distribution (``interfaces.STORES``).
    ``ttl_s`` is the lifetime of entries without an end of their own. ``new_secret`` is the secret
    for a store of the package that has none yet. ``cipher`` encrypts entries in SQLite and Redis.
    Raises ConfigError, which never quotes the URL, because a URL may hold a password.
    """
    limits = StoreLimits(ttl_s=ttl_s, max_entries=max_entries, max_bytes=max_bytes)
    usual: dict[str, Any] = {"limits": limits, "clock": clock, "observer": observer}
    scheme, _, rest = url.partition(":")
    # Each store is imported on use: a store in memory needs neither SQLite nor redis-py.
    if url == "memory:":
        from headstart.embeddings.stores.memory import MemoryStore

        return MemoryStore(new_secret=new_secret, **usual)
    if scheme == "sqlite" and rest.startswith("///") and rest.strip("/"):
        from headstart.embeddings.stores.sqlite import SQLiteStore

        path = Path(rest.removeprefix("///")).expanduser()
        return SQLiteStore(
            path, on_corrupt=on_corrupt, new_secret=new_secret, cipher=cipher, **usual
        )
    if scheme in REDIS_SCHEMES:
        from headstart.embeddings.stores.redis import RedisStore

        return RedisStore(url, new_secret=new_secret, cipher=cipher, **usual)
    if cipher is not None:
        raise ConfigError(
            "cache.encryption_key_env: only the stores of the package (sqlite and redis) encrypt, "
            f"not {scheme!r}"
        )
    return _make_registered(url, **usual)


def _make_registered(url: str, **usual: Any) -> Store:
    """Return the store of an installed distribution that offers the URL's scheme.

    Raises ConfigError if no distribution or several ones offer it, or if the store cannot be made.
    """
    scheme = url.partition(":")[0]
    offered = {each.value: each for each in entry_points(group=STORES, name=scheme)}
    if len(offered) > 1:
        names = ", ".join(sorted(offered))
        raise ConfigError(
            f"cache.store: several distributions offer {scheme!r}: {names}; uninstall all but one"
        )
    for registered in offered.values():
        try:
            make = registered.load()
            store = make(url, **usual)
        except ConfigError:
            raise
        except Exception as error:  # the message of the error may quote the URL
            raise ConfigError(
                f"cache.store: the store {registered.value} for {scheme!r} cannot be made: "
                f"{type(error).__name__}"
            ) from error
        return cast("Store", store)
    raise ConfigError(
        'cache.store: not a store\'s URL; use "memory:", "sqlite:///PATH", "redis://HOST" or'
        ' "rediss://HOST"'
    )

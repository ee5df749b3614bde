"""How RedisStore reaches its server: pooled, with short timeouts, and without waiting twice."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from headstart.errors import ConfigError

CONNECTIONS = 32
"""At most; beyond them calls wait for one, no longer than for an answer."""
TIMEOUT_S = 0.5


def connect(url: str) -> Redis:
    """Return a client that connects when it is used. Raises ConfigError if ``url`` is none."""
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=TIMEOUT_S,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            # Once, for a pooled connection that the server has closed; never after a timeout.
            retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
            # It would be read from package metadata on disk, on the loop, for each connection.
            driver_info=None,
        )
        return Redis.from_pool(pool)
    except ValueError:
        # Not chained: the parser's message may quote a piece of the password.
        raise ConfigError(
            "cache.store: the Redis URL cannot be read; write redis://USER:PASSWORD@HOST:PORT/DB"
            " with special characters percent-encoded"
        ) from None

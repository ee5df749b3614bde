"""Trust that is quick to read, for the clients and commands of this folder."""

from support.authorities import one_authority

__all__ = ["one_authority"]

"""HTTP clients and commands of these tests trust one authority, which is quick to read."""

from support.authorities import one_authority

__all__ = ["one_authority"]

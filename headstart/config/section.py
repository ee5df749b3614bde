"""What the tables of settings are made of."""

from __future__ import annotations

from typing import Annotated, TypeAlias, dataclass_transform

import msgspec

from headstart.config.masking import masked_fields

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0.0)]
Dollars: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0)]


# Type checkers do not see that msgspec's subclasses inherit ``frozen`` and ``kw_only``.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in masked_fields(self).items())
        return f"{type(self).__name__}({fields})"

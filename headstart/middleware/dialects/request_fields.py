"""Taking a decoded request apart, field by field, with errors that name the place."""

from __future__ import annotations

from typing import Any

from headstart.errors import InvalidRequest


class Fields:
    """An object of a request. A field that was read is gone: what remains is its ``rest``.

    ``place`` is where the object stands, such as ``messages[3].content[0]``, and "" for the
    request itself. Null counts as absent. Every method raises InvalidRequest for another type.
    """

    def __init__(self, value: Any, place: str = "") -> None:
        self.place = place
        if not isinstance(value, dict):
            raise InvalidRequest(f"{place}: must be an object")
        self._fields = {name: field for name, field in value.items() if field is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def invalid(self, name: str, problem: str) -> InvalidRequest:
        """Return the error for a field."""
        return InvalidRequest(f"{self._at(name)}: {problem}")

    def value(self, name: str) -> Any:
        """Take a field as it is, or None."""
        return self._fields.pop(name, None)

    def peek(self, name: str) -> Any:
        """Return a field as it is, or None, and leave it there."""
        return self._fields.get(name)

    def text(self, name: str) -> str | None:
        value = self.value(name)
        if value is None or isinstance(value, str):
            return value
        raise self.invalid(name, "must be a string")

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise self.invalid(name, "a string is required")
        return value

    def integer(self, name: str) -> int | None:
        value = self.value(name)
        if value is None or type(value) is int:
            return value
        raise self.invalid(name, "must be an integer")

    def number(self, name: str) -> float | None:
        value = self.value(name)
        if value is None or type(value) in (int, float):
            return value  # type: ignore[no-any-return]
        raise self.invalid(name, "must be a number")

    def boolean(self, name: str) -> bool | None:
        value = self.value(name)
        if value is None or isinstance(value, bool):
            return value
        raise self.invalid(name, "must be a boolean")

    def mapping(self, name: str) -> dict[str, Any] | None:
        value = self.value(name)
        if value is None or isinstance(value, dict):
            return value
        raise self.invalid(name, "must be an object")

    def object(self, name: str) -> Fields | None:
        """Take an object apart in its turn, or None."""
        return Fields(self.value(name), self._at(name)) if name in self else None

    def required_object(self, name: str) -> Fields:
        found = self.object(name)
        if found is None:
            raise self.invalid(name, "an object is required")
        return found

    def objects(self, name: str) -> tuple[Fields, ...]:
        """Take an array of objects; () where it is absent."""
        values = self._array(name)
        return tuple(Fields(value, f"{self._at(name)}[{n}]") for n, value in enumerate(values))

    def texts(self, name: str) -> tuple[str, ...]:
        """Take a string, or an array of strings; () where it is absent."""
        if isinstance(self.peek(name), str):
            return (self.required_text(name),)
        values = self._array(name)
        for n, value in enumerate(values):
            if not isinstance(value, str):
                raise self.invalid(f"{name}[{n}]", "must be a string")
        return tuple(values)

    def rest(self) -> dict[str, Any]:
        """Take whatever is left."""
        rest, self._fields = self._fields, {}
        return rest

    def _array(self, name: str) -> list[Any]:
        value = self.value(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.invalid(name, "must be an array")
        return value

    def _at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

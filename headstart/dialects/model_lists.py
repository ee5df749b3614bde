"""Lists of models, in the forms of the providers' APIs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class ListedModel(Frozen):
    """A model that callers may name."""

    id: str
    owner: str = ""
    """The upstream that answers."""
    created: int = 0
    """Unix seconds; 0: not known."""
    title: str = ""
    """Its name for people."""
    form: str = ""
    """The name of the form of ``fields``."""
    fields: dict[str, Any] | None = None
    """The provider's own description."""


class ModelsForm(NamedTuple):
    """How an API lists its models."""

    name: str
    path: bytes
    query: bytes
    """It asks for all models at once."""
    read: Callable[[Any], list[ListedModel]]
    """Reads a decoded list. It leaves out what it cannot read."""
    write: Callable[[ListedModel], dict[str, Any]]
    write_list: Callable[[Sequence[ListedModel]], dict[str, Any]]


def _objects(document: Any, field: str) -> list[dict[str, Any]]:
    found = document.get(field) if isinstance(document, dict) else document
    found = found if isinstance(found, list) else []
    return [each for each in found if isinstance(each, dict)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _own_fields(model: ListedModel, form: str) -> dict[str, Any]:
    return model.fields or {} if model.form == form else {}


_OPENAI = "openai"


def _read_openai(document: Any) -> list[ListedModel]:
    return [
        ListedModel(
            id=each["id"],
            created=created if isinstance(created := each.get("created"), int) else 0,
            title=_text(each.get("display_name") or each.get("name")),
            form=_OPENAI,
            fields=each,
        )
        for each in _objects(document, "data")
        if _text(each.get("id"))
    ]


def _write_openai(model: ListedModel) -> dict[str, Any]:
    return {
        **_own_fields(model, _OPENAI),
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owner,
    }


def _list_openai(models: Sequence[ListedModel]) -> dict[str, Any]:
    return {"object": "list", "data": list(map(_write_openai, models))}


OPENAI_MODELS = ModelsForm(_OPENAI, b"/v1/models", b"", _read_openai, _write_openai, _list_openai)

_ANTHROPIC = "anthropic"


def _read_anthropic(document: Any) -> list[ListedModel]:
    return [
        ListedModel(
            id=each["id"],
            created=_unix(each.get("created_at")),
            title=_text(each.get("display_name")),
            form=_ANTHROPIC,
            fields=each,
        )
        for each in _objects(document, "data")
        if _text(each.get("id"))
    ]


def _unix(time: Any) -> int:
    try:
        return int(datetime.fromisoformat(time).timestamp())
    except (TypeError, ValueError):
        return 0


def _write_anthropic(model: ListedModel) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, UTC)
    return {
        **_own_fields(model, _ANTHROPIC),
        "type": "model",
        "id": model.id,
        "display_name": model.title or model.id,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "owned_by": model.owner,
    }


def _list_anthropic(models: Sequence[ListedModel]) -> dict[str, Any]:
    return {
        "data": list(map(_write_anthropic, models)),
        "has_more": False,
        "first_id": models[0].id if models else None,
        "last_id": models[-1].id if models else None,
    }


ANTHROPIC_MODELS = ModelsForm(
    _ANTHROPIC, b"/v1/models", b"limit=1000", _read_anthropic, _write_anthropic, _list_anthropic
)

_GEMINI = "gemini"
_PREFIX = "models/"


def _read_gemini(document: Any) -> list[ListedModel]:
    return [
        ListedModel(
            id=each["name"].removeprefix(_PREFIX),
            title=_text(each.get("displayName")),
            form=_GEMINI,
            fields=each,
        )
        for each in _objects(document, "models")
        if _text(each.get("name"))
    ]


def _write_gemini(model: ListedModel) -> dict[str, Any]:
    """Return the model in Gemini's form, which has no field for its owner but the description."""
    return {
        "displayName": model.title or model.id,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
        **_own_fields(model, _GEMINI),
        "name": _PREFIX + model.id,
        "description": f"Answered by {model.owner}.",
    }


def _list_gemini(models: Sequence[ListedModel]) -> dict[str, Any]:
    return {"models": list(map(_write_gemini, models))}


GEMINI_MODELS = ModelsForm(
    _GEMINI, b"/v1beta/models", b"pageSize=1000", _read_gemini, _write_gemini, _list_gemini
)

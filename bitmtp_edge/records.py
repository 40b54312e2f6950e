"""JSON objects to frozen dataclasses, with an error that names the field."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any, TypeVar

from .errors import UserError

T = TypeVar("T")


def read_record(cls: type[T], value: object, where: str) -> T:
    """Builds dataclass ``cls`` from the JSON value at ``where``.

    Understands int, float, str, bool, None, tuples of one type, dicts with string keys, unions and
    nested dataclasses. Raises UserError naming the field for a missing, unknown or mistyped one.
    """
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected an object, found {_kind(value)}")
    hints, fields = _schema(typing.cast(Any, cls))
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise UserError(
            f"{where}: unknown field {unknown[0]!r}; this SDK may be older than the file"
        )
    arguments = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _read(hints[name], value[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{where}: field {name!r} is missing")
    return cls(**arguments)


@cache
def _schema(cls: type) -> tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]]:
    return typing.get_type_hints(cls), {field.name: field for field in dataclasses.fields(cls)}


def _kind(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(type(value), f"the number {value!r}")


def _read(hint: Any, value: object, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return _read(option, value, where)
            except UserError:
                continue
        expected = " or ".join(getattr(option, "__name__", str(option)) for option in arguments)
        raise UserError(f"{where}: expected {expected}, found {_kind(value)}")
    if origin is tuple:
        if not isinstance(value, list):
            raise UserError(f"{where}: expected a list, found {_kind(value)}")
        return tuple(_read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"{where}: expected an object, found {_kind(value)}")
        return {
            _text(key, where): _read(arguments[1], item, f"{where}[{key!r}]")
            for key, item in value.items()
        }
    if dataclasses.is_dataclass(hint):
        return read_record(typing.cast(type, hint), value, where)
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{where}: expected a number of at most 308 digits") from None
    if hint is not type(value):
        raise UserError(
            f"{where}: expected {getattr(hint, '__name__', hint)}, found {_kind(value)}"
        )
    return _text(value, where) if isinstance(value, str) else value


def _text(value: str, where: str) -> str:
    """JSON may escape half a surrogate pair, which no file name and no terminal takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: {value!r} is not valid Unicode") from None
    return value

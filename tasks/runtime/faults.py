"""All that is wrong with a section at once: faults of single values, and contradictions between those that are sound.

pydantic runs a model's validators only when each of its fields is sound, and stops at the first that fails. So where a
section is refused, each validator (`@model_validator(mode="after")`, which is how a section states one rule) is run
once more on a section that holds the sound values alone; a rule that asks for another value has nothing to say.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeGuard, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tasks.errors import shown

_Path = tuple[int | str, ...]
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text (in quotes, if it looks like a number or a date)",
    "bool_type": "true or false",
    "path_type": "a path",
    "list_type": "a list, such as [a, b]",
    "dict_type": "keys with values",
    "model_type": "keys with values",
    "model_attributes_type": "keys with values",
}
"""pydantic's error types in the words of docs/params.md; the others say it well enough."""


def faults(kind: type[BaseModel], raw: Any, *, refused: Mapping[str, str] | None = None) -> list[str]:
    """One line per fault of `raw` as a `kind`: path, value, expectation. [] where there is none.

    refused: keys that one could expect, with the reason why a section has them not.
    """
    try:
        kind.model_validate(raw)
    except ValidationError as error:
        # A rule that pydantic came to is found twice, in the same words.
        lines = [_line(kind, fault, raw, refused or {}) for fault in error.errors()]
        return list(dict.fromkeys([*lines, *_contradictions(kind, raw)]))
    return []


def _contradictions(kind: type[BaseModel], raw: Any) -> list[str]:
    found: list[str] = []
    if isinstance(raw, Mapping):
        _sound(kind, raw, (), found)
    return found


def _sound(kind: type[BaseModel], raw: Mapping[Any, Any], path: _Path, found: list[str]) -> BaseModel:
    """A `kind` of the sound values of `raw`, without the others; its broken rules are added to `found`."""
    kind.model_rebuild()  # its fields' types may stand below it in the file
    values: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        if name not in raw:
            continue
        nested = _section(field.annotation, raw[name])
        if nested is not None:
            values[name] = _sound(nested, raw[name], (*path, name), found)
        elif not _is_section(field.annotation):
            alone: Any = Annotated[field.annotation, field]
            adapter = TypeAdapter[Any](alone, config=ConfigDict(strict=True))
            with contextlib.suppress(ValidationError):
                values[name] = adapter.validate_python(raw[name])
    part = kind.model_construct(**values)
    for rule, decorator in kind.__pydantic_decorators__.model_validators.items():
        if decorator.info.mode == "after":
            found += [_placed(path, text) for text in _broken(part, rule)]
    return part


def _broken(part: BaseModel, rule: str) -> Iterator[str]:
    try:
        getattr(part, rule)()
    except ValueError as error:
        yield str(error)
    except AttributeError as error:
        # The rule asked for a value that is missing or unsound.
        if not isinstance(error.obj, BaseModel) or error.name not in type(error.obj).model_fields:
            raise


def _section(annotation: Any, raw: Any) -> type[BaseModel] | None:
    """The section among the types of a field that `raw` is meant for; None where it is meant for none."""
    if not isinstance(raw, Mapping):
        return None
    options = get_args(annotation) or (annotation,)
    sections = [option for option in options if _is_section(option)]
    if len(sections) > 1:
        sections = [section for section in sections if raw.get("kind") in _kinds(section)]
    return sections[0] if len(sections) == 1 else None


def _is_section(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _kinds(section: type[BaseModel]) -> tuple[Any, ...]:
    return get_args(section.model_fields["kind"].annotation) if "kind" in section.model_fields else ()


def _line(kind: type[BaseModel], error: Any, raw: Any, refused: Mapping[str, str]) -> str:
    key_itself = error["type"] in ("extra_forbidden", "missing")
    path, known = _in_file(kind, error["loc"], raw, key_itself)
    text, value = str(error["msg"]), error["input"]
    if error["type"] == "extra_forbidden":
        if path[-1] in refused:
            return _placed(path, f"unknown key: {refused[str(path[-1])]}")
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        return _placed(path, f"unknown key, expected {f'{near[0]}?' if near else ', '.join(known)}")
    if error["type"] == "missing":
        return _placed(path, "missing")
    if error["type"] == "union_tag_not_found":
        return _placed((*path, "kind"), "missing")
    if error["type"] == "union_tag_invalid":
        expected = error["ctx"]["expected_tags"].replace("'", "")
        return _placed((*path, "kind"), f"is {shown(error['input'].get('kind'))}, expected one of {expected}")
    if error["type"] == "value_error":
        text = text.removeprefix("Value error, ")
        return _placed(path, text if isinstance(value, Mapping | BaseModel) else f"is {shown(value)}, {text}")
    expected = _EXPECTED.get(error["type"]) or text.removeprefix("Input should be ")
    return _placed(path, f"is {shown(value)}, expected {expected}")


def _placed(path: _Path, text: str) -> str:
    return f"{'.'.join(map(str, path))}: {text}" if path else text


def _in_file(kind: type[BaseModel], loc: _Path, raw: Any, ends_with_key: bool) -> tuple[_Path, list[str]]:
    """pydantic's place as it stands in the file, without the kinds that it puts between; and the keys known there."""
    path: list[int | str] = []
    here: Any = raw
    section: type[BaseModel] | None = kind
    known = list(kind.model_fields)
    for number, step in enumerate(loc):
        last = number == len(loc) - 1
        if step == "[key]" or (not (last and ends_with_key) and isinstance(here, Mapping) and step == here.get("kind")):
            continue
        path.append(step)
        try:
            here = here[step]
        except (KeyError, IndexError, TypeError):
            here = None
        field = section.model_fields.get(str(step)) if section else None
        if not last:
            section = _section(field.annotation, here) if field else None
            known = list(section.model_fields) if section else known
    return tuple(path), known

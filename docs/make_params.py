"""Write docs/params.md, the reference of params.yaml, from tasks/runtime/sections: `python -m docs.make_params`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from tasks.runtime.config import Params

PAGE = Path(__file__).with_name("params.md")
HEAD = """# Parameters

<!-- Made by `python -m docs.make_params` from tasks/runtime/sections and params.yaml. Do not edit. -->

Every key of `params.yaml` must be given; there are no hidden defaults. The default shown is the one of `params.yaml` as
it is committed. One section per stage, named like it; a changed value reruns its stage and what depends on it, a change
in `shared` reruns all. `dvc params diff` shows what changed since the last commit.
"""
NUMBER = {"integer": "whole number", "number": "number"}
BOUNDS = {"exclusiveMinimum": "> {}", "minimum": ">= {}", "exclusiveMaximum": "< {}", "maximum": "<= {}"}


def page(defaults: dict[str, Any]) -> str:
    """The page's text. defaults: params.yaml, read."""
    schema = Params.model_json_schema()
    kinds: dict[str, Any] = schema["$defs"]
    sections = {key: kinds.pop(_name(ref)) for key, ref in schema["properties"].items()}
    parts = [HEAD]
    parts += [_section(f"## {key}", kind, defaults[key]) for key, kind in sections.items()]
    parts += ["## Nested values\n", *(_section(f"### {name}", kind, None) for name, kind in sorted(kinds.items()))]
    return "\n".join(parts)


def _section(title: str, schema: dict[str, Any], defaults: dict[str, Any] | None) -> str:
    lines = [title, ""]
    if "description" in schema:
        lines += [_plain(schema["description"]), ""]
    shown = ["key", "value", *(["default"] if defaults else []), "meaning"]
    rows = [shown, ["---"] * len(shown)]
    for key, field in schema["properties"].items():
        default = [f"`{_inline(defaults[key])}`"] if defaults else []
        rows.append([f"`{key}`", _value(field), *default, _plain(field.get("description", ""))])
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _value(field: dict[str, Any]) -> str:
    """What a field accepts, in words; a nested value as a link to its table."""
    if "$ref" in field:
        return f"[{_name(field)}](#{_name(field).lower()})"
    if choices := field.get("oneOf") or field.get("anyOf"):
        return " or ".join(map(_value, choices))
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join(f"`{choice}`" for choice in field["enum"])
    if field["type"] == "array":
        return f"list of {_value(field['items'])}"
    if field["type"] == "object":
        keys = _value(field["propertyNames"]) if "propertyNames" in field else "any key"
        return f"for each of {keys}: {_value(field['additionalProperties'])}"
    if field["type"] in NUMBER:
        bounds = " and ".join(text.format(field[key]) for key, text in BOUNDS.items() if key in field)
        return f"{NUMBER[field['type']]} {bounds}".strip()
    return {"string": "path" if field.get("format") == "path" else "text", "boolean": "true or false"}.get(
        field["type"], field["type"]
    )


def _inline(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6).removesuffix("\n...\n").strip()


def _name(ref: dict[str, Any]) -> str:
    return str(ref["$ref"]).rsplit("/", 1)[1]


def _plain(text: str) -> str:
    return " ".join(text.split())


def main() -> int:
    PAGE.write_text(page(yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{PAGE.name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Task templates: `{{row.path}}` in the texts of a task stands for a field of a row."""

from __future__ import annotations

import json
import re
from typing import Any, List, Mapping, Optional

from ..errors import FloeError
from ..api_types import Json

_PLACEHOLDER = re.compile(r"\{\{\s*row((?:\.[\w-]+)*)\s*\}\}", re.ASCII)
_MISSING = object()


def fill_template(template: Any, row: Any) -> Any:
    """
    Returns a copy of a template in which `{{row.path.to.field}}` is replaced by a field of `row`; `{{row}}` is all of it. Fields of lists are
    numbers. A text that is exactly one placeholder becomes the field's value, whatever its type; inside a longer text, a value that is not
    a text is written as JSON. Raises `schema_violation` with an issue for each placeholder whose field the row does not have. The rules are
    those of the server for the tasks of a batch stream.
    """
    issues: List[Json] = []
    filled = _fill(template, row, "", issues)
    if issues:
        more = "" if len(issues) == 1 else f" (and {len(issues) - 1} more)"
        raise FloeError("schema_violation", f"{issues[0]['path']}: {issues[0]['message']}{more}", {"issues": issues})
    return filled


def _fill(template: Any, row: Any, place: str, issues: List[Json]) -> Any:
    if isinstance(template, str):
        return _fill_text(template, row, place, issues)
    if isinstance(template, list):
        return [_fill(item, row, _below(place, str(index)), issues) for index, item in enumerate(template)]
    if isinstance(template, Mapping):
        return {key: _fill(value, row, _below(place, str(key)), issues) for key, value in template.items()}
    return template


def _fill_text(text: str, row: Any, place: str, issues: List[Json]) -> Any:
    whole = _PLACEHOLDER.fullmatch(text)
    if whole is not None:
        return _field(row, whole[1], place, issues)

    def replacement(found: "re.Match[str]") -> str:
        value = _field(row, found[1], place, issues)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    return _PLACEHOLDER.sub(replacement, text)


def _field(row: Any, path: str, place: str, issues: List[Json]) -> Any:
    value = row
    for key in path.split(".")[1:]:
        value = _child(value, key)
    if value is not _MISSING:
        return value
    where = f"the template's field {place}" if place else "the template"
    message = f"is missing, and {where} needs it for {{{{row{path}}}}}"
    issues.append({"path": f"row{path}", "message": message})
    return None


def _child(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key, _MISSING)
    if isinstance(value, list) and key.isdigit() and int(key) < len(value):
        return value[int(key)]
    return _MISSING


def _below(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def read_json_lines(path: str) -> List[Any]:
    """Reads a file of rows, one JSON object on each line. Raises `malformed_json` that names the line."""
    rows = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = _parsed(line)
            if not isinstance(row, dict):
                raise FloeError("malformed_json", f"{path}, line {number}: this is not a JSON object")
            rows.append(row)
    return rows


def _parsed(line: str) -> Optional[Any]:
    try:
        return json.loads(line)
    except ValueError:
        return None

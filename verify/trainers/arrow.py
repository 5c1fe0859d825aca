"""Reads exports in Arrow with pyarrow and compares every value with the same export as JSON lines.

    python arrow.py FOLDER

For each `NAME.arrow` in the folder there is a `NAME.jsonl`. Prints one JSON object: the number of records, the first differences, and the
Arrow type of each column. Needs pyarrow.
"""

import json
import struct
import sys
from array import array
from pathlib import Path
from typing import Any

from pyarrow import ipc


def float32(value: float) -> float:
    """Returns the nearest number that a float32 can hold: the precision of token columns."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def floats(values: list[Any]) -> array | None:
    """Returns numbers as float32; None when a value is no number."""
    try:
        return array("f", values)
    except TypeError:
        return None


def difference(arrow: Any, line: Any, path: str) -> str | None:
    """Returns where two values differ; None when they are equal. A text in Arrow may stand for the JSON value that it contains."""
    if isinstance(arrow, str) and not isinstance(line, str):
        return difference(json.loads(arrow), line, path)
    if isinstance(arrow, dict) and isinstance(line, dict):
        names = dict.fromkeys([*arrow, *line])
        return next((found for name in names if (found := difference(arrow.get(name), line.get(name), f"{path}.{name}"))), None)
    if isinstance(arrow, list) and isinstance(line, list):
        if len(arrow) != len(line):
            return f"{path} has {len(arrow)} elements instead of {len(line)}"
        if arrow == line or floats(arrow) == floats(line) is not None:
            return None
        return next((found for at, pair in enumerate(zip(arrow, line)) if (found := difference(*pair, f"{path}[{at}]"))), None)
    if isinstance(arrow, (int, float)) and isinstance(line, (int, float)):
        equal = float32(arrow) == float32(line) and isinstance(arrow, bool) == isinstance(line, bool)
    else:
        equal = arrow == line
    return None if equal else f"{path} is {arrow!r} instead of {line!r}"


def main(folder: Path) -> None:
    records = 0
    differences: list[str] = []
    types: dict[str, dict[str, str]] = {}
    for file in sorted(folder.glob("*.arrow")):
        with ipc.open_stream(file.read_bytes()) as stream:
            table = stream.read_all()
        table.validate(full=True)
        types[file.stem] = {field.name: str(field.type) for field in table.schema}
        lines = [json.loads(line) for line in file.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()]
        found = difference(table.to_pylist(), lines, file.stem)
        differences += [] if found is None else [found]
        records += len(lines)
    print(json.dumps({"records": records, "differences": differences, "types": types}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

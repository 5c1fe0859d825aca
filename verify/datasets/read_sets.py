"""Reads sets of sessions with pyarrow, DuckDB and `datasets`, and compares every field with the results from which they were made.

Usage: read_sets.py RESULTS PARQUET_SET JSONL_SET CHAT_SETS...; prints one JSON object.
"""

import base64
import glob
import hashlib
import json
import math
import os
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]

# The columns that are not the JSON text of a value.
SESSION_PLAIN = {
    "session_id", "task_id", "sample_index", "attempt", "epoch", "status", "outcome", "reward", "unusable",
    "trace_count", "trainable_tokens", "completion_count", "traces",
}  # fmt: skip
TRACE_PLAIN = {
    "session_id", "task_id", "trace_index", "trace_id", "prompt_ids", "response_ids", "loss_mask",
    "response_logprobs", "finish_reason", "reward",
}  # fmt: skip


def parse(text: str) -> Any:
    """Parses JSON. The number -0 stays a negative zero, which Python's integers do not have."""
    return json.loads(text, parse_int=lambda digits: -0.0 if digits == "-0" else int(digits))


def lines(path: str) -> Iterator[Any]:
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            yield parse(line)


def exact(value: Any) -> Any:
    """Returns a value that is equal to that of another value only if both are the same, bit by bit; 1 and 1.0 are the same."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return struct.pack("<d", value)
    if isinstance(value, dict):
        return {key: exact(member) for key, member in value.items()}
    return [exact(member) for member in value]


def difference(wanted: Any, found: Any, path: str) -> str | None:
    """Returns the path of the first difference; None when there is none."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in wanted.keys() | found.keys():
            if key not in wanted or key not in found:
                return f"{path}.{key}"
            inner = difference(wanted[key], found[key], f"{path}.{key}")
            if inner is not None:
                return inner
        return None
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        if wanted and isinstance(wanted[0], (int, float)):
            return None if exact(wanted) == exact(found) else path
        for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
            inner = difference(one, other, f"{path}.{index}")
            if inner is not None:
                return inner
        return None
    return None if exact(wanted) == exact(found) else path


def images_of(folder: str, images: dict[str, str]) -> dict[str, str]:
    """Returns the images of a session with their URLs."""
    return {reference: url_of(folder, place) for reference, place in images.items()}


def url_of(folder: str, place: str) -> str:
    if not place.startswith("images/"):
        return place
    with open(os.path.join(folder, place), "rb") as file:
        url = f"data:image/{place.rsplit('.', 1)[1]};base64,{base64.b64encode(file.read()).decode()}"
    digest = hashlib.sha256(url.encode()).hexdigest()
    assert place.startswith(f"images/{digest}."), place
    return url


def values_of(row: Row, plain: set[str]) -> Row:
    return {
        name: cell if name in plain or cell is None else parse(cell) for name, cell in row.items()
    }


def sessions_of(sessions: Iterable[Row], traces: Iterable[Row], folder: str) -> dict[str, Row]:
    """Joins the rows of both tables to sessions."""
    found: dict[str, Row] = {}
    for row in sessions:
        session = values_of(row, SESSION_PLAIN)
        count = session.pop("traces")
        if session["trajectory"] is None:
            assert count == 0, session["session_id"]
        else:
            session["trajectory"]["traces"] = [None] * count
            session["trajectory"]["images"] = images_of(folder, session["trajectory"]["images"])
        assert session["session_id"] not in found
        found[session["session_id"]] = session
    for row in traces:
        trace = values_of(row, TRACE_PLAIN)
        session = found[trace.pop("session_id")]
        assert trace.pop("task_id") == session["task_id"]
        session["trajectory"]["traces"][trace.pop("trace_index")] = trace
    return found


def by_pyarrow(folder: str) -> dict[str, Row]:
    import pyarrow.parquet as pq

    def rows(place: str) -> Iterator[Row]:
        for path in sorted(glob.glob(f"{folder}/{place}/*.parquet")):
            yield from pq.ParquetFile(path).read().to_pylist()

    return sessions_of(rows("sessions"), rows("data"), folder)


def by_duckdb(folder: str) -> dict[str, Row]:
    import duckdb

    def rows(place: str) -> Iterator[Row]:
        # The path is that of a temporary folder, without quotes.
        found = duckdb.connect().execute(f"select * from read_parquet('{folder}/{place}/*.parquet')")
        names = [column[0] for column in found.description]
        while chunk := found.fetchmany(64):
            yield from (dict(zip(names, cells, strict=True)) for cells in chunk)

    return sessions_of(rows("sessions"), rows("data"), folder)


def by_datasets(folder: str) -> dict[str, Row]:
    from datasets import load_dataset

    def rows(config: str) -> Iterator[Row]:
        for part in load_dataset(folder, config).values():
            yield from part

    return sessions_of(rows("sessions"), rows("traces"), folder)


def by_json(folder: str) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for path in sorted(glob.glob(f"{folder}/data/*.jsonl")):
        for row in lines(path):
            if row["trajectory"] is not None:
                row["trajectory"]["images"] = images_of(folder, row["trajectory"]["images"])
            assert row["session_id"] not in found
            found[row["session_id"]] = row
    return found


def compare(wanted: dict[str, Row], found: dict[str, Row]) -> list[str]:
    problems = [f"session {key} is missing or was added" for key in wanted.keys() ^ found.keys()]
    for key in wanted.keys() & found.keys():
        path = difference(wanted[key], found[key], key)
        if path is not None:
            problems.append(f"{path} differs")
    return problems


def chat_problems(folder: str) -> list[str]:
    """Compares the lines of a set in a chat format with what `datasets` reads of them."""
    from datasets import load_dataset

    written = [row for path in sorted(glob.glob(f"{folder}/data/*.jsonl")) for row in lines(path)]
    if not written:
        return [f"{folder} has no rows"]
    parts = load_dataset(folder)
    read = [row for name in sorted(parts) for row in parts[name]]
    if len(read) != len(written):
        return [f"{folder}: {len(read)} rows of {len(written)}"]
    problems = []
    for index, (wanted, row) in enumerate(zip(written, read, strict=True)):
        for field in wanted:
            if not same(without_null(wanted[field]), without_null(row[field])):
                problems.append(f"{folder}: row {index}: {field} differs")
    return problems


def same(wanted: Any, found: Any) -> bool:
    """Compares values. `datasets` reads numbers with 15 digits when the messages of a file do not all have the same fields."""
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(wanted, found, rel_tol=1e-14)
    return wanted == found


def without_null(value: Any) -> Any:
    """Returns a value without fields that are null: Arrow has each field in all rows."""
    if isinstance(value, dict):
        return {key: without_null(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_null(member) for member in value]
    return value


def atif_problems(folder: str) -> list[str]:
    """Checks the files of a set in ATIF with Harbor's own models."""
    from harbor.models.trajectories import Trajectory

    paths = glob.glob(f"{folder}/data/*/*.json")
    problems = [] if paths else [f"{folder} has no files"]
    for path in paths:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        try:
            Trajectory.model_validate(document)
        except ValueError as error:
            problems.append(f"{path}: {str(error).splitlines()[:3]}")
        following = document.get("continued_trajectory_ref")
        if following is not None and not os.path.exists(os.path.join(os.path.dirname(path), following)):
            problems.append(f"{path}: {following} is missing")
    return problems


def main() -> None:
    results, parquet, jsonl, *chats = sys.argv[1:]
    wanted = {row["session_id"]: row for row in lines(results)}
    readers = {
        "pyarrow": lambda: compare(wanted, by_pyarrow(parquet)),
        "duckdb": lambda: compare(wanted, by_duckdb(parquet)),
        "datasets": lambda: compare(wanted, by_datasets(parquet)),
        "json": lambda: compare(wanted, by_json(jsonl)),
    }
    for folder in chats:
        name = os.path.basename(folder)
        check = atif_problems if name == "atif" else chat_problems
        readers[name] = lambda check=check, folder=folder: check(folder)
    report = {}
    for name, read in readers.items():
        try:
            report[name] = read()
        except Exception as error:  # A reader may raise anything; the report names it.
            report[name] = [f"{type(error).__name__}: {error}"]
    print(json.dumps(report))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update({"HF_DATASETS_CACHE": cache, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
        main()

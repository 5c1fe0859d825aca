"""A scripted floe that hands out the records of records.jsonl, which the server's own exporter has made."""

from __future__ import annotations

import importlib
import json
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Iterable

from tests.stub import Call, Reply, Stub

TASK = {"instruction": "{{row.instruction}}", "agent": {"harness": "pi"}}


@lru_cache(maxsize=None)
def lines() -> dict[tuple[str, str], dict[str, Any]]:
    path = Path(__file__).parent.parent / "records.jsonl"
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {(line["case"], line["format"]): line for line in found}


def records(format: str, case: str = "single", group: int | None = None) -> list[dict[str, Any]]:
    """The records of a group; of the whole batch for None. A deep copy."""
    line = lines()[case, format]
    found: list[dict[str, Any]] = json.loads(json.dumps(line["batch"] if group is None else line["groups"][group]))
    return found


def adapter(name: str) -> tuple[ModuleType | None, str]:
    """Returns the adapter of a trainer; None and the reason for skipping when the trainer is not installed."""
    try:
        return importlib.import_module(f"floe.trainers.{name}"), ""
    except ImportError as missing:
        return None, f"{name} cannot be imported: {missing}"


class Floe(Stub):
    """Serves one stream. `groups`: its groups, each as the number of its row and its records, one batch each."""

    def __init__(self, groups: Iterable[tuple[int, list[dict[str, Any]]]] = ()) -> None:
        super().__init__()
        self.created: list[dict[str, Any]] = []
        self.requested: list[Call] = []
        self._groups = list(groups)
        self.last = 0

    def reply_to(self, call: Call) -> Reply:
        with self.arrived:
            self.calls.append(call)
            self.arrived.notify_all()
        return Reply(self.answer(call))

    def answer(self, call: Call) -> Any:
        if call.line == "POST /rollout/batches":
            self.created.append(call.body)
            return {"batch_id": call.body["batch_id"], "batch": self.last}
        if call.path.endswith("/rewind"):
            self.last = call.body["after"]
            return {"batch": self.last}
        if call.method == "DELETE":
            return {}
        if not call.path.endswith("/next"):
            return {"batch_id": "b", "batch": self.last}
        self.requested.append(call)
        number = int(call.query["after"]) + 1
        if number > len(self._groups):
            return {"batch": None, "policy_step": 7, "done": True, "groups": [], "progress": {}}
        self.last = max(self.last, number)
        row_index, found = self._groups[number - 1]
        group = {"group_id": f"task-{row_index}", "row_index": row_index}
        progress = {"rejected": {"all_wrong": 1}, "running": 2}
        return {
            "batch": number,
            "policy_step": 7,
            "done": False,
            "groups": [group],
            "progress": progress,
            "records": found,
        }

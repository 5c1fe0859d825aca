"""What an adapter samples. Trainers name their hooks by import path, so the adapters read it from a file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ..aio import AsyncClient
from ..client import Client
from ..errors import FloeError

_FIELDS = ("url", "task", "stream", "evaluation", "options", "names_versions")


@dataclass(frozen=True)
class Settings:
    """
    `task`: the template of the tasks. `stream`: fields of the batch stream. `evaluation`: the source of the rows that a trainer evaluates.
    `options`: those of the trainer format.
    """

    task: Mapping[str, Any] = field(default_factory=dict)
    stream: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Address of floe; None for FLOE_URL.
    url: str | None = None
    #: Whether the adapter names the version of the engines at each step, for trainers that update the engines between two steps.
    names_versions: bool = False

    @classmethod
    def load(cls, path: str | None = None) -> Settings:
        """Reads the JSON file `path`; default: the one that FLOE_CONFIG names. Raises `setup_failed`."""
        path = path or os.environ.get("FLOE_CONFIG")
        if not path:
            raise FloeError("setup_failed", "FLOE_CONFIG is not set: set it to a JSON file with the field `task`")
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError) as thrown:
            raise FloeError("setup_failed", f"FLOE_CONFIG: {path}: {thrown}") from thrown
        if not isinstance(found, dict):
            raise FloeError("setup_failed", f"FLOE_CONFIG: {path} is not a JSON object")
        unknown = sorted(set(found) - set(_FIELDS))
        if unknown:
            names = ", ".join(_FIELDS)
            raise FloeError("setup_failed", f"FLOE_CONFIG: {path}: unknown field {unknown[0]}; the fields are {names}")
        return cls(**found)

    def client(self) -> Client:
        return Client(self.url)

    def async_client(self) -> AsyncClient:
        # Trainers run many episodes at a time, each of which waits in a thread.
        return AsyncClient(self.url, threads=1024)


def plain(value: Any) -> Any:
    """Returns a row of a trainer's data set as JSON: arrays and numbers of numpy and torch become lists and numbers."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def instruction_of(prompt: Any) -> str:
    """Returns the text of a prompt: the last message of the user, or the prompt itself when it is a text."""
    if isinstance(prompt, str):
        return prompt
    messages: Sequence[Any] = list(prompt) if prompt is not None else []
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            parts = [part.get("text", "") for part in content or [] if isinstance(part, Mapping)]
            return "\n".join(parts)
    return ""


def prompt_row(prompt: Any, **fields: Any) -> dict[str, Any]:
    """Returns the row of a prompt: its messages as `prompt`, the text of the user as `instruction`, and further fields."""
    return {"prompt": plain(prompt), "instruction": instruction_of(plain(prompt)), **plain(fields)}


def grouped(task: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the template with the number of samples that each row states, for trainers that decide about it."""
    return {**task, "num_samples": "{{row.samples}}"}

"""One sample of a task, from its submission to its turns."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, AsyncIterator, List, Mapping, Optional, cast

from ..aio import AsyncClient
from ..errors import FloeError
from ..api_types import Json, SessionResult, TaskRequest
from .template import fill_template
from .turns import Turn, read_calls, turns_of

#: How long the server is asked to hold a request for a task that runs, in seconds.
_HOLD_SECONDS = 50.0
#: Sampling of a task that a trainer may set for a rollout, by its name at OpenAI-compatible servers.
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed")


@dataclass(frozen=True)
class Rollout:
    """A finished session. `traces` has the turns of each trace; it is empty for a session without token data."""

    result: SessionResult
    traces: List[List[Turn]]

    @property
    def unusable(self) -> Optional[str]:
        """Why the sample must not be trained on; None when it may."""
        reason = self.result["unusable"]
        if reason is not None:
            return reason
        return None if self.result["policy"]["use"] == "train" else self.result["outcome"]

    @property
    def masked(self) -> bool:
        """Whether the reward counts although no token is trained, as for the outcome `agent_timeout`."""
        return self.result["policy"]["use"] == "mask" and self.result["reward"] is not None

    @property
    def problem(self) -> str:
        """Describes an unusable sample for logs and errors."""
        error = self.result["error"]
        cause = "" if error is None else f": {error['message']}"
        return f"session {self.result['session_id']} ended as {self.unusable or self.result['outcome']}{cause}"


class Rollouts:
    """Runs samples of tasks that a template and a row describe. May be used by several event loops."""

    def __init__(self, client: AsyncClient, template: Mapping[str, Any]) -> None:
        for field in ("task_id", "idempotency_key", "num_samples", "callback_url"):
            if field in template:
                raise FloeError("schema_violation", f"task.{field}: a template of single samples cannot have it")
        self._client = client
        self._template = dict(template)

    def task(self, row: Any, *, sampling: Optional[Mapping[str, Any]] = None, metadata: Optional[Json] = None) -> Json:
        """
        Returns the task of a row. `sampling` replaces the template's field by field; a value of None replaces nothing, and a name that floe
        does not know is refused with `unsupported`.
        """
        task: Json = fill_template(self._template, row)
        given = {name: value for name, value in (sampling or {}).items() if value is not None}
        unknown = sorted(set(given) - set(_SAMPLING))
        if unknown:
            raise FloeError("unsupported", f"sampling.{unknown[0]}: floe does not have this sampling parameter")
        if given:
            task["sampling"] = {**(task.get("sampling") or {}), **given}
        if metadata:
            task["metadata"] = {**(task.get("metadata") or {}), **metadata}
        return task

    async def run(self, task: Mapping[str, Any]) -> Rollout:
        """Runs one sample of a task. When this coroutine is cancelled, so is the task."""
        return await self.finish(await self.submit(task))

    async def submit(self, task: Mapping[str, Any]) -> str:
        """Returns the id of the submitted task. When this coroutine is cancelled, so is the task."""
        task_id = f"rollout-{uuid.uuid4().hex}"
        async with self._cancelling(task_id):
            await self._client.submit(cast(TaskRequest, {**task, "task_id": task_id}))
        return task_id

    async def finish(self, task_id: str) -> Rollout:
        """Waits until a task of one sample has ended and returns the sample. When this coroutine is cancelled, so is the task."""
        async with self._cancelling(task_id):
            while (await self._client.task(task_id, wait=_HOLD_SECONDS))["status"] == "running":
                pass
        (result,) = await self._client.task_results(task_id)
        trajectory = result["trajectory"]
        if trajectory is None or not trajectory["traces"]:
            return Rollout(result, [])
        calls = read_calls(json.loads(await self._client.completions(result["session_id"])))
        return Rollout(result, [turns_of(trace, calls) for trace in trajectory["traces"]])

    async def cancel(self, task_id: str) -> None:
        # The submission may still be on its way to the server, which then refuses it.
        await self._client.cancel(task_id, register_if_missing=True)

    @asynccontextmanager
    async def _cancelling(self, task_id: str) -> AsyncIterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            await asyncio.shield(self.cancel(task_id))
            raise


def read_template(source: Any) -> Json:
    """Returns a task template: `source` itself, or the JSON of the file that it names. Raises `bad_request` for other values."""
    if isinstance(source, (str, os.PathLike)):
        with open(source, encoding="utf-8") as file:
            try:
                source = json.load(file)
            except ValueError as thrown:
                raise FloeError("malformed_json", f"{file.name}: {thrown}") from thrown
    if not isinstance(source, Mapping):
        raise FloeError("bad_request", "task: it must be an object or the path of a JSON file with one")
    return dict(source)

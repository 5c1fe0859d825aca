"""
floe as an environment of OpenEnv. Needs the package `openenv`. Two forms, shown in docs/guides/openenv.md: a server, whose episodes have one
step that runs an agent, and sessions for trainers that use OpenEnv's `ResourceSessionFactory`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
from typing import Any, Dict, List, Mapping, Optional, Union
from uuid import uuid4

from fastapi import FastAPI
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from openenv.core.env_server.mcp_types import Tool
from openenv.core.env_server.types import EnvironmentMetadata
from openenv.core.harness import (
    Message,
    ResourceSession,
    ResourceSessionFactory,
    ToolResult,
    TraceEntry,
    TrainingTrace,
    TrainingTurn,
    VerifyResult,
)
from openenv.core.utils import run_async_safely
from pydantic import Field

from ..aio import AsyncClient
from ..errors import FloeError
from ..api_types import Json
from .rollout import Rollout, Rollouts, read_template
from .template import read_json_lines
from .turns import Turn

#: Name of the split of the rows that a server is started with.
_SPLIT = "train"


class RunAgent(Action):
    """Runs the agent of the task until it ends. `row` replaces the row of `reset`, for clients that call `/step` without a connection."""

    row: Optional[Dict[str, Any]] = None


class RolloutObservation(Observation):
    """After `reset` the instruction; after the step the result, with the reward of the session as its reward."""

    instruction: str = ""
    session_id: Optional[str] = None
    #: The outcome of docs/outcomes.md.
    outcome: Optional[str] = None
    #: Why the sample must not be trained on; None when it may.
    unusable: Optional[str] = None
    reward_components: Dict[str, Optional[float]] = Field(default_factory=dict)
    #: The trained calls as `TrainingTrace` of OpenEnv; None when the session has none.
    training_trace: Optional[Dict[str, Any]] = None


class RolloutState(State):
    task_id: Optional[str] = None
    outcome: Optional[str] = None


class FloeEnvironment(Environment[RunAgent, RolloutObservation, RolloutState]):
    """One episode is one floe session: `reset` chooses the row, and the only step runs the agent."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, rollouts: Rollouts, rows: List[Json]) -> None:
        super().__init__()
        self._rollouts = rollouts
        self._rows = rows
        self._task: Optional[Json] = None
        self._state = RolloutState()

    def reset(
        self,
        seed: Optional[int] = None,
        episode_id: Optional[str] = None,
        row: Optional[Dict[str, Any]] = None,
        split: str = _SPLIT,
        index: Optional[int] = None,
        **_: Any,
    ) -> RolloutObservation:
        """`row` fills the task template; `index` names one of the server's rows instead. `seed` seeds the sampling."""
        if row is None and index is not None:
            row = self._row(split, index)
        self._state = RolloutState(episode_id=episode_id or uuid4().hex)
        self._task = None if row is None else self._made(row, seed)
        return RolloutObservation(instruction="" if self._task is None else str(self._task.get("instruction", "")))

    def step(self, action: RunAgent, timeout_s: Optional[float] = None, **_: Any) -> RolloutObservation:
        """Runs the agent. Raises an error in an episode that has ended; after `timeout_s` seconds the session is cancelled."""
        if self._state.step_count > 0:
            raise FloeError("bad_request", "the episode has ended with its one step: call reset")
        task = self._task if action.row is None else self._made(action.row, None)
        if task is None:
            raise FloeError("bad_request", "there is no row: pass `row` or `index` to reset, or `row` in the action")
        self._state.step_count = 1
        rollout = run_async_safely(asyncio.wait_for(self._run(task), timeout_s))
        result = rollout.result
        self._state.outcome = result["outcome"]
        trace = training_trace(rollout)
        return RolloutObservation(
            done=True,
            reward=None if rollout.unusable is not None and not rollout.masked else result["reward"],
            instruction=str(task.get("instruction", "")),
            session_id=result["session_id"],
            outcome=result["outcome"],
            unusable=rollout.unusable,
            reward_components=result["reward_components"],
            training_trace=trace.model_dump() if trace.turns else None,
            metadata={} if rollout.unusable is None else {"error": rollout.problem},
        )

    @property
    def state(self) -> RolloutState:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="floe", description="Runs an agent as a floe session; one step is one session.")

    def list_splits(self) -> List[str]:
        return [_SPLIT] if self._rows else []

    def num_tasks(self, split: str) -> int:
        return len(self._rows) if split == _SPLIT else 0

    def list_tasks(self, split: str) -> List[Json]:
        return self.get_task_range(split)

    def get_task(self, split: str, index: int) -> Json:
        return {"index": index, "row": self._row(split, index)}

    def get_task_range(self, split: str, start: Optional[int] = None, stop: Optional[int] = None) -> List[Json]:
        return [self.get_task(split, index) for index in range(self.num_tasks(split))[start:stop]]

    async def _run(self, task: Json) -> Rollout:
        self._state.task_id = await self._rollouts.submit(task)
        return await self._rollouts.finish(self._state.task_id)

    def _row(self, split: str, index: int) -> Json:
        if not 0 <= index < self.num_tasks(split):
            raise IndexError(f"split {split!r} has {self.num_tasks(split)} rows, and index is {index}")
        return self._rows[index]

    def _made(self, row: Json, seed: Optional[int]) -> Json:
        metadata = {"episode_id": self._state.episode_id}
        return self._rollouts.task(row, sampling={"seed": seed}, metadata=metadata)


class FloeSession(ResourceSession):
    """A floe session that a trainer waits for: OpenEnv's `LoopOwningSession` and `TrainableSession`."""

    def __init__(self, rollouts: Rollouts, task: Json) -> None:
        self._rollouts = rollouts
        self._instruction = str(task.get("instruction", ""))
        self._task_id = run_async_safely(rollouts.submit(task))
        self._rollout: Optional[Rollout] = None

    def initial_messages(self) -> List[Message]:
        return [{"role": "user", "content": self._instruction}]

    def list_tools(self) -> List[Tool]:
        """The agent has its tools in its sandbox; the trainer has none."""
        return []

    def call_tool(self, name: str, arguments: Dict[str, Any]) -> ToolResult:
        return ToolResult(error=f"there is no tool {name!r}: the agent of a floe session calls its tools itself")

    def wait_for_completion(self, timeout_s: Optional[float] = None) -> int:
        """Returns 0 for a sample that may be trained on, else 1. After `timeout_s` seconds the session is cancelled: TimeoutError."""
        if self._rollout is None:
            self._rollout = run_async_safely(asyncio.wait_for(self._rollouts.finish(self._task_id), timeout_s))
        return 0 if self._rollout.unusable is None else 1

    def fetch_training_trace(self) -> TrainingTrace:
        return training_trace(self._finished())

    def fetch_proxy_trace(self) -> List[TraceEntry]:
        entries: List[Any] = self.fetch_training_trace().to_trace_entries()
        reward = self.verify([]).env_reward
        return [{**entry, "reward": reward} for entry in entries]

    def verify(self, transcript: List[Message], final_state: Optional[Any] = None) -> VerifyResult:
        rollout = self._finished()
        result = rollout.result
        usable = rollout.unusable is None or rollout.masked
        return VerifyResult(
            env_reward=result["reward"] if usable else None,
            done=True,
            metrics={name: score for name, score in result["reward_components"].items() if score is not None},
            artifacts={"session_id": result["session_id"], "outcome": result["outcome"], "unusable": rollout.unusable},
        )

    def close(self) -> None:
        if self._rollout is None:
            run_async_safely(self._rollouts.cancel(self._task_id))

    def _finished(self) -> Rollout:
        if self._rollout is None:
            raise FloeError("not_ready", "the session has not ended: call wait_for_completion")
        return self._rollout


class FloeSessionFactory(ResourceSessionFactory[FloeSession]):
    """
    Starts floe sessions. `task`: template of the task that a row becomes, or the path of a JSON file with it. A `task` of `create` is a
    row: an object, or a text or chat prompt, which is then the field `prompt` of the row.
    """

    def __init__(
        self, task: Union[Mapping[str, Any], str], url: Optional[str] = None, *, concurrency: int = 1024
    ) -> None:
        self._rollouts = Rollouts(AsyncClient(url, threads=concurrency), read_template(task))

    def create(self, task: Any, seed: Optional[int] = None, episode_id: Optional[str] = None) -> FloeSession:
        row = task if isinstance(task, Mapping) else {"prompt": _prompt_text(task)}
        metadata = {} if episode_id is None else {"episode_id": episode_id}
        return FloeSession(self._rollouts, self._rollouts.task(row, sampling={"seed": seed}, metadata=metadata))


def training_trace(rollout: Rollout) -> TrainingTrace:
    """
    Returns the trained calls of all traces of a session, in the order in which they were made, each with the prompt that the engine was
    given. The masks of a sample that must not be trained on are 0.
    """
    turns = [turn for turns in rollout.traces for turn in turns if turn.response_ids]
    turns.sort(key=lambda turn: turn.call.record["index"])
    return TrainingTrace(turns=[_training_turn(turn, rollout.unusable is None) for turn in turns])


def _training_turn(turn: Turn, trains: bool) -> TrainingTurn:
    call = turn.call
    return TrainingTurn(
        node_id=call.completion_id,
        prompt_token_ids=call.prompt_ids,
        completion_token_ids=turn.response_ids,
        # OpenEnv accepts floats only, and JSON writes a log-probability of 0 as an integer.
        per_token_logps=[float(value) for value in turn.logprobs],
        loss_mask=[0] * len(call.prompt_ids) + [int(trains)] * len(turn.response_ids),
        request={"messages": call.messages, "tools": call.tools or None},
        response={"choices": [{"message": call.message, "finish_reason": call.finish_reason}]},
        metadata={
            "model": call.record["model"],
            "sampling_params": call.record["request"]["sampling"],
            "version_spans": call.record["version_spans"],
        },
    )


def _prompt_text(task: Any) -> str:
    if isinstance(task, str):
        return task
    if isinstance(task, list):
        texts = [message["content"] for message in task if message.get("role") == "user"]
        if texts:
            return str(texts[-1])
    raise FloeError("bad_request", "task: it must be a row, a text, or messages with one of the role user")


def openenv_app(
    task: Union[Mapping[str, Any], str], rows: Optional[List[Json]] = None, url: Optional[str] = None, sessions: int = 1024
) -> FastAPI:
    """Returns the OpenEnv server of a task template, for at most `sessions` connections."""
    rollouts = Rollouts(AsyncClient(url, threads=sessions), read_template(task))
    environment = functools.partial(FloeEnvironment, rollouts, rows or [])
    return create_app(
        environment, RunAgent, RolloutObservation, "floe", max_concurrent_envs=sessions, state_cls=RolloutState
    )


def main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description="serve a task template of floe as an OpenEnv environment")
    parser.add_argument("--task", required=True, help="JSON file of the task template")
    parser.add_argument("--rows", help="file of rows, one JSON object on each line")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--sessions", type=int, default=1024, help="connections at the same time at most")
    options = parser.parse_args()
    rows = read_json_lines(options.rows) if options.rows else None
    uvicorn.run(openenv_app(options.task, rows, sessions=options.sessions), host=options.host, port=options.port)


if __name__ == "__main__":
    main()

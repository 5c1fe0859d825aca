"""
An environment of verifiers (`verifiers.v1`) whose episodes are floe sessions. Needs the package `verifiers`. Its id is `floe_verifiers`, a
module that exports these classes; docs/guides/verifiers.md shows its settings.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any, Callable, Dict, Iterable, List, Optional, Union

import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.configs.agent import resolve_agent
from verifiers.v1.errors import boundary

from ..aio import AsyncClient
from ..errors import FloeError
from ..api_types import Json
from .rollout import Rollout, Rollouts, read_template
from .template import fill_template, read_json_lines
from .turns import Turn, text_of

#: The error of verifiers that attributes an outcome to its cause. Other outcomes are those of the agent.
_ERRORS = {
    "engine_error": vf.ProviderError,
    "env_error": vf.SandboxError,
    "verifier_error": vf.TaskError,
    "no_reward": vf.TaskError,
}
#: Stop conditions that verifiers counts as a truncation.
_TRUNCATED = {"truncated_turns": "max_turns", "truncated_context": "max_total_tokens"}
#: Sampling settings of verifiers and prime-rl that do not change the distribution; floe requests what it needs of the engine itself.
_NOT_SAMPLING = frozenset(
    {"logprobs", "top_logprobs", "return_token_ids", "prompt_logprobs", "cache_salt", "n", "min_tokens", "stream"}
)


class FloeTaskData(vf.TaskData):
    #: The row that fills the task template.
    row: Dict[str, Any]


class FloeTask(vf.Task[FloeTaskData]):
    """A row. Rewards and metrics that the configuration adds to it are computed from the trace, beside floe's."""


class FloeTasksetConfig(vf.TasksetConfig):
    #: File of rows, one JSON object on each line.
    rows: Optional[str] = None
    #: What verifiers shows as the prompt of a row; may have placeholders as the task template. Agents do not get it.
    prompt: Optional[str] = None


class FloeTaskset(vf.Taskset[FloeTask, FloeTasksetConfig]):
    def load(self) -> Iterable[FloeTask]:
        if self.config.rows is None:
            raise FloeError("bad_request", "env.taskset.rows: the path of a file of rows is needed")
        for row in read_json_lines(self.config.rows):
            prompt = None if self.config.prompt is None else str(fill_template(self.config.prompt, row))
            yield FloeTask(FloeTaskData(row=row, prompt=prompt), self.config.task)


class FloeEnvConfig(vf.EnvConfig):
    #: The policy. Only `sampling` and `model` are used; the harness and its sandbox are those of the floe task.
    agent: vf.AgentConfig = vf.AgentConfig(
        harness=vf.harness_config_type("null")(id="null"), runtime=vf.SubprocessConfig()
    )
    #: Template of the task that a row becomes, or the path of a JSON file with it.
    task: Union[Dict[str, Any], str] = Field(default_factory=dict)
    #: Address of floe's rollout server. Default: the environment's FLOE_URL. The token is that of FLOE_TOKEN.
    floe_url: Optional[str] = None
    #: Sessions of this process that run at the same time at most.
    concurrency: int = Field(default=1024, ge=1)


class FloeEnv(vf.Env[FloeEnvConfig]):
    """Runs each episode as one floe session. Every trace of the session is one branch of the episode's trace."""

    _rollouts: Optional[Rollouts] = None

    async def start(self) -> None:
        client = AsyncClient(self.config.floe_url, threads=self.config.concurrency)
        self._client = client
        self._rollouts = Rollouts(client, read_template(self.config.task))

    async def stop(self) -> None:
        if self._rollouts is not None:
            self._rollouts = None
            await self._client.close()

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        raise NotImplementedError("a floe session is a whole episode: call run_episode")

    async def run_episode(
        self,
        task: vf.Task,
        ctx: vf.ModelContext,
        *,
        on_trace: Optional[Callable[[vf.Trace], None]] = None,
        on_discard: Optional[Callable[[vf.Trace], None]] = None,
    ) -> vf.Episode:
        if self._rollouts is None:
            raise RuntimeError("the environment is not serving: run episodes within `async with env.serving()`")
        about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        config = resolve_agent(self.config.agent, model=ctx.model, client=ctx.client, sampling=ctx.sampling)
        trace: vf.Trace = vf.Trace(task=about, agent=vf.AgentInfo(config=config))
        episode = vf.Episode(env=vf.EnvInfo(id=self.config.env_id), task=about)
        if on_trace is not None:
            on_trace(trace)
        trace.timing.agent.start = time.time()
        try:
            rollout = await self._run(task, config)
            trace.timing.agent.end = time.time()
            _record(trace, rollout)
            async with boundary(vf.TaskError, f"{type(task).__name__}.score()"):
                await task.score(trace)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # A failed rollout is recorded, as by verifiers' own agents.
            trace.timing.agent.end = trace.timing.agent.end or time.time()
            trace.record_error(error)
        trace.notify()
        episode.traces.append(trace)
        try:
            async with boundary(vf.EnvError, f"{type(self).__name__}.finalize()"):
                await self.finalize(task, episode)
        except vf.RolloutError as error:
            episode.errors.append(vf.Error(type=type(error).__name__, message=str(error)))
            return episode
        episode.ok = all(one.ok for one in episode.traces)
        return episode

    async def _run(self, task: vf.Task, config: vf.AgentConfig) -> Rollout:
        assert self._rollouts is not None
        sampling = {} if config.sampling is None else config.sampling.model_dump()
        kept = {name: value for name, value in sampling.items() if name not in _NOT_SAMPLING}
        try:
            return await self._rollouts.run(self._rollouts.task(task.data.row, sampling=kept))
        except FloeError as error:
            raise vf.HarnessError(str(error)) from error


def _record(trace: vf.Trace, rollout: Rollout) -> None:
    """Writes a finished session into a trace."""
    result = rollout.result
    trace.info["floe"] = {
        "session_id": result["session_id"],
        "task_id": result["task_id"],
        "outcome": result["outcome"],
        "reward_details": result.get("reward_details"),
    }
    trains = rollout.unusable is None
    for turns in rollout.traces:
        _add_branch(trace, turns, trains)
    trace.split_agent_time()
    for name, score in result["reward_components"].items():
        if score is not None:
            trace.record_metric(name, score)
    # None is verifiers' mark of a reward that could not be computed.
    trace.rewards["floe"] = None if result["reward"] is None else vf.Reward(score=result["reward"])
    if result["outcome"] == "agent_timeout":
        trace.record_timeout("agent")
    else:
        trace.stop(_TRUNCATED.get(result["outcome"], "agent_completed"))
    trace.ok = trains or rollout.masked
    if not trace.ok:
        raise _ERRORS.get(rollout.unusable or "", vf.HarnessError)(rollout.problem)


def _add_branch(trace: vf.Trace, turns: List[Turn], trains: bool) -> None:
    """
    Adds a trace of floe as a path of message nodes. The ids before a reply belong to the node of the reply, with mask False, because the
    engine's rendering does not show to which message each of them belongs.
    """
    parent: Optional[int] = None
    for turn in turns:
        for message in turn.messages:
            parent = _add_node(trace, parent, turn, _message(message))
        tokens = {
            "token_ids": turn.context_ids + turn.response_ids,
            "mask": [False] * len(turn.context_ids) + [trains] * len(turn.response_ids),
            "logprobs": turn.logprobs if trains else [],
        }
        parent = _add_node(trace, parent, turn, _message(turn.call.message), sampled=bool(turn.response_ids), **tokens)
        trace.calls.append(_model_call(turn, parent))


def _add_node(trace: vf.Trace, parent: Optional[int], turn: Turn, message: Any, **fields: Any) -> int:
    tools = [vf.Tool(**tool["function"]) for tool in turn.call.tools] if parent is None else []
    trace.nodes.append(vf.MessageNode(parent=parent, tools=tools, message=message, **fields))
    if parent is None and tools:
        trace.tools = tools
    return len(trace.nodes) - 1


def _message(message: Json) -> Any:
    role = message["role"]
    if role == "assistant":
        calls = [
            vf.ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        thinking = message.get("reasoning_content")
        return vf.AssistantMessage(content=message["content"], reasoning_content=thinking, tool_calls=calls or None)
    if role == "tool":
        return vf.ToolMessage(tool_call_id=message["tool_call_id"], content=message["content"])
    return (vf.SystemMessage if role == "system" else vf.UserMessage)(content=message["content"])


def _model_call(turn: Turn, node: int) -> vf.ModelCall:
    record = turn.call.record
    usage, reason = record["usage"], turn.call.finish_reason
    cached = usage["cached_tokens"]
    start = datetime.fromisoformat(record["timestamp"].replace("Z", "+00:00")).timestamp()
    return vf.ModelCall(
        node=node,
        time=vf.TimeSpan(start=start, end=start + record["timings"]["total_ms"] / 1000),
        model=record["model"],
        finish_reason=reason if reason in ("stop", "length", "tool_calls") else None,
        usage=vf.Usage(
            prompt_tokens=usage["prompt_tokens"] - (cached or 0),
            completion_tokens=usage["completion_tokens"],
            cached_input_tokens=cached,
        ),
    )


__all__ = ["FloeEnv", "FloeTaskset"]

"""
Tasks of a verifiers taskset (`verifiers.v1`) as an environment of floe: the prompt of a task is the observation, and its rewards score the
reply. Needs the package `verifiers`; docs/python-plugins.md shows the target `verifiers:ID`.
"""

from __future__ import annotations

import inspect
import itertools
import json
from typing import Any, Callable, Dict, List, Optional, Tuple

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

#: What needs the sandbox, the tools or the loop of verifiers, by the attribute of a task that has it.
_HOOKS = ("setup", "finalize", "stage_verifier")


class TasksetEnvironment:
    """
    One task of a taskset. The seed is the number of the task, modulo their number where that is known. The reply to the prompt is the whole
    episode, and its score is the sum of the task's weighted rewards.
    """

    def __init__(self, tasks: "_Tasks") -> None:
        self._tasks = tasks
        self._task: Optional[vf.Task] = None
        self._prompt: List[Any] = []

    def reset(self, seed: int) -> Tuple[Optional[List[Dict[str, Any]]], Dict[str, Any]]:
        task = self._tasks.numbered(seed)
        if task is None:
            return None, {}
        _refuse_unsupported(self._tasks.taskset, task)
        self._task = task
        self._prompt = _prompt_of(task.data)
        return [message.model_dump(mode="json", exclude_none=True) for message in self._prompt], {}

    async def step(self, action: str) -> Tuple[str, float, bool, bool, Dict[str, Any]]:
        if self._task is None:
            raise RuntimeError("step was called before reset")
        trace = _trace_of(self._task, [*self._prompt, vf.AssistantMessage(content=action)])
        await self._task.score(trace)
        scores = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        return "", trace.reward, True, False, {**trace.metrics, **scores}


class _Tasks:
    """The tasks of a taskset with one configuration. Those of a taskset that ends are read once."""

    def __init__(self, taskset: Any) -> None:
        self.taskset = taskset
        self._all: Optional[List[Any]] = list(taskset) if taskset.bounded else None

    def numbered(self, number: int) -> Any:
        if self._all is None:
            return next(itertools.islice(self.taskset, number, None), None)
        return self._all[number % len(self._all)] if self._all else None


def taskset_function(taskset_id: str) -> Callable[..., TasksetEnvironment]:
    """
    Returns the function that creates environments of a taskset; its keyword arguments are fields of the taskset's configuration. Raises what
    importing the taskset raises.
    """
    config_type = taskset_config_type(taskset_id)
    loaded: Dict[str, _Tasks] = {}

    def create(**options: Any) -> TasksetEnvironment:
        key = json.dumps(options, sort_keys=True)
        if key not in loaded:
            loaded[key] = _Tasks(load_taskset(config_type(id=taskset_id, **options)))
        return TasksetEnvironment(loaded[key])

    return create


def _refuse_unsupported(taskset: Any, task: Any) -> None:
    """Raises ValueError for a task that needs more than a prompt and a reply: otherwise its rewards would be wrong without notice."""
    kind = type(task)
    problems = [f"{hook}()" for hook in _HOOKS if getattr(kind, hook) is not getattr(vf.Task, hook)]
    if task.NEEDS_CONTAINER or task.data.image is not None:
        problems.append("a container")
    if task.data.skills:
        problems.append("skills")
    if kind.toolsets(task.config) or type(taskset).toolsets(taskset.config):
        problems.append("tools")
    if task.data.prompt is None:
        problems.append("a simulated user")
    hooks = [*task.hooks("reward"), *task.hooks("metric"), *(judge.score for judge in task.plugged_judges())]
    problems += [f"a runtime for {hook.__qualname__}" for hook in hooks if _needs_runtime(hook)]
    if problems:
        raise ValueError(f"the task {kind.__name__} needs {', '.join(problems)}, which an environment of floe does not have")


def _needs_runtime(hook: Any) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _prompt_of(data: Any) -> List[Any]:
    system = [] if data.system_prompt is None else [vf.SystemMessage(content=data.system_prompt)]
    own = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt)
    return [*system, *own]


def _trace_of(task: Any, messages: List[Any]) -> Any:
    about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    trace = vf.Trace(task=about, agent=vf.AgentInfo(config=vf.AgentConfig(runtime=vf.SubprocessConfig())))
    last = len(messages) - 1
    for index, message in enumerate(messages):
        parent = None if index == 0 else index - 1
        trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=index == last))
    return trace

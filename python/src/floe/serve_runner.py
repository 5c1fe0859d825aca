"""Serves a class of runners to a node of floe, and lends runners that were written for ROLL the names of its modules."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import threading
import types
from typing import Any, Callable, Dict, List, Mapping, Sequence

from .episode import Episode, Json
from .plugin_process import NodeConnection, Setup, finished, imported
from .run_job import AgentRunner, EnvConfig, EpisodeResult, GEMRunner, ToolCallRunner


class Runners:
    """The runners of a process."""

    def __init__(self, cls: Any, setup: Setup, node: NodeConnection) -> None:
        self.about: Json = {"reused": bool(getattr(cls, "reused", False))}
        self._class = cls
        self._options = setup.options
        self._node = node
        self._lock = threading.Lock()
        #: Runners that wait for their next job, by their configuration.
        self._idle: Dict[str, List[Any]] = {}

    def call(self, method: str, episode: int, params: Json) -> Any:
        order = params["order"]
        config = {**self._options, **params["config"]}
        key = json.dumps(config, sort_keys=True)
        is_reused = self.about["reused"]
        own = Episode(self._node, episode, order)
        runner = (self._idle_one(key) if is_reused else None) or self._created(own, config)
        runner.episode = own
        if not isinstance(runner, AgentRunner):
            _answer_directly(runner, own)
        runner.base_url, runner.env_id = order["base_url"], order["api_key"]
        is_idle = False
        try:
            if isinstance(runner, AgentRunner) and not getattr(runner, "_is_set_up", False):
                set_up: Callable[[], Any] = runner.setup
                finished(set_up())
                runner._is_set_up = True  # type: ignore[attr-defined]
            result = _result_of(finished(runner.run_job(order["seed"])))
            is_idle = is_reused
            return result
        finally:
            runner.episode = None
            if is_idle:
                with self._lock:
                    self._idle.setdefault(key, []).append(runner)
            elif callable(getattr(runner, "teardown", None)):
                finished(runner.teardown())

    def end(self, episode: int) -> None:
        pass

    def _idle_one(self, key: str) -> Any:
        with self._lock:
            waiting = self._idle.get(key)
            return waiting.pop() if waiting else None

    def _created(self, episode: Episode, config: Json) -> Any:
        return self._class(base_url=episode.base_url, env_id=episode.api_key, env_config=EnvConfig(config))


def _answer_directly(runner: Any, episode: Episode) -> None:
    """Lets a runner of ROLL itself ask through the node, because its own requests name no model."""

    def llm_request(_: Any, messages: Any, tools: Any = None, tool_choice: Any = "auto") -> Json:
        return episode.llm_request(messages, tools, tool_choice if tools else None)

    if hasattr(runner, "_llm_request"):
        runner._llm_request = llm_request


_RESULT_FIELDS = ("status", "score", "step_scores", "agent_exit_reason")


def _result_of(result: Any) -> Any:
    """Returns what a job returned as JSON. What is no result is described, and refused by the node."""
    fields = result if isinstance(result, Mapping) else getattr(result, "__dict__", None)
    if fields is None or "status" not in fields:
        return repr(result)[:200]
    metrics = fields.get("metrics") or {}
    return {
        **{name: fields[name] for name in _RESULT_FIELDS if name in fields},
        "metrics": {str(name): value for name, value in metrics.items() if isinstance(value, (int, float))},
    }


def lend_name_of_roll() -> None:
    """Makes the modules of ROLL importable that its runners use, unless ROLL is installed."""
    if importlib.util.find_spec("roll") is not None:
        return
    contents: Dict[str, Sequence[Any]] = {
        "roll": (),
        "roll.pipeline": (),
        "roll.pipeline.agentic": (),
        "roll.pipeline.agentic.agent_runner": (AgentRunner, EpisodeResult),
        "roll.pipeline.agentic.agent_runner.base": (AgentRunner, EpisodeResult),
        "roll.pipeline.agentic.agent_runner.gem_runner": (AgentRunner, EpisodeResult, GEMRunner, ToolCallRunner),
    }
    for name, classes in contents.items():
        module = types.ModuleType(name, "Classes of floe.run_job under the name that they have in ROLL.")
        module.__path__ = []
        for cls in classes:
            setattr(module, cls.__name__, cls)
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)


def runner_class(target: str) -> Any:
    """Imports a class of runners. Raises ImportError for what is none."""
    lend_name_of_roll()
    cls = imported(target)
    if not inspect.isclass(cls) or not callable(getattr(cls, "run_job", None)):
        raise ImportError(f"{target} is no class with a method run_job")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise ImportError(f"{target} lacks {', '.join(missing)}")
    return cls

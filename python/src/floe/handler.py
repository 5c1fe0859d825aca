"""
Handlers in the form of ProRL Agent: a class with the stages `init`, `run` and `eval` for a kind of task. The target of a plug-in that is
one is `module:Class`.
"""

from __future__ import annotations

import inspect
from typing import Any, Dict, Mapping, Optional, Sequence

from .episode import Episode, Json
from .plugin_process import NodeConnection, Setup, imported


class Job:
    """What a handler works on."""

    def __init__(self, episode: Episode, data_source: str, instance: Json) -> None:
        self.episode = episode
        self.data_source = data_source
        #: A row of the data source.
        self.instance = instance

    def llm_request(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Json:
        """Lets the model reply to a whole conversation, as `Episode.llm_request`."""
        return self.episode.llm_request(messages, **options)


class AgentHandler:
    """
    All that a kind of task needs. floe makes one instance for each job. Methods may be coroutines.

    An evaluation is a number, or a dict with `score` and optionally `status`, `reason`, `answer` and `metrics`.
    """

    #: Data sources whose instances this handler works on.
    data_sources: Sequence[str] = ()
    description: str = ""

    def init(self, job: Job) -> Any:
        """Prepares the sandbox and what the agent works with. What it returns is given to the other stages."""

    def run(self, job: Job, state: Any) -> Any:
        """Lets the agent work. What it returns is given to `eval`."""
        raise NotImplementedError

    def eval(self, job: Job, state: Any, artifacts: Any) -> Any:
        """Scores the agent's work. Returns an evaluation."""
        raise NotImplementedError

    def init_exception(self, job: Job, error: Exception) -> Any:
        """Called when `init` has failed. May return an evaluation, which ends the job as if the stage had given it."""

    def run_exception(self, job: Job, error: Exception, state: Any) -> Any:
        """Called when `run` has failed, as `init_exception`."""

    def eval_exception(self, job: Job, error: Exception, state: Any, artifacts: Any) -> Any:
        """Called when `eval` has failed, as `init_exception`."""

    def final_result(self, job: Job, result: Json) -> Any:
        """Returns the result with changes, for instance to its `metrics`. Called for every job that has a result."""
        return result


class StageError(Exception):
    """A stage failed for another reason than an exception in it, such as the end of the session."""


class _RunningJob:
    def __init__(self, handler: Any, job: Job) -> None:
        self.handler = handler
        self.job = job
        self.state: Any = None
        self.artifacts: Any = None
        #: The exception that a stage has raised.
        self.error: Optional[Exception] = None


class Handlers:
    """The jobs of a process."""

    def __init__(self, cls: Any, setup: Setup, node: NodeConnection) -> None:
        self.about: Json = {
            "data_sources": [str(source) for source in cls.data_sources],
            "description": str(getattr(cls, "description", "")),
        }
        self._class = cls
        self._options = setup.options
        self._node = node
        self._jobs: Dict[int, _RunningJob] = {}

    async def call(self, method: str, episode: int, params: Json) -> Any:
        if method == "init":
            own = Episode(self._node, episode, params["order"])
            job = Job(own, params["data_source"], params["instance"])
            self._jobs[episode] = _RunningJob(self._class(**self._options), job)
        running = self._jobs[episode]
        handler, job = running.handler, running.job
        if method == "init":
            running.state = await _stage(running, handler.init, job)
            return None
        if method == "run":
            running.artifacts = await _stage(running, handler.run, job, running.state)
            return None
        if method == "eval":
            return _evaluation(await _stage(running, handler.eval, job, running.state, running.artifacts))
        if method == "final_result":
            final = getattr(handler, "final_result", None)
            return None if final is None else await _awaited(final(job, params["result"]))
        callback = getattr(handler, method, None)
        if callback is None:
            return None
        error = running.error or StageError(params["message"])
        running.error = None
        arguments = {
            "init_exception": (job, error),
            "run_exception": (job, error, running.state),
            "eval_exception": (job, error, running.state, running.artifacts),
        }
        return _evaluation(await _awaited(callback(*arguments[method])))

    def end(self, episode: int) -> None:
        self._jobs.pop(episode, None)


async def _stage(running: _RunningJob, stage: Any, *arguments: Any) -> Any:
    try:
        return await _awaited(stage(*arguments))
    except Exception as error:
        running.error = error
        raise


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _evaluation(value: Any) -> Any:
    return {"score": float(value)} if isinstance(value, (bool, int, float)) else value


def handler_class(target: str) -> Any:
    """Imports a class of handlers. Raises ImportError when the target is not one."""
    cls = imported(target)
    missing = [name for name in ("init", "run", "eval") if not callable(getattr(cls, name, None))]
    if not inspect.isclass(cls) or missing:
        raise ImportError(f"{target} is no class with the methods init, run and eval")
    sources = getattr(cls, "data_sources", None)
    if not isinstance(sources, (list, tuple)) or len(sources) == 0 or not all(str(source) for source in sources):
        raise ImportError(f"{target} has no data_sources, a list of names")
    return cls

"""
Runners in the form of ROLL: a class with `run_job(seed)`. The target of a plug-in that is one is `module:Class` or `module.Class`.

Where ROLL is not installed, its modules `roll.pipeline.agentic.agent_runner`, `.base` and `.gem_runner` have these classes, so that a runner
that was written for ROLL is imported as it is.
"""

from __future__ import annotations

import json
import urllib.request
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .episode import Episode, Json, with_introduction
from .serve_env import create_function

#: Time limit of one HTTP request to the model in seconds.
_HTTP_SECONDS = 3600.0


class EnvConfig(Dict[str, Any]):
    """The configuration of a runner: a dict whose items are attributes as well, at every level."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__({name: _config_of(value) for name, value in values.items()})

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the configuration has no {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def _config_of(value: Any) -> Any:
    if isinstance(value, Mapping):
        return EnvConfig(value)
    return [_config_of(item) for item in value] if isinstance(value, list) else value


class EpisodeResult:
    """How a job ended. `status` is Finished, Truncated, Failed, NoData or Timeout; `step_scores` has one number for each reply."""

    def __init__(
        self,
        status: str,
        score: Optional[float],
        step_scores: Optional[Sequence[float]] = None,
        agent_exit_reason: str = "",
        metrics: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self.status = status
        self.score = score
        self.step_scores = list(step_scores or [])
        self.agent_exit_reason = agent_exit_reason
        self.metrics = dict(metrics or {})

    def to_dict(self) -> Json:
        return {
            **self.metrics,
            "status": self.status,
            "score": self.score,
            "step_scores": self.step_scores,
            "agent_exit_reason": self.agent_exit_reason,
        }


class AgentRunner(ABC):
    """
    An agent that does one job for a seed. floe makes an instance for each episode, calls `setup` unless the constructor did, and `teardown`
    after the job; those of a class with `reused = True` do further jobs with the same configuration.
    """

    reused = False

    def __init__(self, base_url: str, env_id: Any, env_config: Any, worker_config: Any = None, **kwargs: Any) -> None:
        self.base_url = base_url
        #: Key of the session, which requests must carry as bearer token.
        self.env_id = env_id
        self.env_config = env_config
        self.worker_config = worker_config
        self.env: Any = None
        #: Keyword arguments of the environment.
        self.env_params: Json = dict(env_config.get("config") or {})
        self.mode: str = self.env_params.get("mode", "train")
        #: The episode that runs; None where the runner is used by itself.
        self.episode: Optional[Episode] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("setup")
        if own is not None:
            cls.setup = _noting(own)  # type: ignore[method-assign]

    @abstractmethod
    def run_job(self, seed: int) -> EpisodeResult:
        """Does one job. Equal seeds start equal jobs. May be a coroutine."""

    def setup(self) -> None:
        """Runs before the first job."""

    def teardown(self) -> None:
        """Frees what the runner uses. Runs after the last job."""

    def _llm_request(
        self,
        client: Any,
        messages: Sequence[Mapping[str, Any]],
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        tool_choice: Any = "auto",
    ) -> Json:
        """
        Lets the model reply to the whole conversation. In an episode of floe the call goes to the node, and `client` is not used; elsewhere
        it goes to `base_url`, with `client` (of httpx), or without one if it is None.
        """
        if self.episode is not None:
            return self.episode.llm_request(messages, tools, tool_choice if tools else None)
        body: Json = {"model": self.env_config.get("model", "policy"), "messages": list(messages)}
        if tools:
            body.update(tools=list(tools), tool_choice=tool_choice)
        url = f"{self.base_url}/v1/chat/completions"
        headers = {"Authorization": f"Bearer {self.env_id}"}
        if client is not None:
            response = client.post(url, json=body, headers=headers)
            response.raise_for_status()
            reply: Json = response.json()
            return reply
        headers["Content-Type"] = "application/json"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=_HTTP_SECONDS) as opened:
            reply = json.load(opened)
        return reply

    def llm_request(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        tool_choice: Any = "auto",
    ) -> Json:
        """Lets the model reply to the whole conversation, without a client."""
        return self._llm_request(None, messages, tools, tool_choice)


def _noting(setup: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method `setup` that notes on its object that it was called."""

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._is_set_up = True
        return setup(self, *args, **kwargs)

    return noting


class _NodeEnvironment:
    """The environment of the task, in the form of Gymnasium."""

    def __init__(self, runner: AgentRunner) -> None:
        self._runner = runner

    def reset(self, seed: int) -> tuple[Any, Json]:
        observation = self._episode().reset(seed)
        if observation is None:
            return None, {}
        return with_introduction(observation), {"tools": observation.get("tools")}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Json]:
        message = action if isinstance(action, Mapping) else {"role": "assistant", "content": action}
        result = self._episode().step(message)
        return result["messages"], result["reward"], result["terminated"], result["truncated"], {}

    def close(self) -> None:
        """The node closes the environment."""

    def _episode(self) -> Episode:
        if self._runner.episode is None:
            raise RuntimeError("the configuration names no env_type, and there is no task with an environment")
        return self._runner.episode


class GEMRunner(AgentRunner):
    """
    Plays an environment whose observations and actions are texts: `env_type` of the configuration with the keyword arguments `config`, or
    without `env_type` the environment of the task. `env_type` is `gem:ID`, `module:Class` or the id of an environment of gem.
    """

    def __init__(self, base_url: str, env_id: Any, env_config: Any, **kwargs: Any) -> None:
        super().__init__(base_url, env_id, env_config, **kwargs)
        self.max_steps: int = env_config.get("max_steps", 10)
        self.http_timeout: float = float(env_config.get("http_timeout", _HTTP_SECONDS))
        self.system_template: str = env_config.get("agent_system_template", "")
        self.agent_template: str = env_config.get("agent_template", "{observation}")
        self.setup()

    def setup(self) -> None:
        if "tool_wrapper" in self.env_config:
            raise NotImplementedError("tool_wrapper: tools of ROLL are not part of floe; wrap the environment in setup()")
        env_type = self.env_config.get("env_type")
        if env_type is None:
            self.env = _NodeEnvironment(self)
            return
        try:
            self.env = create_function(env_type)(**self.env_params)
        except ModuleNotFoundError as error:
            if error.name != env_type.partition(":")[0]:
                raise
            self.env = create_function(f"gem:{env_type}")(**self.env_params)

    def run_job(self, seed: int) -> EpisodeResult:
        observation, info = self.env.reset(seed=seed)
        if observation is None:
            return EpisodeResult("NoData", 0.0)
        texts = [self.system_template, info.get("env_instruction") or ""]
        system = "\n\n".join(text for text in texts if text)
        messages: List[Json] = [{"role": "system", "content": system}] if system else []
        rewards: List[float] = []
        for turn in range(self.max_steps):
            messages.extend(self._shown(observation, turn))
            reply = self._llm_request(None, messages)["choices"][0]["message"]
            messages.append(reply)
            observation, reward, terminated, truncated, _ = self.env.step(reply.get("content") or "")
            rewards.append(float(reward))
            if terminated or truncated:
                return self._result("Finished" if terminated else "Truncated", rewards)
        return self._result("Truncated", rewards)

    def _shown(self, observation: Any, turn: int) -> List[Json]:
        if isinstance(observation, list):
            return observation
        fields = {
            "observation": observation,
            "turn_idx": turn + 1,
            "actions_left": self.max_steps - turn,
            "suffix": "",
            "max_response_length": self.env_config.get("max_tokens_per_step", 128),
        }
        return [{"role": "user", "content": self.agent_template.format(**fields)}]

    def _result(self, status: str, rewards: Sequence[float]) -> EpisodeResult:
        return EpisodeResult(status, float(sum(rewards)), rewards)

    def teardown(self) -> None:
        close = getattr(self.env, "close", None)
        if callable(close):
            close()


class ToolCallRunner(GEMRunner):
    """
    Plays an environment that takes tool calls: its observations are messages, either the new ones or the whole conversation, and the info of
    its reset declares `tools`. A reply with tool calls is given to `step` as a message, any other one as a text.
    """

    def run_job(self, seed: int) -> EpisodeResult:
        observed, info = self.env.reset(seed=seed)
        if observed is None:
            return EpisodeResult("NoData", 0.0)
        tools = info.get("tools") or None
        conversation: List[Json] = list(observed)
        rewards: List[float] = []
        for _ in range(self.max_steps):
            reply = self._llm_request(None, conversation, tools=tools)["choices"][0]["message"]
            action = reply if reply.get("tool_calls") else reply.get("content") or ""
            observed, reward, terminated, truncated, _ = self.env.step(action)
            rewards.append(float(reward))
            if terminated or truncated:
                return self._result("Finished" if terminated else "Truncated", rewards)
            is_whole = len(observed) > len(conversation) and observed[: len(conversation)] == conversation
            conversation = list(observed) if is_whole else [*conversation, reply, *observed]
        return self._result("Truncated", rewards)

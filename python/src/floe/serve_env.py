"""
Serves environments in the form of Gymnasium to a node of floe. The target of a plug-in is `module:Class`, `gem:ID` for an environment of the
package `gem-llm`, or `verifiers:ID` for the tasks of a taskset.

An environment has `reset(seed) -> (observation, info)` and `step(action) -> (observation, reward, terminated, truncated, info)`. Observations
are texts, content parts, lists of messages or other JSON; None after a reset means that there is no episode for the seed.
"""

from __future__ import annotations

import json
import math
import random
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .plugin_process import Json, Setup, finished, imported

#: Creates an environment with keyword arguments.
Create = Callable[..., Any]

#: Maximum number of numbers of `info` that become metrics.
_MAX_METRICS = 50
#: Keys of `info` with a meaning of their own.
_INFO_KEYS = frozenset({"tools", "env_instruction", "suffix", "state_hash"})


def create_function(target: str) -> Create:
    """Returns the function that creates environments of a target. Raises ImportError, or what importing its module raises."""
    scheme, _, name = target.partition(":")
    if scheme == "gem":
        import gem

        registration = sys.modules.get("gem.envs.registration")
        if name not in getattr(registration, "ENV_REGISTRY", {name: None}):
            raise ImportError(f"gem has no environment {name}")
        return lambda **options: gem.make(name, **options)
    if scheme == "verifiers":
        from .registrations.taskset import taskset_function

        return taskset_function(name)
    create: Create = imported(target)
    if not callable(create):
        raise ImportError(f"{target} cannot be called to create an environment")
    if isinstance(create, type):
        for method in ("reset", "step"):
            if not callable(getattr(create, method, None)):
                raise ImportError(f"{target} has no method {method}")
    return create


class RandomState:
    """
    The global random generators of Python and numpy, of which each episode has its own. Many environments draw from them, so that two
    episodes would change each other's draws.
    """

    def __init__(self, seed: int) -> None:
        self._states: Optional[tuple[Any, Any]] = None
        self._seed = seed

    def enter(self) -> None:
        numpy = sys.modules.get("numpy")
        if self._states is None:
            random.seed(self._seed)
            if numpy is not None:
                numpy.random.seed(self._seed % 2**32)
            return
        of_python, of_numpy = self._states
        random.setstate(of_python)
        if numpy is not None and of_numpy is not None:
            numpy.random.set_state(of_numpy)

    def leave(self) -> None:
        numpy = sys.modules.get("numpy")
        self._states = (random.getstate(), None if numpy is None else numpy.random.get_state())


class Episode:
    """One environment in which one episode takes place."""

    def __init__(self, create: Callable[[], Any], seed: int, has_random_state: bool) -> None:
        self.random = RandomState(seed) if has_random_state else None
        self.env = self._run(create)
        self._tools: Sequence[Any] = ()
        #: All messages so far, of an environment whose observations are messages.
        self._messages: List[Json] = []

    def reset(self, seed: int) -> Optional[Json]:
        returned = self._run(lambda: self.env.reset(seed=seed))
        observation, info = _parts(returned, "reset", 2, "(observation, info)")
        if observation is None:
            return None
        self._messages = []
        return self._observation(observation, info)

    def step(self, message: Json) -> Json:
        calls = message.get("tool_calls") if self._tools else None
        action: Any = message if calls else (message.get("content") or "")
        returned = self._run(lambda: self.env.step(action))
        form = "(observation, reward, terminated, truncated, info)"
        observation, reward, terminated, truncated, info = _parts(returned, "step", 5, form)
        self._messages.append(message)
        return {
            **self._observation(observation, info),
            "reward": _number(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if callable(close):
            self._run(close)

    def _run(self, work: Callable[[], Any]) -> Any:
        if self.random is None:
            return finished(work())
        self.random.enter()
        try:
            return finished(work())
        finally:
            self.random.leave()

    def _observation(self, observation: Any, info: Mapping[str, Any]) -> Json:
        result: Json = {"metrics": _metrics(info)}
        tools = info.get("tools")
        if tools is not None:
            self._tools = tools
            result["tools"] = tools
        if isinstance(info.get("env_instruction"), str):
            result["introduction"] = info["env_instruction"]
        if info.get("state_hash") is not None:
            result["state_hash"] = str(info["state_hash"])
        if _is_list_with(observation, "role"):
            result["messages"] = self._new_messages(observation)
            return result
        suffix = info.get("suffix")
        text = _content(observation)
        if isinstance(text, str) and isinstance(suffix, str) and suffix:
            text = f"{text}\n{suffix}" if text else suffix
        result["content"] = text
        return result

    def _new_messages(self, messages: Sequence[Json]) -> List[Json]:
        """Returns the messages without those that are known. Some environments return the whole conversation after each step."""
        known = len(self._messages)
        roles = [message.get("role") for message in messages[:known]]
        is_whole = known > 0 and roles == [message.get("role") for message in self._messages]
        new = list(messages[known:] if is_whole else messages)
        self._messages = [*self._messages, *new]
        return new


def _parts(returned: Any, method: str, count: int, form: str) -> tuple[Any, ...]:
    if not isinstance(returned, (tuple, list)) or len(returned) != count:
        raise TypeError(f"{method} must return {form}, and returned a value of type {type(returned).__name__}")
    *rest, info = returned
    if info is None:
        info = {}
    if not isinstance(info, Mapping):
        raise TypeError(f"the info that {method} returned is no dict but a {type(info).__name__}")
    return (*rest, info)


def _number(reward: Any) -> float:
    number = float(reward)
    if not math.isfinite(number):
        raise ValueError(f"the reward that step returned is {number}")
    return number


def _is_list_with(observation: Any, key: str) -> bool:
    return (
        isinstance(observation, (list, tuple))
        and len(observation) > 0
        and all(isinstance(item, Mapping) and key in item for item in observation)
    )


def _content(observation: Any) -> Any:
    """Returns an observation as the content of a message. Raises TypeError for what is not JSON."""
    if observation is None or isinstance(observation, str):
        return observation or ""
    if _is_list_with(observation, "type"):
        return list(observation)
    try:
        return json.dumps(observation, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        kind = type(observation).__name__
        raise TypeError(f"the observation, of type {kind}, is no text, no message and not JSON: {error}") from error


def _metrics(info: Mapping[str, Any]) -> Dict[str, float]:
    numbers: Dict[str, float] = {}
    for name, value in info.items():
        if len(numbers) == _MAX_METRICS:
            break
        if isinstance(name, str) and name not in _INFO_KEYS and isinstance(value, (bool, int, float)):
            if abs(value) <= sys.float_info.max:
                numbers[name] = float(value)
    return numbers


class Environments:
    """The environments of a process, one for each episode."""

    def __init__(self, create: Create, setup: Setup) -> None:
        self.about: Json = {}
        self._create = create
        self._options = setup.options
        self._has_random_state = setup.threads == 1
        self._episodes: Dict[int, Episode] = {}

    def call(self, method: str, episode: int, params: Json) -> Any:
        if method == "reset":
            self.end(episode)
            seed: int = params["seed"]
            options = {**self._options, **params["options"]}
            created = Episode(lambda: self._create(**options), seed, self._has_random_state)
            self._episodes[episode] = created
            return created.reset(seed)
        return self._episodes[episode].step(params["message"])

    def end(self, episode: int) -> None:
        known = self._episodes.pop(episode, None)
        if known is not None:
            known.close()

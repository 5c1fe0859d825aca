"""What code of runners and handlers can do in an episode of floe: ask the model, act in the sandbox, play the environment of the task."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Protocol, Sequence, Union

Json = Dict[str, Any]
Messages = Sequence[Mapping[str, Any]]


class Caller(Protocol):
    """A connection to the node of an episode."""

    def call(self, episode: int, method: str, params: Mapping[str, Any]) -> Any: ...


class Episode:
    """One episode. Its methods wait for the node and raise NodeError; one thread at a time may ask the model."""

    def __init__(self, node: Caller, number: int, order: Mapping[str, Any]) -> None:
        self._node = node
        self._number = number
        #: Seed of the episode. The samples of a group have the same seed.
        self.seed: int = order["seed"]
        self.instruction: str = order["instruction"]
        self.system_prompt: Optional[str] = order["system_prompt"]
        #: Metadata of the task.
        self.metadata: Json = order["metadata"]
        #: Settings of the operator for plug-ins.
        self.services: Dict[str, str] = order["services"]
        #: Maximum number of replies; None for no limit.
        self.max_turns: Optional[int] = order["max_turns"]
        #: Working directory in the sandbox; None for a session without one.
        self.workdir: Optional[str] = order["workdir"]
        self.has_environment: bool = order["has_environment"]
        #: Where the model is reached over HTTP, and the key that requests must carry as bearer token.
        self.base_url: str = order["base_url"]
        self.api_key: str = order["api_key"]

    def llm_request(
        self,
        messages: Messages,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        tool_choice: Optional[Union[str, Mapping[str, Any]]] = None,
        max_tokens: Optional[int] = None,
    ) -> Json:
        """Lets the model reply to a whole conversation. Returns a chat completion in the form of OpenAI's API."""
        params = {
            "messages": list(messages),
            "tools": list(tools or []),
            "tool_choice": tool_choice,
            "max_tokens": max_tokens,
        }
        reply: Json = self._call("llm_request", params)
        return reply

    def run(self, command: str, timeout: float = 600.0) -> Json:
        """
        Runs a command in a shell of the sandbox, which keeps its state between commands. Returns `stdout`, `stderr`, `exit_code` (None when the
        shell was killed) and `timed_out`.
        """
        reply: Json = self._call("run", {"command": command, "timeout": timeout})
        return reply

    def read_file(self, path: str) -> str:
        """Returns the text of a file of the sandbox. Bytes that are not UTF-8 are replaced."""
        text: str = self._call("read_file", {"path": path})
        return text

    def write_file(self, path: str, text: str) -> None:
        """Writes a file of the sandbox, and the folders above it."""
        self._call("write_file", {"path": path, "text": text})

    def reset(self, seed: Optional[int] = None) -> Optional[Json]:
        """
        Starts an episode of the task's environment. Returns `messages`, and `introduction` and `tools` where there are any; None when there
        is no episode for the seed.
        """
        reply: Optional[Json] = self._call("reset", {"seed": self.seed if seed is None else seed})
        return reply

    def step(self, message: Mapping[str, Any]) -> Json:
        """Takes a reply of the model as an action. Returns `messages`, `reward`, `terminated` and `truncated`, and `tools` where they change."""
        reply: Json = self._call("step", {"message": dict(message)})
        return reply

    def measure(self, metric: str, value: float) -> None:
        """Sets a metric of the episode."""
        self._call("measure", {"metric": metric, "value": float(value)})

    def _call(self, method: str, params: Mapping[str, Any]) -> Any:
        return self._node.call(self._number, method, params)


def with_introduction(observation: Mapping[str, Any]) -> List[Json]:
    """Returns the messages of an observation, with its introduction as the first system message."""
    introduction = observation.get("introduction")
    first: List[Json] = [{"role": "system", "content": introduction}] if introduction else []
    return [*first, *observation["messages"]]

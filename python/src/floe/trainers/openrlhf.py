"""OpenRLHF 0.11: --train.agent_func_path with `from floe.trainers.openrlhf import AgentExecutor`."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from openrlhf.utils.agent import AgentExecutorBase

from ..aio import AsyncClient
from ..errors import FloeError
from ..api_types import Json
from .settings import Settings, plain, prompt_row


class AgentExecutor(AgentExecutorBase):  # type: ignore[misc]
    """
    Samples a prompt once; OpenRLHF calls it for each sample. The template of the task gets `prompt`, `instruction` and `label`. A session
    needs to have one trace. The engine of OpenRLHF is not used: register its servers in floe.
    """

    def __init__(self, settings: Settings | str | None = None, client: AsyncClient | None = None) -> None:
        self._settings = settings if isinstance(settings, Settings) else Settings.load(settings)
        self._client = client or self._settings.async_client()

    async def execute(
        self,
        prompt: Any,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        batches = self._client.rollouts(
            [prompt_row(prompt, label=plain(label))],
            {**self._settings.task, "num_samples": 1},
            format="openrlhf",
            options=self._settings.options,
            stream=self._settings.stream,
        )
        # Closed when the loop is left early, so that its stream ends.
        async with aclosing(batches):
            async for batch in batches:
                for record in batch["records"]:
                    return execution(record, prompt, label, images, max_length)
        raise FloeError("no_completions", "the sample cannot be trained on; see `floe status`")


def execution(record: Json, prompt: Any, label: Any, images: Any, max_length: int) -> dict[str, Any]:
    """Returns a record of the format `openrlhf` as the reply of `execute`. Raises `unsupported` when it is longer than `max_length`."""
    length = len(record["observation_tokens"])
    if length > max_length:
        message = f"the session has {length} tokens, more than the trainer's max_length {max_length}"
        raise FloeError("unsupported", f"{message}; limit the agent's context")
    return {
        "prompt": prompt,
        "label": label,
        "images": images,
        "mm_train_inputs": None,
        "reward": record["reward"],
        "scores": record["scores"],
        "observation_tokens": record["observation_tokens"],
        "action_ranges": [tuple(span) for span in record["action_ranges"]],
        "rollout_log_probs": record["rollout_log_probs"],
        "truncated": record["truncated"],
        "extra_logs": record["extra_logs"],
    }

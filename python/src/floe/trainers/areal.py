"""AReaL 1.0: a RolloutWorkflow for PPOTrainer.train(workflow=…)."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
from areal.api.workflow_api import RolloutWorkflow
from areal.utils.data import concat_padded_tensors

from ..aio import AsyncClient
from ..api_types import Json
from .settings import Settings, plain, prompt_row

_TYPES = {
    "input_ids": torch.int64,
    "loss_mask": torch.int32,
    "logprobs": torch.float32,
    "versions": torch.int32,
    "attention_mask": torch.bool,
    "rewards": torch.float32,
}


class FloeWorkflow(RolloutWorkflow):  # type: ignore[misc]
    """
    Samples each row of the trainer's data set with the task template. With `num_samples` above 1 an episode is the whole group: then set
    `gconfig.n_samples` to 1. By default, the template gets the fields of the row, and `prompt` and `instruction` of its `messages`.
    """

    def __init__(
        self,
        settings: Settings | str | None = None,
        *,
        row: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        client: AsyncClient | None = None,
    ) -> None:
        self._settings = settings if isinstance(settings, Settings) else Settings.load(settings)
        self._row = row or _row
        self._client = client or self._settings.async_client()

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the traces of the row, padded to one length; None when there is nothing to train on, which rejects the episode."""
        settings = self._settings
        traces: list[dict[str, torch.Tensor]] = []
        async for batch in self._client.rollouts(
            [self._row(data)],
            settings.task,
            policy_version=engine.get_version(),
            format="areal",
            options=settings.options,
            stream=settings.stream,
        ):
            traces += [trajectory(record) for record in batch["records"]]
        return concat_padded_tensors(traces) if traces else None


def trajectory(record: Json) -> dict[str, torch.Tensor]:
    """Returns a record of the format `areal` as tensors: [1, T], and [1] for the reward."""
    return {name: torch.tensor(record[name], dtype=dtype) for name, dtype in _TYPES.items()}


def _row(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**plain(data), **prompt_row(data.get("messages") or data.get("prompt") or "")}

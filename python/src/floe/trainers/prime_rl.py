"""prime-rl 0.8: a process in the place of the orchestrator, which sends micro batches to the trainer."""

from __future__ import annotations

import asyncio
from typing import Any, Sequence

from prime_rl.transports.rollouts.types import MicroBatch, RoutedExperts, TrainingSample

from ..api_types import AdvantageMethod, Json
from .experts import expert_array
from .settings import Settings
from .streams import StepStream


class FloeOrchestrator:
    """
    Sends one batch of the stream for each step: `packer` is prime-rl's BatchPacker and `sender` what its setup_micro_batch_sender returns.
    The trainer's weights get into the engines with floe.weights, for instance from `broadcasts/step_N`.
    """

    def __init__(
        self,
        packer: Any,
        sender: Any,
        settings: Settings | str | None = None,
        *,
        advantages: AdvantageMethod = "grpo",
        per_session: bool = False,
    ) -> None:
        loaded = settings if isinstance(settings, Settings) else Settings.load(settings)
        self._stream = StepStream(loaded)
        self._packer = packer
        self._sender = sender
        self._request: dict[str, Any] = {"advantages": advantages, "per_session": per_session}

    async def step(self, step: int, policy_version: int | None = None) -> None:
        """Sends the batch of step `step`, counted from 0. `policy_version`: the weights that the engines have; default: `step`."""
        batch = await asyncio.to_thread(
            self._stream.batch, step, "prime_rl", policy_version=policy_version, **self._request
        )
        samples = [training_sample(record) for record in batch["records"]]
        grid: Sequence[Sequence[MicroBatch]] = await asyncio.to_thread(self._packer.pack, samples)
        await self._sender.send(grid)


def training_sample(record: Json) -> TrainingSample:
    """Returns a record of the format `prime_rl` as a TrainingSample."""
    fields = dict(record)
    experts = expert_array(fields.pop("routed_experts"))
    if experts is not None:
        routed = RoutedExperts(data=experts.tobytes(), shape=list(experts.shape), dtype=str(experts.dtype))
        return TrainingSample(**fields, routed_experts=routed)
    return TrainingSample(**fields)

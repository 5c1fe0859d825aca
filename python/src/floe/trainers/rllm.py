"""rLLM 0.3: an AgentFlow whose episodes are sessions of floe."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from rllm.engine.rollout import ModelOutput
from rllm.eval.types import EvalOutput
from rllm.types import Episode, Step, Trajectory

from ..aio import AsyncClient
from ..errors import FloeError
from ..api_types import Json
from .settings import Settings, instruction_of, plain


class FloeAgentFlow:
    """
    Samples a task once. Its template gets the task's metadata, and `prompt` and `instruction`. The steps have floe's token ids, so rLLM's
    gateway records nothing. Give rLLM a FloeEvaluator.
    """

    def __init__(self, settings: Settings | str | None = None, client: AsyncClient | None = None) -> None:
        self._settings = settings if isinstance(settings, Settings) else Settings.load(settings)
        self._client = client or self._settings.async_client()

    async def arun(self, task: Any, config: Any) -> Episode:
        prompt = getattr(task, "instruction", task)
        metadata = plain(getattr(task, "metadata", {}))
        row = {**metadata, "prompt": plain(prompt), "instruction": instruction_of(plain(prompt))}
        batches = self._client.rollouts(
            [row],
            {**self._settings.task, "num_samples": 1},
            format="rllm",
            options=self._settings.options,
            stream={"purpose": "evaluate", **self._settings.stream} if config.is_validation else self._settings.stream,
        )
        # Closed when the loop is left early, so that its stream ends.
        async with aclosing(batches):
            async for batch in batches:
                for record in batch["records"]:
                    return episode(record)
        raise FloeError("no_completions", f"the sample of task {getattr(task, 'id', None)} cannot be trained on")


class FloeEvaluator:
    """The evaluator of rLLM for episodes of floe, whose rewards floe has computed."""

    def evaluate(self, task: Any, episode: Episode) -> EvalOutput:
        rewards = [trajectory.reward for trajectory in episode.trajectories if trajectory.reward is not None]
        # All trajectories of a session have its reward.
        return EvalOutput(reward=rewards[0] if rewards else 0.0, is_correct=episode.is_correct)


def episode(record: Json) -> Episode:
    """Returns a record of the format `rllm` as an Episode."""
    return Episode(
        id=record["id"],
        task=record["task"],
        is_correct=record["is_correct"],
        metrics=record["metrics"],
        trajectories=[
            Trajectory(
                uid=trajectory["uid"],
                name=trajectory["name"],
                reward=trajectory["reward"],
                steps=[_step(fields) for fields in trajectory["steps"]],
            )
            for trajectory in record["trajectories"]
        ],
    )


def _step(fields: Json) -> Step:
    """Returns a step with a model output: rLLM's verl backend leaves out steps without one, and reads the tokens there."""
    output = ModelOutput(
        prompt_ids=fields["prompt_ids"],
        completion_ids=fields["response_ids"],
        logprobs=fields["logprobs"],
        prompt_length=len(fields["prompt_ids"]),
        completion_length=len(fields["response_ids"]),
        routing_matrices=fields["routing_matrices"],
        weight_version=fields["weight_version"],
    )
    return Step(**fields, model_output=output)

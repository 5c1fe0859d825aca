"""SkyRL 0.4: a GeneratorInterface, which BasePPOExp.get_generator returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput

from ..aio import AsyncClient
from ..errors import FloeError
from ..api_types import Json
from .settings import Settings, grouped, prompt_row

#: The lists of the format `skyrl`, one entry for each step.
_COLUMNS = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "rollout_logprobs", "stop_reasons")
#: Fields of GeneratorOutput that floe does not fill.
_ABSENT = (
    "rollout_metrics",
    "trajectory_generation_times",
    "trajectory_time_splits",
    "rollout_expert_indices",
    "rollout_sample_support",
    "env_metrics",
    "pixel_values",
    "image_grid_thw",
)


class FloeGenerator(GeneratorInterface):  # type: ignore[misc]
    """
    Samples the prompts of a step. The samples of one instance are one task, whose template gets `prompt`, `instruction`, `env_class` and
    the fields of `env_extras`. `step_wise`: as `generator.step_wise_trajectories`; without it, a session with several traces is refused.
    When a sample of an instance failed, none of its samples is trained, as SkyRL's own generators do.
    """

    def __init__(
        self,
        settings: Settings | str | None = None,
        *,
        step_wise: bool = False,
        client: AsyncClient | None = None,
    ) -> None:
        self._settings = settings if isinstance(settings, Settings) else Settings.load(settings)
        self._step_wise = step_wise
        self._client = client or self._settings.async_client()

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        settings = self._settings
        metadata = input_batch.get("batch_metadata")
        evaluates = metadata is not None and metadata.training_phase == "eval"
        if settings.names_versions and metadata is not None and not evaluates:
            await self._client.set_policy_version(str(metadata.global_step))
        instances = _instances(input_batch)
        rows = [_row(input_batch, places) for places in instances]
        found: dict[int, Json] = {}
        async for batch in self._client.rollouts(
            rows,
            grouped(settings.task),
            format="skyrl",
            policy_version=None if metadata is None else metadata.global_step,
            options={**settings.options, "step_wise": self._step_wise},
            stream={"purpose": "evaluate", **settings.stream} if evaluates else settings.stream,
        ):
            if batch["records"]:
                found[batch["groups"][0]["row_index"]] = batch["records"][0]
        return self._output(input_batch, instances, found)

    def _output(
        self, input_batch: GeneratorInput, instances: list[list[int]], found: Mapping[int, Json]
    ) -> GeneratorOutput:
        """Returns the steps in the order of the prompts."""
        spares = [_Sample(record, steps, False) for record in found.values() for steps in _samples(record)]
        if not spares:
            raise FloeError("no_completions", "none of the samples of this step can be trained on")
        samples: dict[int, _Sample] = {}
        for index, places in enumerate(instances):
            usable = _samples(found[index]) if index in found else []
            for number, place in enumerate(places):
                if number < len(usable):
                    samples[place] = _Sample(found[index], usable[number], len(usable) == len(places))
                else:
                    samples[place] = spares[0]
        return self._joined(input_batch.get("trajectory_ids"), [samples[place] for place in range(len(samples))])

    def _joined(self, ids: Sequence[Any] | None, samples: Sequence[_Sample]) -> GeneratorOutput:
        output: dict[str, Any] = {name: [] for name in (*_COLUMNS, "trajectory_ids", "is_last_step")}
        for place, sample in enumerate(samples):
            for step in sample.steps:
                for name in _COLUMNS:
                    output[name].append(sample.record[name][step])
                if not sample.is_trained:
                    output["loss_masks"][-1] = [0] * len(output["loss_masks"][-1])
                output["trajectory_ids"].append(None if ids is None else ids[place])
                output["is_last_step"].append(step == sample.steps[-1])
        if not self._step_wise:
            output["is_last_step"] = None
        if ids is None:
            output["trajectory_ids"] = None
        return GeneratorOutput(**output, **{name: None for name in _ABSENT})


@dataclass(frozen=True)
class _Sample:
    """A sample of a group, as the numbers of its steps in the record of the group."""

    record: Json
    steps: list[int]
    is_trained: bool


def _samples(record: Json) -> list[list[int]]:
    """Returns the numbers of the steps of each sample."""
    found: dict[int, list[int]] = {}
    for step, trajectory in enumerate(record["trajectory_ids"]):
        found.setdefault(trajectory["repetition_id"], []).append(step)
    return list(found.values())


def _instances(input_batch: GeneratorInput) -> list[list[int]]:
    """Returns the numbers of the prompts of each instance, in the order of their first ones."""
    ids = input_batch.get("trajectory_ids")
    found: dict[str, list[int]] = {}
    for place in range(len(input_batch["prompts"])):
        found.setdefault(str(place) if ids is None else f"id {ids[place].instance_id}", []).append(place)
    return list(found.values())


def _row(input_batch: GeneratorInput, places: list[int]) -> dict[str, Any]:
    first = places[0]
    extras = input_batch.get("env_extras")
    classes = input_batch.get("env_classes")
    fields = dict(extras[first]) if extras is not None else {}
    if classes:
        fields["env_class"] = classes[first]
    return {**prompt_row(input_batch["prompts"][first], **fields), "samples": len(places)}

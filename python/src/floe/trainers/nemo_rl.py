"""NeMo-RL: an environment in the place of NeMo-Gym's, `task_to_env["nemo_gym"]`."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Any, AsyncIterator, Mapping

from ..aio import AsyncClient
from ..errors import FloeError
from ..api_types import Json
from .experts import expert_array
from .settings import Settings, instruction_of, plain


class FloeGym:
    """
    Samples the rows of a step. Make it a Ray actor, `ray.remote(FloeGym).options(max_concurrency=…).remote()`, and use it where NeMo-RL has
    its NemoGym actor; `env.should_use_nemo_gym` stays true. The template of the tasks gets the fields of the row, and `prompt` and
    `instruction` of its `responses_create_params`. A session needs to have one trace. A sample that failed is not trained (`mask_sample`).
    """

    def __init__(self, settings: Settings | str | None = None, client: AsyncClient | None = None) -> None:
        self._settings = settings if isinstance(settings, Settings) else Settings.load(settings)
        self._client = client or self._settings.async_client()

    def set_tokenizer(self, tokenizer: Any) -> None:
        """Does nothing: the samples of floe have token ids."""

    async def run_rollouts(
        self, nemo_gym_examples: list[dict[str, Any]], timer_prefix: str, deduplicate_multimodal_data: bool = False
    ) -> AsyncIterator[tuple[int, Json, dict[str, float] | None]]:
        """Yields `_rowidx` and result of each row, and with the last one the time that all took."""
        started = time.monotonic()
        missing = {index: int(row["_rowidx"]) for index, row in enumerate(nemo_gym_examples)}
        spare: Json | None = None
        batches = self._client.rollouts(
            [_row(row) for row in nemo_gym_examples],
            {**self._settings.task, "num_samples": 1},
            format="nemo_rl",
            options=self._settings.options,
            stream=self._settings.stream,
        )
        # Closed when the loop is left early, so that its stream ends.
        async with aclosing(batches):
            async for batch in batches:
                records = batch["records"]
                if len(records) > 1:
                    message = "NeMo-RL takes one trace for each sample; use a harness or builder that makes one"
                    raise FloeError("unsupported", message, {"group_id": batch["groups"][0]["group_id"]})
                for record in records:
                    spare = record
                    row = missing.pop(batch["groups"][0]["row_index"])
                    yield row, gym_result(record), None if missing else _timing(timer_prefix, started)
        if missing and spare is None:
            raise FloeError("no_completions", f"none of the {len(missing)} samples of this step can be trained on")
        for index in list(missing):
            row = missing.pop(index)
            result = {**gym_result(spare or {}), "full_result": {"reward": 0.0, "mask_sample": True}}
            yield row, result, None if missing else _timing(timer_prefix, started)


def gym_result(record: Json) -> Json:
    """Returns a record of the format `nemo_rl` as a result of NeMo-Gym. A sample whose tokens are all masked has `mask_sample`."""
    full = dict(record["full_result"])
    if record["loss_multiplier"] == 0:
        full["mask_sample"] = True
    return {
        "message_log": [_message(message) for message in record["message_log"]],
        "input_message_log": [_message(message) for message in record["input_message_log"]],
        "full_result": full,
    }


def _message(message: Json) -> Json:
    """
    NeMo-RL makes tensors of the log-probabilities of replies only, and adds the zeros of the other messages itself. It takes a tensor of
    experts; a message without that field gets -1 where other messages of the batch have some.
    """
    left_out = {"routed_experts"} if message["role"] == "assistant" else {"routed_experts", "generation_logprobs"}
    result = {name: value for name, value in message.items() if name not in left_out}
    if message["routed_experts"] is not None:
        import torch

        result["routed_experts"] = torch.from_numpy(expert_array(message["routed_experts"]))
    return result


def _timing(prefix: str, started: float) -> dict[str, float]:
    return {f"{prefix}/await_results": time.monotonic() - started}


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    messages = row.get("responses_create_params", {}).get("input", [])
    return {**plain(row), "prompt": plain(messages), "instruction": instruction_of(plain(messages))}

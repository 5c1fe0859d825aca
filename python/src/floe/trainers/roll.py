"""ROLL: `custom_envs.<tag>.env_manager_cls: floe.trainers.roll.FloeEnvManager`."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray
import torch
from roll.distributed.scheduler.protocol import DataProto
from roll.pipeline.agentic.env_manager.base_env_manager import BaseEnvManager
from tensordict import TensorDict

from ..errors import FloeError
from ..api_types import Json
from .settings import Settings, plain

_TENSORS = {
    "input_ids": torch.int64,
    "attention_mask": torch.int64,
    "position_ids": torch.int64,
    "response_mask": torch.bool,
    "prompt_mask": torch.bool,
    "scores": torch.float32,
    "infer_logprobs": torch.float32,
}


class FloeEnvManager(BaseEnvManager):  # type: ignore[misc]
    """
    Plays episodes as sessions of floe, one after the other, as each environment manager of ROLL does. All members of a group sample the
    same row: the template of the task gets `seed`, `episode_id`, `group_id` and `env_id`, and the environment's `config`, which may name
    the data set. A session needs to have one trace. An episode whose session failed is sampled up to `attempts` times.
    """

    def __init__(
        self,
        worker_config: Any,
        pipeline_config: Any,
        env_config: Any,
        tokenizer: Any,
        generate_scheduler: Any,
        output_queue: Any,
        thread_lock: Any = None,
        mode: str = "train",
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.env_config = env_config
        self.output_queue = output_queue
        self.mode = mode
        self._settings = Settings.load(dict(env_config.get("config") or {}).get("floe_config"))
        self._client = self._settings.client()
        self._attempts = int(dict(env_config.get("config") or {}).get("attempts", 3))
        self._options = {
            "sequence_length": pipeline_config.sequence_length,
            "pad_token_id": tokenizer.pad_token_id,
            "tag": env_config["tag"],
            **self._settings.options,
        }

    def run_rollout_loop(self, data: Any) -> None:
        self.running = True
        group_id, env_id = self.env_config["group_id"], self.env_config["env_id"]
        group_seed = data.meta_info["seed"] + self.env_config["group_seed"]
        while self.running:
            episode_id = ray.get(self.output_queue.get_episode_id.remote(group_id, env_id))
            if episode_id is None:
                break
            # The queue may have waited for the next step.
            start_step = self.current_step
            rollout = self._episode(episode_id, group_seed)
            if self.running:
                ray.get(self.output_queue.put.remote(group_id, episode_id, start_step, rollout, env_id))
        ray.get(self.output_queue.put.remote(group_id, None, self.current_step, None, env_id))

    def _episode(self, episode_id: int, group_seed: int) -> Any:
        group_id, env_id, tag = (self.env_config[name] for name in ("group_id", "env_id", "tag"))
        fields = {"seed": group_seed + episode_id, "episode_id": episode_id, "group_id": group_id, "env_id": env_id}
        row = {**plain(dict(self.env_config.get("config") or {})), **fields}
        for _ in range(self._attempts):
            for batch in self._client.rollouts(
                [row],
                {**self._settings.task, "num_samples": 1},
                format="roll",
                policy_version=self.current_step if self.current_step >= 0 else None,
                options=self._options,
                stream=self._settings.stream,
            ):
                records = batch["records"]
                if len(records) > 1:
                    message = "ROLL takes one trace for each episode; use a harness or builder that makes one"
                    raise FloeError("unsupported", message, {"group_id": batch["groups"][0]["group_id"]})
                if records:
                    name = f"{tag}_{group_id}_{episode_id}_{group_seed}"
                    names = {"traj_group_id": name, "traj_id": f"{name}_{env_id}"}
                    ids = {"env_ids": env_id, "group_ids": group_id, "tags": tag}
                    return rollout_of(records[0], {**ids, **names})
        raise FloeError("no_completions", f"episode {episode_id} of group {group_id} failed {self._attempts} times")


def rollout_of(record: Json, names: dict[str, Any]) -> Any:
    """Returns a record of the format `roll` as a DataProto of one row, with the trainer's `names` of it."""
    rollout = DataProto()
    columns = {name: torch.tensor([record[name]], dtype=kind) for name, kind in _TENSORS.items()}
    rollout.batch = TensorDict(columns, batch_size=1)
    values = {"step_scores": record["step_scores"], "episode_scores": record["episode_scores"], **names}
    for name, value in values.items():
        rollout.non_tensor_batch[name] = np.empty(1, dtype=object)
        rollout.non_tensor_batch[name][0] = value
    rollout.meta_info = {"metrics": {"env/response_length": float(sum(record["response_mask"]))}}
    return rollout

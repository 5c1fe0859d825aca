"""Trains the policy with TRL's AsyncGRPOTrainer on the rollouts of floe, while sessions run.

    FLOE_URL=… FLOE_TOKEN=… python learn_trl.py --model FOLDER --weights FOLDER --steps N

The weights of each version are kept in a folder of `--weights`, from which the engine reloads them. Needs TRL 1.16 and the package `floe`.
"""

import argparse
import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import trl_cpu
from datasets import Dataset
from evaluate import evaluate
from floe import Client
from floe.connection import Connection
from floe.trainers.trl import FloeRolloutWorker, FloeWeightTransfer
from floe.weights import engine_urls
from recorded import RecordedQueue
from safetensors.torch import save_file
from task import stream
from transformers import AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

SAMPLES = 8
GROUPS = 2


class FolderTransfer:
    """Writes the weights of each version to a folder, from which the engines load them."""

    def __init__(self, urls: list[str], model: Path, weights: Path) -> None:
        self._engines = [Connection(url, timeout=300, retry_seconds=0) for url in urls]
        self._model = model
        self._weights = weights
        self._versions = itertools.count(1)

    def init_weight_transfer(self) -> None:
        pass

    def send_weights(self, iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        folder = self._weights / str(next(self._versions))
        folder.mkdir()
        shutil.copy(self._model / "config.json", folder)
        tensors = {name: tensor.detach().clone().contiguous() for name, tensor in iterator}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        for engine in self._engines:
            engine.fetch("POST", "/collective_rpc", body=reload)

    def destroy(self) -> None:
        pass


def main(given: argparse.Namespace) -> None:
    trl_cpu.replace_gpu_parts()
    evaluate("trl-before", given.evaluated)
    client = Client()
    urls = engine_urls(client)
    client.create_batches(stream("trl", samples=SAMPLES, groups=GROUPS))
    worker = FloeRolloutWorker(client, "trl", buffered=SAMPLES * GROUPS)
    worker.rollout_buffer = RecordedQueue(given.record, maxsize=SAMPLES * GROUPS)
    config = AsyncGRPOConfig(
        output_dir=str(given.weights / "trl"),
        per_device_train_batch_size=SAMPLES * GROUPS,
        num_generations=SAMPLES,
        max_steps=given.steps,
        max_staleness=2,
        weight_sync_steps=1,
        learning_rate=given.rate,
        # With the default of 1e-8, AdamW's first steps change all weights by the learning rate, which destroys what the model can do.
        adam_epsilon=1e-3,
        # With a constant rate, a policy that has learned may lose it in a few steps.
        lr_scheduler_type="linear",
        gradient_accumulation_steps=1,
        token_budget=-1,
        dtype="float32",
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
    )
    trainer = AsyncGRPOTrainer(
        model=str(given.model),
        reward_funcs=[],
        args=config,
        # The rows come from floe; TRL counts steps by the length of its data set.
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": ""}]}] * SAMPLES * GROUPS),
        processing_class=AutoTokenizer.from_pretrained(given.model),
        rollout_worker=worker,
        weight_transfer=FloeWeightTransfer(client, FolderTransfer(urls, given.model, given.weights), urls),
    )
    trainer.train()
    with Client() as other:
        other.delete_batches("trl")
    evaluate("trl-after", given.evaluated)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--model", type=Path, required=True)
    arguments.add_argument("--weights", type=Path, required=True)
    arguments.add_argument("--steps", type=int, default=60)
    arguments.add_argument("--rate", type=float, default=5e-4)
    arguments.add_argument("--evaluated", type=int, default=64, help="rows that are sampled before and after")
    arguments.add_argument("--record", type=Path, help="file to which the samples that the trainer takes are written")
    main(arguments.parse_args())

"""Trains the policy with AReaL's FSDP actor on the rollouts of floe, while sessions run.

    FLOE_URL=… FLOE_TOKEN=… python learn_areal.py --model FOLDER --weights FOLDER --steps N

Needs AReaL 1.0.4 and the package `floe`. AReaL's actor computes the log-probabilities that it trains with itself; the largest difference from the
recorded ones of samples of its own weights is printed for each step.
"""

import argparse
import json
import os
import socket
from pathlib import Path
from typing import Any

import torch
from areal.api.cli_args import MicroBatchSpec, NormConfig, OptimizerConfig, PPOActorConfig
from areal.api.io_struct import FinetuneSpec
from areal.engine.fsdp_engine import FSDPPPOActor
from evaluate import evaluate
from floe import Client
from floe.trainers.areal import trajectory
from floe.weights import SglangPush, VllmReload, engine_urls, update_weights
from recorded import Record
from safetensors.torch import save_file
from task import stream
from transformers import AutoConfig

SAMPLES = 8
GROUPS = 2
CONTEXT = 1024


def main(given: argparse.Namespace) -> None:
    client = Client()
    urls = engine_urls(client)
    record = Record(given.record)
    actor = make_actor(given.model, given.rate, given.steps)

    def push(step: int) -> str:
        """Writes the weights of a version to a folder, from which the engines load them."""
        version = f"areal-{step}"
        folder = given.weights / version
        AutoConfig.from_pretrained(given.model).save_pretrained(folder)
        tensors = {name: tensor.full_tensor().detach().clone() for name, tensor in actor.model.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        if given.engine == "sglang":
            update_weights(client, SglangPush.from_disk(urls, str(folder)), version, mode="abort")
        else:
            update_weights(client, VllmReload(urls, str(folder)), version)
        return version

    step = 0
    version = push(step)
    evaluate("areal-before", given.evaluated)
    client.create_batches(stream("areal", samples=SAMPLES, groups=GROUPS))
    for batch in client.batches("areal", policy_version=lambda: version, format="areal"):
        samples = [trajectory(one) for one in batch["records"]]
        for one in samples:
            record.write(one["input_ids"][0], one["loss_mask"][0], one["logprobs"][0])
        difference, count = train(actor, samples, step)
        rewards = [one["rewards"].item() for one in samples]
        step += 1
        shown = {"step": step, "reward": sum(rewards) / len(rewards), "on_policy_tokens": count, "max_abs_logprob_diff": difference}
        print(json.dumps(shown), flush=True)
        version = push(step)
        if step == given.steps:
            break
    client.delete_batches("areal")
    evaluate("areal-after", given.evaluated)


def make_actor(model: Path, rate: float, steps: int) -> FSDPPPOActor:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    config = PPOActorConfig(
        experiment_name="learn-real",
        trial_name="areal",
        path=str(model),
        backend="fsdp:d1",
        dtype="float32",
        attn_impl="sdpa",
        gradient_checkpointing=False,
        # With the default of 1e-8, AdamW's first steps change all weights by the learning rate, which destroys what the model can do.
        # With a constant rate, a policy that has learned may lose it in a few steps.
        optimizer=OptimizerConfig(
            lr=rate, lr_scheduler_type="linear", min_lr_ratio=0.0, eps=1e-3, beta2=0.999, warmup_steps_proportion=0.0, weight_decay=0.0
        ),
        ppo_n_minibatches=1,
        adv_norm=None,
        reward_norm=NormConfig(mean_level="group", std_level="group", group_size=SAMPLES),
        kl_ctl=0.0,
        use_decoupled_loss=True,
        recompute_logprob=True,
        prox_logp_method="recompute",
    )
    actor = FSDPPPOActor(config)
    actor.create_process_group()
    batch = SAMPLES * GROUPS
    actor.initialize(None, FinetuneSpec(total_train_epochs=1, dataset_size=steps * batch, train_batch_size=batch))
    return actor


def train(actor: FSDPPPOActor, samples: list[dict[str, Any]], step: int) -> tuple[float, int]:
    """Takes one optimizer step. Returns the largest difference of the actor's and the recorded log-probabilities, and of how many tokens."""
    # On a CPU, sequences in one micro-batch would attend to each other, so each gets its own.
    actor.config.mb_spec = MicroBatchSpec(n_mbs=len(samples), max_tokens_per_mb=CONTEXT)
    largest, count = 0.0, 0
    for sample, logprobs in zip(samples, actor.compute_logp(samples)):
        # Entry i of AReaL's log-probabilities belongs to token i + 1.
        sample["prox_logp"] = logprobs
        own = sample["versions"][0, 1:] == step
        difference = (logprobs[0, :-1] - sample["logprobs"][0, 1:]).abs()[own]
        largest = max(largest, difference.max().item() if len(difference) else 0.0)
        count += len(difference)
    actor.ppo_update(actor.compute_advantages(samples))
    actor.lr_scheduler_step()
    return largest, count


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--model", type=Path, required=True)
    arguments.add_argument("--weights", type=Path, required=True)
    arguments.add_argument("--steps", type=int, default=80)
    arguments.add_argument("--rate", type=float, default=5e-4)
    arguments.add_argument("--engine", choices=["vllm", "sglang"], default="vllm")
    arguments.add_argument("--evaluated", type=int, default=64, help="rows that are sampled before and after")
    arguments.add_argument("--record", type=Path, help="file to which the samples that the trainer takes are written")
    main(arguments.parse_args())

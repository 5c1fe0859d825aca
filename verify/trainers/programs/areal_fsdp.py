"""AReaL's FSDPPPOActor takes an optimizer step with the trajectories of the format `areal`."""

import os
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from exported import REAL_STEP, Cases, Row, print_report, records, trained_rows
from weights import become_only_rank, copied, largest_change

become_only_rank()

from areal.api.cli_args import MicroBatchSpec, NormConfig, OptimizerConfig, PPOActorConfig
from areal.api.io_struct import FinetuneSpec
from areal.engine.fsdp_engine import FSDPPPOActor
from areal.infra.workflow_executor import check_trajectory_format

# AReaL's own dtypes of a trajectory.
DTYPES = {
    "input_ids": torch.int64,
    "loss_mask": torch.int64,
    "logprobs": torch.float32,
    "versions": torch.int64,
    "attention_mask": torch.bool,
    "rewards": torch.float32,
}


def actor_of(model: Path, sequences: int, longest: int) -> FSDPPPOActor:
    config = PPOActorConfig(
        experiment_name="floe",
        trial_name="floe",
        path=str(model),
        backend="fsdp:d1",
        dtype="float32",
        attn_impl="sdpa",
        gradient_checkpointing=False,
        optimizer=OptimizerConfig(lr=1e-2, warmup_steps_proportion=0.0),
        # Without the attention kernels of a GPU, the sequences of one micro-batch attend to each other. So each has one of its own.
        mb_spec=MicroBatchSpec(n_mbs=sequences, max_tokens_per_mb=longest),
        ppo_n_minibatches=1,
        adv_norm=NormConfig(mean_level="batch", std_level="batch"),
        kl_ctl=0.0,
        use_decoupled_loss=True,
        recompute_logprob=True,
        prox_logp_method="recompute",
    )
    actor = FSDPPPOActor(config)
    actor.create_process_group()
    actor.initialize(None, FinetuneSpec(total_train_epochs=1, dataset_size=64, train_batch_size=8))
    return actor


def check_fields(cases: Cases, row: Row, trajectory: dict[str, torch.Tensor]) -> None:
    fields = {name: trajectory[name][0].tolist() for name in ("input_ids", "loss_mask", "versions", "attention_mask")}
    cases.check_equal(f"{row.trace_id}: ids", fields["input_ids"], row.ids)
    cases.check_equal(f"{row.trace_id}: mask", fields["loss_mask"], row.mask)
    cases.check_equal(f"{row.trace_id}: versions", fields["versions"], row.steps)
    cases.check(all(fields["attention_mask"]), f"{row.trace_id}: attention_mask leaves out tokens")
    cases.check_equal(f"{row.trace_id}: reward", trajectory["rewards"].tolist(), [row.reward])


def main() -> None:
    folder = Path(sys.argv[1])
    cases = Cases()
    rows = trained_rows(folder)
    trajectories = [
        {name: torch.tensor(value, dtype=DTYPES[name]) for name, value in record.items()}
        for record in records(folder, "areal")
    ]
    cases.check_equal("number of trajectories", len(trajectories), len(rows))
    keys = set(DTYPES)
    for row, trajectory in zip(rows, trajectories):
        cases.check(
            check_trajectory_format(trajectory, batch_size=1, expected_keys=keys), f"{row.trace_id}: wrong format"
        )
        check_fields(cases, row, trajectory)
    cases.refuses("a trajectory without attention_mask", check_trajectory_format, {"input_ids": torch.ones(1, 2)})

    os.chdir(folder)
    actor = actor_of(folder / "model", len(rows), max(len(row.ids) for row in rows))
    before = copied(actor.model.parameters())
    for row, trajectory, computed in zip(rows, trajectories, actor.compute_logp(trajectories), strict=True):
        trajectory["prox_logp"] = computed
        # AReaL's logprob at a position is that of the next token.
        mask = trajectory["loss_mask"][0, 1:].bool()
        recorded = trajectory["logprobs"][0, 1:][mask].tolist()
        cases.check_logprobs(row, computed[0, : len(mask)][mask].tolist(), recorded)
    actor.ppo_update(actor.compute_advantages(trajectories))
    moved = largest_change(before, actor.model.parameters())
    cases.check(moved > 0, "the step did not change the weights")
    print_report(cases, trainer="AReaL", version=version("areal"), how=REAL_STEP, rows=len(rows), real_step=moved > 0)


main()

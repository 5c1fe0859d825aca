"""SkyRL's own validator and batch converter read the format `skyrl`, with one row for each sample and step by step."""

import copy
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from exported import OWN_CLASSES, Cases, Row, floe_rows, print_report, records
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
from skyrl.train.generators.base import GeneratorOutput, TrajectoryID
from skyrl.train.utils.trainer_utils import validate_generator_output

PAD_TOKEN_ID = 0


def generator_output(record: dict[str, Any]) -> GeneratorOutput:
    """Returns the record with SkyRL's class for the ids of trajectories."""
    return GeneratorOutput(**{**record, "trajectory_ids": [TrajectoryID(**one) for one in record["trajectory_ids"]]})


def check_output(cases: Cases, folder: Path, step_wise: bool) -> int:
    """Checks one export. Returns its number of rows."""
    rows = floe_rows(folder)
    [record] = records(folder, "skyrl")
    output = generator_output(record)
    samples = len({(row.group_id, row.sample_index) for row in rows})
    name = "step-wise output" if step_wise else "output"
    try:
        validate_generator_output(samples, output, step_wise=step_wise)
    except Exception as error:
        cases.check(False, f"{name}: {error}")
    else:
        cases.check(True, "")
    cases.check_equal(f"{name}: number of rows", len(output["response_ids"]), len(rows))
    check_rows(cases, rows, output)
    for row, trajectory, last in zip(rows, output["trajectory_ids"], output["is_last_step"] or [True] * len(rows)):
        cases.check_equal(f"{row.trace_id}: id", trajectory.to_string(), f"{row.group_id}_{row.sample_index}")
        cases.check_equal(f"{row.trace_id}: is_last_step", last, row.trace_index == row.trace_count - 1)
    check_refusals(cases, samples, output, step_wise)
    return len(rows)


def check_rows(cases: Cases, rows: list[Row], output: GeneratorOutput) -> None:
    """Compares the tensors that SkyRL trains with the rows. Its columns are aligned on the right."""
    rewards = [[0.0] * (len(ids) - 1) + [reward] for ids, reward in zip(output["response_ids"], output["rewards"])]
    sequences, attention, _, scores, masks, logprobs, *_ = convert_prompts_responses_to_batch_tensors(
        PAD_TOKEN_ID,
        output["prompt_token_ids"],
        output["response_ids"],
        rewards,
        output["loss_masks"],
        output["rollout_logprobs"],
    )
    for at, row in enumerate(rows):
        length = len(row.response_ids)
        cases.check_equal(f"{row.trace_id}: ids", sequences[at][attention[at].bool()].tolist(), row.ids)
        cases.check_equal(f"{row.trace_id}: mask", masks[at][-length:].int().tolist(), row.response_mask)
        trained = masks[at].bool()
        cases.check_equal(f"{row.trace_id}: logprobs", logprobs[at][trained].tolist(), row.trained_logprobs())
        cases.check_equal(f"{row.trace_id}: reward", float(scores[at].sum()), row.reward)
        cases.check(torch.isfinite(logprobs[at]).all().item(), f"{row.trace_id}: logprobs are not finite")


def check_refusals(cases: Cases, samples: int, output: GeneratorOutput, step_wise: bool) -> None:
    """Proves that the validator refuses wrong outputs."""
    broken = {
        "short logprobs": lambda wrong: wrong["rollout_logprobs"][0].pop(),
        "a short mask": lambda wrong: wrong["loss_masks"][0].pop(),
        "a missing prompt": lambda wrong: wrong["prompt_token_ids"].pop(),
    }
    if step_wise:
        broken["a sample without a last step"] = lambda wrong: wrong["is_last_step"].__setitem__(-1, False)
    for what, damage in broken.items():
        wrong = copy.deepcopy(output)
        damage(wrong)
        cases.refuses(what, validate_generator_output, samples, wrong, step_wise=step_wise)


def main() -> None:
    folder = Path(sys.argv[1])
    cases = Cases()
    rows = check_output(cases, folder, step_wise=True) + check_output(cases, folder / "one-trace", step_wise=False)
    print_report(cases, trainer="SkyRL", version=version("skyrl"), how=OWN_CLASSES, rows=rows)


main()

"""floe's own GRPO in numpy takes an optimizer step with floe's own rows, which it reads as JSON lines and in Arrow.

The rows are `trained.jsonl` and `trained.arrow`. They are compared with the results of the sessions in `results.jsonl`, from which they were
made: tokens, masks, logprobs, versions and rewards with the traces, and advantages with those that this program computes of the rewards of a task.
"""

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from exported import REAL_STEP, Cases, float32, print_report, records
from numpy_model import Array, NumpyModel, log_softmax
from pyarrow import ipc

LEARNING_RATE, CLIP = 1e-3, 0.2
# Half the length of the interval in which the derivative of the objective is measured, in steps.
PROBE = 0.1
# Largest relative difference between the measured derivative and the one that the gradient implies.
DERIVATIVE_TOLERANCE = 1e-3
PACKAGE = Path(__file__).resolve().parents[3] / "package.json"


@dataclass(frozen=True)
class Example:
    """The trained tokens of a row. N is their number, H the size of a hidden state."""

    hidden: Array  # [N, H], the state before each token
    ids: list[int]  # [N]
    recorded: Array  # [N], the logprobs by the policy that sampled the tokens
    advantages: Array  # [N]


def arrow_records(path: Path) -> list[dict[str, Any]]:
    """Reads an export in Arrow. Its objects without a fixed shape are JSON texts."""
    with ipc.open_stream(path.read_bytes()) as stream:
        return stream.read_all().to_pylist()


def expected_traces(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the traces that an export contains, by their ids, with what their sessions decide: mask, reward and advantage."""
    results = records(folder, "results")
    baselines: dict[str, list[float]] = defaultdict(list)
    for result in results:
        if result["policy"]["in_baseline"] and result["reward"] is not None:
            baselines[result["task_id"]].append(result["reward"])
    traces = {}
    for result in results:
        policy, baseline = result["policy"], baselines[result["task_id"]]
        if policy["use"] == "drop" or (policy["use"] == "train" and result["unusable"]):
            continue
        if policy["use"] == "mask" and not policy["in_baseline"]:
            continue
        deviation = float(np.std(baseline, ddof=1)) if len(baseline) > 1 else 0.0
        difference = result["reward"] - float(np.mean(baseline)) if len(baseline) > 1 else 0.0
        for trace in result["trajectory"]["traces"]:
            mask = trace["loss_mask"] if policy["use"] == "train" else [0] * len(trace["loss_mask"])
            advantage = difference / (deviation + 1e-6)
            traces[trace["trace_id"]] = {**trace, "loss_mask": mask, "advantage": advantage, "task_id": result["task_id"]}
    return traces


def versions_of(spans: list[dict[str, Any]], length: int) -> list[str | None]:
    """Returns the policy version that sampled each response token; None for a token that is not in a span."""
    versions: list[str | None] = [None] * length
    for span in spans:
        versions[span["start"] : span["end"]] = [span["version"]] * (span["end"] - span["start"])
    return versions


def check_record(cases: Cases, record: dict[str, Any], column: dict[str, Any], trace: dict[str, Any]) -> None:
    """Compares a record, and the same record in Arrow, with the trace of which it was made."""
    name, length = record["trace_id"], len(trace["response_ids"])
    for encoding, one in (("jsonl", record), ("arrow", column)):
        what = f"{name}, {encoding}"
        spans = json.loads(one["version_spans"]) if isinstance(one["version_spans"], str) else one["version_spans"]
        cases.check_equal(f"{what}: prompt_ids", one["prompt_ids"], trace["prompt_ids"])
        cases.check_equal(f"{what}: response_ids", one["response_ids"], trace["response_ids"])
        cases.check_equal(f"{what}: loss_mask", one["loss_mask"], trace["loss_mask"])
        recorded = [float32(value) for value in trace["response_logprobs"]]
        cases.check_equal(f"{what}: logprobs", [float32(value) for value in one["logprobs"]], recorded)
        cases.check_equal(f"{what}: versions", versions_of(spans, length), versions_of(trace["version_spans"], length))
        cases.check_equal(f"{what}: reward", one["reward"], trace["reward"])
        cases.check_equal(f"{what}: group", one["group_id"], trace["task_id"])
        wanted = np.array(trace["loss_mask"]) * trace["advantage"]
        is_equal = len(one["advantages"]) == length and np.allclose(one["advantages"], wanted, rtol=1e-5, atol=1e-6)
        cases.check(is_equal, f"{what}: advantages are not {trace['advantage']:.4g} at the trained tokens")


def example_of(model: NumpyModel, record: dict[str, Any]) -> Example:
    """Returns what the loop trains of a record that it read in Arrow."""
    ids = record["prompt_ids"] + record["response_ids"]
    trained = [at for at, bit in enumerate(record["loss_mask"]) if bit == 1]
    positions = [len(record["prompt_ids"]) + at for at in trained]
    return Example(
        hidden=model.hidden(ids)[[at - 1 for at in positions]],
        ids=[ids[at] for at in positions],
        recorded=np.array(record["logprobs"])[trained],
        advantages=np.array(record["advantages"])[trained],
    )


def logprobs_of(head: Array, example: Example) -> Array:
    return log_softmax(example.hidden @ head.T)[np.arange(len(example.ids)), example.ids]


def objective(head: Array, examples: list[Example]) -> float:
    """Returns the mean over rows of the sum over tokens of min(ratio A, clip(ratio) A)."""
    total = 0.0
    for example in examples:
        ratio = np.exp(logprobs_of(head, example) - example.recorded)
        clipped = np.clip(ratio, 1 - CLIP, 1 + CLIP)
        total += float(np.minimum(ratio * example.advantages, clipped * example.advantages).sum())
    return total / len(examples)


def gradient(head: Array, examples: list[Example]) -> Array:
    """Returns the gradient of the objective by the head: [vocabulary, H]."""
    result = np.zeros_like(head)
    for example in examples:
        scores = log_softmax(example.hidden @ head.T)
        tokens = np.arange(len(example.ids))
        ratio = np.exp(scores[tokens, example.ids] - example.recorded)
        is_clipped = np.where(example.advantages > 0, ratio > 1 + CLIP, ratio < 1 - CLIP)
        weight = np.where(is_clipped, 0.0, ratio * example.advantages)
        by_logit = -np.exp(scores) * weight[:, None]
        by_logit[tokens, example.ids] += weight
        result += by_logit.T @ example.hidden
    return result / len(examples)


def check_gradient(cases: Cases, head: Array, step: Array, examples: list[Example]) -> None:
    """Compares the derivative of the objective along a step of gradient ascent with the one that the gradient implies."""
    measured = (objective(head + PROBE * step, examples) - objective(head - PROBE * step, examples)) / (2 * PROBE)
    implied = float((step**2).sum()) / LEARNING_RATE
    is_equal = abs(measured - implied) <= DERIVATIVE_TOLERANCE * abs(implied)
    cases.check(is_equal, f"the objective grows by {measured:.6g} along the step instead of {implied:.6g}")


def main() -> None:
    folder = Path(sys.argv[1])
    cases = Cases()
    rows, columns, traces = records(folder, "trained"), arrow_records(folder / "trained.arrow"), expected_traces(folder)
    cases.check_equal("traces", sorted(row["trace_id"] for row in rows), sorted(traces))
    cases.check_equal("traces in Arrow", [row["trace_id"] for row in columns], [row["trace_id"] for row in rows])
    model = NumpyModel(folder / "model")
    examples = []
    for record, column in zip(rows, columns):
        check_record(cases, record, column, traces[record["trace_id"]])
        if 1 not in column["loss_mask"]:
            continue
        example = example_of(model, column)
        cases.check_trained(record["trace_id"], logprobs_of(model.head, example).tolist(), example.recorded.tolist())
        examples.append(example)
    step = LEARNING_RATE * gradient(model.head, examples)
    check_gradient(cases, model.head, step, examples)
    old, before = model.head, objective(model.head, examples)
    model.head = model.head + step
    moved, after = float(np.abs(model.head - old).max()), objective(model.head, examples)
    cases.check(moved > 0, "the step did not change the weights")
    cases.check(after > before, f"the step changed the objective from {before:.6g} to {after:.6g}")
    version = json.loads(PACKAGE.read_text())["version"]
    print_report(cases, trainer="floe, numpy", version=version, how=REAL_STEP, rows=len(rows), real_step=moved > 0)


main()

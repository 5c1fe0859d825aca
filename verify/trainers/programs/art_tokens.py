"""ART's own classes and tokenization read the format `art`.

ART's backends need a GPU. Here `floe.trainers.art` makes its `Trajectory` and `TrajectoryGroup` of the records, and the function with which its
backends make training data of them returns ids, masks, logprobs and advantages. No text may be tokenized, so the tokenizer refuses every use.
"""

import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[3] / "python" / "src"))

from art.preprocessing.tokenize import TokenizedResult, tokenize_trajectory_groups
from art.trajectories import Trajectory, TrajectoryGroup
from exported import OWN_CLASSES, Cases, Row, floe_rows, float32, print_report, records
from floe.trainers.art import grouped, trajectory


class NoTokenizer:
    """Raises an exception when it is called or when one of its methods is used."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"ART uses the tokenizer's {name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("ART tokenizes a text")


def tokenized(group: TrajectoryGroup) -> list[TokenizedResult]:
    """Returns the training data of a group as ART's backends make them, in the order of the trajectories."""
    results = tokenize_trajectory_groups(
        NoTokenizer(),
        [group],
        allow_training_without_logprobs=False,
        scale_rewards=True,
        shuffle_group_trajectories=False,
        drop_zero_advantage_trajectories=False,
    )
    return list(results)


def used(row: Row) -> int:
    """Returns the number of tokens up to the last one that is trained: ART has no place for context after it."""
    return len(row.mask) - row.mask[::-1].index(1)


def check_trace(cases: Cases, row: Row, result: TokenizedResult, rewards: list[float]) -> None:
    """Compares ART's training data of a trace with floe's row, and the advantage with the one of the rewards of a group."""
    end = used(row)
    cases.check_equal(f"{row.trace_id}: ids", result.token_ids, row.ids[:end])
    cases.check_equal(f"{row.trace_id}: mask", result.assistant_mask, row.mask[:end])
    trained = [float32(value) for value, mask in zip(result.logprobs, row.mask) if mask]
    cases.check_equal(f"{row.trace_id}: logprobs", trained, row.trained_logprobs())
    deviation = pstdev(rewards)
    advantage = 0.0 if deviation == 0 else (row.reward - fmean(rewards)) / (deviation + 1e-6)
    cases.check(
        abs(result.advantage - advantage) < 1e-6,
        f"{row.trace_id}: ART's advantage is {result.advantage:.6g} instead of {advantage:.6g}",
    )


def check_sample(cases: Cases, rows: list[Row], sample: Trajectory) -> None:
    """Compares the fields of a trajectory that concern the whole sample."""
    [row, *_] = rows
    name = f"{row.group_id}, sample {row.sample_index}"
    place = (sample.metadata["group_id"], sample.metadata["sample_index"])
    cases.check_equal(f"{name}: place", place, (row.group_id, row.sample_index))
    cases.check_equal(f"{name}: reward", sample.reward, row.reward)
    cases.check_equal(f"{name}: histories", 1 + len(sample.additional_histories), row.trace_count)
    # Versions are those of the replies, also in a sample that is masked.
    steps = [step for one in rows for step in one.steps if step >= 0]
    versions = (sample.initial_policy_version, sample.final_policy_version)
    cases.check_equal(f"{name}: versions", versions, (min(steps), max(steps)) if steps else (None, None))


def check_refusals(cases: Cases, record: dict[str, Any]) -> None:
    """Proves that ART refuses a choice without ids, without logprobs, or with too few of them."""
    [choice, *_] = record["messages_and_choices"]

    def without(name: str) -> dict[str, Any]:
        return {key: value for key, value in choice.items() if key != name}

    broken = {
        "a choice without ids": without("token_ids"),
        "a choice without the ids of its prompt": without("prompt_token_ids"),
        "a choice with too few logprobs": {**choice, "compact_logprobs": choice["compact_logprobs"][1:]},
        "a choice with a logprob that is null": {**choice, "compact_logprobs": [None] * len(choice["token_ids"])},
    }
    for what, one in broken.items():
        group = TrajectoryGroup([trajectory({**record, "messages_and_choices": [one], "additional_histories": []})])
        cases.refuses(what, tokenized, group)


def check_continuation(cases: Cases, record: dict[str, Any]) -> None:
    """Proves that ART makes one sequence of traces that continue each other, as those of the strategy `step` do."""
    choices = record["messages_and_choices"]
    histories = [{"messages_and_choices": [choice]} for choice in choices[1:]]
    split = {**record, "messages_and_choices": choices[:1], "additional_histories": histories}
    whole = {**record, "additional_histories": []}
    one, several = (
        [(result.token_ids, result.assistant_mask) for result in tokenized(TrajectoryGroup([trajectory(sample)]))]
        for sample in (whole, split)
    )
    cases.check(len(one) == 1, f"{len(one)} sequences of one trace")
    cases.check_equal("a trace in several histories", several, one)


def main() -> None:
    folder = Path(sys.argv[1])
    cases = Cases()
    rows, exported = floe_rows(folder), records(folder, "art")
    samples: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        samples[row.group_id, row.sample_index].append(row)
    cases.check_equal("number of trajectories", len(exported), len(samples))
    groups = grouped(exported)
    for sample, one in zip(samples.values(), (one for group in groups for one in group)):
        check_sample(cases, sample, one)
    group_ids = list(dict.fromkeys(group_id for group_id, _ in samples))
    cases.check_equal("number of groups", len(groups), len(group_ids))
    for group_id, group in zip(group_ids, groups):
        expected = [row for row in rows if row.group_id == group_id and row.trained > 0]
        results = tokenized(group)
        cases.check_equal(f"{group_id}: sequences", len(results), len(expected))
        rewards = [sample[0].reward for (one, _), sample in samples.items() if one == group_id]
        for row, result in zip(expected, results):
            check_trace(cases, row, result, rewards)
    long = next(record for record in exported if len(record["messages_and_choices"]) > 1)
    check_refusals(cases, long)
    check_continuation(cases, long)
    print_report(cases, trainer="ART", version=version("openpipe-art"), how=OWN_CLASSES, rows=len(rows))


main()

"""Recomputes the log-probability of every trained token with the weights that sampled it, and compares it with the recorded one.

    python recompute.py TRACES WEIGHTS --taken FILE --output FILE [--shift logprobs|ids]

TRACES is a file of `floe export --format floe`. WEIGHTS has a Hugging Face folder for each policy version, named like the version. `--taken` has
the samples that a trainer took, each of which must be one of the traces, number for number. The forward pass is that of PyTorch in float32, with no code of the server that sampled.

Each part of a reply that one version sampled is recomputed with its whole context by the weights of that version. That is what vLLM does after a
pause: it drops the cache of a frozen reply, and computes the context with the new weights before it continues. As a contrast, the tokens after an
update are also recomputed as an engine that keeps the cache would sample them, with keys and values of the old weights.

`--shift` moves the recorded log-probabilities or the ids by one token, which the comparison must notice.
"""

import argparse
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

Row = dict[str, Any]


class Part(NamedTuple):
    """Consecutive tokens of one reply that one version sampled, as positions of prompt and response together."""

    start: int
    end: int
    version: str | None


class Policies:
    """The models of all policy versions. Few are kept in memory, since sessions use versions in order."""

    KEPT = 8

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: dict[str, PreTrainedModel] = {}

    def model(self, version: str) -> PreTrainedModel:
        if version not in self._models:
            if len(self._models) == self.KEPT:
                del self._models[next(iter(self._models))]
            self._models[version] = AutoModelForCausalLM.from_pretrained(self._folder / version, dtype=torch.float32).eval()
        return self._models[version]


def replies(row: Row) -> Iterator[list[Part]]:
    """The replies of a trace, which are the runs of its loss mask, each in parts of one version."""
    before = len(row["prompt_ids"])
    parts: list[Part] = []
    versions = [None] * len(row["loss_mask"])
    for span in row["version_spans"]:
        versions[span["start"] : span["end"]] = [span["version"]] * (span["end"] - span["start"])
    for i, trained in enumerate([*row["loss_mask"], 0]):
        if not trained:
            if parts:
                yield parts
            parts = []
        elif parts and parts[-1].version == versions[i]:
            parts[-1] = parts[-1]._replace(end=before + i + 1)
        else:
            parts.append(Part(before + i, before + i + 1, versions[i]))


@torch.no_grad()
def recomputed(policies: Policies, ids: torch.Tensor, parts: list[Part], keeps_cache: bool = False) -> torch.Tensor:
    """The log-probability of each token of a reply, given everything before it: [number of tokens]."""
    cache = DynamicCache()
    done = 0
    logprobs = []
    for part in parts:
        if not keeps_cache:
            cache, done = DynamicCache(), 0
        # The last token before a part is the input from which its version samples the first token of the part.
        inputs = ids[done : part.end - 1]
        logits = policies.model(part.version)(inputs[None], past_key_values=cache, use_cache=True).logits[0]
        every = torch.log_softmax(logits[part.start - 1 - done :].float(), -1)
        logprobs.append(every.gather(1, ids[part.start : part.end, None])[:, 0])
        done = part.end - 1
    return torch.cat(logprobs)


def shifted(row: Row, shift: str | None) -> Row:
    """The row with its ids or log-probabilities moved by one token; the same row for None."""
    if shift == "ids":
        ids = row["prompt_ids"] + row["response_ids"]
        ids = ids[-1:] + ids[:-1]
        before = len(row["prompt_ids"])
        return {**row, "prompt_ids": ids[:before], "response_ids": ids[before:]}
    if shift == "logprobs":
        return {**row, "logprobs": row["logprobs"][-1:] + row["logprobs"][:-1]}
    return row


def compare(rows: list[Row], policies: Policies) -> dict[str, Any]:
    differences, ratios, updated, kept = [], [], [], []
    unknown = spanning = 0
    for row in rows:
        ids = torch.tensor(row["prompt_ids"] + row["response_ids"])
        recorded = torch.tensor(row["logprobs"])
        before = len(row["prompt_ids"])
        versions: set[str | None] = set()
        for parts in replies(row):
            versions.update(part.version for part in parts)
            if any(part.version is None for part in parts):
                unknown += sum(part.end - part.start for part in parts)
                continue
            expected = recorded[parts[0].start - before : parts[-1].end - before]
            delta = recomputed(policies, ids, parts) - expected
            differences.append(delta.abs())
            ratios.append(delta.exp())
            if len(parts) > 1:
                updated.append(delta.abs())
                kept.append((recomputed(policies, ids, parts, keeps_cache=True) - expected).abs())
        spanning += len(versions) > 1
    difference = torch.cat(differences).sort().values
    return {
        "traces": len(rows),
        "tokens_compared": len(difference),
        "max_abs_logprob_diff": difference[-1].item(),
        "p999": difference[int(0.999 * (len(difference) - 1))].item(),
        "ratio_mean": torch.cat(ratios).mean().item(),
        "tokens_without_version": unknown,
        "spanning_traces": spanning,
        "spanning_replies": len(updated),
        "max_abs_logprob_diff_spanning": torch.cat(updated).max().item() if updated else None,
        "max_abs_logprob_diff_kept_cache": torch.cat(kept).max().item() if kept else None,
    }


def unmatched(samples: list[Row], rows: list[Row]) -> int:
    """The number of samples of a trainer that have not exactly the ids, the mask and the log-probabilities of a trace."""
    known = {
        key(row["prompt_ids"] + row["response_ids"], [0] * len(row["prompt_ids"]) + row["loss_mask"], [0.0] * len(row["prompt_ids"]) + row["logprobs"])
        for row in rows
    }
    return sum(key(sample["ids"], sample["mask"], sample["logprobs"]) not in known for sample in samples)


def key(ids: list[int], mask: list[int], logprobs: list[float]) -> tuple[bytes, ...]:
    return array("i", ids).tobytes(), bytes(mask), array("f", logprobs).tobytes()


def lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("traces", type=Path)
    arguments.add_argument("weights", type=Path)
    arguments.add_argument("--taken", type=Path, required=True)
    arguments.add_argument("--output", type=Path, required=True)
    arguments.add_argument("--shift", choices=["logprobs", "ids"])
    given = arguments.parse_args()
    torch.set_num_threads(1)
    exported = [shifted(row, given.shift) for row in lines(given.traces)]
    taken = lines(given.taken)
    report = compare(exported, Policies(given.weights))
    report |= {"taken_samples": len(taken), "unmatched_samples": unmatched(taken, exported)}
    given.output.write_text(json.dumps(report))

"""Exported files, floe's own rows with which they are compared, and the report of a program.

Standard library only, because each program runs in the environment of its trainer.
"""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Largest difference between a recorded logprob and the one that a trainer computes with the same weights. All models are float32.
TOLERANCE = 1e-3
# Number of failures that a report contains.
REPORTED_FAILURES = 10


def float32(value: float) -> float:
    """Rounds a number to float32, the precision of exported logprobs."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


@dataclass(frozen=True)
class Row:
    """A trace in floe's own format. T is the number of tokens of prompt and response."""

    trace_id: str
    group_id: str
    sample_index: int
    trace_index: int
    trace_count: int
    is_masked: bool
    prompt_length: int
    ids: list[int]  # [T]
    mask: list[int]  # [T], 1 for a token that is trained
    logprobs: list[float]  # [T], 0 for the prompt
    steps: list[int]  # [T], the policy step that sampled the token; -1 for the prompt and for tokens that are not trained
    reward: float
    advantage: float  # 0 when no token is trained

    @property
    def trained(self) -> int:
        return sum(self.mask)

    @property
    def response_ids(self) -> list[int]:
        return self.ids[self.prompt_length :]

    @property
    def response_mask(self) -> list[int]:
        return self.mask[self.prompt_length :]

    @property
    def response_logprobs(self) -> list[float]:
        return self.logprobs[self.prompt_length :]

    def trained_logprobs(self) -> list[float]:
        return [logprob for logprob, mask in zip(self.logprobs, self.mask) if mask]


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    """Reads the records of a format."""
    with open(folder / f"{name}.jsonl", encoding="utf8") as file:
        return [json.loads(line) for line in file]


def floe_rows(folder: Path) -> list[Row]:
    """Reads floe's own rows."""
    return [_row(record) for record in records(folder, "floe")]


def trained_rows(folder: Path) -> list[Row]:
    """Reads floe's own rows of which at least one token is trained."""
    return [row for row in floe_rows(folder) if row.trained > 0]


def _row(record: dict[str, Any]) -> Row:
    prompt, response = record["prompt_ids"], record["response_ids"]
    steps = [-1] * (len(prompt) + len(response))
    for span in record["version_spans"]:
        for at in range(span["start"], span["end"]):
            steps[len(prompt) + at] = int(span["version"].rsplit("-", 1)[1])
    return Row(
        trace_id=record["trace_id"],
        group_id=record["group_id"],
        sample_index=record["sample_index"],
        trace_index=record["trace_index"],
        trace_count=record["trace_count"],
        is_masked=record["use"] == "mask",
        prompt_length=len(prompt),
        ids=prompt + response,
        mask=[0] * len(prompt) + record["loss_mask"],
        logprobs=[0.0] * len(prompt) + [float32(logprob) for logprob in record["logprobs"]],
        steps=steps,
        reward=record["reward"],
        advantage=max(record["advantages"], key=abs, default=0.0),
    )


@dataclass
class Cases:
    """Counts of cases that passed and failed, and the texts of the first failures."""

    passed: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    largest_difference: float | None = None

    def check(self, passed: bool, failure: str) -> bool:
        """Counts a case, whose `failure` is reported when it did not pass."""
        if passed:
            self.passed += 1
        else:
            self.failed += 1
            if len(self.failures) < REPORTED_FAILURES:
                self.failures.append(failure)
        return passed

    def check_equal(self, what: str, value: object, expected: object) -> bool:
        return self.check(value == expected, f"{what}: {_short(value)} instead of {_short(expected)}")

    def check_logprobs(self, row: Row, computed: list[float], recorded: list[float] | None = None) -> bool:
        """Compares the logprobs that a trainer computed for the trained tokens of a row with the recorded ones."""
        return self.check_trained(row.trace_id, computed, row.trained_logprobs() if recorded is None else recorded)

    def check_trained(self, trace_id: str, computed: list[float], expected: list[float]) -> bool:
        """Compares the logprobs that a trainer computed for the trained tokens of a trace with the expected ones."""
        if len(computed) != len(expected):
            return self.check(False, f"{trace_id}: {len(computed)} trained tokens instead of {len(expected)}")
        difference = max((_distance(a, b) for a, b in zip(computed, expected)), default=0.0)
        self.largest_difference = max(self.largest_difference or 0.0, difference)
        return self.check(
            difference <= TOLERANCE, f"{trace_id}: the trainer's logprobs differ by up to {difference:.3g}"
        )

    def refuses(self, what: str, call: Any, *args: Any, **named: Any) -> bool:
        """Counts a case that passes when `call` raises an exception."""
        try:
            call(*args, **named)
        except Exception:
            return self.check(True, "")
        return self.check(False, f"{what} was accepted")


def _distance(a: float, b: float) -> float:
    distance = abs(a - b)
    return math.inf if math.isnan(distance) else distance


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def print_report(cases: Cases, *, trainer: str, version: str, how: str, rows: int, real_step: bool = False) -> None:
    """Prints the report, which `npm run verify -- trainers` reads from the last line of output."""
    report = {
        "trainer": trainer,
        "version": version,
        "how": how,
        "rows": rows,
        "real_step": real_step,
        "passed": cases.passed,
        "failed": cases.failed,
        "failures": cases.failures,
        "largest_difference": cases.largest_difference if _is_finite(cases.largest_difference) else None,
    }
    print(json.dumps(report), flush=True)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


REAL_STEP = "a real training step"
OWN_CLASSES = "the package's own classes and validators"


def batches(count: int, size: int) -> Iterator[range]:
    """Splits the numbers from 0 to `count` into ranges of at most `size`."""
    for start in range(0, count, size):
        yield range(start, min(start + size, count))

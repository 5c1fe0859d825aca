"""floe's own rows as ground truth, compared token by token with what a trainer reads from its own records.

A validator makes a `Sequence` of each trace from the records of one trainer, as that trainer does, and `run` compares it with the row of
the same trace in `floe.jsonl`. T is the number of tokens of prompt and response.
"""

from __future__ import annotations

import argparse
import base64
import importlib.abc
import importlib.machinery
import json
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock

Record = dict[str, Any]

READ_FROM_SOURCE: Final = "a validator written from named source"
OWN_CLASSES: Final = "the source's own classes"
MAX_FAILURES: Final = 10
ARRAY_CODES: Final = {"uint8": "B", "uint16": "H", "int16": "h", "int32": "i"}


class Refused(Exception):
    """A record that the trainer would refuse, or from which it would train something else; the text says why."""


@dataclass(frozen=True)
class Trace:
    """A row of `floe.jsonl`: what a trainer has to train on."""

    trace_id: str
    session_id: str
    group_id: str
    use: str
    ids: list[int]  # [T]
    mask: list[int]  # [T]; 0 for the prompt
    logprobs: list[float]  # [T]; 0 for the prompt
    advantages: list[float] | None  # [T]; None when the export has none
    reward: float | None
    sample_reward: float | None
    versions: list[str | None]  # names of the policy versions, in order, without duplicates
    token_versions: list[str | None]  # [T]; None for a token that no version sampled
    experts: list[int] | None  # experts of the first T - 1 tokens, flat; None when some are missing

    @property
    def trained(self) -> bool:
        """Whether a token is trained."""
        return 1 in self.mask


@dataclass(frozen=True)
class Sequence:
    """What a trainer reads of one trace. A field that the trainer's records do not have is None."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float | None = None
    advantages: list[float] | None = None
    versions: list[Any] | None = None
    experts: list[int] | None = None


@dataclass(frozen=True)
class Validator:
    """How the records of one format are read."""

    trainer: str
    version: str
    format: str
    # Makes the sequences in the order of their traces. A problem takes the place of a sequence that cannot be made.
    read: Callable[[list[Record]], Iterable[Sequence | Refused]]
    # The same with the trainer's own classes, whose repository is at the path.
    read_with_source: Callable[[list[Record], Path], Iterable[Sequence | Refused]] | None
    # What the sequence of a trace must be: the fields that the format has.
    expect: Callable[[Trace], Sequence]
    # Whether the format has traces of which nothing is trained.
    has_untrained: bool
    # Returns what is wrong with the grouping of records: a text for each trace that has a problem.
    grouping: Callable[[list[Record], list[Trace]], Iterable[str]] | None = None


def float32(value: float) -> float:
    """Returns the nearest number that a float32 can hold."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def decoded(data: str, dtype: str) -> list[int]:
    """Returns the numbers of an array in base64 and little-endian."""
    numbers = array(ARRAY_CODES[dtype], base64.b64decode(data))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def trace_of(row: Record) -> Trace:
    """Makes a trace from a row of `floe.jsonl`."""
    prompt = len(row["prompt_ids"])
    context = [0] * prompt
    token_versions: list[str | None] = [None] * (prompt + len(row["response_ids"]))
    for span in row["version_spans"]:
        for at in range(span["start"], span["end"]):
            token_versions[prompt + at] = span["version"]
    experts = row["routed_experts"]
    advantages = row["advantages"]
    return Trace(
        trace_id=row["trace_id"],
        session_id=row["session_id"],
        group_id=row["group_id"],
        use=row["use"],
        ids=row["prompt_ids"] + row["response_ids"],
        mask=context + row["loss_mask"],
        logprobs=context + row["logprobs"],
        advantages=None if advantages is None else context + advantages,
        reward=row["reward"],
        sample_reward=row["sample_reward"],
        versions=list(dict.fromkeys(span["version"] for span in row["version_spans"])),
        token_versions=token_versions,
        experts=None if experts is None or experts["start"] > 0 else decoded(experts["data"], experts["dtype"]),
    )


def require_length(name: str, values: list[Any], length: int) -> None:
    """Raises `Refused` when a column has another length than its tokens."""
    if len(values) != length:
        raise Refused(f"{name} has {len(values)} entries for {length} tokens")


def each(records: Iterable[Record], read: Callable[[Record], Sequence]) -> Iterator[Sequence | Refused]:
    """Makes a sequence of each record; a record that the trainer refuses becomes a problem."""
    for record in records:
        try:
            yield read(record)
        except Refused as refused:
            yield refused
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            yield Refused(f"{type(error).__name__}: {error}")


def problem(read: Sequence, expected: Sequence) -> str | None:
    """Returns the first difference between two sequences; None when they are equal. Logprobs and advantages count at trained tokens only."""
    for name in ("ids", "mask"):
        got, want = getattr(read, name), getattr(expected, name)
        if len(got) != len(want):
            return f"{name} has {len(got)} tokens instead of {len(want)}"
        for at, (one, other) in enumerate(zip(got, want)):
            if one != other:
                return f"{name}[{at}] is {one} instead of {other}"
    for name in ("logprobs", "advantages"):
        got, want = getattr(read, name), getattr(expected, name)
        if got is None:  # A format without advantages leaves them to its trainer.
            continue
        if want is None:
            return f"floe.jsonl has no {name}: it must be exported with those of the records"
        require_length(name, got, len(expected.ids))
        for at, (one, other, trained) in enumerate(zip(got, want, expected.mask)):
            if trained and float32(one) != float32(other):
                return f"{name}[{at}] is {one} instead of {other}"
    for name in ("reward", "versions", "experts"):
        got, want = getattr(read, name), getattr(expected, name)
        if got != want:
            return f"{name} is {short(got)} instead of {short(want)}"
    return None


def short(value: Any) -> str:
    """Returns the beginning of a value's text."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def pairs_one_to_one(name: str, values: Iterable[Any], traces: Iterable[Trace], key: str) -> Iterator[str]:
    """Yields a problem for each trace whose value does not stand for exactly one `key`, such as a rollout_id for a session_id."""
    forward: dict[Any, str] = {}
    backward: dict[str, Any] = {}
    for value, trace in zip(values, traces):
        owner = getattr(trace, key)
        if forward.setdefault(value, owner) != owner or backward.setdefault(owner, value) != value:
            yield f"trace {trace.trace_id}: {name} {value} does not stand for one {key}"


def read_lines(path: Path) -> list[Record]:
    """Reads a file of JSON lines."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def failures_of(validator: Validator, records: list[Record], traces: list[Trace], source: Path | None) -> dict[int, str]:
    """Compares all traces. Returns the failures by the number of the trace; problems of the grouping replace no earlier ones."""
    if source is None:
        sequences = validator.read(records)
    elif validator.read_with_source is None:
        raise SystemExit(f"{validator.trainer} has no classes of its own that are used here")
    else:
        sequences = validator.read_with_source(records, source)
    failures: dict[int, str] = {}
    for number, (read, trace) in enumerate(zip_longest(sequences, traces)):
        if trace is None:
            failures[number] = f"sequence {number}: floe.jsonl has no trace for it"
        elif read is None:
            failures[number] = f"trace {trace.trace_id}: the trainer's records do not have it"
        elif isinstance(read, Refused):
            failures[number] = f"trace {trace.trace_id}: {read}"
        else:
            try:
                difference = problem(read, validator.expect(trace))
            except Refused as refused:
                difference = str(refused)
            if difference is not None:
                failures[number] = f"trace {trace.trace_id}: {difference}"
    if validator.grouping is not None and len(failures) == 0:
        failures.update(enumerate(validator.grouping(records, traces)))
    return failures


def run(validator: Validator) -> None:
    """
    Runs a validator as a program. The last line that it prints is the result as one JSON object. Ends with an error that names the module when
    the trainer's repository cannot be imported.
    """
    parser = argparse.ArgumentParser(description=f"compares the {validator.format} export with floe's own rows")
    parser.add_argument("directory", type=Path, help=f"folder with {validator.format}.jsonl and floe.jsonl")
    parser.add_argument("--source", type=Path, help="a copy of the trainer's repository, whose own classes read the records")
    arguments = parser.parse_args()
    traces = [trace_of(row) for row in read_lines(arguments.directory / "floe.jsonl")]
    if not validator.has_untrained:
        traces = [trace for trace in traces if trace.trained]
    if len(traces) == 0:
        raise SystemExit("floe.jsonl has no trace to compare")
    records = read_lines(arguments.directory / f"{validator.format}.jsonl")
    try:
        failures = failures_of(validator, records, traces, arguments.source)
    except ImportError as error:
        raise SystemExit(f"{validator.trainer}: the source in {arguments.source} cannot be imported: {_import_problem(error)}") from error
    rows = max(len(traces), 1 + max(failures, default=0))
    result = {
        "trainer": validator.trainer,
        "version": validator.version if arguments.source is None else f"the source in {arguments.source}",
        "how": READ_FROM_SOURCE if arguments.source is None else OWN_CLASSES,
        "rows": rows,
        "real_step": False,
        "passed": rows - len(failures),
        "failed": len(failures),
        "failures": list(failures.values())[:MAX_FAILURES],
        "stand_ins": sorted(_stand_ins),
    }
    print(json.dumps(result))


def _import_problem(error: ImportError) -> str:
    """Returns what is wrong, which is often that a module is missing that another error hides."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name is not None:
            return f"the module {cause.name} is not installed"
        cause = cause.__cause__ or cause.__context__
    return str(error)


def use_source(*folders: Path) -> None:
    """Makes Python import the trainer's packages from these folders, and not this folder's programs of the same names."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [str(folder.resolve()) for folder in folders] + [path for path in sys.path if str(Path(path).resolve()) != here]


_stand_ins: set[str] = set()


class _Replacement(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules, and those in them, as objects that accept every use."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        found = next((one for one in self.names if name == one or name.startswith(f"{one}.")), None)
        return None if found is None else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        _stand_ins.update(one for one in self.names if spec.name == one)
        module = MagicMock(name=spec.name)
        module.__path__, module.__name__, module.__spec__ = [], spec.name, spec
        return module

    def exec_module(self, module: Any) -> None:
        pass


def replace_modules(*names: str) -> None:
    """
    Lets a trainer's classes import modules that they do not use for reading records, and that may not be installed. The report names the ones
    that were imported.
    """
    sys.meta_path.insert(0, _Replacement(set(names)))

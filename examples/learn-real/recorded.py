"""Writes what a trainer takes to a file, so that it can be compared with what was sampled."""

import json
from pathlib import Path
from queue import Queue
from typing import Any


class Record:
    """A file of JSON lines with the ids, the mask and the log-probabilities of each sample. Nothing is written when `path` is None."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("a")

    def write(self, ids: Any, mask: Any, logprobs: Any) -> None:
        if self._file is None:
            return
        sample = {"ids": [int(id) for id in ids], "mask": [int(bit) for bit in mask], "logprobs": [float(p) for p in logprobs]}
        self._file.write(json.dumps(sample) + "\n")
        self._file.flush()


class RecordedQueue(Queue):
    """A queue of TRL's samples, which writes those that the trainer takes out."""

    def __init__(self, path: Path | None, maxsize: int) -> None:
        super().__init__(maxsize)
        self._record = Record(path)

    def get(self, *arguments: Any, **settings: Any) -> Any:
        sample = super().get(*arguments, **settings)
        self._record.write(sample.input_ids, sample.completion_mask, sample.old_log_probs)
        return sample

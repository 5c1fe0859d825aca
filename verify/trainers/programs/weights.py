"""What programs share that train a model in one process: its place in a distributed group, and a proof that its weights changed."""

import os
import socket
from collections.abc import Iterable

import torch


def become_only_rank() -> None:
    """Sets the environment variables by which a process finds its distributed group: this process alone, at a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def copied(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns copies of parameters, also of those that FSDP distributes."""
    return [_local(parameter).clone() for parameter in parameters]


def largest_change(before: list[torch.Tensor], parameters: Iterable[torch.Tensor]) -> float:
    """Returns by how much the parameter changed most that changed most. NaN when a parameter became NaN."""
    changes = [(a - _local(b)).abs().max() for a, b in zip(before, parameters, strict=True)]
    return float(torch.stack(changes).max())


def _local(parameter: torch.Tensor) -> torch.Tensor:
    detached = parameter.detach()
    return detached.to_local() if hasattr(detached, "to_local") else detached

"""Routed experts of the trainer formats."""

from __future__ import annotations

import base64
from typing import Any

from ..api_types import Json


def expert_array(record: Json | None) -> Any:
    """Returns the experts of a record as an array [positions, layers, experts per token]; None when it has none."""
    if record is None:
        return None
    import numpy as np

    data = np.frombuffer(base64.b64decode(record["data"]), dtype=np.dtype(record["dtype"]).newbyteorder("<"))
    return data.reshape(record["shape"]).astype(record["dtype"])

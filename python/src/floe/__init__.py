"""The client of floe: rollouts as a service for reinforcement learning of LLM agents."""

from .aio import AsyncClient
from .batches import Version
from .client import Client
from .errors import FloeError
from .replies import (
    AdvantageMethod,
    Batch,
    BatchReply,
    BatchStreamView,
    ConstrainedUse,
    EngineChange,
    EnginesStatus,
    FormatName,
    Group,
    Outcome,
    PushReply,
    SessionResult,
    SessionSummary,
    SessionView,
    SubmitReply,
    TaskStatus,
    Trace,
    Trajectory,
)

__all__ = [
    "AdvantageMethod",
    "AsyncClient",
    "Batch",
    "BatchReply",
    "BatchStreamView",
    "ConstrainedUse",
    "Client",
    "EngineChange",
    "EnginesStatus",
    "FloeError",
    "FormatName",
    "Group",
    "Outcome",
    "PushReply",
    "SessionResult",
    "SessionSummary",
    "SessionView",
    "SubmitReply",
    "TaskStatus",
    "Trace",
    "Trajectory",
    "Version",
]

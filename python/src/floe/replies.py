"""Types of what the server replies. docs/openapi.json has every field with its meaning; here are those that a trainer reads."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, TypedDict

Json = Dict[str, Any]
#: The trainer formats of docs/trainer-formats.md.
FormatName = Literal[
    "floe",
    "slime",
    "verl",
    "verl_batch",
    "nemo_rl",
    "skyrl",
    "tinker",
    "prime_rl",
    "trl_async",
    "trl",
    "areal",
    "roll",
    "rllm",
    "openrlhf",
    "art",
]
AdvantageMethod = Literal["none", "grpo", "centered", "leave_one_out"]
#: What happens to trained tokens that were sampled under a constraint.
ConstrainedUse = Literal["train", "mask"]
Outcome = Literal[
    "completed",
    "truncated_context",
    "truncated_turns",
    "agent_timeout",
    "agent_error",
    "env_error",
    "verifier_error",
    "engine_error",
    "infra_error",
    "cancelled",
    "no_completions",
]


class SubmitReply(TypedDict):
    task_id: str
    status: str
    session_ids: List[str]
    #: Whether the task had been submitted before under this id or idempotency key.
    duplicate: bool


class VersionSpan(TypedDict):
    #: None when the engine did not report it.
    version: Optional[str]
    start: int
    end: int


class Trace(TypedDict):
    """A trainable sequence of P prompt and R response tokens."""

    trace_id: str
    prompt_ids: List[int]
    response_ids: List[int]
    #: [R]; 1 where the policy sampled the token and it is trained in this trace.
    loss_mask: List[int]
    #: [R]; 0 where loss_mask is 0.
    response_logprobs: List[float]
    version_spans: List[VersionSpan]
    constrained_spans: List[Json]
    prompt_messages: List[Json]
    response_messages: List[Json]
    tools: List[Json]
    routed_experts: Optional[Json]
    finish_reason: Optional[str]
    reward: Optional[float]
    completion_ids: List[str]
    metadata: Json


class Trajectory(TypedDict):
    status: str
    builder: str
    traces: List[Trace]
    images: Dict[str, str]
    audit: Json
    error: Optional[str]
    metadata: Json


class SessionSummary(TypedDict):
    """A finished session without its token data."""

    session_id: str
    task_id: str
    sample_index: int
    attempt: int
    status: str
    outcome: Outcome
    policy: Json
    #: None when it could not be computed, which is not 0.
    reward: Optional[float]
    reward_components: Dict[str, Optional[float]]
    trace_count: int
    trainable_tokens: int
    #: Why the sample cannot be trained on; None when it can.
    unusable: Optional[str]
    error: Optional[Json]
    timing: Json
    metadata: Json


class _Cursor(TypedDict, total=False):
    #: Position in the results of the server.
    cursor: int


class SessionResult(SessionSummary, _Cursor):
    #: None when no token data was delivered.
    trajectory: Optional[Trajectory]


class TaskStatus(TypedDict):
    task_id: str
    status: str
    group: Json
    results: List[SessionSummary]


class SessionView(TypedDict):
    session_id: str
    task_id: str
    sample_index: int
    status: str
    attempt: int
    node_id: Optional[str]
    turns: int
    sampled_tokens: int
    #: None until the session has ended.
    summary: Optional[SessionSummary]


class EngineProblem(TypedDict):
    node_id: str
    engine_id: str
    message: str


class EngineChange(TypedDict):
    revision: int
    engine_ids: List[str]
    #: Nodes that have applied the change.
    done: List[str]
    #: Healthy nodes that did not apply it within the wait.
    pending: List[str]
    #: Engines that a node cannot use; during a pause also those that it does not stop.
    problems: List[EngineProblem]


class EnginesStatus(TypedDict):
    revision: int
    engines: List[Json]
    removed: List[str]
    #: The mode of the pause; None when the engines are not paused.
    paused: Optional[str]
    while_paused: str
    policy_version: Optional[str]


class _Results(TypedDict, total=False):
    #: The sessions with their token data; absent in a batch that has records.
    results: List[SessionResult]


class Group(_Results):
    """The samples of one row that are compared with each other."""

    group_id: str
    row_index: int
    epoch: int
    policy_step: Optional[int]
    staleness: int
    row: Any
    mean_reward: Optional[float]
    usable: int


class _Records(TypedDict, total=False):
    #: The records of the requested trainer format, for the whole batch.
    records: List[Json]


class BatchReply(_Records):
    """The reply to a request for the next batch. `batch` is None when there were not enough groups within the wait."""

    batch: Optional[int]
    policy_step: Optional[int]
    #: Whether the data is used up: no later request gets a batch.
    done: bool
    groups: List[Group]
    progress: Json


class Batch(_Records):
    """One batch of a stream."""

    batch: int
    policy_step: Optional[int]
    done: bool
    groups: List[Group]
    progress: Json


class RowProblem(TypedDict):
    row_index: int
    message: str


class PushReply(TypedDict):
    #: Number of rows of the stream.
    row_count: int
    #: Rows that do not fit the template and are not sampled.
    invalid: List[RowProblem]


class BatchStreamView(TypedDict):
    batch_id: str
    trainer: str
    purpose: str
    status: str
    #: Number of the last batch that was handed out; 0 before the first.
    batch: int
    #: Number of the last batch that the trainer has confirmed.
    acknowledged: int
    policy_step: Optional[int]
    epoch: int
    #: None for an endless source.
    row_count: Optional[int]
    rows_complete: bool
    done: bool
    progress: Json
    #: Tokens of handed and ready groups divided by those of all ended ones; None before the first.
    useful_share: Optional[float]
    length_bias: Optional[float]
    problems: List[RowProblem]
    source_error: Optional[str]
    created_at: str

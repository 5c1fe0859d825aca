"""Types of the requests and replies of the client. Generated from the schemas of the API by `npm run generate`."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Mapping, Optional, Sequence, TypedDict, Union


class OutcomeOverride(TypedDict, total=False):
    use: Literal["train", "mask", "drop"]
    in_baseline: bool
    #: maximum number of retries after this outcome; max_attempts bounds all attempts together
    retries: int


class Budgets(TypedDict, total=False):
    #: time limit of INIT in seconds
    init: float
    #: time limit of the agent in seconds
    agent: float
    #: time limit of the evaluation in seconds; separate from timeout_seconds, which is its default
    eval: float
    #: seconds without progress (a model call, output, a finished step) after which the attempt is aborted; default: the node's setting
    stall: float


class _PrepareActionWriteFileRequired(TypedDict):
    type: Literal["write_file"]
    target: str
    content: str


class PrepareActionWriteFile(_PrepareActionWriteFileRequired, total=False):
    #: Default: 420
    mode: int


class PrepareActionUploadFile(TypedDict):
    type: Literal["upload_file"]
    #: path on the node's host, below one of the node's upload roots
    source: str
    target: str


class _PrepareActionUploadDirRequired(TypedDict):
    type: Literal["upload_dir"]
    #: path on the node's host, below one of the node's upload roots
    source: str


class PrepareActionUploadDir(_PrepareActionUploadDirRequired, total=False):
    #: Default: "."
    target: str


class _PrepareActionPruneGitHistoryRequired(TypedDict):
    type: Literal["prune_git_history"]


class PrepareActionPruneGitHistory(_PrepareActionPruneGitHistoryRequired, total=False):
    #: path of a git repository, of which only HEAD, its ancestors and their tags are kept. Default: "."
    repo: str


class _PrepareActionExecRequired(TypedDict):
    type: Literal["exec"]
    command: str


class PrepareActionExec(_PrepareActionExecRequired, total=False):
    cwd: str
    env: Mapping[str, str]
    #: `agent`: the user of the sandbox; `root`: root, where the sandbox has more than one user. Default: "agent"
    user: Literal["agent", "root"]
    #: Default: 1
    max_attempts: int
    #: Default: 0.5
    retry_backoff_seconds: float


class RuntimeSpecEvalOverrides(TypedDict, total=False):
    image: str
    workdir: str
    env: Mapping[str, str]
    memory_mb: int
    cpus: Optional[float]
    storage_mb: int


class RuntimeSpecReuse(TypedDict, total=False):
    #: most sessions for which one sandbox is used. Default: 100
    max_uses: int
    #: files that are restored after each session, to their state after the prepare actions: all; at least those of the workdir; or none, so
    #: that the reset command must remove what a session left. Default: "all"
    restore: Literal["all", "workdir", "none"]
    #: run by /bin/sh after each session, after the files were restored and the services started
    reset_command: Optional[str]
    #: commands, each run by /bin/sh, that run as long as the sandbox is used; with `restore: none` through all sessions, otherwise they are
    #: restarted after each
    services: Sequence[str]
    #: run by /bin/sh until it exits with 0, before a session gets the sandbox; null: `true`
    health_command: Optional[str]
    #: longest time of a reset, and also of the health check after it. Default: 60
    timeout_seconds: float


class RuntimeSpec(TypedDict, total=False):
    #: sandbox implementation; default: the node's setting
    backend: RuntimeBackend
    #: image of a registry; bubblewrap and apptainer also take a directory on the node's host, apptainer a SIF file, and bubblewrap null for
    #: the host's /usr, read-only
    image: Optional[str]
    #: working directory of the harness; ignored by the local backend. Default: "/work"
    workdir: str
    #: name or number of the user of the image that runs the agent and the prepare actions and owns their files; null for the image's own
    #: user with docker and podman, and for the only user of a sandbox otherwise
    user: Optional[ImageUser]
    prepare: Sequence[PrepareAction]
    #: prepare actions for the evaluator's fresh runtime; null uses `prepare`
    eval_prepare: Optional[Sequence[PrepareAction]]
    #: settings of the evaluator's fresh runtime that replace those of the agent's; with another image, it has the user of that image
    eval_overrides: RuntimeSpecEvalOverrides
    #: whether the node may run the prepare actions once and start further sandboxes with equal settings from a snapshot of the prepared
    #: files. Default: False
    share_prepared: bool
    #: null: each session gets a new sandbox. The evaluator's fresh runtime is always new
    reuse: Optional[RuntimeSpecReuse]
    env: Mapping[str, str]
    #: none: only the session's model; proxy: HTTP and HTTPS to all hosts that the node allows; allowlist: to those in `allowed_hosts`;
    #: host: the network of the node's host. Default: "none"
    network: Literal["none", "proxy", "allowlist", "host"]
    #: for network allowlist: names (`pypi.org`), names with everything below them (`*.pypi.org`) or addresses, each with an optional port
    #: (default: 80 and 443)
    allowed_hosts: Sequence[str]
    #: Default: 4096
    memory_mb: int
    cpus: Optional[float]
    #: Default: 1024
    storage_mb: int
    #: Default: 512
    max_processes: int
    #: Default: 512
    max_file_mb: int
    #: most MiB of output that are kept of one command; the rest is counted and dropped. Default: 16
    max_output_mb: float


class _McpServerStdioRequired(TypedDict):
    name: str
    transport: Literal["stdio"]
    command: str


class McpServerStdio(_McpServerStdioRequired, total=False):
    args: Sequence[str]
    env: Mapping[str, str]


class _McpServerHttpRequired(TypedDict):
    name: str
    transport: Literal["http", "sse"]
    url: str


class McpServerHttp(_McpServerHttpRequired, total=False):
    headers: Mapping[str, str]


class Skill(TypedDict):
    name: str
    #: content of each file by its path in the skill folder
    files: Mapping[str, str]


class _AgentSpecRequired(TypedDict):
    harness: str


class AgentSpec(_AgentSpecRequired, total=False):
    #: wire format in which the harness calls the policy; default: the first one that the harness supports
    dialect: DialectName
    #: model name that the harness is configured with; calls to the engine carry the name of its own model. Default: "policy"
    model_name: str
    #: further model names that are routed to the policy, `*` for any; calls with other names are rejected
    model_aliases: Sequence[str]
    env: Mapping[str, str]
    #: harness whose rules label the purpose and the agent thread of each model call; default: the rules of `harness`, if it has any. For a
    #: `shell` command that starts one of these programs
    call_rules: CallRules
    #: settings of the harness adapter, which validates them
    settings: Mapping[str, Any]
    #: text that is appended to the harness's own system prompt
    system_prompt: str
    #: maximum number of model calls of the main agent; one more ends the session as `truncated_turns`. With a limit, calls of any kind
    #: together are limited to 256, or to 32 times this number if that is more
    max_turns: int
    #: maximum size in MiB of what is recorded of all model calls: messages, token ids, log-probabilities, routed experts, and each image
    #: once. A call whose request does not fit ends the session as `truncated_turns`. Default: 64
    max_recorded_mb: float
    mcp_servers: Sequence[McpServer]
    #: whether the harness offers the tools of floe in the sandbox to the agent, as the MCP server `floe`. Default: False
    floe_tools: bool
    skills: Sequence[Skill]
    #: directory of skill folders on the node's host, below one of the node's upload roots
    skills_path: str
    #: command that the `shell` harness runs
    custom_shell: str


class _TaskEnvironmentRequired(TypedDict):
    #: name of the environment
    type: str


class TaskEnvironment(_TaskEnvironmentRequired, total=False):
    #: settings of the environment, which validates them
    config: Mapping[str, Any]
    #: seed of the episode, the same for all samples of the task. Default: 0
    seed: int


class Sampling(TypedDict, total=False):
    #: Default: 1
    temperature: float
    #: Default: 1
    top_p: float
    #: number of most probable tokens from which to sample; 0 for all tokens. Default: 0
    top_k: int
    #: Default: 0
    min_p: float
    #: Default: 1
    repetition_penalty: float
    #: longest reply in tokens; null keeps the limit that the harness requests
    max_tokens: Optional[int]
    #: base seed; sample i of a task uses seed + i
    seed: Optional[int]


class TaskEngine(TypedDict, total=False):
    #: Default: "default"
    pool: str
    #: further pools, which an agent of floe may name for conversations other than its main one; default: none
    extra_pools: Sequence[str]
    #: Default: "auto"
    mode: EngineMode
    #: Default: "template"
    thinking_retention: ThinkingRetention


class _StrategySpecRequired(TypedDict):
    strategy: str


class StrategySpec(_StrategySpecRequired, total=False):
    config: Mapping[str, Any]


class _EvaluatorSpecRequired(TypedDict):
    strategy: str


class EvaluatorSpec(_EvaluatorSpecRequired, total=False):
    config: Mapping[str, Any]
    env: Mapping[str, str]
    #: whether to evaluate in a fresh runtime that is prepared with `eval_prepare`; null: as the evaluator does by default, which is true
    #: for evaluators that run tests
    refresh_runtime: Optional[bool]


class _TaskStepRequired(TypedDict):
    #: name of the component with the reward of the step
    name: str
    #: instruction of the agent in this step
    instruction: str
    #: computes the reward of the step, in the agent's runtime
    evaluator: EvaluatorSpec


class TaskStep(_TaskStepRequired, total=False):
    #: prepare actions that run before the agent starts with this step
    prepare: Sequence[PrepareAction]
    #: time limit of the agent; default: budgets.agent
    agent_seconds: float
    #: time limit of the evaluation; default: budgets.eval
    eval_seconds: float
    #: reward, or components of it by name, below which the later steps do not run
    min_reward: Union[float, Mapping[str, float]]


class ArtifactsSpec(TypedDict, total=False):
    #: Default: True
    collect: bool
    #: largest compressed archive in MiB; a larger one is not kept at all. Default: 16
    max_mb: float
    #: files and folders of the sandbox in addition to /artifacts and /logs; relative paths are below the workdir
    paths: Sequence[str]


class _TaskRequestRequired(TypedDict):
    instruction: str
    agent: AgentSpec


class TaskRequest(_TaskRequestRequired, total=False):
    #: id of the task; generated by floe when absent
    task_id: str
    idempotency_key: str
    #: Default: 1
    num_samples: int
    #: name of the trainer that the task belongs to; nodes are shared fairly among trainers, and each can read its own results. Default:
    #: "default"
    trainer: str
    #: tasks of the same trainer with a higher priority start first. Default: 0
    dispatch_priority: int
    #: tasks with the same key, for instance one data set row, are expected to take equally long; default: derived from instruction and
    #: harness
    duration_key: Optional[str]
    #: seconds from submission, queueing included, after which unfinished sessions are cancelled
    deadline_seconds: Optional[float]
    #: number of usable samples after which the other sessions are cancelled; at most num_samples
    early_stop_min_usable_sessions: Optional[int]
    #: maximum number of additional samples, each of which replaces one that ended unusable. Default: 0
    refill: int
    outcome_policy: Mapping[Outcome, OutcomeOverride]
    #: Default: 600
    timeout_seconds: float
    #: whether time in queues counts against the time limit; active: it does not; wall: it does. Default: "active"
    timeout_clock: Literal["active", "wall"]
    budgets: Budgets
    #: maximum number of attempts at one session when the infrastructure fails. Default: 3
    max_attempts: int
    #: sandbox of each session; null for the node's default runtime
    runtime: Optional[RuntimeSpec]
    #: environment in which an agent of the harness `floe` acts
    environment: Optional[TaskEnvironment]
    sampling: Sampling
    #: engines that sample the task and how they are prompted
    engine: TaskEngine
    builder: StrategySpec
    evaluator: Optional[EvaluatorSpec]
    #: steps of the task, in whose order the agent runs with the instruction of each instead of that of the task; needs the evaluator
    #: `steps`
    steps: Sequence[TaskStep]
    artifacts: ArtifactsSpec
    callback_url: Optional[str]
    #: whether the callback carries token data or only paths from which it can be fetched. Default: "full"
    callback_results: Literal["full", "summary"]
    #: the trainer's policy version at submission; floe only records it
    policy_version: Optional[str]
    #: W3C trace context that spans of this task belong to; default: the header `traceparent` of the request
    traceparent: Optional[str]
    metadata: Mapping[str, Any]


class _BatchStreamRequestSourceRowsRequired(TypedDict):
    kind: Literal["rows"]


class BatchStreamRequestSourceRows(_BatchStreamRequestSourceRowsRequired, total=False):
    rows: Sequence[Mapping[str, Any]]
    #: whether more rows are pushed later, with POST /rollout/batches/{id}/rows. Default: False
    open: bool


class BatchStreamRequestSourceFile(TypedDict):
    kind: Literal["file"]
    #: JSON or JSON lines below the server's `dataset_dir`; the rows are copied when the stream is created
    path: str


class BatchStreamRequestSourceGenerator(TypedDict):
    kind: Literal["generator"]
    #: the server requests `url?after=N&limit=M` when it needs rows, N being the number of rows that it has, and expects {"rows": […],
    #: "done": bool}
    url: str


class BatchStreamRequestSourceEndless(TypedDict):
    kind: Literal["endless"]


class _EnvironmentSourceEnvironmentRequired(TypedDict):
    #: name of the environment with its settings, as the rows give it
    tag: str
    #: number of groups that play it at the same time
    groups: int
    #: name of the environment
    type: str


class EnvironmentSourceEnvironment(_EnvironmentSourceEnvironmentRequired, total=False):
    #: settings of the environment, which validates them
    config: Mapping[str, Any]
    #: settings of the agent, which validates them
    options: Mapping[str, Any]
    #: text for the start of the conversation. Default: ""
    instruction: str


class _EnvironmentSourceRequired(TypedDict):
    kind: Literal["environments"]
    environments: Sequence[EnvironmentSourceEnvironment]


class EnvironmentSource(_EnvironmentSourceRequired, total=False):
    #: the seed of an episode is this seed, plus the seed of its group, plus its number, modulo 2^31. Default: 0
    seed: int
    #: number of episodes that each group plays; null: without end
    episodes: Optional[int]


class BatchStreamRequestAccept(TypedDict, total=False):
    #: least number of usable samples; null: 2, or 1 for tasks with one sample
    min_usable: Optional[int]
    #: whether groups whose rewards are all equal are handed out; null: drop for tasks with an evaluator and several samples, else keep
    zero_variance: Optional[Literal["keep", "drop"]]
    #: the same for groups whose rewards are all 0 or less; null: as zero_variance
    all_wrong: Optional[Literal["keep", "drop"]]
    #: the same for groups whose rewards are all resolved_reward or more; null: as zero_variance
    all_right: Optional[Literal["keep", "drop"]]
    #: reward from which a sample counts as resolved. Default: 1
    resolved_reward: float
    #: least number of resolved samples. Default: 0
    min_resolved: int
    #: name of one of the server's `batch_filters`, a function that decides in addition
    filter: Optional[str]


class BatchStreamRequestOrder(TypedDict, total=False):
    #: adaptive: in each epoch the rows with a mean reward near the middle between 0 and resolved_reward tend to come first. Default:
    #: "sequential"
    kind: Literal["sequential", "shuffled", "adaptive"]
    #: Default: 0
    seed: int
    #: number of passes over the rows; null: without end
    epochs: Optional[int]
    #: share of an epoch that is added as second visits of rows whose last group was all wrong. Default: 0
    replay_hard: float
    #: number of epochs for which a row is left out after a group that was all right. Default: 0
    skip_solved: int


class _BatchStreamRequestRequired(TypedDict):
    source: Union[BatchStreamRequestSourceRows, BatchStreamRequestSourceFile, BatchStreamRequestSourceGenerator, BatchStreamRequestSourceEndless, EnvironmentSource]
    #: template of the tasks: the fields of a task, in which {{row.path}} stands for a field of the row; a text that is one placeholder
    #: becomes the value itself
    task: Mapping[str, Any]


class BatchStreamRequest(_BatchStreamRequestRequired, total=False):
    #: id of the stream; generated by floe when absent
    batch_id: str
    #: evaluate: one epoch in the order of the rows, with the highest dispatch priority, a fixed sampling seed for each row, and no group
    #: rejected. Default: "train"
    purpose: Literal["train", "evaluate"]
    #: Default: 32
    batch_size: int
    #: what batch_size counts: effective groups, or the resolved samples in them. Default: "group"
    batch_unit: Literal["group", "session"]
    #: how many policy steps a group may be older than the policy that trains on it. Also bounds the groups that are sampled in advance.
    #: Default: 1
    max_staleness: int
    #: what happens to running groups when a batch is complete: keep: they continue and belong to a later batch; restart: they are
    #: cancelled, and their rows are the first of the next batch. Default: "keep"
    unfinished: Literal["keep", "restart"]
    #: how many groups may run for each group that is missing, since some will be rejected. Default: 1
    oversampling: float
    #: number of consecutive rejected groups after which a row is not sampled any more; null: no limit
    retire_after: Optional[int]
    accept: BatchStreamRequestAccept
    order: BatchStreamRequestOrder


class Place(TypedDict, total=False):
    #: machines of one rack share a switch
    rack: Optional[str]
    #: racks of one zone have a fast network
    zone: Optional[str]


class EngineSpecAdaptiveConcurrency(TypedDict, total=False):
    #: Default: 4
    min: int
    #: Default: 1024
    max: int


class EngineLimits(TypedDict, total=False):
    requests_per_minute: Optional[int]
    #: most tokens per minute, counting prompts and replies
    tokens_per_minute: Optional[int]


class _EngineSpecRequired(TypedDict):
    #: address of the server without /v1
    base_url: str


class EngineSpec(_EngineSpecRequired, total=False):
    #: id of the engine; default: derived from host, port and path of the URL
    engine_id: str
    #: Default: "vllm"
    kind: str
    #: engines of one pool serve one policy; a task selects its pool. Default: "default"
    pool: str
    #: name of the model; null selects the first model that the server lists
    model: Optional[str]
    #: key that is sent as a bearer token; never shown or logged
    api_key: Optional[str]
    #: distribution of the log-probabilities of the engine, where it cannot be measured at registration; for vLLM and SGLang, the measured
    #: one overrides this. Default: "processed"
    logprobs_mode: LogprobsMode
    #: how streaming requests are answered; auto: replies are relayed as the engine samples them; off: harnesses receive each reply as a
    #: whole. Default: "auto"
    stream: Literal["auto", "off"]
    #: most concurrent calls, further calls wait; null for no limit
    max_concurrency: Optional[int]
    #: rack and zone of the machine; nodes with engine_locality prefer_local use near engines first
    place: Place
    #: bounds of a further limit of concurrent calls, which each node adjusts to the load that the engine reports; for kinds vllm, sglang
    #: and llama_cpp; null for none
    adaptive_concurrency: Optional[EngineSpecAdaptiveConcurrency]
    #: rate limits of the provider; calls wait until they are within the limits, and the Retry-After of a 429 delays all calls
    limits: Optional[EngineLimits]
    #: tool-call parser to use where calls are parsed separately from sampling; null for the one that the server reports
    tool_parser: Optional[str]
    #: reasoning parser to use, with the same default as tool_parser
    reasoning_parser: Optional[str]
    #: for kind openai, whether token ids and log-probabilities are requested; auto: if the API returns them at registration; required:
    #: registration fails when it does not; off: never. Default: "auto"
    token_ids: Literal["auto", "required", "off"]
    #: folder on the nodes with the model's tokenizer.json and chat template; required for kind tinker and engine modules, whose servers
    #: render no messages
    tokenizer: Optional[str]


class SubmitReply(TypedDict):
    task_id: str
    status: TaskState
    session_ids: List[str]
    #: whether the task had already been submitted under this id or idempotency key
    duplicate: bool


class GroupReport(TypedDict):
    #: the `num_samples` of the task
    requested: int
    #: samples that ended with policy `train`, trainable tokens and, when the task has an evaluator, a reward
    usable: int
    #: samples that ended and count in the reward baseline
    in_baseline: int
    #: samples that ended but are not usable, by reason
    unusable: Dict[UnusableReason, int]
    #: samples that have not ended yet
    open: int
    #: samples that were added to replace unusable ones
    refilled: int
    early_stopped: bool


class OutcomePolicy(TypedDict):
    use: Literal["train", "mask", "drop"]
    #: whether the sample counts in the group's reward baseline
    in_baseline: bool


class PolicyVersions(TypedDict):
    first: Optional[str]
    last: Optional[str]


class AuditTokens(TypedDict):
    sampled: int
    trained: int
    excluded: Dict[str, int]
    #: trained tokens that were sampled under a constraint; they are part of `trained`
    constrained: int


class AuditCompletions(TypedDict):
    recorded: int
    trained: int
    excluded: Dict[str, int]


class Audit(TypedDict):
    tokens: AuditTokens
    completions: AuditCompletions
    links: Dict[LinkKind, int]
    #: number of `rerendered` links by cause
    drift: Dict[DriftClass, int]
    #: share of trained tokens whose context in the trace equals the one they were sampled in; null when no token is trained
    exact_context_share: Optional[float]
    #: images in the session's messages, each counted once; the ids of a context leave them out
    context_images: int
    #: completions in tokens mode whose messages the engine rendered because they contain images; their prompt ids are those that the engine
    #: reported
    rendered_for_images: int
    #: texts with the form of a special token, such as <|im_end|>, in the session's system, user and tool messages, each counted once;
    #: engines encode such a text as the special token itself
    context_special_tokens: int


class CallSumsTool(TypedDict):
    #: `(unknown)` for names that the request did not offer
    name: str
    calls: int
    #: calls that could not be run, because their arguments are no JSON object or the tool does not exist; for floe agents also those that
    #: failed
    failures: int
    #: sum of the times of the answered calls
    total_ms: float
    #: number of answered calls by the interval of their time, from the end of the reply to the request with the result: interval N has the
    #: times up to 2^(N/4) ms that interval N-1 does not have
    times: Dict[str, int]


class CallSums(TypedDict):
    #: dialects of the calls
    dialects: List[DialectName]
    #: kinds of the engines that sampled the replies
    engines: List[str]
    #: sum of the times that the engines took
    engine_ms: float
    #: prompts that begin with the ids of an earlier call
    spliced: int
    #: the other prompts by reason
    rendered: Dict[RenderReason, int]
    tools: List[CallSumsTool]


class SessionCost(TypedDict):
    #: tokens of the prompts of all calls, also of those that the engine had in its cache
    prompt_tokens: int
    sampled_tokens: int
    #: sum of the times that the engines took
    engine_ms: float
    #: time from the lease to the result; null without a sandbox
    sandbox_ms: Optional[float]
    #: part of the CPU time of the node's process; exact in sums over sessions, an estimate for one session
    node_cpu_ms: float
    #: trajectory, records of completions and artifacts as they were delivered
    stored_bytes: int


class SessionTiming(TypedDict):
    queued_ms: Optional[float]
    init_ms: Optional[float]
    ready_ms: Optional[float]
    running_ms: Optional[float]
    postrun_queue_ms: Optional[float]
    build_ms: Optional[float]
    eval_ms: Optional[float]
    postrun_ms: Optional[float]
    #: time from the lease to the result
    total_ms: float


class EpisodeReport(TypedDict):
    status: Literal["finished", "truncated", "failed", "timeout", "no_data"]
    #: sum of the rewards of the episode; null when the agent gave none
    score: Optional[float]
    #: score of each player, in an episode of several
    seat_scores: Dict[str, float]
    #: why the episode ended
    reason: str
    #: counts by name, such as `calls.bash` and `broken.bad_json`
    metrics: Dict[str, float]


class _AgentReportRequired(TypedDict):
    exit_code: Optional[int]
    #: number of model calls that received a reply
    turns: int
    stdout_tail: str
    stderr_tail: str
    #: none: nothing; namespaces: Linux namespaces of a user without rights on the machine; container: a container engine's container
    isolation: Literal["none", "namespaces", "container"]


class AgentReport(_AgentReportRequired, total=False):
    #: only for an agent of the harness `floe` whose episode has ended
    episode: EpisodeReport


class ArtifactsReport(TypedDict):
    #: size of the archive in bytes; 0 when there is no archive
    bytes: int
    #: which files the archive lacks and why, or why there is no archive; null when it is complete
    omitted: Optional[str]


class EgressReport(TypedDict):
    #: number of requests and tunnels that were allowed, by host
    allowed: Dict[str, int]
    #: number of requests and tunnels that were refused, by host
    refused: Dict[str, int]
    sent_bytes: int
    received_bytes: int


class SessionSummaryRuntime(TypedDict):
    #: whether an earlier session used the sandbox
    reused: bool
    #: number of sessions that used the sandbox, with this one
    uses: int


class SessionError(TypedDict):
    code: str
    message: str
    stage: Optional[str]
    details: Dict[str, Any]


class SessionSummary(TypedDict):
    session_id: str
    task_id: str
    sample_index: int
    attempt: int
    epoch: int
    status: TerminalStatus
    outcome: Outcome
    policy: OutcomePolicy
    #: reward of the sample; null when it could not be computed, which is not the same as 0
    reward: Optional[float]
    #: parts of the reward and other scores, by name; null for one that could not be computed
    reward_components: Dict[str, Optional[float]]
    reward_details: Dict[str, Any]
    #: why a post-run hook of the node dropped the sample; null when none did
    dropped: Optional[str]
    trace_count: int
    trainable_tokens: int
    completion_count: int
    #: null for a session without completions, and for one that its node did not describe
    policy_versions: Optional[PolicyVersions]
    audit: Optional[Audit]
    #: sums over the model calls and tool calls; null for a session that its node did not describe
    calls: Optional[CallSums]
    #: null for a session that its node did not describe
    cost: Optional[SessionCost]
    timing: SessionTiming
    agent: Optional[AgentReport]
    artifacts: Optional[ArtifactsReport]
    #: null for a session whose network is neither proxy nor allowlist
    egress: Optional[EgressReport]
    #: null for a task without `runtime.reuse`
    runtime: Optional[SessionSummaryRuntime]
    node_id: Optional[str]
    error: Optional[SessionError]
    #: why the sample cannot be trained on; null when it can. Set by the server when the session ends
    unusable: Optional[UnusableReason]
    metadata: Dict[str, Any]


class TaskStatus(TypedDict):
    task_id: str
    status: TaskState
    total_sessions: int
    completed_sessions: int
    group: GroupReport
    #: finished sessions, as summaries; with ?results=full, as complete SessionResults
    results: List[SessionSummary]


class TaskSummary(TypedDict):
    task_id: str
    status: TaskState
    harness: str
    created_at: str
    total_sessions: int
    #: sessions in a terminal state, whatever their outcome
    completed_sessions: int
    #: mean reward of the sessions that have one; null when none has a reward
    mean_reward: Optional[float]


class VersionSpan(TypedDict):
    version: Optional[str]
    start: int
    end: int


class ConstrainedSpan(TypedDict):
    constraint: ConstraintKind
    start: int
    end: int


class ContentPartText(TypedDict):
    type: Literal["text"]
    text: str


class ContentPartImageUrlImageUrl(TypedDict):
    url: str


class ContentPartImageUrl(TypedDict):
    type: Literal["image_url"]
    image_url: ContentPartImageUrlImageUrl


class ChatMessageSystem(TypedDict):
    role: Literal["system"]
    content: Content


class ChatMessageUser(TypedDict):
    role: Literal["user"]
    content: Content


class ToolCallFunction(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: ToolCallFunction


class _AssistantMessageRequired(TypedDict):
    role: Literal["assistant"]
    content: Optional[str]


class AssistantMessage(_AssistantMessageRequired, total=False):
    reasoning_content: str
    tool_calls: List[ToolCall]


class ChatMessageTool(TypedDict):
    role: Literal["tool"]
    tool_call_id: str
    content: Content


class _ChatToolFunctionRequired(TypedDict):
    name: str


class ChatToolFunction(_ChatToolFunctionRequired, total=False):
    description: str
    parameters: Dict[str, Any]


class ChatTool(TypedDict):
    type: Literal["function"]
    function: ChatToolFunction


class RoutedExperts(TypedDict):
    dtype: Literal["uint8", "uint16", "int32"]
    shape: List[Any]
    start: int
    data: str


class Trace(TypedDict):
    trace_id: str
    prompt_ids: List[int]
    response_ids: List[int]
    #: 1 where the policy sampled the token and it is trained in this trace, else 0
    loss_mask: List[int]
    #: log-probability of each response token; 0 where loss_mask is 0
    response_logprobs: List[float]
    #: policy versions of the response positions with loss_mask 1
    version_spans: List[VersionSpan]
    #: response positions, trained or not, that the policy sampled while a forced tool call or a response format restricted its choice
    constrained_spans: List[ConstrainedSpan]
    prompt_messages: List[ChatMessage]
    response_messages: List[ChatMessage]
    tools: List[ChatTool]
    #: experts of each token; null when the engine did not report them
    routed_experts: Optional[RoutedExperts]
    finish_reason: Optional[str]
    reward: Optional[float]
    #: ids of the completions in this trace, in order
    completion_ids: List[str]
    metadata: Dict[str, Any]


class Trajectory(TypedDict):
    status: Literal["COMPLETED", "TIMEOUT", "ERROR", "CANCELLED"]
    builder: str
    traces: List[Trace]
    #: URLs of the images in the session's messages; the keys are the references to them in these messages
    images: Dict[str, str]
    audit: Audit
    error: Optional[str]
    metadata: Dict[str, Any]


class _SessionResultRequired(TypedDict):
    session_id: str
    task_id: str
    sample_index: int
    attempt: int
    epoch: int
    status: TerminalStatus
    outcome: Outcome
    policy: OutcomePolicy
    #: reward of the sample; null when it could not be computed, which is not the same as 0
    reward: Optional[float]
    #: parts of the reward and other scores, by name; null for one that could not be computed
    reward_components: Dict[str, Optional[float]]
    reward_details: Dict[str, Any]
    #: why a post-run hook of the node dropped the sample; null when none did
    dropped: Optional[str]
    trace_count: int
    trainable_tokens: int
    completion_count: int
    #: null for a session without completions, and for one that its node did not describe
    policy_versions: Optional[PolicyVersions]
    audit: Optional[Audit]
    #: sums over the model calls and tool calls; null for a session that its node did not describe
    calls: Optional[CallSums]
    #: null for a session that its node did not describe
    cost: Optional[SessionCost]
    timing: SessionTiming
    agent: Optional[AgentReport]
    artifacts: Optional[ArtifactsReport]
    #: null for a session whose network is neither proxy nor allowlist
    egress: Optional[EgressReport]
    #: null for a task without `runtime.reuse`
    runtime: Optional[SessionSummaryRuntime]
    node_id: Optional[str]
    error: Optional[SessionError]
    #: why the sample cannot be trained on; null when it can. Set by the server when the session ends
    unusable: Optional[UnusableReason]
    metadata: Dict[str, Any]
    trajectory: Optional[Trajectory]


class SessionResult(_SessionResultRequired, total=False):
    #: position in `GET /rollout/results`; set by the server
    cursor: int


class SessionView(TypedDict):
    session_id: str
    task_id: str
    sample_index: int
    status: SessionStatus
    attempt: int
    epoch: int
    node_id: Optional[str]
    #: number of model calls that have received a reply so far
    turns: int
    sampled_tokens: int
    created_at: str
    updated_at: str
    #: summary of the result; null until the session is in a terminal state
    summary: Optional[SessionSummary]


class AttemptView(TypedDict):
    attempt: int
    epoch: int
    #: how the attempt ended; partial: its node died or lost the lease, and its records are kept but never trained on
    kind: Literal["result", "retried", "partial"]
    delivered_at: str
    summary: SessionSummary
    #: parts that can be fetched with ?attempt=
    parts: List[Literal["trajectory", "completions", "artifacts"]]


class BatchProgress(TypedDict):
    running: int
    #: accepted groups that belong to no batch yet
    ready: int
    #: groups in batches
    handed: int
    #: groups that were not effective, by reason
    rejected: Dict[str, int]
    #: accepted groups that became too old, and were started again
    expired: int
    #: groups that were cancelled while they ran, and were started again
    restarted: int
    cancelled: int
    #: rows that do not fit the template
    invalid_rows: int
    #: rows that are not sampled any more
    retired_rows: int
    #: states that the newest groups, 64 or more, were all rejected, with their reasons; null otherwise
    warning: Optional[str]


class _GroupRequired(TypedDict):
    #: id of the task
    group_id: str
    row_index: int
    epoch: int
    #: step of the policy when the group was started; null when the trainer had named none
    policy_step: Optional[int]
    #: policy steps since then
    staleness: int
    usable: int
    mean_reward: Optional[float]
    row: Dict[str, Any]


class Group(_GroupRequired, total=False):
    #: the SessionResults of the group; absent with `format`
    results: List[SessionResult]


class _BatchReplyRequired(TypedDict):
    batch_id: str
    #: number of the batch; null when there is none yet
    batch: Optional[int]
    policy_step: Optional[int]
    #: whether there will be no further batch
    done: bool
    progress: BatchProgress
    groups: List[Group]


class BatchReply(_BatchReplyRequired, total=False):
    #: with `format`: the records of the batch in the trainer's format
    records: List[Json]


class RowProblem(TypedDict):
    row_index: int
    message: str


class PushReply(TypedDict):
    #: number of rows of the stream
    row_count: int
    #: added rows that do not fit the template and are not sampled; at most 100
    invalid: List[RowProblem]


class _BatchStreamViewRequired(TypedDict):
    batch_id: str
    trainer: str
    purpose: Literal["train", "evaluate"]
    status: Literal["running", "ended"]
    #: number of the last batch that was handed out; 0 before the first
    batch: int
    #: number of the last batch that the trainer has confirmed
    acknowledged: int
    #: step of the policy version that the trainer gave last
    policy_step: Optional[int]
    epoch: int
    #: null for an endless source
    row_count: Optional[int]
    #: whether the source has no further rows
    rows_complete: bool
    #: whether there will be no further batch
    done: bool
    progress: BatchProgress
    #: tokens of handed and ready groups, divided by the tokens of all ended groups; null before the first
    useful_share: Optional[float]
    #: mean tokens of a session in handed groups, divided by the mean in all effective groups; near 1 when long groups are not
    #: disadvantaged; null before the first batch
    length_bias: Optional[float]
    #: rows that do not fit the template; at most 100
    problems: List[RowProblem]
    #: why the last request to the generator failed, or why the last row of an endless source was refused; null when it succeeded
    source_error: Optional[str]
    created_at: str


class BatchStreamView(_BatchStreamViewRequired, total=False):
    #: in the reply to a creation: whether the stream existed already
    duplicate: bool


class EngineInfoAdaptive(TypedDict):
    #: most concurrent calls at present
    limit: int
    #: number of times that the limit was lowered because the engine was overloaded
    decreases: int
    #: share of the KV cache in use
    kv_usage: Optional[float]
    #: requests that wait in the engine, of all its clients
    waiting: Optional[float]
    preemptions: Optional[float]
    #: number of readings that had no plausible value; they did not change the limit
    unreadable: int


class TemplateFactsCallEnd(TypedDict):
    #: token ids after the arguments of the last tool call of a turn, up to its close
    ids: List[int]
    #: the id among `ids` that ends every tool call; null when there is none
    each: Optional[int]


class TemplateFactsThinking(TypedDict):
    tool_results: Literal["kept", "dropped", "unknown"]
    user_message: Literal["kept", "dropped", "unknown"]


class TemplateFacts(TypedDict):
    #: token ids that close an assistant turn; an empty list when they are unknown, and then no prompt is spliced
    close_ids: List[int]
    #: how tool calls end; an empty list when they end only with the brackets of their arguments
    call_end: TemplateFactsCallEnd
    #: whether new messages render the same after the last turn alone as after the whole conversation
    tail_render: bool
    #: whether the template keeps the thinking of the last turn when tool results or a user message follow
    thinking: TemplateFactsThinking
    #: digest of tokenizer and template, the same for all engines of a pool
    fingerprint: Optional[str]


class EngineCapabilities(TypedDict):
    #: whether replies carry token ids and log-probabilities
    token_ids: bool
    #: how the engine accepts a prompt as token ids: its own generate endpoint, a field of chat completions, text completions, or not at all
    token_input: Literal["none", "generate", "input_ids", "completion"]
    #: whether replies state which weights sampled which tokens
    version_spans: bool
    pause: bool
    abort: bool
    cache_salt: bool
    #: remarks of the probe for operators, as sentences
    notes: List[str]
    template: TemplateFacts


class _EngineInfoRequired(TypedDict):
    engine_id: str
    kind: str
    base_url: str
    pool: str
    model: str
    server_version: Optional[str]
    max_model_len: Optional[int]
    #: distribution of the log-probabilities, for vLLM and SGLang as measured at registration; capabilities.notes states where it could not
    #: be measured or is not the configured one; null when the engine returns none
    logprobs_mode: Optional[LogprobsMode]
    policy_version: Optional[str]
    healthy: bool
    #: whether replies are relayed while they are sampled; turned off once a stream has lost token ids
    streaming: bool
    inflight: int
    max_concurrency: Optional[int]
    capabilities: EngineCapabilities


class EngineInfo(_EngineInfoRequired, total=False):
    #: the limit that follows the load of the engine, and the last reading of that load; absent without adaptive_concurrency
    adaptive: EngineInfoAdaptive
    #: milliseconds until the engine's rate limits admit the next call; absent when it has no limits
    held_back_ms: float


class EngineOnNode(TypedDict):
    node_id: str
    state: Literal["ready", "pending", "failed"]
    #: why the node cannot use the engine; the node retries
    problem: Optional[str]
    info: Optional[EngineInfo]


class EngineView(TypedDict):
    engine_id: str
    #: where the engine was added; node: in the configuration of the node; registered: through the API
    source: Literal["registered", "node"]
    kind: str
    base_url: str
    pool: str
    nodes: List[EngineOnNode]


class EnginesStatus(TypedDict):
    revision: int
    #: engines that no node may use, even when its own configuration names them
    removed: List[str]
    paused: Optional[PauseMode]
    #: whether calls during a pause wait or are rejected with 429 and Retry-After
    while_paused: Literal["hold", "reject"]
    policy_version: Optional[str]
    engines: List[EngineView]


class EngineProblem(TypedDict):
    node_id: str
    engine_id: str
    message: str


class EngineChange(TypedDict):
    revision: int
    #: engines that were added or removed; after any other change, all engines
    engine_ids: List[str]
    done: List[str]
    #: healthy nodes that did not apply the change within the requested wait
    pending: List[str]
    #: engines that a node cannot use; during a pause also engines that the pause does not stop, with the number of replies that are running
    #: on them
    problems: List[EngineProblem]


class RolloutStatusTasks(TypedDict):
    running: int
    completed: int
    cancelled: int


class NodeStageMetricsProcess(TypedDict):
    init_inflight: int
    ready_depth: int
    run_inflight: int
    postrun_queue_depth: int
    postrun_inflight: int
    #: starting also after the process has ended unexpectedly; stopped when it ended so often that it is not restarted
    state: Literal["running", "starting", "stopped"]
    #: number of times that the process has ended unexpectedly and lost its sessions
    ends: int
    #: why this process accepts no sessions at present; null when it accepts them
    refuses: Optional[str]


class _NodeStageMetricsRequired(TypedDict):
    init_inflight: int
    ready_depth: int
    run_inflight: int
    postrun_queue_depth: int
    postrun_inflight: int


class NodeStageMetrics(_NodeStageMetricsRequired, total=False):
    #: the processes of a node with `--processes` above 1, in their order; absent for a node of one process
    processes: List[NodeStageMetricsProcess]


class NodeInfo(TypedDict):
    node_id: str
    #: id of the process: the newest process of a node id takes over, and calls of older ones are rejected
    instance: str
    #: address of the node's machine, to decide which engines are local
    host: Optional[str]
    dispatch_policy: Literal["pipeline", "batch", "bounded_batch"]
    #: URL of the node's control listener, for operators
    gateway_url: Optional[str]
    max_init_workers: int
    ready_size: int
    max_run_workers: int
    max_postrun_workers: int
    #: memory for sessions in MiB, which the sum of the memory limits of all sessions leased to the node never exceeds; null for no limit
    memory_mb: Optional[int]
    metrics: NodeStageMetrics
    healthy: bool
    draining: bool
    #: why the node accepts no sessions at present, for instance because its disk is full; null when it accepts them
    refuses: Optional[str]
    leased_sessions: int
    #: sum of the memory limits of the leased sessions in MiB
    leased_memory_mb: int
    #: how many times a new process has taken over the node id
    takeovers: int
    registered_at: str
    last_heartbeat: str


class RolloutStatusHoldingBack(TypedDict):
    limit: str
    where: str
    count: int
    what: str


class RolloutStatusTrainer(TypedDict):
    trainer: str
    queued: int
    live: int
    uncollected_results: int
    uncollected_bytes: int
    #: why the trainer's sessions are not leased although nodes request work; null when they are leased
    held_back: Optional[str]


class RolloutStatusBatchStream(TypedDict):
    batch_id: str
    trainer: str
    purpose: Literal["train", "evaluate"]
    #: number of the last batch that was handed out; 0 before the first
    batch: int
    #: tokens of handed and ready groups, divided by the tokens of all ended groups; null before the first
    useful_share: Optional[float]
    running: int
    #: accepted groups that belong to no batch yet
    ready: int
    #: groups in batches
    handed: int
    #: groups that were not effective, by reason
    rejected: Dict[str, int]
    #: accepted groups that became too old, and were started again
    expired: int
    #: groups that were cancelled while they ran, and were started again
    restarted: int
    #: states that the newest groups, 64 or more, were all rejected, with their reasons; null otherwise
    warning: Optional[str]
    #: how many policy steps the oldest group of the last batch is older than the policy; null before the first batch
    staleness: Optional[int]
    #: sampled tokens of the groups that have ended
    ended_tokens: int


class StageMeans(TypedDict):
    samples: int
    init_ms: Optional[float]
    running_ms: Optional[float]
    #: mean time of POSTRUN, including the evaluation
    postrun_ms: Optional[float]


class RolloutStatusHint(TypedDict):
    node_id: str
    setting: str
    value: int
    suggested: int
    why: str


class RolloutStatusBottleneck(TypedDict):
    name: str
    why: str
    remedy: str


class RolloutStatus(TypedDict):
    tasks: RolloutStatusTasks
    sessions: Dict[SessionStatus, int]
    nodes: List[NodeInfo]
    undelivered_callbacks: int
    limits: Dict[str, Optional[Union[float, str, bool]]]
    #: limits because of which work waits at present
    holding_back: List[RolloutStatusHoldingBack]
    trainers: List[RolloutStatusTrainer]
    #: running batch streams, newest first; at most 50
    batch_streams: List[RolloutStatusBatchStream]
    #: counts of events since the server started, such as refused results, expired leases and retries
    counters: Dict[str, int]
    #: mean times of the results that this server process received
    stages: StageMeans
    #: stage pools that are too small to keep the RUN workers of their node busy, according to the measured means
    hints: List[RolloutStatusHint]
    #: the limit that delays the most work at present; null when no work waits
    bottleneck: Optional[RolloutStatusBottleneck]


class _BatchRequired(TypedDict):
    batch_id: str
    #: number of the batch
    batch: int
    policy_step: Optional[int]
    #: whether there will be no further batch
    done: bool
    progress: BatchProgress
    groups: List[Group]


class Batch(_BatchRequired, total=False):
    #: with `format`: the records of the batch in the trainer's format
    records: List[Json]


#: An object of JSON.
Json = Dict[str, Any]
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
RuntimeBackend = Literal["bubblewrap", "docker", "podman", "apptainer", "local", "none"]
ImageUser = Union[str, int]
PrepareAction = Union[
    PrepareActionWriteFile,
    PrepareActionUploadFile,
    PrepareActionUploadDir,
    PrepareActionPruneGitHistory,
    PrepareActionExec,
]
DialectName = Literal["anthropic", "openai_chat", "openai_responses", "gemini"]
CallRules = Literal["claude_code", "codex", "copilot_cli", "floe", "gemini_cli", "opencode", "pi", "qwen_code"]
McpServer = Union[McpServerStdio, McpServerHttp]
EngineMode = Literal["auto", "tokens", "chat"]
ThinkingRetention = Literal["template", "tool_cycle", "all"]
LogprobsMode = Literal["raw", "processed"]
TaskState = Literal["running", "completed", "cancelled"]
UnusableReason = Union[Outcome, Literal["dropped", "no_reward", "no_tokens", "corrupt_record"]]
TerminalStatus = Literal["COMPLETED", "ERROR", "TIMEOUT", "CANCELLED"]
LinkKind = Literal["exact", "rerendered", "fork", "root"]
DriftClass = Literal["retokenized", "reserialized", "reasoning_dropped", "cut", "rewritten"]
RenderReason = Literal["first", "chat_mode", "rewritten", "tools", "thinking", "template", "cut", "images"]
ConstraintKind = Literal["tool_choice", "response_format"]
ContentPart = Union[ContentPartText, ContentPartImageUrl]
Content = Union[str, List[ContentPart]]
ChatMessage = Union[ChatMessageSystem, ChatMessageUser, AssistantMessage, ChatMessageTool]
SessionStatus = Literal["QUEUED", "LEASED", "INIT", "READY", "RUNNING", "POSTRUN", "COMPLETED", "ERROR", "TIMEOUT", "CANCELLED"]
PauseMode = Literal["keep", "abort"]

import type { SessionResult, Trace } from '@floe-rl/core/schema';

/** Returns a result of a completed session with reward 1 and no trajectory, changed by `fields`. */
export function resultOf(fields: Partial<SessionResult> = {}): SessionResult {
  return {
    session_id: 'ses-1',
    task_id: 'task-1',
    sample_index: 0,
    attempt: 0,
    epoch: 1,
    status: 'COMPLETED',
    outcome: 'completed',
    policy: { use: 'train', in_baseline: true },
    reward: 1,
    reward_components: {},
    reward_details: {},
    dropped: null,
    trace_count: 1,
    trainable_tokens: 2,
    completion_count: 1,
    policy_versions: null,
    calls: null,
    cost: null,
    audit: null,
    timing: {
      queued_ms: null,
      init_ms: null,
      ready_ms: null,
      running_ms: null,
      postrun_queue_ms: null,
      build_ms: null,
      eval_ms: null,
      postrun_ms: null,
      total_ms: 1,
    },
    agent: null,
    artifacts: null,
    egress: null,
    runtime: null,
    node_id: 'node',
    error: null,
    unusable: null,
    metadata: {},
    trajectory: null,
    ...fields,
  };
}

/** Returns a trace with a prompt of two tokens and a reply of two tokens, changed by `fields`. */
export function traceOf(fields: Partial<Trace> = {}): Trace {
  return {
    trace_id: 'trace-1',
    prompt_ids: [1, 2],
    response_ids: [3, 4],
    loss_mask: [1, 1],
    response_logprobs: [-1, -1],
    version_spans: [],
    constrained_spans: [],
    prompt_messages: [{ role: 'user', content: 'Solve it.' }],
    response_messages: [{ role: 'assistant', content: 'Done.' }],
    tools: [],
    routed_experts: null,
    finish_reason: 'stop',
    reward: 1,
    completion_ids: ['c1'],
    metadata: { call_kind: 'main', auxiliary: false },
    ...fields,
  };
}

/** Returns a result with these traces, changed by `fields`. */
export function resultWith(traces: readonly Trace[], fields: Partial<SessionResult> = {}): SessionResult {
  const trajectory = {
    status: 'COMPLETED' as const,
    builder: 'prefix_merging',
    traces: [...traces],
    images: {},
    audit: {} as never,
    error: null,
    metadata: {},
  };
  return resultOf({ trajectory, ...fields });
}

import type { Outcome, SessionSummary, TaskRequest, Trajectory } from '@floe-rl/core/schema';
import { conversationOf } from './messages.ts';
import { METADATA_KEY } from './request.ts';
import type { ProrlResult } from './schema.ts';

/** The phase in which a session failed, by outcome; `null` for a sample that can be trained (`final_result` of `utils.py` at 40c1d8a). */
const CRITICAL: Readonly<Record<Outcome, ProrlResult['critical_error']>> = {
  completed: null,
  truncated_context: null,
  truncated_turns: null,
  agent_timeout: 'timeout',
  agent_error: 'run',
  env_error: 'init',
  verifier_error: 'eval',
  engine_error: 'run',
  infra_error: 'run',
  cancelled: 'timeout',
  no_completions: 'run',
};
/** Smallest reward of an instance that counts as resolved. ProRL Agent's evaluators give 1 or 0. */
const RESOLVED_REWARD = 1;

/** Returns the result of a job from its ended session. `trajectory` is `null` for a session without one. */
export function jobResult(
  task: TaskRequest,
  summary: SessionSummary,
  trajectory: Trajectory | null,
  warnings: readonly string[],
): ProrlResult {
  const { outcome, reward, reward_details: details, error } = summary;
  const { instance_id = null, trajectory_id = null } = (task.metadata[METADATA_KEY] ?? {}) as Record<string, unknown>;
  const { messages, tools } = trajectory === null ? { messages: [], tools: [] } : conversationOf(trajectory);
  const critical = CRITICAL[outcome];
  const resolved = reward !== null && reward >= RESOLVED_REWARD;
  return {
    instance_id,
    trajectory_id,
    git_patch: null,
    success: critical === null,
    finish: outcome === 'completed',
    error: critical === null ? null : (error?.message ?? `the session ended as ${outcome}`),
    messages,
    tools: [...tools],
    end_properly: outcome === 'completed',
    resolved,
    report: { ...details, resolved },
    critical_error: critical,
    filter: critical !== null,
    timing: timingOf(summary, task.timeout_seconds),
    reward,
    outcome,
    warnings: [...warnings],
  };
}

/** Returns the durations of the phases in seconds. Time in queues counts as `others`, as in ProRL Agent. */
function timingOf({ timing }: SessionSummary, timeout: number): ProrlResult['timing'] {
  const seconds = (ms: number | null): number => (ms ?? 0) / 1000;
  const init = seconds(timing.init_ms);
  const run = seconds(timing.running_ms);
  const evaluation = seconds(timing.eval_ms);
  const all = seconds(timing.queued_ms) + seconds(timing.total_ms);
  return { init, run, eval: evaluation, others: Math.max(0, all - init - run - evaluation), timeout };
}

import type { AgentReport, SessionSummary, TaskRequest } from '@floe-rl/core/schema';
import { jsonElements, jsonMembers } from '../json-members.ts';
import { withImages } from './images.ts';
import type { PolarStatus } from './schema.ts';

/** Fields of the task's metadata that Polar's builders copy into the metadata of each trajectory. */
const SCHEDULER_KEYS = ['group_id', 'policy_version', 'rollout_step'] as const;

/** The properties of a session that determine how its trajectory is shown. */
export type ShownSession = {
  readonly summary: SessionSummary;
  readonly task: TaskRequest;
  readonly status: PolarStatus;
  readonly error: string | null;
  /** Fields that are added to the metadata of the trajectory. A field replaces one of the same name. */
  readonly metadata: Readonly<Record<string, unknown>>;
};

/**
 * Returns a trajectory as JSON in Polar's form. Its traces keep the bytes that the node delivered, except for
 * images, so no token array is parsed. The traces
 * of a session that did not complete get reward 0 and the metadata `training_filter`. They also get a loss mask of zeros, unless the
 * agent's own time limit ended the session (`src/polar/gateway/node.py` at 01bc72d). `stored` is `null` for a session without a trajectory.
 */
export function polarTrajectory(stored: Buffer | null, session: ShownSession): Buffer {
  const members = stored === null ? new Map<string, Buffer>() : jsonMembers(stored);
  const referring = members.get('traces');
  const images = members.get('images');
  const traces = referring === undefined || images === undefined ? referring : withImages(referring, images);
  const shown = session.status === 'COMPLETED' || traces === undefined ? traces : filteredTraces(traces, session);
  return Buffer.concat([
    Buffer.from(
      `{"status":${JSON.stringify(session.status)},"metadata":${JSON.stringify(metadataOf(session))},"traces":`,
    ),
    shown ?? Buffer.from('[]'),
    Buffer.from(`,"error":${JSON.stringify(session.error)}}`),
  ]);
}

function metadataOf({ summary, task, metadata, error }: ShownSession): Record<string, unknown> {
  const scheduler = SCHEDULER_KEYS.filter((key) => key in task.metadata).map((key) => [key, task.metadata[key]]);
  const evaluator = task.evaluator?.strategy;
  return {
    builder: task.builder.strategy,
    record_count: summary.completion_count,
    trace_count: summary.trace_count,
    task_metadata: task.metadata,
    ...Object.fromEntries(scheduler),
    ...(summary.agent === null ? {} : { agent_result: agentResult(summary.agent, summary, error) }),
    ...(evaluator === undefined ? {} : { evaluation: evaluationOf(summary, evaluator) }),
    outcome: summary.outcome,
    ...metadata,
  };
}

function agentResult(agent: AgentReport, { outcome, error: failure }: SessionSummary, error: string | null): object {
  const hasAgentFailed = outcome === 'agent_error' || outcome === 'no_completions';
  const isTimeout = outcome === 'agent_timeout';
  return {
    status: isTimeout ? 'timeout' : hasAgentFailed ? 'failed' : 'completed',
    return_code: isTimeout ? -1 : (agent.exit_code ?? -1),
    ...(error === null ? {} : { error }),
    ...(isTimeout ? { timeout_source: timeoutSource(failure), timeout_stage: 'exec' } : {}),
  };
}

/** Returns which time limit was exceeded: the agent's own (`metadata.agent_timeout`) or the limit of the whole session. */
function timeoutSource(failure: SessionSummary['error']): 'agent' | 'session' {
  return failure?.details.budget === 'stage' ? 'agent' : 'session';
}

function evaluationOf(summary: SessionSummary, strategy: string): object {
  const { reward, reward_details: details, outcome } = summary;
  const reported = { ...details, strategy, trace_rewards: null };
  if (summary.status === 'COMPLETED') return { ...reported, outcome_reward: reward };
  const discarded = reward === null ? {} : { discarded_outcome_reward: reward };
  return { ...reported, outcome_reward: 0, ...discarded, reward_discarded: true, reward_discard_reason: outcome };
}

/**
 * Returns the traces of a session that did not complete. Only the reward, the metadata and, for untrainable traces, the loss mask are
 * replaced.
 */
function filteredTraces(traces: Buffer, session: ShownSession): Buffer {
  const { summary, status } = session;
  const isTrainable = summary.outcome === 'agent_timeout' && timeoutSource(summary.error) === 'agent';
  const reason = isTrainable ? 'agent_timeout' : status === 'TIMEOUT' ? 'session_timeout' : 'session_error';
  const shown = jsonElements(traces).map((trace) => {
    const members = jsonMembers(trace);
    const reward = JSON.parse(members.get('reward')?.toString() ?? 'null') as number | null;
    const filter = {
      masked: !isTrainable,
      reason,
      detail: session.error ?? status,
      ...(isTrainable ? { trainable: true } : {}),
      original_reward: reward,
    };
    const metadata = JSON.parse(members.get('metadata')?.toString() ?? '{}') as object;
    members.set('reward', Buffer.from('0.0'));
    members.set('metadata', Buffer.from(JSON.stringify({ ...metadata, training_filter: filter })));
    const mask = members.get('loss_mask');
    if (!isTrainable && mask !== undefined) members.set('loss_mask', zerosLike(mask));
    return [...members].map(([key, value]) => Buffer.concat([Buffer.from(`${JSON.stringify(key)}:`), value]));
  });
  return listOf(shown.map((fields) => Buffer.concat([Buffer.from('{'), joined(fields), Buffer.from('}')])));
}

/** Returns a JSON array with as many zeros as `mask`, a JSON array of digits, has elements. */
function zerosLike(mask: Buffer): Buffer {
  const zeros = Buffer.from(mask);
  for (let at = 0; at < zeros.length; at++) if (zeros[at] === 0x31) zeros[at] = 0x30;
  return zeros;
}

function listOf(elements: readonly Buffer[]): Buffer {
  return Buffer.concat([Buffer.from('['), joined(elements), Buffer.from(']')]);
}

function joined(parts: readonly Buffer[]): Buffer {
  const comma = Buffer.from(',');
  return Buffer.concat(parts.flatMap((part, index) => (index === 0 ? [part] : [comma, part])));
}

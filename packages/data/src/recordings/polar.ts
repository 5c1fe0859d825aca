import { isRecord, parseAs } from '@floe-rl/core';
import {
  type Audit,
  chatMessageSchema,
  chatToolSchema,
  type Outcome,
  type Trace,
  type Trajectory,
} from '@floe-rl/core/schema';
import { z } from 'zod';
import { type Conversation, type RecordedCall, repliesOf, tokensOf, UNKNOWN_CAPTURE } from './calls.ts';
import { foreignRecording } from './foreign.ts';
import { numbers, type Recording, type RecordingReader, type RecordingSource } from './recording.ts';

const record = z.record(z.string(), z.unknown());

/** The fields of Polar's `SessionResult` that sessions of floe have too. packages/server/src/rollout/polar/schema.ts names their source. */
const traceSchema = z.object({
  prompt_ids: numbers.default([]),
  response_ids: numbers.default([]),
  loss_mask: numbers.default([]),
  response_logprobs: numbers.nullish(),
  prompt_messages: z.array(chatMessageSchema).default([]),
  response_messages: z.array(chatMessageSchema).default([]),
  tools: z.array(chatToolSchema).nullish(),
  finish_reason: z.string().nullish(),
  reward: z.number().nullish(),
  metadata: record.default({}),
});

const sessionSchema = z.object({
  session_id: z.string(),
  task_id: z.string(),
  status: z.enum(['COMPLETED', 'ERROR', 'TIMEOUT']),
  trajectory: z
    .object({ traces: z.array(traceSchema).default([]), metadata: record.default({}), error: z.string().nullish() })
    .nullish(),
  timing: z.looseObject({}).nullish(),
  node_id: z.string().nullish(),
  error: z.string().nullish(),
  metadata: record.default({}),
});
type Session = z.output<typeof sessionSchema>;

const OUTCOMES: Readonly<Record<Session['status'], Outcome>> = {
  COMPLETED: 'completed',
  TIMEOUT: 'agent_timeout',
  ERROR: 'agent_error',
};

const LACKS: readonly string[] = [
  'the harness',
  'the time at which the session ended',
  'why it failed, beside a text',
  'policy versions',
  'an audit of the tokens',
  'times, sampling parameters and engines of the calls',
];

/** Reads results of Polar: a session, or a task with its sessions. */
export const POLAR_READER: RecordingReader = {
  format: 'polar',
  read: (value, source) => {
    const sessions = sessionsOf(value);
    return sessions?.map((session, index) => recordingOf(session, source, index)) ?? null;
  },
};

function sessionsOf(value: unknown): unknown[] | null {
  if (!isRecord(value)) return null;
  const found = Array.isArray(value.results) ? value.results : [value];
  const areSessions = found.every(
    (one) => isRecord(one) && 'status' in one && 'session_id' in one && 'trajectory' in one,
  );
  return found.length > 0 && areSessions ? found : null;
}

function recordingOf(value: unknown, source: RecordingSource, index: number): Recording {
  const session: Session = parseAs(sessionSchema, value, source.where);
  const traces = session.trajectory?.traces.map((trace, at) => traceOf(trace, `${session.session_id}.${at}`)) ?? [];
  const rewards = traces.flatMap(({ reward }) => reward ?? []);
  const seconds = (name: string): number | null => {
    const ms = session.timing?.[name];
    return typeof ms === 'number' && ms > 0 ? ms : null;
  };
  return foreignRecording({
    source,
    format: 'polar',
    lacks: LACKS,
    harness: 'unknown',
    session: session.session_id,
    task: session.task_id,
    sampleIndex: index,
    outcome: OUTCOMES[session.status],
    reward: session.status === 'COMPLETED' ? (rewards[0] ?? null) : null,
    components: {},
    details: {},
    error: session.error ?? session.trajectory?.error ?? null,
    timing: {
      queued_ms: seconds('rollout_dispatch_ms'),
      init_ms: seconds('init_ms'),
      ready_ms: seconds('ready_queue_ms'),
      running_ms: seconds('run_ms'),
      postrun_queue_ms: seconds('postrun_queue_ms'),
      postrun_ms: seconds('postrun_ms'),
      total_ms: seconds('e2e_ms') ?? 0,
    },
    metadata: session.metadata,
    trajectory: session.trajectory == null ? null : trajectoryOf(session, traces),
    conversations: traces.map((trace, at) => conversationOf(trace, at, source.modifiedMs)),
    endedMs: source.modifiedMs,
  });
}

function traceOf(trace: z.output<typeof traceSchema>, id: string): Trace {
  const replies = repliesOf(trace.response_messages).length;
  return {
    trace_id: id,
    prompt_ids: trace.prompt_ids,
    response_ids: trace.response_ids,
    loss_mask: trace.loss_mask,
    response_logprobs: trace.response_logprobs ?? [],
    version_spans: [],
    constrained_spans: [],
    prompt_messages: trace.prompt_messages,
    response_messages: trace.response_messages,
    tools: trace.tools ?? [],
    routed_experts: null,
    finish_reason: trace.finish_reason ?? null,
    reward: trace.reward ?? null,
    completion_ids: Array.from({ length: replies }, (_, index) => `${id}.${index}`),
    metadata: trace.metadata,
  };
}

function trajectoryOf({ status, trajectory }: Session, traces: Trace[]): Trajectory {
  const trained = traces.reduce((sum, { loss_mask: mask }) => sum + mask.filter((bit) => bit === 1).length, 0);
  const replies = traces.reduce((sum, { completion_ids: ids }) => sum + ids.length, 0);
  // Polar does not count sampled tokens that are not trained.
  const audit: Audit = {
    tokens: { sampled: trained, trained, excluded: {}, constrained: 0 },
    completions: { recorded: replies, trained: replies, excluded: {} },
    links: { exact: 0, rerendered: 0, fork: 0, root: traces.length },
    drift: {},
    exact_context_share: null,
    context_images: 0,
    rendered_for_images: 0,
    context_special_tokens: 0,
  };
  return {
    status,
    builder: 'polar',
    traces,
    images: {},
    audit,
    error: trajectory?.error ?? null,
    metadata: trajectory?.metadata ?? {},
  };
}

function conversationOf(trace: Trace, at: number, atMs: number): Conversation {
  const replies = repliesOf(trace.response_messages);
  const tokens = tokensOf(trace, replies.length);
  const calls = replies.map(
    ({ messages, message }, index): RecordedCall => ({
      id: trace.completion_ids[index] ?? '',
      messages: index === 0 ? [...trace.prompt_messages, ...messages] : messages,
      message,
      tokens: tokens?.[index] ?? null,
      model: 'unknown',
      usage: null,
      atMs,
      durationMs: 0,
      finishReason: (message.tool_calls ?? []).length > 0 ? 'tool_calls' : 'stop',
      link: index === 0 ? 'root' : 'exact',
      drift: null,
    }),
  );
  return {
    thread: at === 0 ? 'main' : `trace ${at}`,
    callKind: 'main',
    tools: trace.tools,
    capture: UNKNOWN_CAPTURE,
    calls,
  };
}

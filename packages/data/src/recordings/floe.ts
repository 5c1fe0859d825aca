import { FloeError, isRecord, parseAs } from '@floe-rl/core';
import {
  type CompletionRecord,
  callKindSchema,
  captureModeSchema,
  completionRecordSchema,
  driftClassSchema,
  linkKindSchema,
  logprobsModeSchema,
  type SessionSummary,
  sessionSummarySchema,
  type Trace,
  type Trajectory,
  thinkingRetentionSchema,
  traceSchema,
  trajectorySchema,
} from '@floe-rl/core/schema';
import { z } from 'zod';
import { type Conversation, recordsOf, repliesOf, tokensOf, UNKNOWN_CAPTURE } from './calls.ts';
import { timeOf } from './foreign.ts';
import { numbers, type Recording, type RecordingReader, type RecordingSource } from './recording.ts';

const WITHOUT_ORIGIN: readonly string[] = ['the harness', 'the time at which the session ended'];
const WITHOUT_CALLS: readonly string[] = [
  'calls that are in no trace',
  'times, sampling parameters and engines of the calls',
];
const WITH_CALLS: readonly string[] = ['the harness'];

/** The fields that `floe export` adds to a session and that a view needs. */
const originSchema = z.object({ harness: z.string(), agent: z.string().nullable(), ended_at: z.string() }).nullish();

const recordedTrajectorySchema = trajectorySchema.extend({
  traces: z.array(
    traceSchema.extend({
      prompt_ids: numbers,
      response_ids: numbers,
      loss_mask: numbers,
      response_logprobs: numbers,
    }),
  ),
});

const recordsSchema = z.array(
  completionRecordSchema.extend({
    response_ids: numbers,
    response_logprobs: numbers,
    prompt: completionRecordSchema.shape.prompt.extend({ ids: numbers }),
  }),
);

/** The metadata of a trace that the records of its calls need. A value that this version does not know is `undefined`. */
const traceMetadataSchema = z.object({
  thread: z.string().default('main'),
  call_kind: callKindSchema.catch('main'),
  model: z.string().default('unknown'),
  capture_mode: captureModeSchema.catch(UNKNOWN_CAPTURE.mode),
  thinking_retention: thinkingRetentionSchema.catch(UNKNOWN_CAPTURE.thinking_retention),
  logprobs_mode: logprobsModeSchema.nullable().catch(null),
  links: z.array(linkKindSchema).default([]),
  drift: z.array(driftClassSchema.nullable()).default([]),
});

/**
 * Reads floe's own results: a session as `floe results --json` or `floe trace --json` prints it, a list of sessions, a page of
 * `GET /rollout/results`, or a task with its results.
 */
export const FLOE_READER: RecordingReader = {
  format: 'floe',
  read: (value, source) => sessionsOf(value)?.map((session) => recordingOf(session, source)) ?? null,
};

/** A session in a file. `completions` is `undefined` in files that have only traces. */
type FileSession = {
  readonly summary: unknown;
  readonly trajectory: unknown;
  readonly completions: unknown;
  readonly origin?: unknown;
};

function sessionsOf(value: unknown): FileSession[] | null {
  if (Array.isArray(value)) return ofAll(value);
  if (!isRecord(value)) return null;
  if (Array.isArray(value.results)) return ofAll(value.results);
  const { session, trajectory, completions } = value;
  if (isRecord(session) && 'summary' in session) return [{ summary: session.summary, trajectory, completions }];
  return 'session_id' in value && 'outcome' in value
    ? [{ summary: value, trajectory, completions, origin: value.origin }]
    : null;
}

/** Returns the sessions in a list; `null` when an element is not a session, and for an empty list. */
function ofAll(values: readonly unknown[]): FileSession[] | null {
  const sessions = values.map((value) => (isRecord(value) ? sessionsOf(value) : null));
  return sessions.length === 0 || sessions.includes(null) ? null : sessions.flatMap((found) => found ?? []);
}

function recordingOf(session: FileSession, source: RecordingSource): Recording {
  const { where, modifiedMs } = source;
  if (session.summary === null)
    throw new FloeError('schema_violation', `${where}: the session has not ended`, { where });
  const summary: SessionSummary = parseAs(sessionSummarySchema, session.summary, where);
  const trajectory: Trajectory | null =
    session.trajectory == null ? null : parseAs(recordedTrajectorySchema, session.trajectory, where, 'trajectory');
  checkLengths(trajectory, where);
  const origin = parseAs(originSchema, session.origin, where, 'origin') ?? null;
  const harness = origin === null ? 'unknown' : origin.harness;
  const base = { source, format: 'floe', harness, summary, trajectory } as const;
  if (session.completions == null) {
    const endedMs = timeOf(origin?.ended_at) ?? modifiedMs;
    const records = recordsOf(summary.session_id, conversationsOf(trajectory, endedMs));
    return { ...base, lacks: [...(origin === null ? WITHOUT_ORIGIN : []), ...WITHOUT_CALLS], records, endedMs };
  }
  const records: CompletionRecord[] = parseAs(recordsSchema, session.completions, where, 'completions');
  const ends = records.map(({ timestamp, timings }) => Date.parse(timestamp) + timings.total_ms);
  return { ...base, lacks: WITH_CALLS, records, endedMs: ends.length === 0 ? modifiedMs : Math.max(...ends) };
}

function checkLengths(trajectory: Trajectory | null, where: string): void {
  for (const { trace_id, response_ids, loss_mask, response_logprobs } of trajectory?.traces ?? []) {
    if (loss_mask.length === response_ids.length && response_logprobs.length === response_ids.length) continue;
    const message = `${where}: trace ${trace_id} has ${response_ids.length} response_ids, ${loss_mask.length} in loss_mask and ${response_logprobs.length} response_logprobs`;
    throw new FloeError('schema_violation', message, { where, trace_id });
  }
}

/** Returns the calls of the traces. The first request of a trace has all messages of its prompt. */
function conversationsOf(trajectory: Trajectory | null, atMs: number): Conversation[] {
  return (trajectory?.traces ?? []).map((trace) => {
    const metadata = traceMetadataSchema.parse(trace.metadata);
    const { thread, call_kind: callKind, model, capture_mode: mode, logprobs_mode, thinking_retention } = metadata;
    return {
      thread,
      callKind,
      tools: trace.tools,
      capture: { ...UNKNOWN_CAPTURE, mode, logprobs_mode, thinking_retention },
      calls: callsOf(trace, metadata, model, atMs),
    };
  });
}

function callsOf(
  trace: Trace,
  { links, drift }: z.output<typeof traceMetadataSchema>,
  model: string,
  atMs: number,
): Conversation['calls'] {
  const replies = repliesOf(trace.response_messages);
  const tokens = tokensOf(trace, replies.length);
  const areNamed = trace.completion_ids.length === replies.length;
  return replies.map(({ messages, message }, index) => {
    const isLast = index === replies.length - 1;
    return {
      id: (areNamed ? trace.completion_ids[index] : undefined) ?? `${trace.trace_id}.${index}`,
      messages: index === 0 ? [...trace.prompt_messages, ...messages] : messages,
      message,
      tokens: tokens?.[index] ?? null,
      model,
      usage: null,
      atMs,
      durationMs: 0,
      finishReason: isLast ? finishReasonOf(trace) : (message.tool_calls ?? []).length > 0 ? 'tool_calls' : 'stop',
      link: links[index] ?? (index === 0 ? 'root' : 'exact'),
      drift: drift[index] ?? null,
    };
  });
}

function finishReasonOf({ finish_reason: reason }: Trace): CompletionRecord['finish_reason'] {
  return reason === 'length' || reason === 'tool_calls' || reason === 'abort' ? reason : 'stop';
}

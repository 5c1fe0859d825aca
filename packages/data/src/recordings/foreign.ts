import { createHash } from 'node:crypto';
import { NO_TIMING, sessionSummary, unusableReason } from '@floe-rl/core/protocol';
import { idSchema, type Outcome, type SessionTiming, type Trajectory } from '@floe-rl/core/schema';
import { type Conversation, recordsOf } from './calls.ts';
import type { Recording, RecordingFormat, RecordingSource } from './recording.ts';

/** The data of one session in a file of another system. */
export type ForeignSession = {
  readonly source: RecordingSource;
  readonly format: RecordingFormat;
  readonly lacks: readonly string[];
  readonly harness: string;
  /** The session's ids in the other system, which may be any texts. */
  readonly session: string;
  readonly task: string;
  readonly sampleIndex: number;
  readonly outcome: Outcome;
  readonly reward: number | null;
  readonly components: Readonly<Record<string, number | null>>;
  readonly details: Readonly<Record<string, unknown>>;
  /** Why the session failed; `null` when the file states no error. */
  readonly error: string | null;
  readonly timing: Partial<SessionTiming>;
  readonly metadata: Readonly<Record<string, unknown>>;
  readonly trajectory: Trajectory | null;
  readonly conversations: readonly Conversation[];
  readonly endedMs: number;
};

/** Maximum number of characters of an error. */
const MAX_ERROR_CHARS = 4_000;

/** Converts a session of another system to a session of floe. */
export function foreignRecording(session: ForeignSession): Recording {
  const { source, format, lacks, harness, outcome, reward, error, trajectory, endedMs } = session;
  const id = floeId(session.session);
  const traces = trajectory?.traces ?? [];
  const trained = traces.reduce((sum, { loss_mask: mask }) => sum + mask.filter((bit) => bit === 1).length, 0);
  const records = recordsOf(id, session.conversations);
  const attempt = {
    session_id: id,
    task_id: floeId(session.task),
    sample_index: session.sampleIndex,
    attempt: 1,
    epoch: 1,
  };
  const summary = sessionSummary(attempt, outcome, {
    reward,
    reward_components: { ...session.components },
    reward_details: { ...session.details },
    trace_count: traces.length,
    trainable_tokens: trained,
    completion_count: records.length,
    timing: { ...NO_TIMING, ...session.timing },
    error:
      error === null ? null : { code: outcome, message: error.slice(0, MAX_ERROR_CHARS), stage: null, details: {} },
    metadata: { ...session.metadata },
  });
  const unusable = unusableReason(summary, false);
  return { source, format, lacks, harness, summary: { ...summary, unusable }, trajectory, records, endedMs };
}

/** Returns the id of another system if floe allows it. Otherwise replaces the characters that floe does not allow, and adds a digest. */
function floeId(text: string): string {
  if (idSchema.safeParse(text).success) return text;
  const digest = createHash('sha256').update(text).digest('hex').slice(0, 12);
  const allowed = text
    .replaceAll(/[^A-Za-z0-9._-]+/g, '-')
    .replace(/^[^A-Za-z0-9]+/, '')
    .slice(0, 100);
  return allowed === '' ? digest : `${allowed}-${digest}`;
}

/** Returns the Unix time in milliseconds of an ISO time stamp; `null` for anything else. */
export function timeOf(value: unknown): number | null {
  const ms = typeof value === 'string' ? Date.parse(value) : Number.NaN;
  return Number.isNaN(ms) ? null : ms;
}

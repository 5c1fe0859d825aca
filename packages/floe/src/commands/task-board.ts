import type { SessionStatus, SessionView } from '@floe-rl/core/schema';
import { formatTable, paint, visible } from './print.ts';
import { ProgressRate } from './progress-rate.ts';

/** The stages of a session that has not ended, in order. */
export const STAGES = [
  'QUEUED',
  'LEASED',
  'INIT',
  'READY',
  'RUNNING',
  'POSTRUN',
] as const satisfies readonly SessionStatus[];

/** Width in characters of the bars. */
const BAR = 40;
/** Maximum number of running sessions that are listed, so that a large task is drawn quickly. */
const MAX_LISTED = 50;

/** The view of a running task in a terminal. */
export class TaskBoard {
  private readonly taskId: string;
  private readonly ended = new ProgressRate();
  private readonly tokens = new ProgressRate();
  private sessions: readonly SessionView[] = [];

  constructor(taskId: string) {
    this.taskId = taskId;
  }

  /** Takes the present state of the task's sessions. `atMs` is a time of a clock that never jumps. */
  update(sessions: readonly SessionView[], atMs: number): void {
    this.sessions = sessions;
    this.ended.add(atMs, sessions.filter(isEnded).length);
    this.tokens.add(
      atMs,
      sessions.reduce((sum, session) => sum + session.sampled_tokens, 0),
    );
  }

  /** Returns the lines to show. `nowMs` is Unix time. */
  lines(nowMs: number): string[] {
    const { sessions } = this;
    const ended = sessions.filter(isEnded);
    const live = sessions.filter(({ status, summary }) => summary === null && status !== 'QUEUED');
    const share = sessions.length === 0 ? 0 : ended.length / sessions.length;
    const perSecond = this.ended.perSecond();
    return [
      `${paint('bold', `task ${this.taskId}`)}  ${ended.length} of ${sessions.length} sessions ended`,
      `${bar(share)} ${Math.floor(100 * share)} %`,
      [
        `${perSecond === null ? '-' : (60 * perSecond).toFixed(1)} sessions/min`,
        `${rounded(this.tokens.perSecond())} tokens/s`,
        `remaining time ${timeText(this.ended.msUntil(sessions.length - ended.length))}`,
      ].join('   '),
      '',
      ...stageLines((stage) => sessions.filter((one) => !isEnded(one) && one.status === stage).length, sessions.length),
      endedLine(ended),
      '',
      ...runningLines(live, nowMs),
      ...errorLines(ended),
    ];
  }
}

function isEnded({ summary }: SessionView): boolean {
  return summary !== null;
}

/** Returns a line with a bar for each stage. `most` is the number of sessions that fills a bar. */
export function stageLines(countOf: (stage: (typeof STAGES)[number]) => number, most: number): string[] {
  return STAGES.map((stage) => {
    const count = countOf(stage);
    return `${stage.padEnd(8)} ${String(count).padStart(6)}  ${bar(count / Math.max(1, most), '')}`;
  });
}

function endedLine(ended: readonly SessionView[]): string {
  const counts = new Map<string, number>();
  for (const { summary } of ended) {
    const outcome = summary?.outcome ?? '';
    counts.set(outcome, (counts.get(outcome) ?? 0) + 1);
  }
  const outcomes = [...counts].map(([outcome, count]) => `${count} ${outcome}`).join(', ');
  const usable = ended.filter(({ summary }) => summary?.unusable === null).length;
  const rewards = ended.flatMap(({ summary }) => summary?.reward ?? []);
  const mean = rewards.length === 0 ? 'none' : (rewards.reduce((sum, one) => sum + one, 0) / rewards.length).toFixed(3);
  const rest = ended.length === 0 ? '' : `  ${outcomes}; ${usable} usable, mean reward ${mean}`;
  return `${'ended'.padEnd(8)} ${String(ended.length).padStart(6)}${rest}`;
}

function runningLines(live: readonly SessionView[], nowMs: number): string[] {
  if (live.length === 0) return [];
  const rows = live
    .slice(0, MAX_LISTED)
    .map((session) => [
      session.sample_index,
      session.session_id,
      session.status,
      session.attempt,
      session.node_id,
      session.turns,
      session.sampled_tokens,
      timeText(nowMs - Date.parse(session.updated_at)),
    ]);
  const header = ['sample', 'session', 'stage', 'attempt', 'node', 'turns', 'tokens', 'since'];
  const more = live.length > MAX_LISTED ? [`and ${live.length - MAX_LISTED} more`] : [];
  return [...formatTable(header, rows).split('\n'), ...more, ''];
}

/** Returns a line for each message of a failed session, with the number of sessions that have it. */
function errorLines(ended: readonly SessionView[]): string[] {
  const counts = new Map<string, number>();
  for (const { summary } of ended) {
    if (summary?.error == null) continue;
    const text = `${summary.error.code}: ${summary.error.message}`;
    counts.set(text, (counts.get(text) ?? 0) + 1);
  }
  return [...counts].map(([text, count]) => `${paint('red', `${count} ×`)} ${oneLine(text)}`);
}

/** Returns a text of another author in one line, with control characters made visible. */
function oneLine(text: string): string {
  return visible(text).replaceAll(/\s+/g, ' ').trim();
}

/** Returns a bar of `share`, between 0 and 1; `rest` fills what remains. */
function bar(share: number, rest = '░'): string {
  const full = Math.round(Math.min(1, share) * BAR);
  return paint('cyan', '█'.repeat(full)) + rest.repeat(BAR - full);
}

function rounded(rate: number | null): string {
  return rate === null ? '-' : String(Math.round(rate));
}

/** Returns a duration such as `42 s`, `7 min` or `2 h 5 min`; `unknown` for `null`. */
export function timeText(ms: number | null): string {
  if (ms === null) return 'unknown';
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 90) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

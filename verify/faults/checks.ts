// Compares what a trainer was promised with what it received, what the engine sampled and what is left on the machine.
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { sleep, systemClock } from '../../src/core/clock.ts';
import type { Outcome, SessionResult } from '../../src/schema/index.ts';
import { checkAgainstLedger, type LedgerCheckOptions, type LedgerEntry } from '../../src/sim/index.ts';
import { processesWith } from './child.ts';
import type { Trainer } from './trainer.ts';

/** Failures of the infrastructure must never have a reward. */
const WITHOUT_REWARD: readonly Outcome[] = ['infra_error', 'engine_error', 'cancelled', 'env_error', 'verifier_error'];
/** How long processes and files of ended sessions may take to disappear. */
const LEAK_WAIT_MS = 10_000;
const POLL_INTERVAL_MS = 100;
/** Token mismatches that are listed; more are counted. */
const MAX_LISTED_MISMATCHES = 20;
/** A journal keeps the segment that is written and the one before it. */
const MAX_JOURNAL_SEGMENTS = 2;

/** Each list holds one sentence for each broken promise. */
export type Findings = {
  /** Promised sessions without a result. */
  readonly lost: readonly string[];
  /** Sessions with two results. */
  readonly duplicated: readonly string[];
  /** Processes and files that ended sessions left. */
  readonly leaked: readonly string[];
  /** Every other broken promise. */
  readonly wrong: readonly string[];
};

export function checkPromises(
  trainer: Trainer,
  ledger: readonly LedgerEntry[],
  // In chat mode the weights' version is asked for separately: when that connection breaks, it stays unknown.
  { unknownVersions = 'allow' }: LedgerCheckOptions,
): Omit<Findings, 'leaked'> {
  const promised = new Set(trainer.promised());
  const lost = trainer.outstanding().map((id) => `session ${id} has no result`);
  const wrong = [...trainer.violations, ...[...trainer.results.values()].flatMap((result) => checkResult(result))];
  for (const [id, { task_id }] of trainer.results) {
    // A submission whose reply was lost is repeated, so every result, of a refilled session too, belongs to an acknowledged task.
    if (!promised.has(id) && !trainer.tasks.has(task_id)) wrong.push(`result for the unknown session ${id}`);
  }
  const verifiable = [...trainer.results.values()].filter(({ session_id }) => !trainer.undetectable.has(session_id));
  const { mismatches } = checkAgainstLedger(verifiable, ledger, 'processed', { unknownVersions });
  for (const mismatch of mismatches.slice(0, MAX_LISTED_MISMATCHES)) wrong.push(`tokens: ${JSON.stringify(mismatch)}`);
  const unlisted = mismatches.length - MAX_LISTED_MISMATCHES;
  if (unlisted > 0) wrong.push(`tokens: ${unlisted} more mismatches`);
  return { lost, duplicated: trainer.duplicates, wrong };
}

function checkResult({ session_id, status, outcome, reward, trajectory }: SessionResult): string[] {
  const wrong: string[] = [];
  if (status === 'CANCELLED' && outcome !== 'cancelled') wrong.push(`session ${session_id}: ${status} but ${outcome}`);
  if (WITHOUT_REWARD.includes(outcome) && reward !== null) {
    wrong.push(`session ${session_id}: ${outcome} with reward ${reward}`);
  }
  if (outcome === 'completed' && trajectory === null)
    wrong.push(`session ${session_id} completed without a trajectory`);
  return wrong;
}

/**
 * Processes that carry `marker` and files of sessions below `stateDirs`, as sentences. Waits for them to disappear, and returns what is
 * left after ten seconds.
 */
export async function checkLeaks(marker: string, stateDirs: readonly string[]): Promise<string[]> {
  const deadlineMs = systemClock.monotonicMs() + LEAK_WAIT_MS;
  for (;;) {
    const leaks = [...processesWith(marker).map((pid) => `process ${pid}`), ...(await filesIn(stateDirs))];
    if (leaks.length === 0 || systemClock.monotonicMs() > deadlineMs) return leaks;
    await sleep(systemClock, POLL_INTERVAL_MS);
  }
}

/** Sandboxes, sockets and attempt records of sessions, and journal segments beyond those that a journal keeps. */
async function filesIn(stateDirs: readonly string[]): Promise<string[]> {
  const files: string[] = [];
  for (const dir of stateDirs) {
    for (const part of ['sockets', 'attempts']) files.push(...(await entriesOf(join(dir, part))));
    // Each process has a folder for each back end; those of running processes stay.
    for (const backend of await entriesOf(join(dir, 'sessions'))) files.push(...(await entriesOf(backend)));
    const segments = await entriesOf(join(dir, 'journal'));
    if (segments.length > MAX_JOURNAL_SEGMENTS) files.push(`${segments.length} journal segments in ${dir}`);
  }
  return files;
}

async function entriesOf(dir: string): Promise<string[]> {
  const names = await readdir(dir).catch(() => []);
  return names.map((name) => join(dir, name));
}

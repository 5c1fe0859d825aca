// Compares the guarantees that the service gave to a trainer with the results that the trainer received, with the tokens that the engine
// sampled, and with the processes and files that remain on the machine.
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { sleep, systemClock } from '../../src/core/clock.ts';
import type { Outcome, SessionResult } from '../../src/schema/index.ts';
import { checkAgainstLedger, type LedgerCheckOptions, type LedgerEntry } from '../../src/sim/index.ts';
import { processesWith } from './child.ts';
import type { Trainer } from './trainer.ts';

/** Outcomes of infrastructure failures, whose reward must be `null`. */
const WITHOUT_REWARD: readonly Outcome[] = ['infra_error', 'engine_error', 'cancelled', 'env_error', 'verifier_error'];
/** Longest time in which processes and files of ended sessions must disappear. */
const LEAK_WAIT_MS = 10_000;
const POLL_INTERVAL_MS = 100;
/** Maximum number of token mismatches that are listed; only the number of further ones is reported. */
const MAX_LISTED_MISMATCHES = 20;
/** Maximum number of journal segments of a gateway: the segment being written and the one before it. */
const MAX_JOURNAL_SEGMENTS = 2;

/** Violated guarantees of the service, by kind. Each list holds one sentence for each violation. */
export type Findings = {
  /** Acknowledged sessions that have no result. */
  readonly lost: readonly string[];
  /** Sessions that have two results. */
  readonly duplicated: readonly string[];
  /** Processes and files that ended sessions did not remove. */
  readonly leaked: readonly string[];
  /** Violated guarantees of every other kind. */
  readonly wrong: readonly string[];
};

export function checkPromises(
  trainer: Trainer,
  ledger: readonly LedgerEntry[],
  // By default, unknown policy versions are allowed: in chat mode the version comes from a separate request, which fails when its
  // connection breaks.
  { unknownVersions = 'allow' }: LedgerCheckOptions,
): Omit<Findings, 'leaked'> {
  const promised = new Set(trainer.promised());
  const lost = trainer.outstanding().map((id) => `session ${id} has no result`);
  const wrong = [...trainer.violations, ...[...trainer.results.values()].flatMap((result) => checkResult(result))];
  for (const [id, { task_id }] of trainer.results) {
    // The trainer repeats a submission whose reply was lost. Every result, also of a session added by a refill, must therefore belong to
    // an acknowledged task.
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
 * Waits until no process carries `marker` and `stateDirs` hold no files of sessions, for at most {@link LEAK_WAIT_MS}. Returns one sentence
 * for each that remains.
 */
export async function checkLeaks(marker: string, stateDirs: readonly string[]): Promise<string[]> {
  const deadlineMs = systemClock.monotonicMs() + LEAK_WAIT_MS;
  for (;;) {
    const leaks = [...processesWith(marker).map((pid) => `process ${pid}`), ...(await filesIn(stateDirs))];
    if (leaks.length === 0 || systemClock.monotonicMs() > deadlineMs) return leaks;
    await sleep(systemClock, POLL_INTERVAL_MS);
  }
}

/**
 * Returns one sentence for each remaining sandbox, socket and attempt record of a session, and for each journal segment beyond {@link
 * MAX_JOURNAL_SEGMENTS}.
 */
async function filesIn(stateDirs: readonly string[]): Promise<string[]> {
  const files: string[] = [];
  for (const dir of stateDirs) {
    for (const part of ['sockets', 'attempts']) files.push(...(await entriesOf(join(dir, part))));
    // Each process has a folder for each runtime back end. These folders remain as long as the process runs; only their contents are
    // leaks.
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

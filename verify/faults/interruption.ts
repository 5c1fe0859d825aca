// Kills a program that can be resumed, such as `floe generate`, at random moments until it has been killed often enough.
import { type RandomSource, sleep, systemClock } from '@floe-rl/core';
import { Child } from '../runner/child.ts';
import { type CallClass, killAt } from './kill-points.ts';
import { randomIndex } from './traffic.ts';

/** A program that is killed and then started with the same command line. */
export type Resumable = {
  readonly command: readonly string[];
  readonly env: Readonly<Record<string, string>>;
};

/** How one start of a program ended. */
export type Ending = 'killed' | 'finished';

/**
 * Starts a program and kills it with SIGKILL. Without `calls`, the kill comes after a random time of up to `maxMs` milliseconds. With `calls`,
 * it comes before a random system call: one of the first `calls.count` calls of the class `calls.kind`. Returns how the program ended. Throws
 * an Error when the program fails.
 */
export async function interrupt(
  { command, env }: Resumable,
  random: RandomSource,
  maxMs: number,
  calls: { readonly kind: CallClass; readonly count: number } | null = null,
): Promise<Ending> {
  const n = calls === null ? 0 : 1 + randomIndex(random, calls.count);
  const child = new Child(calls === null ? command : killAt(command, calls.kind, n), { env });
  const limit = new AbortController();
  // A program that does not reach its system call is killed as well, so that every start takes a limited time.
  const limitMs = calls === null ? random() * maxMs : 2 * maxMs;
  const killed = sleep(systemClock, limitMs, limit.signal).then(
    () => child.kill(),
    () => {},
  );
  const { code, signal } = await child.exited;
  limit.abort();
  await killed;
  if (code === 0) return 'finished';
  if (signal === 'SIGKILL' || child.wasKilled || code === 128 + 9) return 'killed';
  throw new Error(`${command.join(' ')} failed with ${code ?? signal}: ${child.errors}`);
}

/** Runs a program to its end. Throws an Error when it fails or is killed. */
export async function runToEnd({ command, env }: Resumable): Promise<void> {
  const child = new Child(command, { env });
  const { code, signal } = await child.exited;
  if (code !== 0) throw new Error(`${command.join(' ')} failed with ${code ?? signal}: ${child.errors}`);
}

import { asFloeError, FloeError, sleep, systemClock } from '@floe-rl/core';
import type { Guard } from './guard.ts';

/** Maximum time of a case in milliseconds. */
const LIMIT_MS = 60_000;
/** Maximum growth of this process's memory in bytes by one case. */
const MAX_GROWTH_BYTES = 256 * 2 ** 20;

/** One transfer with one hazard. */
export type Case = {
  readonly backend: string;
  readonly name: string;
  /**
   * Makes the transfer. `bytes` is everything that it transferred, which must not contain the secret. `wrong` lists other violations. Rejects
   * with the error of the transfer, which must have an error code.
   */
  run(signal: AbortSignal): Promise<{ readonly bytes: Buffer; readonly wrong: readonly string[] }>;
};

/** One case, and a sentence for each guarantee that it broke. */
export type Finding = { readonly backend: string; readonly name: string; readonly seen: readonly string[] };

export async function judge(one: Case, guard: Guard): Promise<string[]> {
  const seen: string[] = [];
  const deadline = new AbortController();
  const before = process.memoryUsage().rss;
  const reason = new FloeError('internal', 'the case took too long');
  const work = one.run(deadline.signal).then(
    ({ bytes, wrong }) => [...wrong, ...(guard.isIn(bytes) ? ['the secret of the host was read'] : [])],
    (thrown: unknown) => problemOf(thrown, guard),
  );
  const cancel = new AbortController();
  const late = sleep(systemClock, LIMIT_MS, cancel.signal).then(
    () => ['it did not end in time'],
    () => [],
  );
  seen.push(...(await Promise.race([work, late])));
  cancel.abort();
  deadline.abort(reason);
  if (await guard.hasChanged()) seen.push('a file of the host was changed');
  const growth = process.memoryUsage().rss - before;
  if (growth > MAX_GROWTH_BYTES) seen.push(`the memory grew by ${Math.round(growth / 2 ** 20)} MiB`);
  return seen;
}

function problemOf(thrown: unknown, guard: Guard): string[] {
  const { code, message, details } = asFloeError(thrown, 'internal');
  const text = `${message} ${JSON.stringify(details)}`;
  return [
    ...(FloeError.is(thrown) && code !== 'internal' ? [] : [`it failed without an error code: ${text.slice(0, 400)}`]),
    ...(guard.isIn(text) ? ['the secret of the host is in the error'] : []),
  ];
}

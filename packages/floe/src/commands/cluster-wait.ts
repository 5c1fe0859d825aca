import { readFile } from 'node:fs/promises';
import { ServerList } from '@floe-rl/client';
import { type Clock, FloeError, messageOf, sleep, systemClock } from '@floe-rl/core';
import { callHttpStatus, type HttpAgent, httpAgent } from '@floe-rl/core/http';

const POLL_INTERVAL_MS = 1_000;
/** Time limit of one request to the polled URL. A URL that has not replied by then counts as not ready. */
const REQUEST_LIMITS = {
  clock: systemClock,
  limitMs: 10_000,
  late: () => new FloeError('deadline_exceeded', 'no answer within 10 s'),
};

export type WaitOptions = {
  readonly seconds: number;
  /** Id of the process that serves the polled URL. `waitFor` throws when this process has ended. */
  readonly pid?: number | undefined;
  /** File with the certificate authorities that requests to the polled URL trust. */
  readonly ca?: string | undefined;
  readonly clock: Clock;
};

/**
 * Polls a URL until it answers with a status below 300. `target` may also be a list of rollout servers, or the `file:` URL of the folder
 * that lists them. A list is ready as soon as one of its servers is. Throws `deadline_exceeded` after the time limit, and `setup_failed`
 * when the process `pid` has ended.
 */
export async function waitFor(target: string, options: WaitOptions): Promise<void> {
  const { clock, seconds, pid } = options;
  const list = target.startsWith('file:') || target.includes(',') ? new ServerList(target) : null;
  if (list === null && !URL.canParse(target)) throw new FloeError('bad_request', `${target} is not a URL`);
  const ca = options.ca === undefined ? null : await readFile(options.ca, 'utf8');
  const agent = httpAgent(ca === null ? {} : { ca });
  const deadline = clock.monotonicMs() + seconds * 1000;
  try {
    for (let last = 'no answer'; ; await sleep(clock, POLL_INTERVAL_MS)) {
      const problem = await checkTarget(list, target, agent);
      if (problem === null) return;
      last = problem;
      if (pid !== undefined && !isAlive(pid))
        throw new FloeError('setup_failed', `process ${pid} has ended before ${target} was ready`);
      if (clock.monotonicMs() >= deadline)
        throw new FloeError('deadline_exceeded', `${target} is not ready after ${seconds} s: ${last}`);
    }
  } finally {
    await agent.destroy();
  }
}

/** Checks once whether the target is ready. Resolves to `null` when it is, else to a description of the problem. */
async function checkTarget(list: ServerList | null, target: string, agent: HttpAgent): Promise<string | null> {
  if (list === null) return checkUrl(target, agent);
  let outcome = '';
  for (let tries = 0; tries < list.size; tries++) {
    try {
      const server = list.current();
      const problem = await checkUrl(`${server.origin}${server.prefix}/ready`, agent);
      if (problem === null) return null;
      outcome = problem;
      list.moveOn(server);
    } catch (error) {
      if (!FloeError.is(error) || error.code !== 'peer_unreachable') throw error;
      return error.message;
    }
  }
  return outcome;
}

async function checkUrl(url: string, agent: HttpAgent): Promise<string | null> {
  try {
    const status = await callHttpStatus(url, { method: 'GET', agent }, REQUEST_LIMITS);
    return status < 300 ? null : `${url} answered ${status}`;
  } catch (error) {
    return `${url}: ${messageOf(error)}`;
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

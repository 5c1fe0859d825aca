import { FloeError } from '@floe-rl/core';
import type { SessionStatus } from '@floe-rl/core/schema';
import type { RolloutContext } from '../context.ts';
import { type CompatibleApi, compatibleApi } from '../http/compatible-api.ts';
import { PRORL_API } from './api.ts';
import { Jobs } from './jobs.ts';
import { translateJob } from './request.ts';
import { jobResult } from './result.ts';

/**
 * Whether jobs are accepted. A new process is `ready`: it accepts jobs before the first `/start`, so that clients that repeat their
 * requests after a restart of floe lose none.
 */
type Acceptance = 'ready' | 'started' | 'stopped';

/** Creates the API of ProRL Agent's server over this service. */
export function prorlApi(context: RolloutContext): CompatibleApi {
  const jobs = new Jobs(context);
  let acceptance: Acceptance = 'ready';
  const refuseIfStopped = (): void => {
    if (acceptance === 'stopped') throw new FloeError('not_ready', 'the server is not running; call /start first');
  };
  return compatibleApi(
    PRORL_API,
    {
      prorlStart: () => {
        if (acceptance === 'started') throw new FloeError('bad_request', 'the server is already running');
        acceptance = 'started';
        return { status: 'Server started successfully' };
      },
      prorlStop: async () => {
        refuseIfStopped();
        acceptance = 'stopped';
        await jobs.cancelAll();
        return { status: 'Server stopped successfully' };
      },
      prorlStatus: async () => {
        refuseIfStopped();
        return { status: 'running', pending_jobs: jobs.pending, ...(await phaseCounts(context)) };
      },
      prorlProcess: async ({ body, disconnected }) => {
        refuseIfStopped();
        const { task, warnings } = translateJob(context.config.prorl_handlers, body);
        const ended = await jobs.run(task, body.job_id ?? null, disconnected);
        // When `/stop` has cancelled the job, the reply is the error that the server is stopped, not the job's result.
        if (ended.summary.outcome === 'cancelled') refuseIfStopped();
        return jobResult(ended.task, ended.summary, ended.trajectory, warnings);
      },
      prorlCancel: async ({ body }) => {
        refuseIfStopped();
        await jobs.cancel(body.job_id);
        return { status: `Cancel requested for job ${body.job_id}` };
      },
    },
    [''],
  );
}

/** Returns the number of sessions in each phase under ProRL Agent's names. It counts all sessions of the service. */
async function phaseCounts({ store }: RolloutContext): Promise<Record<string, number>> {
  const [queued, counts] = await store.read(async ({ sessions }) => [
    await sessions.queued(),
    await sessions.countStarted(),
  ]);
  const of = (...statuses: SessionStatus[]) => statuses.reduce((sum, status) => sum + (counts.get(status) ?? 0), 0);
  const phases = {
    init_queue: queued.reduce((sum, { sessions }) => sum + sessions, 0),
    run_queue: of('READY'),
    eval_queue: 0,
    active_init: of('LEASED', 'INIT'),
    active_run: of('RUNNING'),
    active_eval: of('POSTRUN'),
  };
  return { ...phases, total: Object.values(phases).reduce((sum, count) => sum + count, 0) };
}

import { FloeError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import { defineHandler, type HandlerDefinition, type HandlerEvaluation, type HandlerJob } from '../../loop/handler.ts';
import { episodeRequests, orderOf } from './episode-requests.ts';
import type { PythonHost } from './python-host.ts';
import type { PythonEpisode, PythonProcess } from './python-process.ts';

const aboutSchema = z.object({ data_sources: z.array(z.string().min(1)).min(1), description: z.string() });

const evaluationSchema = z.looseObject({
  score: z.number().nullable().default(null),
  status: z.enum(['finished', 'truncated', 'failed', 'timeout', 'no_data']).optional(),
  reason: z.string().optional(),
  answer: z.string().optional(),
  metrics: z.record(z.string(), z.number()).optional(),
});

/** Returns the handler of a Python class. Rejects with `setup_failed` when it cannot be imported. */
export async function pythonHandler(host: PythonHost): Promise<HandlerDefinition & { readonly name: string }> {
  const about = aboutSchema.parse((await host.process()).about);
  /** Where the stages of a job run. */
  const jobs = new WeakMap<HandlerJob, PythonEpisode>();
  const call = async (job: HandlerJob, method: string, params: object = {}): Promise<unknown> => {
    const own = jobs.get(job);
    if (own === undefined) throw new Error('the job has not begun');
    return own.call(method, params);
  };
  const exception = async (job: HandlerJob, method: string, { message }: Error): Promise<HandlerEvaluation | null> => {
    // Without a process nothing is left that the callback could free.
    const returned = await call(job, method, { message }).catch((error: unknown) => {
      if (FloeError.is(error)) return null;
      throw error;
    });
    return returned === null ? null : evaluationOf(returned, method);
  };
  return {
    ...defineHandler<null, null>({
      description: about.description || `the Python handler ${host.plugin.target}`,
      dataSources: about.data_sources,
      async init(job) {
        const process: PythonProcess = await host.process();
        jobs.set(job, process.begin(episodeRequests(job.episode), job.episode.signal));
        const { dataSource: data_source, instance } = job;
        await call(job, 'init', { data_source, instance, order: orderOf(job.episode) });
        return null;
      },
      async run(job) {
        await call(job, 'run');
        return null;
      },
      eval: async (job) => evaluationOf(await call(job, 'eval'), 'eval'),
      initException: (job, error) => exception(job, 'init_exception', error),
      runException: (job, error) => exception(job, 'run_exception', error),
      evalException: (job, error) => exception(job, 'eval_exception', error),
      async finalResult(job, result) {
        const { failedStage: failed_stage, ...rest } = result;
        const changed = await call(job, 'final_result', { result: { ...rest, failed_stage } });
        if (changed === null) return result;
        const { score } = result;
        const whole = typeof changed === 'object' ? { score, ...changed } : changed;
        return { ...result, ...evaluationOf(whole, 'final_result') };
      },
      close: (job) => jobs.get(job)?.end(),
    }),
    name: host.name,
  };
}

function evaluationOf(returned: unknown, method: string): HandlerEvaluation {
  try {
    const { score, status, reason, answer, metrics } = parseAs(evaluationSchema, returned, `what ${method} returned`);
    return {
      score,
      ...(status === undefined ? {} : { status }),
      ...(reason === undefined ? {} : { reason }),
      ...(answer === undefined ? {} : { answer }),
      ...(metrics === undefined ? {} : { metrics }),
    };
  } catch (error) {
    // What the handler returned is its defect, and not one of the task.
    throw new Error((error as Error).message, { cause: error });
  }
}

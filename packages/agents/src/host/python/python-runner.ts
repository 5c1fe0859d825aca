import { z } from 'zod';
import type { AgentDefinition, Episode } from '../../loop/episode.ts';
import { episodeResult, type JobResult, type RunnerConfig } from '../../loop/runner.ts';
import { episodeRequests, orderOf } from './episode-requests.ts';
import type { PythonHost } from './python-host.ts';

const settingsSchema: z.ZodType<RunnerConfig> = z.record(z.string(), z.unknown());

/** What `run_job` returned, as far as it has the form of a result; the values are checked with it. */
const jobSchema = z.looseObject({
  step_scores: z.array(z.number()).nullish(),
  agent_exit_reason: z.string().nullish(),
});

/** Returns the agent whose episodes are jobs of the runners of a Python class. Its settings are the configuration of the runners. */
export function pythonRunner(host: PythonHost): AgentDefinition<RunnerConfig> {
  return {
    name: host.name,
    description: `jobs of the Python runner ${host.plugin.target}`,
    settings: settingsSchema,
    async run(episode) {
      const process = await host.process();
      const own = process.begin(episodeRequests(episode as Episode), episode.signal);
      try {
        const params = { order: orderOf(episode as Episode), config: episode.settings };
        return episodeResult(jobOf(await own.call('run_job', params)), episode, 'run_job');
      } finally {
        own.end();
      }
    },
  };
}

function jobOf(returned: unknown): JobResult {
  const parsed = jobSchema.safeParse(returned);
  if (!parsed.success) return returned as JobResult;
  const { step_scores: stepScores, agent_exit_reason: reason, ...rest } = parsed.data;
  return {
    ...(rest as unknown as JobResult),
    ...(stepScores == null ? {} : { stepScores }),
    ...(reason ? { agentExitReason: reason } : {}),
  };
}

import type { AgentHost } from '@floe-rl/agents';
import { FloeError } from '@floe-rl/core';
import type { SessionSummary } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { RuntimeTools, ToolsLoss } from '../../../../sandbox/src/api/tools.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { floeHarness } from '../../../src/harnesses/floe.ts';
import { bench, ENDED_WELL, runtimeOf } from '../session-bench.ts';

const LOST = new FloeError('runtime_failed', 'the connection to the box server is lost', { box: 'lost' });
const BY_AGENT: ToolsLoss = { error: LOST, byAgent: true, wasUsed: true };

/** Runs a session of an agent that loses its tools and then rejects with `error`. */
async function sessionOf(
  loss: ToolsLoss | null,
  { error = LOST, replies = 1 }: { readonly error?: FloeError; readonly replies?: number } = {},
): Promise<SessionSummary | undefined> {
  const { attempt, deps } = bench({
    task: {
      agent: { harness: 'floe', settings: { agent: 'tool_call' } },
      evaluator: { strategy: 'fake', refresh_runtime: false },
    },
    session: { completionCount: replies },
    start: async () => ({
      ...runtimeOf(async () => ENDED_WELL, new Set()),
      openTools: async () => ({ loss }) as RuntimeTools,
    }),
  });
  const run: AgentHost['run'] = async (_, { openTools }, signal) => {
    await openTools?.(signal);
    throw error;
  };
  const harnesses = new Map([['floe', floeHarness]]);
  return (await runSession(attempt, { ...deps, harnesses, agentHost: { run } }))?.summary;
}

describe('a session that loses the tools of its sandbox', () => {
  it.each([
    ['', LOST],
    [', also when the agent hides the cause', new FloeError('plugin_failed', 'the agent has failed')],
  ])("ends by the agent's fault after a command of the agent%s", async (_what, error) => {
    expect(await sessionOf(BY_AGENT, { error })).toMatchObject({
      ...{ outcome: 'agent_error', reward: 0 },
      error: { code: 'harness_failed', message: expect.stringContaining(LOST.message), details: { box: 'lost' } },
    });
  });

  it.each<[string, ToolsLoss | null, number]>([
    ['before anything used them', { ...BY_AGENT, wasUsed: false }, 1],
    ['before the model has replied', BY_AGENT, 0],
    ['because the host has failed', { ...BY_AGENT, byAgent: false }, 1],
    ['before they were opened', null, 1],
  ])('is an infrastructure failure %s', async (_what, loss, replies) => {
    expect(await sessionOf(loss, { replies })).toMatchObject({
      ...{ outcome: 'infra_error', reward: null },
      error: { code: 'runtime_failed' },
    });
  });
});

import { join } from 'node:path';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger, parseScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type SocketServer, startSocketServer } from '../../packages/agents/test/environments/remote/socket-server.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { startTestStack, type TestStack } from './stack.ts';

const scenarios = parseScenarios(
  {
    scenarios: [
      {
        name: 'door',
        match: { contains: 'a closed door' },
        rules: [
          { when: { assistant_turns: 0 }, reply: [{ call: { tool: 'act', arguments: { message: 'knock' } } }] },
          { reply: [{ call: { tool: 'act', arguments: { message: 'open' } } }] },
        ],
      },
    ],
  },
  'the test',
);

const ACTION = { type: 'object', properties: { message: { type: 'string' } } };

let stack: TestStack;
let server: SocketServer;
/** Number of connections that the server cuts after the first action. */
let cuts = 0;

beforeAll(async () => {
  server = await startSocketServer({
    pages: { '/schema': { action: ACTION } },
    onMessage: ({ type, data }, connection) => {
      const message = (data as { readonly message?: string } | undefined)?.message;
      const observation = type === 'reset' ? { text: 'a closed door' } : { text: `you ${message}` };
      if (type === 'step' && message === 'open' && cuts > 0) {
        cuts--;
        connection.cut();
      } else if (type !== 'close') {
        const done = message === 'open';
        connection.send({ type: 'observation', data: { observation, reward: done ? 1 : 0, done } });
      }
    },
  });
  const runner = join(repositoryRoot(), 'packages', 'agents', 'test', 'host', 'plugins', 'gem-runner.js');
  const plugins = { services: { 'openenv.door': server.url }, agents: { gem_runner: runner } };
  stack = await startTestStack({
    scenarios,
    server: { plugins: ['gem_runner'] },
    node: { default_backend: 'none', plugins },
  });
});
afterAll(async () => {
  await stack.close();
  await server.close();
});

async function resultOf(task: Partial<TaskRequestInput>, service = 'door'): Promise<SessionResult> {
  const [result] = await stack.run({
    instruction: '',
    agent: { harness: 'floe', settings: { agent: 'gym' } },
    environment: { type: 'openenv', config: { service, connect_seconds: 0 }, seed: 7 },
    evaluator: { strategy: 'environment' },
    ...task,
  });
  if (result === undefined) throw new Error('the session has no result');
  return result;
}

describe('an environment at a server of another system', () => {
  it('is played through floe, with its rewards and every token as sampled', async () => {
    const result = await resultOf({ max_attempts: 1 });
    expect(result).toMatchObject({ outcome: 'completed', reward: 1, agent: { turns: 2 } });
    expect(checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed')).toMatchObject({ mismatches: [] });
    expect(server.connections).toHaveLength(1);
  });

  it('is played again, from its start and with a new connection, when the server cuts the connection', async () => {
    const before = server.connections.length;
    cuts = 1;
    const result = await resultOf({ max_attempts: 2 });
    expect(result).toMatchObject({ outcome: 'completed', reward: 1, attempt: 2 });
    const attempts = server.connections.slice(before);
    expect(attempts).toHaveLength(2);
    expect(attempts[1]?.received[0]).toEqual({ type: 'reset', data: { seed: 7 } });
  });

  it('gives no reward when the last attempt loses its connection', async () => {
    cuts = 2;
    expect(await resultOf({ max_attempts: 2 })).toMatchObject({
      outcome: 'infra_error',
      reward: null,
      error: {
        code: 'peer_unreachable',
        message: expect.stringContaining('the openenv server door ended the connection'),
      },
    });
  });

  it('is played by a runner whose configuration names it', async () => {
    const options = { type: 'openenv', config: { service: 'door', connect_seconds: 0 } };
    const agent = { harness: 'floe', settings: { agent: 'gem_runner', options } };
    expect(await resultOf({ agent, environment: null, max_attempts: 1 })).toMatchObject({
      outcome: 'completed',
      reward: 1,
    });
  });

  it('cannot be at a server that the operator has not named', async () => {
    const result = await resultOf({ max_attempts: 1 }, 'elsewhere');
    expect(result).toMatchObject({ reward: null, error: { code: 'setup_failed' } });
  });
});

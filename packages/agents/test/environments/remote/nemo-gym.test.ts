import type { AssistantMessage } from '@floe-rl/core/schema';
import { afterEach, describe, expect, it } from 'vitest';
import type { Environment } from '../../../src/environments/environment.ts';
import { findEnvironment, parseEnvironmentConfig } from '../../../src/environments/registry.ts';
import { REMOTE_ENVIRONMENTS } from '../../../src/environments/remote/registry.ts';
import { type HttpServer, startHttpServer } from './http-server.ts';

const definition = findEnvironment('nemo_gym', REMOTE_ENVIRONMENTS);
const ADD = {
  type: 'function',
  name: 'add',
  strict: true,
  description: 'Adds.',
  parameters: { type: 'object', properties: {} },
};
const ROW = {
  responses_create_params: {
    input: [
      { role: 'developer', content: 'Count.', id: 'msg_1' },
      { role: 'user', content: 'Add 2.' },
    ],
    tools: [ADD],
  },
  expected: 2,
};

let server: HttpServer | null = null;

afterEach(async () => {
  await server?.close();
  server = null;
});

async function open(answer: Parameters<typeof startHttpServer>[0], config: object = {}): Promise<Environment> {
  server = await startHttpServer(answer);
  const parsed = parseEnvironmentConfig(definition, { service: 'gym', row: ROW, connect_seconds: 0, ...config });
  const services = { 'nemo_gym.gym': `${server.url}/` };
  return definition.create(parsed, { signal: new AbortController().signal, services });
}

/** Returns a handler that answers every request with this status and text. */
function failing(status: number, text: string): Parameters<typeof startHttpServer>[0] {
  return (_, reply) => {
    reply.statusCode = status;
    return text;
  };
}

function adding(args: string): AssistantMessage {
  const call = { id: 'c1', type: 'function' as const, function: { name: 'add', arguments: args } };
  return { role: 'assistant', content: 'I add.', reasoning_content: 'hm', tool_calls: [call] };
}

const DONE: AssistantMessage = { role: 'assistant', content: 'Done.' };

describe('a world of a resources server with tools', () => {
  it('seeds a session, calls a route for each call with the newest cookie, and is graded at the end', async () => {
    let visits = 0;
    const world = await open(({ path }, reply) => {
      reply.setHeader('set-cookie', `session=s${visits++}; path=/; httponly`);
      if (path === '/verify') return { reward: 0.5, expected: 2, speed: 3, reward_components: { right: 1 } };
      return path === '/add' ? { sum: 2 } : {};
    });
    expect(await world.reset(0)).toMatchObject({
      messages: [
        { role: 'system', content: 'Count.' },
        { role: 'user', content: 'Add 2.' },
      ],
      tools: [{ function: { name: 'add', description: 'Adds.' } }],
    });
    expect(await world.step(adding('{"count": 2}'))).toMatchObject({
      messages: [{ role: 'tool', tool_call_id: 'c1', content: '{"sum":2}' }],
      reward: 0,
      terminated: false,
    });
    expect(await world.step(DONE)).toEqual({
      messages: [],
      reward: 0.5,
      terminated: true,
      truncated: false,
      metrics: { speed: 3, right: 1, invalid_actions: 0 },
    });
    expect(server?.asked.map(({ path, headers: { cookie } }) => [path, cookie])).toEqual([
      ['/seed_session', undefined],
      ['/add', 'session=s0'],
      ['/verify', 'session=s1'],
    ]);
    expect(server?.asked[0]?.body).toEqual(ROW);
    expect(server?.asked[1]?.body).toEqual({ count: 2 });
    expect(server?.asked[2]?.body).toMatchObject({
      expected: 2,
      response: {
        object: 'response',
        output: [
          { type: 'reasoning', summary: [{ text: 'hm' }] },
          { type: 'message', content: [{ type: 'output_text', text: 'I add.' }] },
          { type: 'function_call', call_id: 'c1', name: 'add', arguments: '{"count": 2}' },
          { type: 'function_call_output', call_id: 'c1', output: '{"sum":2}' },
          { type: 'message', content: [{ text: 'Done.' }] },
        ],
      },
    });
  });

  it('shows the agent what is wrong with a call, and an exception of the server or ends the episode', async () => {
    const answer: Parameters<typeof startHttpServer>[0] = ({ path, body }, reply) => {
      if (path === '/add') reply.statusCode = body.count === 1 ? 500 : 422;
      return path === '/add' ? 'count is wrong' : {};
    };
    const world = await open(answer);
    await world.reset(0);
    const wrong = await world.step(adding('{}'));
    expect(wrong).toMatchObject({ messages: [{ content: 'count is wrong' }], metrics: { invalid_actions: 1 } });
    expect(await world.step(adding('{"count": 1}'))).toMatchObject({
      messages: [{ content: 'Error: add failed with status 500: count is wrong' }],
    });
    await server?.close();
    const strict = await open(answer, { errors: 'end' });
    await strict.reset(0);
    await expect(strict.step(adding('{"count": 1}'))).rejects.toMatchObject({ code: 'plugin_failed' });
  });

  it('is graded when its steps are used up', async () => {
    const world = await open(({ path }) => (path === '/verify' ? { reward: 1 } : {}), { max_steps: 1 });
    await world.reset(0);
    expect(await world.step(adding('{}'))).toMatchObject({ reward: 1, truncated: true, terminated: false });
  });

  it.each<[string, Parameters<typeof startHttpServer>[0]]>([
    ['is unavailable', failing(503, 'later')],
    ['breaks the connection', (_, reply) => void reply.destroy()],
    ['fails', failing(500, 'oh')],
    ['gives no number', () => ({ reward: 'good' })],
    ['gives no JSON', () => '{"reward": 1'],
    ['answers too much', () => 'x'.repeat(33 * 2 ** 20)],
    ['does not answer', () => undefined],
  ])('fails, and gives no reward, when the server %s at the end', async (_, verify) => {
    const answer: Parameters<typeof startHttpServer>[0] = (asked, reply) =>
      asked.path === '/verify' ? verify(asked, reply) : {};
    const world = await open(answer, { step_seconds: 1 });
    await world.reset(0);
    await expect(world.step(DONE)).rejects.toMatchObject({ code: 'peer_unreachable' });
  });

  it('ends at a row that the server refuses, without a retry', async () => {
    const world = await open(failing(422, '{"detail": "no count"}'), {
      connect_seconds: 9,
    });
    await expect(world.reset(0)).rejects.toMatchObject({
      code: 'plugin_failed',
      message: expect.stringContaining('/seed_session was refused with status 422: {"detail": "no count"}'),
    });
    expect(server?.asked).toHaveLength(1);
  });

  it.each([['verify'], ['../admin'], ['a/b']])('refuses a tool %s, whose route is none of a tool', (name) => {
    const row = { responses_create_params: { input: 'x', tools: [{ ...ADD, name }] } };
    expect(() => parseEnvironmentConfig(definition, { service: 'gym', row })).toThrow(/tools\.0\.name/);
  });
});

describe('a world of a resources server in the form of Gymnasium', () => {
  it('plays each reply as an action', async () => {
    let steps = 0;
    const world = await open(
      ({ path }) => {
        if (path === '/reset') return { observation: 'Your hand: 12', info: {} };
        if (steps++ === 0)
          return { observation: null, reward: 0, info: { tool_outputs: [{ call_id: 'c1', output: '5' }] } };
        return { observation: null, reward: -1, terminated: true, info: {} };
      },
      { flavour: 'gymnasium' },
    );
    expect((await world.reset(0))?.messages.at(-1)).toEqual({ role: 'user', content: 'Your hand: 12' });
    expect(await world.step(adding('{}'))).toMatchObject({
      messages: [{ role: 'tool', tool_call_id: 'c1', content: '5' }],
      terminated: false,
    });
    expect(await world.step(DONE)).toMatchObject({ messages: [], reward: -1, terminated: true });
    expect(server?.asked.map(({ path }) => path)).toEqual(['/reset', '/step', '/step']);
    expect(server?.asked[2]?.body).toMatchObject({ expected: 2, response: { output: [{ type: 'message' }] } });
  });
});

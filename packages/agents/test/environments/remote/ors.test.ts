import type { AssistantMessage } from '@floe-rl/core/schema';
import { afterEach, describe, expect, it } from 'vitest';
import type { Environment } from '../../../src/environments/environment.ts';
import { findEnvironment, parseEnvironmentConfig } from '../../../src/environments/registry.ts';
import { REMOTE_ENVIRONMENTS } from '../../../src/environments/remote/registry.ts';
import { type Asked, type HttpServer, startHttpServer } from './http-server.ts';

const definition = findEnvironment('ors', REMOTE_ENVIRONMENTS);

let server: HttpServer | null = null;

afterEach(async () => {
  await server?.close();
  server = null;
});

type Call = (input: { readonly name: string; readonly input: Record<string, unknown> }) => string | undefined;

function events(...list: readonly (readonly [string, string])[]): string {
  return list.map(([event, data]) => `event: ${event}\r\ndata: ${data}\r\n\r\n`).join('');
}

function output(fields: object): string {
  const json = JSON.stringify({ ok: true, output: { blocks: [], reward: null, finished: false, ...fields } });
  const [first, second] = [json.slice(0, 20), json.slice(20)];
  return `: ping\r\n\r\n${events(['task_id', 't1'], ['chunk', first], ['end', second])}`;
}

async function open(call: Call, config: object = {}, terminal: object | null = null): Promise<Environment> {
  const pages: Record<string, (asked: Asked) => object | string | undefined> = {
    '/list_environments': () => ['maze', 'other'],
    '/maze/num_tasks': () => ({ num_tasks: 5 }),
    '/create_session': () => events(['task_id', 'sid-1'], ['end', '']),
    '/create': () => ({ sid: 'sid-1' }),
    '/maze/prompt': () => [{ type: 'text', text: 'Leave the maze.', detail: null }],
    '/maze/task_tools': () => ({
      tools: [{ name: 'go', description: 'Goes.', input_schema: { type: 'object' } }],
      terminal_tool: terminal,
    }),
    '/maze/call': ({ body }) => call(body as Parameters<Call>[0]),
    '/delete': () => ({}),
    '/delete_session': () => ({}),
  };
  server = await startHttpServer((asked, reply) => {
    const page = pages[asked.path];
    if (page === undefined) reply.statusCode = 404;
    return page === undefined ? 'no such route' : page(asked);
  });
  const parsed = parseEnvironmentConfig(definition, {
    service: 'maze',
    connect_seconds: 0,
    step_seconds: 1,
    ...config,
  });
  const services = { 'ors.maze': server.url };
  return definition.create(parsed, { signal: new AbortController().signal, services });
}

function go(input: object = {}): AssistantMessage {
  const call = { id: 'c1', type: 'function' as const, function: { name: 'go', arguments: JSON.stringify(input) } };
  return { role: 'assistant', content: null, tool_calls: [call] };
}

describe('a world of a server of the Open Reward Standard', () => {
  it('plays the task of the seed, with a reward for each call, and ends its session', async () => {
    const world = await open(({ input }) =>
      output({
        blocks: [
          { type: 'text', text: `went ${input.way}` },
          { type: 'image', data: 'R0lGOD', mimeType: 'image/gif' },
        ],
        reward: 0.25,
        finished: input.way === 'out',
      }),
    );
    expect(await world.reset(7)).toMatchObject({
      messages: [{ role: 'user', content: 'Leave the maze.' }],
      tools: [{ function: { name: 'go' } }],
    });
    expect(await world.step(go({ way: 'left' }))).toMatchObject({
      messages: [
        {
          role: 'tool',
          content: [
            { type: 'text', text: 'went left' },
            { type: 'image_url', image_url: { url: 'data:image/gif;base64,R0lGOD' } },
          ],
        },
      ],
      reward: 0.25,
      terminated: false,
    });
    expect(await world.step(go({ way: 'out' }))).toMatchObject({ reward: 0.25, terminated: true });
    await world.close();
    await world.close();
    const asked = server?.asked ?? [];
    expect(asked.find(({ path }) => path === '/create')?.body).toEqual({ env_name: 'maze', split: 'train', index: 2 });
    const after = asked.slice(asked.findIndex(({ path }) => path === '/create'));
    expect(after.map(({ headers }) => headers['x-session-id'])).toEqual(after.map(() => 'sid-1'));
    expect(after.slice(-2).map(({ path }) => path)).toEqual(['/delete', '/delete_session']);
  });

  it('takes a reply without a call for the terminal tool where there is one, and reminds of the tools elsewhere', async () => {
    const said: unknown[] = [];
    const call: Call = (asked) => {
      said.push(asked);
      return output({ blocks: [{ type: 'text', text: 'right' }], reward: 1 });
    };
    const world = await open(call, { index: 1 }, { name: 'answer', arg: 'text' });
    await world.reset(0);
    expect(await world.step({ role: 'assistant', content: '42' })).toMatchObject({
      messages: [{ role: 'user', content: 'right' }],
      reward: 1,
      terminated: true,
    });
    expect(said).toEqual([{ name: 'answer', input: { text: '42' } }]);
    await server?.close();
    const other = await open(call, { task_spec: { depth: 2 } });
    await other.reset(0);
    expect(await other.step({ role: 'assistant', content: '42' })).toMatchObject({
      messages: [{ content: 'The reply calls no tool. Call one of the tools: go.' }],
      terminated: false,
    });
  });

  it('answers a call that the server finds wrong, and ends at an exception or shows it', async () => {
    const wrong = events(['end', JSON.stringify({ ok: false, error: 'way is missing', reason: 'input_validation' })]);
    const call: Call = ({ input }) => (input.way === undefined ? wrong : events(['task_id', 't'], ['error', 'a wall']));
    const world = await open(call);
    await world.reset(0);
    expect(await world.step(go())).toMatchObject({ messages: [{ content: 'way is missing' }], reward: 0 });
    await expect(world.step(go({ way: 'up' }))).rejects.toMatchObject({ code: 'plugin_failed' });
    await server?.close();
    const lenient = await open(call, { errors: 'observe' });
    await lenient.reset(0);
    expect(await lenient.step(go({ way: 'up' }))).toMatchObject({
      messages: [{ content: 'Error: go failed: a wall' }],
    });
  });

  it.each<[string, Call]>([
    ['ends its answer early', () => events(['task_id', 't'], ['chunk', '{"ok": true'])],
    ['gives another form', () => events(['end', '{"ok": true, "output": {}}'])],
    ['does not answer', () => undefined],
  ])('fails, and gives no reward, when the server %s', async (_, call) => {
    const world = await open(call);
    await world.reset(0);
    await expect(world.step(go())).rejects.toMatchObject({ code: 'peer_unreachable' });
  });
});

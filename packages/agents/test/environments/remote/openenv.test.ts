import type { AssistantMessage } from '@floe-rl/core/schema';
import { afterEach, describe, expect, it } from 'vitest';
import type { Environment } from '../../../src/environments/environment.ts';
import { findEnvironment, parseEnvironmentConfig } from '../../../src/environments/registry.ts';
import { REMOTE_ENVIRONMENTS } from '../../../src/environments/remote/registry.ts';
import { type Connection, type SocketServer, type SocketServerOptions, startSocketServer } from './socket-server.ts';

const ACTION = {
  title: 'SayAction',
  description: 'Says something.',
  type: 'object',
  required: ['message'],
  properties: { metadata: { type: 'object' }, message: { type: 'string' }, volume: { type: 'integer' } },
};
const CALL_ACTION = {
  type: 'object',
  properties: { type: { const: 'call_tool' }, tool_name: { type: 'string' }, arguments: { type: 'object' } },
};
const PIXEL = 'iVBORw0KGgo=';

let server: SocketServer | null = null;
let environment: Environment | null = null;

afterEach(async () => {
  await environment?.close();
  await server?.close();
  environment = null;
  server = null;
});

type World = Omit<SocketServerOptions, 'pages'> & { readonly action?: object };

/** Starts a server with these messages, and returns an environment that plays at it. */
async function open({ action = ACTION, ...world }: World, config: object = {}): Promise<Environment> {
  server = await startSocketServer({ ...world, pages: { '/schema': { action } } });
  const definition = findEnvironment('openenv', REMOTE_ENVIRONMENTS);
  environment = definition.create(parseEnvironmentConfig(definition, { service: 'world', ...config }), {
    signal: new AbortController().signal,
    services: { 'openenv.world': server.url, 'openenv.world.key': 'secret' },
  });
  return environment;
}

function observed(observation: object, rest: object = {}): object {
  return { type: 'observation', data: { observation, reward: null, done: false, ...rest } };
}

function calls(...list: readonly (readonly [name: string, args: string])[]): AssistantMessage {
  const tool_calls = list.map(([name, args], index) => ({
    id: `call_${index}`,
    type: 'function' as const,
    function: { name, arguments: args },
  }));
  return { role: 'assistant', content: null, tool_calls };
}

/** Handler of a world that repeats each message of the agent, and whose episode ends with the message "bye". */
function echo(message: { readonly type: string; readonly data?: unknown }, connection: Connection): void {
  if (message.type === 'reset') connection.send(observed({ text: 'hello', metadata: { hidden: 1 } }));
  if (message.type !== 'step') return;
  const { message: said } = message.data as { readonly message: string };
  connection.send(observed({ echo: said, length: said.length }, { reward: 0.5, done: said === 'bye' }));
}

const LOST = expect.objectContaining({ code: 'peer_unreachable' });

describe('a world of an OpenEnv server', () => {
  it('is played by a tool with the fields of its actions, with the seed and the token of the operator', async () => {
    const world = await open({ onMessage: echo }, { reset: { level: 3 } });
    expect(await world.reset(7)).toMatchObject({
      messages: [{ role: 'user', content: 'hello' }],
      tools: [
        {
          function: {
            name: 'act',
            description: 'Says something.',
            parameters: { required: ['message'], properties: { message: {}, volume: {} } },
          },
        },
      ],
    });
    expect(await world.step(calls(['act', '{"message": "ho"}']))).toMatchObject({
      messages: [{ role: 'tool', tool_call_id: 'call_0', content: '{"echo":"ho","length":2}' }],
      reward: 0.5,
      terminated: false,
    });
    const [connection] = server?.connections ?? [];
    expect(connection?.headers.authorization).toBe('Bearer secret');
    expect(connection?.received).toEqual([
      { type: 'reset', data: { level: 3, seed: 7 } },
      { type: 'step', data: { message: 'ho' } },
    ]);
  });

  it('makes the calls of a reply in order until the episode ends, and sums their rewards', async () => {
    const world = await open({ onMessage: echo });
    await world.reset(0);
    const reply = calls(['act', '{"message": "a"}'], ['act', '{"message": "bye"}'], ['act', '{"message": "c"}']);
    const step = await world.step(reply);
    expect(step).toMatchObject({ reward: 1, terminated: true, truncated: false });
    expect(step.messages[2]).toMatchObject({ content: 'Not done: the episode has ended.' });
    expect(server?.connections[0]?.received).toHaveLength(3);
    expect(await world.step(reply)).toMatchObject({ reward: 0, terminated: true });
  });

  it('answers replies that are no action, and counts them', async () => {
    const world = await open({ onMessage: echo });
    await world.reset(0);
    const texts: unknown[] = [];
    for (const reply of [
      { role: 'assistant' as const, content: 'hm' },
      calls(['sing', '{}']),
      calls(['act', '{"mess']),
      calls(['act', '[1]']),
    ]) {
      const { messages, metrics } = await world.step(reply);
      texts.push(messages[0]?.content, metrics?.invalid_actions);
    }
    expect(texts).toEqual([
      ...['The reply calls no tool. Call one of the tools: act.', 1],
      ...['There is no such tool. The tools are: act.', 2],
      ...['The arguments of act are no JSON object.', 3],
      ...['The arguments of act are no JSON object.', 4],
    ]);
    expect(server?.connections[0]?.received).toHaveLength(1);
  });

  it('is played by the text of replies where the task wants that', async () => {
    const world = await open({ onMessage: echo }, { actions: 'text' });
    expect(await world.reset(0)).toMatchObject({ tools: [] });
    expect(await world.step({ role: 'assistant', content: 'bye' })).toMatchObject({
      messages: [{ role: 'user', content: '{"echo":"bye","length":3}' }],
      terminated: true,
    });
  });

  it('is played by the tools that it lists where its actions are calls of tools', async () => {
    const tool = { name: 'look', description: 'Looks.', input_schema: { type: 'object', properties: {} } };
    const world = await open({
      action: CALL_ACTION,
      onMessage: ({ type, data }, connection) => {
        const action = data as { readonly type?: string; readonly tool_name?: string };
        if (type === 'reset') connection.send(observed({}));
        if (type !== 'step') return;
        if (action.type === 'list_tools') connection.send(observed({ tools: [tool] }));
        else {
          const content = [
            { type: 'text', text: 'a door' },
            { type: 'image', data: PIXEL, mimeType: 'image/png' },
          ];
          connection.send(observed({ tool_name: action.tool_name, result: { content } }, { reward: true, done: true }));
        }
      },
    });
    expect(await world.reset(0)).toMatchObject({ messages: [], tools: [{ function: { name: 'look' } }] });
    expect(await world.step(calls(['look', '{}']))).toMatchObject({
      messages: [
        {
          content: [
            { type: 'text', text: 'a door' },
            { type: 'image_url', image_url: { url: `data:image/png;base64,${PIXEL}` } },
          ],
        },
      ],
      reward: 1,
      terminated: true,
    });
  });

  it('shows images of observations as images', async () => {
    const world = await open(
      {
        onMessage: ({ type }, connection) => {
          if (type === 'reset') connection.send(observed({ screen: PIXEL, text: 'look', debug: 1 }));
        },
      },
      { image_fields: ['screen'], observation_fields: ['screen', 'text'] },
    );
    expect((await world.reset(0))?.messages[0]?.content).toEqual([
      { type: 'text', text: 'look' },
      { type: 'image_url', image_url: { url: `data:image/png;base64,${PIXEL}` } },
    ]);
  });

  it('answers an action that does not fit, and ends the episode at an exception or shows it', async () => {
    const world: World = {
      onMessage: ({ type, data }, connection) => {
        if (type === 'reset') connection.send(observed({}));
        if (type !== 'step') return;
        const code = (data as { volume?: number }).volume === 1 ? 'EXECUTION_ERROR' : 'VALIDATION_ERROR';
        connection.send({ type: 'error', data: { message: 'broken', code, errors: ['no integer'] } });
      },
    };
    const strict = await open(world);
    await strict.reset(0);
    expect(await strict.step(calls(['act', '{"volume": "x"}']))).toMatchObject({
      messages: [{ content: 'The action is not valid: ["no integer"]' }],
      reward: 0,
    });
    await expect(strict.step(calls(['act', '{"volume": 1}']))).rejects.toMatchObject({ code: 'plugin_failed' });
    await strict.close();
    await server?.close();
    const lenient = await open(world, { errors: 'observe' });
    await lenient.reset(0);
    expect(await lenient.step(calls(['act', '{"volume": 1}']))).toMatchObject({
      messages: [{ content: 'Error: broken (EXECUTION_ERROR)' }],
    });
  });

  it('is truncated after its steps', async () => {
    const world = await open({ onMessage: echo }, { max_steps: 2 });
    await world.reset(0);
    const reply = calls(['act', '{"message": "a"}']);
    expect(await world.step(reply)).toMatchObject({ truncated: false });
    expect(await world.step(reply)).toMatchObject({ truncated: true, reward: 0.5 });
  });

  it.each<[string, (connection: Connection) => void]>([
    ['cuts the connection', (connection) => connection.cut()],
    ['does not answer in time', () => {}],
    ['answers something else than JSON', (connection) => connection.sendText('{"type": ')],
    ['answers in another form', (connection) => connection.send({ type: 'state', data: {} })],
    ['answers with bytes', (connection) => connection.sendBytes(Buffer.from('{}'))],
    ['answers too much', (connection) => connection.sendText(JSON.stringify('x'.repeat(33 * 2 ** 20)))],
  ])('fails for good when the server %s', async (_, answer) => {
    const world = await open(
      {
        onMessage: ({ type }, connection) => {
          if (type === 'reset') connection.send(observed({}));
          if (type === 'step') answer(connection);
        },
      },
      { step_seconds: 1 },
    );
    await world.reset(0);
    await expect(world.step(calls(['act', '{}']))).rejects.toEqual(LOST);
    expect(server?.connections).toHaveLength(1);
  });

  it('fails when a message arrives that nothing has asked for', async () => {
    const world = await open({ onMessage: echo });
    await world.reset(0);
    const [connection] = server?.connections ?? [];
    connection?.send(observed({ echo: 'late', length: 4 }, { reward: 1 }));
    // The environment must not take this message for the answer to the next action, which arrives later.
    await expect(
      (async () => {
        for (;;) await world.step(calls(['act', '{"message": "a"}']));
      })(),
    ).rejects.toEqual(LOST);
  });

  it('waits for a free place, and gives up after its time', async () => {
    let refusals = 0;
    const full = { type: 'error', data: { message: 'full', code: 'CAPACITY_REACHED' } };
    const world = await open({
      onOpen: (connection) => {
        if (refusals++ < 2) connection.send(full);
      },
      onMessage: echo,
    });
    expect(await world.reset(0)).toMatchObject({ messages: [{ content: 'hello' }] });
    expect(server?.connections).toHaveLength(3);
    await world.close();
    await server?.close();
    const never = await open({ onOpen: (connection) => connection.send(full) }, { connect_seconds: 0 });
    await expect(never.reset(0)).rejects.toMatchObject({
      code: 'peer_unreachable',
      message: expect.stringContaining('full (CAPACITY_REACHED)'),
    });
  });

  it('does not repeat a reset that the world itself fails', async () => {
    const world = await open({
      onMessage: (_, connection) => connection.send({ type: 'error', data: { message: 'x', code: 'EXECUTION_ERROR' } }),
    });
    await expect(world.reset(0)).rejects.toMatchObject({ code: 'plugin_failed' });
    expect(server?.connections).toHaveLength(1);
  });

  it('takes leave of the server once', async () => {
    const world = await open({ onMessage: echo });
    await world.reset(0);
    await world.close();
    await world.close();
    expect(server?.connections[0]?.received.at(-1)).toEqual({ type: 'close' });
  });

  it('rejects when the server is gone', async () => {
    const world = await open({ onMessage: echo }, { connect_seconds: 0 });
    await server?.close();
    await expect(world.reset(0)).rejects.toEqual(LOST);
  });

  it.each([
    [{}, 'the node has no plugins.services.openenv.world'],
    [{ 'openenv.world': 'file:///etc' }, 'plugins.services.openenv.world is no http URL'],
  ])('cannot be made with the services %j', (services, message) => {
    const definition = findEnvironment('openenv', REMOTE_ENVIRONMENTS);
    const config = parseEnvironmentConfig(definition, { service: 'world' });
    const { signal } = new AbortController();
    expect(() => definition.create(config, { signal, services })).toThrow(
      expect.objectContaining({ code: 'setup_failed', message: expect.stringContaining(message) }),
    );
  });
});

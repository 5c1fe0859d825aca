import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { dumpedTask } from '../../../../../verify/clients/polar-models.ts';
import { POLAR_API } from '../../../src/rollout/polar/api.ts';
import { type Running, task, Workbench } from '../workbench.ts';

let bench: Workbench;
beforeEach(async () => {
  bench = await Workbench.create();
});
afterEach(() => bench.dispose());

const TOKENS = { token: 'admin-token', tokens: [{ token: 'node-token', role: 'node' as const }] };

async function ask(
  running: Running,
  method: string,
  url: string,
  headers: Record<string, string> = {},
  body?: unknown,
) {
  const payload = body === undefined ? {} : { payload: JSON.stringify(body) };
  const reply = await running.server.app.inject({ method: method as 'GET', url, headers, ...payload });
  return { status: reply.statusCode, body: JSON.parse(reply.payload || 'null') };
}

const basic = (password: string) => ({ authorization: `Basic ${Buffer.from(`any:${password}`).toString('base64')}` });

describe('the Polar API of a server with tokens', () => {
  it('answers exactly the calls that change nothing without a token', async () => {
    const running = await bench.server({ ...TOKENS, polar: 'prefix' });
    // The event stream is left out, because its reply never ends.
    const routes = Object.entries(POLAR_API).filter(([name]) => name !== 'polarEvents');
    const answered: string[] = [];
    for (const [name, { method, path }] of routes) {
      const { status } = await ask(running, method, `/polar${path.replace(':id', 'x')}`);
      if (status !== 401) answered.push(name);
    }
    expect(answered).toEqual(routes.filter(([, { method }]) => method === 'GET').map(([name]) => name));
  });

  it('marks no result as collected when a task is polled without a token', async () => {
    const own = await bench.open();
    const running = await bench.server({ ...TOKENS, polar: 'prefix' }, own);
    const owner = { authorization: 'Bearer admin-token' };
    // The server does not listen in this test, so it delivers no callbacks and the results of the task stay uncollected.
    const fields = dumpedTask({ task_id: 'x', num_samples: 2, callback_url: 'http://127.0.0.1:9/done' });
    await ask(running, 'POST', '/polar/rollout/task/submit', owner, fields);
    // A cancellation through floe's own API keeps the callback.
    const { task_id } = (await ask(running, 'GET', '/tasks', owner)).body.tasks[0];
    await ask(running, 'DELETE', `/rollout/task/${task_id}`, owner);
    expect((await ask(running, 'GET', '/polar/rollout/task/x')).body.results).toHaveLength(2);
    const [load] = await own.store.read((tables) => tables.sessions.loads());
    expect(load?.uncollected_results).toBe(2);
  });

  it('opens none of the calls of the API of floe', async () => {
    const running = await bench.server({ ...TOKENS, polar: 'root' });
    for (const path of [
      '/floe/rollout/status',
      '/floe/tasks',
      '/rollout/results',
      '/engines',
      '/metrics',
      '/sessions/x/trajectory',
    ]) {
      expect(await ask(running, 'GET', path), path).toMatchObject({ status: 401 });
    }
  });

  it('shows no task of the API of floe without a token', async () => {
    const running = await bench.server({ ...TOKENS, polar: 'root' });
    const owner = { authorization: 'Bearer admin-token' };
    await ask(running, 'POST', '/floe/rollout/task/submit', owner, task({ task_id: 'secret' }));
    expect(await ask(running, 'GET', '/rollout/task/secret')).toMatchObject({ status: 404 });
    expect((await ask(running, 'GET', '/tasks')).body).toEqual({ tasks: [] });
    expect((await ask(running, 'GET', '/rollout/status')).body.tasks).toEqual({});
  });

  it.each([
    ['the header of Polar', { 'x-polar-control-token': 'admin-token' }],
    ['a bearer token', { authorization: 'Bearer admin-token' }],
    ['the password of a URL', basic('admin-token')],
  ])('accepts a token as %s', async (_, headers) => {
    const running = await bench.server({ ...TOKENS, polar: 'prefix' });
    const submit = (from: Record<string, string>) =>
      ask(running, 'POST', '/polar/rollout/task/submit', from, dumpedTask({ task_id: 'x' }));
    expect(await submit({ 'x-polar-control-token': 'wrong' })).toMatchObject({ status: 401 });
    expect(await submit(basic('node-token'))).toMatchObject({ status: 403 });
    expect(await submit(headers)).toMatchObject({ status: 200 });
    expect(await ask(running, 'DELETE', '/polar/rollout/task/x', headers)).toMatchObject({ status: 200 });
  });

  it('does not accept these forms of a token for the API of floe', async () => {
    const running = await bench.server({ ...TOKENS, polar: 'prefix' });
    expect(await ask(running, 'GET', '/tasks', basic('admin-token'))).toMatchObject({ status: 401 });
    expect(await ask(running, 'GET', '/tasks', { 'x-polar-control-token': 'admin-token' })).toMatchObject({
      status: 401,
    });
  });

  it('does not answer scripts of web pages without a token', async () => {
    const running = await bench.server({ ...TOKENS, polar: 'prefix' });
    for (const site of ['cross-site', 'same-site', 'same-origin']) {
      expect(await ask(running, 'GET', '/polar/tasks', { 'sec-fetch-site': site })).toMatchObject({ status: 403 });
    }
    expect(await ask(running, 'GET', '/polar/tasks', { 'sec-fetch-site': 'none' })).toMatchObject({ status: 200 });
  });
});

describe('the place of the Polar API', () => {
  it('is nowhere by default', async () => {
    const running = await bench.server();
    expect(await ask(running, 'GET', '/polar/nodes')).toMatchObject({ status: 404 });
    expect((await ask(running, 'GET', '/nodes')).body).toEqual({ nodes: [] });
  });

  it('is below /polar and at the root, and the API of floe is then below /floe', async () => {
    const running = await bench.server({ polar: 'root' });
    expect((await ask(running, 'GET', '/polar/nodes')).body).toEqual([]);
    expect((await ask(running, 'GET', '/nodes')).body).toEqual([]);
    expect((await ask(running, 'GET', '/floe/nodes')).body).toEqual({ nodes: [] });
    expect(await ask(running, 'POST', '/nodes')).toMatchObject({ status: 405 });
    // floe's nodes still register at the root path, because Polar's own nodes are not supported.
    expect(await ask(running, 'POST', '/nodes/register', {}, {})).toMatchObject({ status: 422 });
  });
});

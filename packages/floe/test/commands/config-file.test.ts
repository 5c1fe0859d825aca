import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { gatewayConfigSchema } from '@floe-rl/node';
import { silentLogger } from '@floe-rl/observe';
import { rolloutConfigSchema } from '@floe-rl/server';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { readSettings } from '../../src/commands/config-file.ts';
import { startServer } from '../../src/up/stack.ts';

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-config-'));
});
afterAll(() => rm(dir, { recursive: true }));

async function settings(text: string) {
  const config = join(dir, 'floe.yaml');
  await writeFile(config, text);
  return readSettings({ config });
}

describe('the configuration file', () => {
  it('has a section for servers and one for nodes, and defaults for absent keys', async () => {
    const { server, node } = await settings(
      'server:\n  queue_order: longest_first\n  trainer_weights: { main: 3 }\nnode: { stall_seconds: null }\n',
    );
    expect(server).toMatchObject({ queue_order: 'longest_first', trainer_weights: { main: 3 }, lease_seconds: 30 });
    expect(node).toMatchObject({ stall_seconds: null, undelivered_mb: 1024 });
  });

  it('may be absent, and then all settings have the defaults of the schemas', async () => {
    const { server, node } = await readSettings({});
    expect(rolloutConfigSchema.parse({})).toMatchObject(server);
    const required = { node_id: 'n', server_url: 'http://127.0.0.1:1', state_dir: '/s', harness_dir: '/h' };
    expect(gatewayConfigSchema.parse(required)).toMatchObject(node);
  });

  it.each([
    ['server: { queue_order: random }', 'schema_violation', 'server.queue_order'],
    ['server: { lease_seconds: -1 }', 'schema_violation', 'server.lease_seconds'],
    // The config file must not contain secrets such as `token`, or settings that have a command-line option.
    ['server: { token: secret }', 'schema_violation', 'token'],
    ['nodes: {}', 'schema_violation', 'nodes'],
    ['server: [', 'malformed_json', 'floe.yaml'],
    ['node: { prewarmed: { count: -1 } }', 'schema_violation', 'node.prewarmed.count'],
    ['node: { prewarmed: { count: all } }', 'schema_violation', 'node.prewarmed.count'],
    ['node: { prewarmed: { max_mb: 0.5 } }', 'schema_violation', 'node.prewarmed.max_mb'],
    ['node: { prewarmed: { idle_seconds: 0 } }', 'schema_violation', 'node.prewarmed.idle_seconds'],
    ['node: { prewarmed: { max_count: 1 } }', 'schema_violation', 'node.prewarmed'],
    ['node: { prewarmed: 2 }', 'schema_violation', 'node.prewarmed'],
    ['node: { background_stops: { max_count: 10001 } }', 'schema_violation', 'node.background_stops.max_count'],
    ['node: { background_stops: { max_mb: -1 } }', 'schema_violation', 'node.background_stops.max_mb'],
    ['node: { background_stops: { count: 1 } }', 'schema_violation', 'node.background_stops'],
    ['node: { reused_runtimes: { max_count: -1 } }', 'schema_violation', 'node.reused_runtimes.max_count'],
    ['node: { reused_runtimes: { max_mb: null } }', 'schema_violation', 'node.reused_runtimes.max_mb'],
    ['node: { reused_runtimes: { idle_seconds: 86401 } }', 'schema_violation', 'node.reused_runtimes.idle_seconds'],
    ['node: { reused_runtimes: { max_uses: 1 } }', 'schema_violation', 'node.reused_runtimes'],
  ])('refuses `%s` as %s', async (text, code, path) => {
    await expect(settings(text)).rejects.toMatchObject({ code, message: expect.stringContaining(path) });
  });

  it('sets the limits of a running server', async () => {
    const { server } = await settings('server: { max_uncollected_results: 7, retain_tasks_hours: 72 }');
    const running = await startServer(join(dir, 'server'), { ...server, port: 0 }, silentLogger);
    const client = new FloeClient({ url: running.url });
    expect((await client.status()).limits).toMatchObject({ max_uncollected_results: 7, retain_tasks_hours: 72 });
    await client.close();
    await running.close();
  });
});

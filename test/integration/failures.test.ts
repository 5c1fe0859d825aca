import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseJson } from '@floe-rl/core';
import { createLogger, silentLogger } from '@floe-rl/observe';
import { describe, expect, it, vi } from 'vitest';
import { startNode, startServer } from '#floe/up/stack';
import { Cgroups } from '#sandbox/processes/cgroup';
import { oneCall, startTestStack } from './stack.ts';

describe('a node', () => {
  it('ends a session whose harness is not installed with the command that installs it and a null reward', async () => {
    const stack = await startTestStack();
    try {
      const [result] = await stack.run({ instruction: 'x', max_attempts: 1, agent: { harness: 'pi' } });
      expect(result).toMatchObject({
        status: 'ERROR',
        outcome: 'infra_error',
        reward: null,
        error: { code: 'harness_missing' },
      });
      expect(result?.error?.message).toContain('floe harness install pi');
    } finally {
      await stack.close();
    }
  });

  it('does not start without its engine and releases its state directory', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'floe-no-engine-'));
    const config = {
      node_id: 'lonely',
      server_url: 'http://127.0.0.1:9',
      state_dir: join(dir, 'gateway'),
      // No file can be created in /proc, which simulates a read-only root file system.
      harness_dir: '/proc/harnesses',
      engines: [{ base_url: 'http://127.0.0.1:9' }],
    };
    try {
      await expect(startNode(config, silentLogger)).rejects.toMatchObject({ code: 'engine_unavailable' });
      expect(existsSync(join(dir, 'gateway', 'gateway.lock'))).toBe(false);
      await expect(startNode(config, silentLogger)).rejects.toMatchObject({ code: 'engine_unavailable' });
    } finally {
      await rm(dir, { recursive: true, force: true });
    }
  });

  it('rejects with engine_error when the URL is not that of an engine', async () => {
    const web = createServer((_, reply) => reply.end('<html>hello</html>'));
    await new Promise<void>((resolve) => web.listen(0, '127.0.0.1', resolve));
    const dir = await mkdtemp(join(tmpdir(), 'floe-no-engine-'));
    const base_url = `http://127.0.0.1:${(web.address() as AddressInfo).port}`;
    try {
      const config = {
        node_id: 'n',
        server_url: 'http://127.0.0.1:9',
        state_dir: dir,
        harness_dir: dir,
        engines: [{ base_url }],
      };
      await expect(startNode(config, silentLogger)).rejects.toMatchObject({ code: 'engine_error' });
    } finally {
      web.close();
      await rm(dir, { recursive: true, force: true });
    }
  });

  it('cannot start in the state directory of another node, which keeps running', async () => {
    const stack = await startTestStack();
    try {
      const second = startNode(
        {
          node_id: 'second',
          server_url: stack.serverUrl,
          state_dir: join(stack.dir, 'gateway'),
          harness_dir: stack.dir,
          engines: [{ base_url: stack.sim.url }],
        },
        silentLogger,
      );
      await expect(second).rejects.toMatchObject({ code: 'setup_failed', message: expect.stringContaining('in use') });
      const [result] = await stack.run({ instruction: 'x', agent: { harness: 'shell', custom_shell: oneCall('hi') } });
      expect(result?.outcome).toBe('completed');
    } finally {
      await stack.close();
    }
  });

  it('logs one warning at its start when the kernel does not enforce memory limits on its sandboxes', async () => {
    const find = vi.spyOn(Cgroups, 'find').mockResolvedValue(null);
    const lines: string[] = [];
    const log = createLogger('test', 'warn', { write: (line: string) => void lines.push(line) });
    const stack = await startTestStack({ node: { default_backend: 'bubblewrap' }, log });
    try {
      const warnings = lines.filter((line) => line.includes('memory_mb'));
      expect(warnings).toHaveLength(1);
      expect(parseJson(warnings[0] ?? '')).toMatchObject({
        node_id: 'test',
        msg: expect.stringContaining('only checked every 250 ms'),
        remedy: expect.stringContaining('Delegate=yes'),
      });
    } finally {
      await stack.close();
      find.mockRestore();
    }
  });

  it('refuses a session without isolation unless its operator allows such sessions', async () => {
    const stack = await startTestStack({ node: { default_backend: 'bubblewrap' } });
    try {
      const agent = { harness: 'shell', custom_shell: 'id' };
      const [result] = await stack.run({ instruction: 'x', max_attempts: 1, agent, runtime: { backend: 'local' } });
      expect(result).toMatchObject({ outcome: 'infra_error', error: { code: 'runtime_unavailable' }, agent: null });
      expect(result?.error?.message).toContain('--allow-local');
    } finally {
      await stack.close();
    }
  });

  it('returns its sessions to the queue when it shuts down, without counting the attempt', async () => {
    const stack = await startTestStack();
    try {
      const agent = { harness: 'shell', custom_shell: `[ "$FLOE_ATTEMPT" = 1 ] && sleep 600; ${oneCall('hi')}` };
      const { session_ids } = await stack.client.submit({ instruction: 'x', max_attempts: 1, agent });
      const view = () => stack.client.session(session_ids[0] as string);
      await expect.poll(async () => (await view()).status, { timeout: 90_000, interval: 20 }).toBe('RUNNING');
      await stack.node.close();
      const returned = await stack.client.session(session_ids[0] as string);
      expect(returned).toMatchObject({ status: 'QUEUED', attempt: 2, summary: null });
      const second = await startNode(
        {
          node_id: 'second',
          server_url: stack.serverUrl,
          state_dir: join(stack.dir, 'second'),
          harness_dir: stack.dir,
          engines: [{ base_url: stack.sim.url }],
          default_backend: 'local',
        },
        silentLogger,
      );
      try {
        for await (const result of stack.client.results()) {
          expect(result).toMatchObject({ outcome: 'completed', attempt: 2, node_id: 'second' });
          break;
        }
      } finally {
        await second.close();
      }
    } finally {
      await stack.close();
    }
  });

  it('refuses a second server on one embedded database', async () => {
    const stack = await startTestStack();
    try {
      await expect(startServer(join(stack.dir, 'server'), { port: 0 }, silentLogger)).rejects.toMatchObject({
        code: 'setup_failed',
        message: expect.stringContaining('in use by process'),
      });
    } finally {
      await stack.close();
    }
  });
});

describe('an engine with invalid replies', () => {
  it.each(['missing_ids', 'logprobs_length', 'usage_mismatch', 'garbage', 'error_body_200'] as const)(
    'trains no token and has a null reward with %s',
    async (kind) => {
      const stack = await startTestStack({ sim: { faults: [{ kind }] } });
      try {
        const agent = { harness: 'shell', custom_shell: `${oneCall('hi')} || exit 1` };
        const [result] = await stack.run({
          instruction: 'x',
          max_attempts: 1,
          agent,
          evaluator: { strategy: 'session_completed' },
        });
        expect(result).toMatchObject({ outcome: 'engine_error', reward: null, trainable_tokens: 0, trace_count: 0 });
      } finally {
        await stack.close();
      }
    },
  );
});

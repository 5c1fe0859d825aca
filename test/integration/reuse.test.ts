import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TaskRequestInput } from '@floe-rl/core/schema';
import { afterAll, beforeAll, expect, it } from 'vitest';
import {
  bubblewrapMissing,
  processesMentioning,
  uniqueSeconds,
} from '../../packages/sandbox/test/backends/workbench.ts';
import { describeIf } from '../skip.ts';
import { oneCall, startTestStack, type TestStack } from './stack.ts';

describeIf(await bubblewrapMissing(), 'sessions of a node', () => {
  const site = createServer((_, reply) => reply.end('from the site'));
  let stack: TestStack;
  let host: string;
  const seconds = uniqueSeconds();
  beforeAll(async () => {
    await new Promise<void>((resolve) => site.listen(0, '127.0.0.1', resolve));
    host = `127.0.0.1:${(site.address() as AddressInfo).port}`;
    stack = await startTestStack({
      node: {
        default_backend: 'bubblewrap',
        egress_hosts: [host],
        pools: { init: 1, ready: 0, run: 1, postrun: 1 },
        dispatch_policy: 'batch',
        prewarmed: { count: 1 },
      },
    });
  });
  afterAll(async () => {
    await stack.close();
    site.close();
  });

  const fetchSite = (file: string): string => `node -e '
    const proxy = new URL(process.env.http_proxy);
    require("node:http").get({ host: proxy.hostname, port: proxy.port, path: "http://${host}/" }, (reply) => {
      require("node:fs").writeFileSync("${file}", String(reply.statusCode));
      reply.resume();
    });'`;
  const task = (): TaskRequestInput => ({
    instruction: 'x',
    num_samples: 3,
    max_attempts: 1,
    agent: {
      harness: 'shell',
      // The agent fails when it finds files that another agent left.
      custom_shell: `set -e; [ ! -e left ]; [ "$(cat data)" = prepared ]; echo forged >data; touch left; ${fetchSite('site')}; ${oneCall('hi')}`,
    },
    runtime: {
      network: 'allowlist',
      allowed_hosts: [host],
      prepare: [{ type: 'exec', command: 'echo prepared >data' }],
      reuse: { services: [`exec sleep ${seconds}`], health_command: 'grep -q prepared data' },
    },
    evaluator: {
      strategy: 'test_on_output',
      refresh_runtime: false,
      config: { test_command: 'echo "PASSED site-$(cat site)"', expected_output_json: { 'site-200': 'PASSED' } },
    },
  });

  it('get sandboxes that were started in advance, with connections of their own', async () => {
    const results = await stack.run({ ...task(), runtime: { ...task().runtime, reuse: null } });
    expect(results.map(({ outcome, reward, error, runtime }) => [outcome, reward, error, runtime])).toEqual(
      results.map(() => ['completed', 1, null, null]),
    );
    for (const { egress } of results) expect(egress?.allowed).toEqual({ '127.0.0.1': 1 });
    const metrics = await (await fetch(`${stack.node.controlUrl}/metrics`)).text();
    expect(metrics).toMatch(/^floe_sandbox_prewarmed_total\{how="missing"\} [12]$/m);
    expect(metrics).toMatch(/^floe_sandbox_prewarmed_total\{how="ready"\} [12]$/m);
  });

  it('share a sandbox, have connections to the model and to allowed hosts of their own, and report how often it was used', async () => {
    const results = await stack.run(task());
    expect(results.map(({ outcome, reward, error }) => [outcome, reward, error])).toEqual(
      results.map(() => ['completed', 1, null]),
    );
    expect(results.map(({ runtime: report }) => report?.uses).toSorted()).toEqual([1, 2, 3]);
    expect(results.map(({ runtime: report }) => report?.reused).toSorted()).toEqual([false, true, true]);
    for (const { egress, completion_count } of results) {
      expect(egress?.allowed).toEqual({ '127.0.0.1': 1 });
      expect(completion_count).toBe(1);
    }
    await expect.poll(() => processesMentioning(seconds)).not.toEqual([]);
    await stack.close();
    expect(await processesMentioning(seconds)).toEqual([]);
  });
});

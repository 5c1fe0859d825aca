import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { bubblewrapMissing } from '../../packages/sandbox/test/backends/workbench.ts';
import { describeIf } from '../skip.ts';
import { oneCall, startTestStack, type TestStack } from './stack.ts';

/** Returns a shell command that requests the URL through the proxy of the environment, and writes the status into `file`. */
function fetchInto(file: string, url: string): string {
  return `node -e '
    const proxy = new URL(process.env.http_proxy);
    require("node:http").get({ host: proxy.hostname, port: proxy.port, path: "${url}" }, (reply) => {
      require("node:fs").writeFileSync("${file}", String(reply.statusCode));
      reply.resume();
    });'`;
}

describeIf(await bubblewrapMissing(), 'a session whose network is a list of hosts', () => {
  const site = createServer((_, reply) => reply.end('from the site'));
  let stack: TestStack;
  let closed: TestStack;
  let host: string;
  beforeAll(async () => {
    await new Promise<void>((resolve) => site.listen(0, '127.0.0.1', resolve));
    host = `127.0.0.1:${(site.address() as AddressInfo).port}`;
    stack = await startTestStack({ node: { default_backend: 'bubblewrap', egress_hosts: [host, 'other.test'] } });
    closed = await startTestStack({ node: { default_backend: 'bubblewrap' } });
  });
  afterAll(async () => {
    await stack.close();
    await closed.close();
    site.close();
  });

  const task = (runtime: TaskRequestInput['runtime']): TaskRequestInput => ({
    instruction: 'x',
    max_attempts: 1,
    agent: {
      harness: 'shell',
      custom_shell: `${fetchInto('allowed', `http://${host}/`)}; ${fetchInto('refused', 'http://other.test/')}; ${oneCall('hi')}`,
    },
    runtime: { prepare: [{ type: 'exec', command: fetchInto('prepared', `http://${host}/`) }], ...runtime },
    evaluator: {
      strategy: 'test_on_output',
      refresh_runtime: false,
      config: {
        test_command: `${fetchInto('graded', `http://${host}/`)}
          for file in prepared allowed refused graded; do echo "PASSED $file-$(cat $file)"; done`,
        expected_output_json: Object.fromEntries(
          ['prepared-200', 'allowed-200', 'refused-403', 'graded-200'].map((name) => [name, 'PASSED']),
        ),
      },
    },
  });

  const failureOf = (result: SessionResult | undefined): unknown => result?.error?.message ?? result?.reward_details;

  it('reaches them while it is prepared, runs and is graded, and reports what it did', async () => {
    const [result] = await stack.run(task({ network: 'allowlist', allowed_hosts: [host] }));
    expect([result?.outcome, result?.reward], JSON.stringify(failureOf(result))).toEqual(['completed', 1]);
    expect(result?.egress).toMatchObject({ allowed: { '127.0.0.1': 3 }, refused: { 'other.test': 1 } });
    expect(result?.egress?.received_bytes).toBe(3 * 'from the site'.length);
    expect(result?.completion_count).toBe(1);
  });

  it('ends as an environment error on a node that allows no hosts', async () => {
    const [result] = await closed.run(task({ network: 'proxy' }));
    expect(result).toMatchObject({ outcome: 'env_error', error: { code: 'unsupported' }, egress: null });
    expect(result?.error?.message).toContain('node.egress_hosts');
  });

  it('is refused at submission without a host', async () => {
    const message = expect.stringContaining('allowed_hosts');
    await expect(stack.run(task({ network: 'allowlist' }))).rejects.toMatchObject({
      code: 'schema_violation',
      message,
    });
    await expect(stack.run(task({ network: 'proxy', allowed_hosts: [host] }))).rejects.toMatchObject({ message });
  });
});

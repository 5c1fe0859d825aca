import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../tools/repository.ts';
import { GatewayFleet } from './gateway-process.ts';
import { processesOf } from './processes.ts';
import { oneCall, workingBackends } from './stack.ts';

describe('a gateway that is killed while code of a plug-in blocks', () => {
  let fleet: GatewayFleet;
  beforeAll(async () => {
    fleet = await GatewayFleet.open({ plugins: ['countdown'] });
  });
  afterAll(() => fleet.close());

  it('leaves a process that does not notice it, which the next gateway ends', { timeout: 240_000 }, async () => {
    const module = join(repositoryRoot(), 'packages', 'agents', 'test', 'host', 'plugins', 'countdown.js');
    const marker = `floe-test-blocked-${process.pid}`;
    const plugins = { environments: { countdown: module }, blocked_seconds: 600, env: { FLOE_MARK: marker } };
    const config = join(fleet.dir, 'floe.yaml');
    await writeFile(config, JSON.stringify({ node: { plugins } }));
    const options = { stateDir: 'gateway', args: ['--config', config] };
    const first = await fleet.start('first', 'local', options);
    await fleet.client.submit({
      instruction: '',
      agent: { harness: 'floe', settings: { agent: 'gym' } },
      environment: { type: 'countdown', config: { fail: 'block' } },
      runtime: { backend: 'none' },
    });
    const cpuTicks = (): number => Math.max(0, ...processesOf(marker).map(cpuTicksOf));
    await expect.poll(() => processesOf(marker).length, { timeout: 90_000, interval: 20 }).toBe(1);
    // A process that loads modules uses less than a second. A process that blocks uses a processor as long as it lives.
    await expect.poll(cpuTicks, { timeout: 90_000, interval: 50 }).toBeGreaterThan(300);

    await first.end('SIGKILL');
    const [blocked] = processesOf(marker);
    expect(blocked).toBeDefined();
    await fleet.start('second', 'local', options);
    expect(processesOf(marker)).not.toContain(blocked);
  });
});

/** Returns the processor time of a process in clock ticks; 0 when the process has ended. */
function cpuTicksOf(pid: number): number {
  try {
    const [, fields = ''] = /\) (.*)/s.exec(readFileSync(`/proc/${pid}/stat`, 'latin1')) ?? [];
    return Number(fields.split(' ')[11]);
  } catch {
    return 0;
  }
}

describe.each(await workingBackends())('a gateway with %s sandboxes that is killed', (backend) => {
  let fleet: GatewayFleet;
  beforeAll(async () => {
    fleet = await GatewayFleet.open({ lease_seconds: 1.5 });
  });
  afterAll(() => fleet.close());

  it('leaves no process of the sandbox, and the next gateway completes the session', { timeout: 240_000 }, async () => {
    const marker = `floe-test-kill-${backend}`;
    const first = await fleet.start('first', backend, { stateDir: 'gateway' });
    // The agent of the first attempt hangs after its model call. The agents of later attempts exit after the call.
    const script = `${oneCall('hello')}; [ "$FLOE_ATTEMPT" = 1 ] && FLOE_MARK=${marker} setsid sleep 600; true`;
    const { session_ids } = await fleet.client.submit({
      instruction: 'Wait.',
      agent: { harness: 'shell', custom_shell: script },
      evaluator: { strategy: 'session_completed' },
    });
    const session = session_ids[0] as string;
    const view = () => fleet.client.session(session);
    await expect.poll(async () => (await view()).turns, { timeout: 90_000, interval: 20 }).toBe(1);
    await expect.poll(() => processesOf(marker).length, { timeout: 90_000, interval: 20 }).toBeGreaterThan(0);

    await first.end('SIGKILL');
    await expect.poll(() => processesOf(marker), { timeout: 90_000, interval: 20 }).toEqual([]);

    await fleet.start('second', backend, { stateDir: 'gateway' });
    expect(await fleet.resultOf(session)).toMatchObject({
      outcome: 'completed',
      reward: 1,
      attempt: 2,
      node_id: 'second',
    });
  });
});

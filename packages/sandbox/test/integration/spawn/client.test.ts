import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { getPriority } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { isAlive, readProcess } from '../../../src/processes/process-table.ts';
import { CappedOutput } from '../../../src/spawn/capped-output.ts';
import { createSpawner } from '../../../src/spawn/client.ts';
import type { Spawner } from '../../../src/spawn/spawner.ts';
import { processesMentioning, uniqueSeconds } from '../../backends/workbench.ts';

const PATH = '/usr/local/bin:/usr/bin:/bin';
const maxOutputBytes = 10_000;
/** The compiled client, which the tests import in gateway processes of their own. */
const BUILT_CLIENT = join(import.meta.dirname, '..', '..', '..', 'dist', 'spawn', 'client.js');

describe('the spawner', () => {
  let spawner: Spawner;
  beforeAll(async () => {
    spawner = await createSpawner();
  });
  afterAll(() => spawner.close());
  const sh = (script: string, more: object = {}) =>
    spawner.spawn({ argv: ['sh', '-c', script], env: { PATH }, maxOutputBytes, ...more });

  it('gives a process only the environment of its request', async () => {
    const child = await spawner.spawn({ argv: ['/usr/bin/env'], env: { ONLY: 'this' }, maxOutputBytes });
    expect((await child.done).stdout.toString()).toBe('ONLY=this\n');
  });

  it('gives children a priority that is ten steps lower than that of the gateway', async () => {
    // Without arguments, the program prints its own niceness.
    const { stdout } = await (await sh('nice')).done;
    expect(Number(stdout)).toBe(Math.min(getPriority() + 10, 19));
  });

  it('gives children the umask 022 whatever the umask of the gateway', () => {
    // A separate process takes the part of the gateway, because a worker thread of the test runner cannot change its umask.
    const gateway = `
      const { createSpawner } = await import(${JSON.stringify(BUILT_CLIENT)});
      const spawner = await createSpawner();
      const child = await spawner.spawn({ argv: ['sh', '-c', 'umask'], env: { PATH: '${PATH}' }, maxOutputBytes: 100 });
      process.stdout.write((await child.done).stdout);
      await spawner.close();`;
    const script = 'umask 077; exec "$0" --input-type=module -e "$1"';
    expect(execFileSync('sh', ['-c', script, process.execPath, gateway], { encoding: 'utf8' })).toBe('0022\n');
  });

  it('rejects all commands when several messages cannot be sent to a helper that died', async () => {
    const own = await createSpawner();
    const request = { argv: ['sleep', uniqueSeconds()], env: { PATH }, maxOutputBytes };
    const children = await Promise.all([own.spawn(request), own.spawn(request), own.spawn(request)]);
    const helperPid = own.helperPid ?? 0;
    process.kill(helperPid, 'SIGKILL');
    // The event loop must not run before the messages are sent, because it would report the death of the helper.
    while (isAlive(readProcess(helperPid)));
    for (const child of children) child.kill();
    const ended = await Promise.allSettled(children.map(({ done }) => done));
    for (const { pid } of children) process.kill(pid, 'SIGKILL');
    const rejected = { status: 'rejected', reason: expect.objectContaining({ details: { helper: 'died' } }) };
    expect(ended).toEqual([rejected, rejected, rejected]);
    await own.close();
  });

  it('leaves no process when the gateway is killed while its helper has replies to send', async () => {
    const seconds = uniqueSeconds();
    // The second command stops the helper and prints a line. The gateway is killed before the helper continues, so that the helper then
    // sends the line to a gateway that no longer runs.
    const gateway = `
      const { createSpawner } = await import(${JSON.stringify(BUILT_CLIENT)});
      const spawner = await createSpawner();
      const spawn = (script) => spawner.spawn({ argv: ['sh', '-c', script], env: { PATH: '${PATH}' }, maxOutputBytes: 100 });
      await spawn('exec sleep ${seconds}');
      console.log(spawner.helperPid);
      spawn('kill -STOP $PPID; echo line; exec sleep ${seconds}');
      setInterval(() => {}, 1000);`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', gateway], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const [line] = (await once(child.stdout, 'data')) as [Buffer];
    while ((await processesMentioning(`sleep\0${seconds}`)).length < 2);
    child.kill('SIGKILL');
    await once(child, 'close');
    process.kill(Number(line), 'SIGCONT');
    while ((await processesMentioning(seconds)).length > 0);
  });

  it('reports the first line before the process ends and all output at its end', async () => {
    const child = await sh('echo ready; cat; echo end', { stdin: 'hold' });
    expect(await child.firstLine).toBe('ready');
    child.kill();
    const result = await child.done;
    expect(result).toMatchObject({ exitCode: null, signal: 'SIGKILL' });
    expect(result.stdout.toString()).toBe('ready\n');
  });

  it('reports null as the first line of a process that prints none', async () => {
    const child = await sh('printf unfinished');
    expect(await child.firstLine).toBeNull();
    expect((await child.done).stdout.toString()).toBe('unfinished');
  });

  it('passes stdin and stdout through unchanged', async () => {
    const stdin = Buffer.from(Array.from({ length: 4096 }, (_, index) => index % 256));
    const child = await sh('cat', { stdin });
    expect((await child.done).stdout).toEqual(stdin);
  });

  it('rejects when the program or its directory does not exist', async () => {
    const missing = spawner.spawn({ argv: ['/no/such/program'], env: {}, maxOutputBytes });
    await expect(missing).rejects.toMatchObject({ code: 'runtime_failed' });
    await expect(sh('true', { cwd: '/no/such/dir' })).rejects.toMatchObject({ code: 'runtime_failed' });
    await expect(spawner.spawn({ argv: [], env: {}, maxOutputBytes })).rejects.toMatchObject({
      code: 'runtime_failed',
    });
  });

  it('kills the whole process group, also when killed twice', async () => {
    const seconds = uniqueSeconds();
    const child = await sh(`sleep ${seconds} & sleep ${seconds}`);
    child.kill();
    child.kill();
    await child.done;
    expect(await processesMentioning(seconds)).toEqual([]);
    child.kill();
  });

  it('kills the remaining processes of a group and marked processes outside it', async () => {
    const [group, detached] = [uniqueSeconds(), uniqueSeconds()];
    const env = { PATH, MARK: `m${detached}` };
    const child = await sh(`sleep ${group} & setsid sleep ${detached} & exit 0`, { env, marker: `MARK=m${detached}` });
    await child.done;
    expect(await processesMentioning(group)).toEqual([]);
    expect(await processesMentioning(detached)).toEqual([]);
  });

  it('rejects the running commands when the helper dies and starts another helper', async () => {
    const own = await createSpawner();
    const child = await own.spawn({ argv: ['cat'], env: { PATH }, stdin: 'hold', maxOutputBytes });
    const before = own.helperPid ?? 0;
    process.kill(before, 'SIGKILL');
    await expect(child.done).rejects.toMatchObject({ code: 'runtime_failed' });
    expect(await child.firstLine).toBeNull();
    const next = await own.spawn({ argv: ['echo', 'again'], env: { PATH }, maxOutputBytes });
    expect((await next.done).stdout.toString()).toBe('again\n');
    expect(own.helperPid).not.toBe(before);
    await own.close();
  });

  it('kills every process when it is closed, may be closed twice and refuses further requests', async () => {
    const own = await createSpawner();
    const seconds = uniqueSeconds();
    const child = await own.spawn({ argv: ['sleep', seconds], env: { PATH }, maxOutputBytes });
    const rejected = expect(child.done).rejects.toMatchObject({ code: 'runtime_failed' });
    await Promise.all([own.close(), own.close()]);
    await rejected;
    // The spawn helper ends after it has sent SIGKILL. The killed process can disappear a little later.
    while ((await processesMentioning(seconds)).length > 0);
    await expect(own.spawn({ argv: ['true'], env: { PATH }, maxOutputBytes })).rejects.toMatchObject({
      code: 'runtime_failed',
    });
  });
});

it('CappedOutput keeps the same bytes of an output however it is cut into chunks', () => {
  const chunks = fc.array(fc.uint8Array({ maxLength: 40 }), { maxLength: 40 });
  fc.assert(
    fc.property(chunks, fc.integer({ min: 0, max: 200 }), (parts, budget) => {
      const output = new CappedOutput(budget);
      for (const part of parts) output.push(Buffer.from(part));
      const all = Buffer.concat(parts.map((part) => Buffer.from(part)));
      const kept = output.bytes();
      const head = Math.ceil(budget / 2);
      const expected =
        all.length <= budget
          ? all
          : Buffer.concat([all.subarray(0, head), all.subarray(all.length - Math.floor(budget / 2))]);
      return kept.equals(expected) && output.droppedBytes === all.length - kept.length;
    }),
  );
});

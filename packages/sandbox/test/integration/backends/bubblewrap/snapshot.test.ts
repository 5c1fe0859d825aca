import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { asFloeError } from '@floe-rl/core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { makeImage } from '../../../../../../verify/fixtures/image.ts';
import type { Runtime } from '../../../../src/api/runtime.ts';
import { bubblewrapMissing, never, processesThatMount, Workbench } from '../../../backends/workbench.ts';

const problem = await bubblewrapMissing();

describeIf(problem, 'a snapshot of a bubblewrap sandbox', () => {
  let bench: Workbench;
  let image: string;
  beforeAll(async () => {
    bench = await Workbench.open();
    image = join(bench.dir, 'image');
    makeImage(image);
  });
  afterAll(() => bench.close());
  const output = async (runtime: Runtime, command: string): Promise<string> => {
    const { stdout, stderr } = await runtime.exec({ command }, never);
    return stdout + stderr;
  };

  it('contains all files that commands can write', async () => {
    const runtime = await bench.start('bubblewrap');
    const files = [
      '/work/f',
      '/home/agent/f',
      '/tmp/f',
      '/var/tmp/f',
      '/run/f',
      '/dev/shm/f',
      '/artifacts/f',
      '/logs/f',
    ];
    await output(runtime, files.map((path) => `echo one >${path}`).join('; '));
    const snapshot = await runtime.snapshot(never);
    await output(runtime, files.map((path) => `echo two >${path}`).join('; '));
    await runtime.restore(snapshot, never);
    expect(await output(runtime, `cat ${files.join(' ')}`)).toBe('one\n'.repeat(files.length));
    await snapshot.release();
    await runtime.stop();
  });

  it('contains the changed files of an image, and starts sandboxes with them', async () => {
    const runtime = await bench.start('bubblewrap', { image, workdir: '/testbed' });
    await output(runtime, 'echo changed >file; rm /usr/bin/wc; echo new >/etc/new; mkdir made; echo h >~/h');
    const snapshot = await runtime.snapshot(never);
    await runtime.stop();
    const spec = { image, workdir: '/testbed' };
    const [one, two] = [
      await bench.start('bubblewrap', spec, { snapshot }),
      await bench.start('bubblewrap', spec, { snapshot }),
    ];
    const show = 'cat file /etc/new ~/h; ls -d made /usr/bin/wc 2>/dev/null; id -u';
    expect(await output(one, show)).toBe('changed\nnew\nh\nmade\n1000\n');
    await output(one, 'echo again >file; rm -r made /etc/new; : >/usr/bin/wc');
    expect(await output(two, show)).toBe('changed\nnew\nh\nmade\n1000\n');
    await one.restore(snapshot, never);
    expect(await output(one, show)).toBe('changed\nnew\nh\nmade\n1000\n');
    await Promise.all([one.stop(), two.stop(), snapshot.release()]);
    expect(readFileSync(join(image, 'testbed/file'), 'utf8')).toBe('from the image');
  });

  it('is refused by a sandbox with another image, and by one of another back end', async () => {
    const plain = await bench.start('bubblewrap');
    const snapshot = await plain.snapshot(never);
    const other = await bench.start('bubblewrap', { image, workdir: '/testbed' });
    await expect(other.restore(snapshot, never)).rejects.toMatchObject({ code: 'unsupported' });
    const starting = bench.start('bubblewrap', { image, workdir: '/testbed' }, { snapshot });
    await expect(starting).rejects.toMatchObject({ code: 'unsupported' });
    const local = await bench.start('local');
    await expect(local.restore(snapshot, never)).rejects.toMatchObject({ code: 'unsupported' });
    await Promise.all([plain, other, local].map((runtime) => runtime.stop()));
    await snapshot.release();
    await expect(bench.start('bubblewrap', {}, { snapshot })).rejects.toMatchObject({ code: 'runtime_failed' });
  });

  it('is visible to no command but through the files that were restored', async () => {
    const runtime = await bench.start('bubblewrap');
    await output(runtime, 'echo secret >f');
    const snapshot = await runtime.snapshot(never);
    await output(runtime, 'rm f');
    const found = await output(
      runtime,
      'find / -xdev -name f -newer /etc/hostname 2>/dev/null; ls /mnt /srv 2>&1; true',
    );
    expect(found).not.toContain('/f\n');
    expect(found).not.toContain('files-upper');
    const denied = await output(
      runtime,
      'mount -o remount,rw / 2>&1; umount /work 2>&1; unshare -Ur true 2>&1; echo done',
    );
    expect(denied).toContain('done');
    await runtime.restore(snapshot, never);
    expect(await output(runtime, 'cat f')).toBe('secret\n');
    await snapshot.release();
    await runtime.stop();
  });

  it('mounts the directories and sockets of the sandbox that is restored', async () => {
    const [mine, yours] = [join(bench.dir, 'mine'), join(bench.dir, 'yours')];
    for (const [index, dir] of [mine, yours].entries()) {
      mkdirSync(dir, { mode: 0o755 });
      writeFileSync(join(dir, 'name'), `mount ${index}\n`);
    }
    const source = await bench.start('bubblewrap', {}, { readOnlyMounts: [{ hostPath: mine, sandboxPath: '/opt/m' }] });
    await output(source, 'echo one >f');
    const snapshot = await source.snapshot(never);
    await source.stop();
    const socketPath = join(bench.dir, 'proxy', 's');
    mkdirSync(join(bench.dir, 'proxy'));
    const server = createServer((_request, response) => response.end('from the proxy'));
    await new Promise<void>((resolve) => server.listen(socketPath, resolve));
    const proxy = { socketPath, tcpOrigin: 'unused' };
    const readOnlyMounts = [{ hostPath: yours, sandboxPath: '/opt/m' }];
    const runtime = await bench.start('bubblewrap', {}, { snapshot, readOnlyMounts, proxy });
    const script = `fetch('${runtime.proxyOrigin}').then(async (r) => console.log(await r.text()))`;
    const node = { command: ['/bin/sh', '-c', 'cat f /opt/m/name; exec node -e "$1"', 'sh', script], withProxy: true };
    for (let round = 0; round < 2; round += 1) {
      const { stdout, stderr } = await runtime.exec(node, never);
      expect([stdout, stderr]).toEqual(['one\nmount 1\nfrom the proxy\n', '']);
      await runtime.restore(snapshot, never);
    }
    await Promise.all([runtime.stop(), snapshot.release()]);
    await new Promise((resolve) => server.close(resolve));
    rmSync(yours, { recursive: true });
  });

  it('keeps the limit on storage and on processes of each sandbox', async () => {
    const source = await bench.start('bubblewrap', { storage_mb: 8 });
    await output(source, 'head -c 6000000 /dev/zero >big');
    const snapshot = await source.snapshot(never);
    const spec = { storage_mb: 8, max_processes: 40 };
    const [one, two] = [
      await bench.start('bubblewrap', spec, { snapshot }),
      await bench.start('bubblewrap', spec, { snapshot }),
    ];
    expect(await output(one, 'head -c 20000000 /dev/zero >more')).toContain('No space left');
    expect(await output(one, 'wc -c <big')).toBe('6000000\n');
    const many =
      'for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do sleep 2 & done; wait; echo ok';
    const ended = await Promise.all([one, two].map((runtime) => runtime.exec({ command: many }, never)));
    expect(ended.map(({ stdout, killedBy }) => [stdout, killedBy])).toEqual([
      ['ok\n', null],
      ['ok\n', null],
    ]);
    await Promise.all([source.stop(), one.stop(), two.stop(), snapshot.release()]);
  });

  it('can be based on at most 24 others', async () => {
    const runtime = await bench.start('bubblewrap');
    const snapshots = [];
    let failure: unknown = null;
    while (failure === null) {
      await output(runtime, `echo ${snapshots.length} >f${snapshots.length}; echo ${snapshots.length} >last`);
      try {
        snapshots.push(await runtime.snapshot(never));
      } catch (error) {
        failure = error;
      }
    }
    expect([snapshots.length, asFloeError(failure).code]).toEqual([24, 'unsupported']);
    expect(await output(runtime, 'cat f0 f24 last')).toBe('0\n24\n24\n');
    const newest = snapshots.at(-1);
    if (newest !== undefined) await runtime.restore(newest, never);
    expect(await output(runtime, 'cat f0 last')).toBe('0\n23\n');
    await Promise.all(snapshots.map((snapshot) => snapshot.release()));
    await runtime.stop();
  });

  it('leaves no mount when the sandbox stops, and none when it is released', async () => {
    const runtime = await bench.start('bubblewrap');
    const snapshot = await runtime.snapshot(never);
    const restoring = runtime.restore(snapshot, never);
    await Promise.all([restoring.catch(() => {}), runtime.stop(), runtime.stop()]);
    expect(await bench.sessionDirs()).toEqual([]);
    await Promise.all([snapshot.release(), snapshot.release()]);
    expect(await processesThatMount(bench.stateDir)).toEqual([]);
  });
});

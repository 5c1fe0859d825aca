import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { describeIf } from '../../skip.ts';
import { bubblewrapMissing, never, Workbench } from '../workbench.ts';

// Linux 6.1 has no tmpfs with the attributes that overlays need.
vi.mock('node:os', async (original) => ({ ...(await original<typeof import('node:os')>()), release: () => '6.1.0' }));

describeIf(await bubblewrapMissing(), 'a snapshot on a kernel before 6.6', () => {
  let bench: Workbench;
  beforeAll(async () => {
    bench = await Workbench.open();
  });
  afterAll(() => bench.close());

  it('is copied, with modes, links and directories that can be renamed', async () => {
    const { capabilities } = await bench.provider('bubblewrap').describe();
    expect(capabilities.snapshots).toEqual({ method: 'copy', files: 'all' });
    const runtime = await bench.start('bubblewrap');
    const run = async (command: string): Promise<string> => {
      const { stdout, stderr } = await runtime.exec({ command }, never);
      return stdout + stderr;
    };
    await run('mkdir d; echo one >d/f; chmod 640 d/f; ln -s d l; echo h >~/h');
    const first = await runtime.snapshot(never);
    await run('rm -r d; mkdir d; echo two >d/f');
    const second = await runtime.snapshot(never);
    await run('rm -r d');
    await runtime.restore(second, never);
    expect(await run('cat d/f')).toBe('two\n');
    await runtime.restore(first, never);
    expect(await run('cat l/f ~/h; stat -c %a d/f; readlink l')).toBe('one\nh\n640\nd\n');
    const rename = 'require("fs").renameSync("d", "e"); console.log(require("fs").readdirSync("e").join())';
    const renamed = await runtime.exec({ command: ['node', '-e', rename] }, never);
    expect([renamed.stdout, renamed.stderr]).toEqual(['f\n', '']);
    await Promise.all([runtime.stop(), first.release(), second.release()]);
  });
});

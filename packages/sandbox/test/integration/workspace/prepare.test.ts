import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type PrepareAction, prepareActionSchema } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Runtime } from '../../../src/api/runtime.ts';
import { runPrepare } from '../../../src/workspace/prepare.ts';
import { never, Workbench } from '../../backends/workbench.ts';

describe('runPrepare', () => {
  let bench: Workbench;
  let runtime: Runtime;
  let root: string;
  beforeAll(async () => {
    bench = await Workbench.open();
    runtime = await bench.start('local');
    root = join(bench.dir, 'uploads');
    mkdirSync(join(root, 'dir'), { recursive: true });
    writeFileSync(join(root, 'file'), 'file');
    writeFileSync(join(root, 'dir', 'inner'), 'inner');
    writeFileSync(join(bench.dir, 'secret'), 'secret');
    symlinkSync(join(bench.dir, 'secret'), join(root, 'link-out'));
    symlinkSync(join(root, 'file'), join(root, 'link-in'));
    mkdirSync(join(bench.dir, 'uploads-not'));
  });
  afterAll(async () => {
    await runtime.stop();
    await bench.close();
  });
  const prepare = (actions: object[], uploadRoots = [root]) =>
    runPrepare(
      runtime,
      actions.map((action): PrepareAction => prepareActionSchema.parse(action)),
      { uploadRoots },
      never,
    );
  const content = async (path: string) => (await runtime.readFile(path, 1000, never))?.toString();

  it('runs the actions in order', async () => {
    await prepare([
      { type: 'write_file', target: 'a/b', content: 'written', mode: 0o600 },
      { type: 'upload_file', source: join(root, 'link-in'), target: 'uploaded' },
      { type: 'upload_dir', source: join(root, 'dir'), target: 'copied' },
      { type: 'exec', command: 'cat a/b uploaded copied/inner > all; echo "$X" >> all', env: { X: 'x' } },
    ]);
    expect(await content('all')).toBe('writtenfileinnerx\n');
  });

  it('names the action that failed and the end of its error output', async () => {
    const failing = prepare([
      { type: 'exec', command: 'true' },
      { type: 'exec', command: 'echo broken >&2; exit 3' },
      { type: 'write_file', target: 'never', content: '' },
    ]);
    await expect(failing).rejects.toMatchObject({
      code: 'prepare_failed',
      message: expect.stringContaining('prepare[1] (exec)'),
      details: { index: 1, type: 'exec', stderr: 'broken', exit_code: 3 },
    });
    expect(await content('never')).toBeUndefined();
  });

  it('retries a command up to max_attempts times', async () => {
    const command = 'echo x >> tries; [ "$(wc -l < tries)" -ge 3 ]';
    await prepare([{ type: 'exec', command, max_attempts: 3, retry_backoff_seconds: 0 }]);
    const again = prepare([{ type: 'exec', command: 'exit 9', max_attempts: 2, retry_backoff_seconds: 0 }]);
    await expect(again).rejects.toMatchObject({ details: { attempts: 2, exit_code: 9 } });
  });

  it.each(['secret', 'uploads/link-out', 'uploads/../secret', 'absent', 'uploads-not'])(
    'refuses %s as a source',
    async (source) => {
      const upload = prepare([{ type: 'upload_file', source: join(bench.dir, source), target: 'x' }]);
      await expect(upload).rejects.toMatchObject({
        code: 'source_forbidden',
        details: { index: 0, type: 'upload_file' },
      });
      const folder = prepare([{ type: 'upload_dir', source: join(bench.dir, source), target: 'x' }]);
      await expect(folder).rejects.toMatchObject({ code: 'source_forbidden' });
    },
  );

  it('rejects every upload when there is no upload root', async () => {
    const upload = prepare([{ type: 'upload_file', source: join(root, 'file'), target: 'x' }], []);
    await expect(upload).rejects.toMatchObject({ code: 'source_forbidden' });
  });

  it('reports a source below a root that does not exist or has the wrong type', async () => {
    for (const [type, source] of [
      ['upload_file', 'absent'],
      ['upload_file', 'dir'],
      ['upload_dir', 'file'],
    ]) {
      const upload = prepare([{ type, source: join(root, source ?? ''), target: 'x' }]);
      await expect(upload).rejects.toMatchObject({ code: 'prepare_failed' });
    }
  });

  it('writes no file outside the session, not even through a link', async () => {
    await prepare([{ type: 'exec', command: `ln -s ${bench.dir} out` }]);
    for (const target of ['/etc/floe-planted', '../../../planted', 'out/planted']) {
      const write = prepare([{ type: 'write_file', target, content: 'x' }]);
      await expect(write).rejects.toMatchObject({ code: 'prepare_failed', details: { index: 0 } });
    }
    const folder = prepare([{ type: 'upload_dir', source: join(root, 'dir'), target: 'out' }]);
    await expect(folder).rejects.toMatchObject({ code: 'prepare_failed' });
  });

  it('rejects with the reason of its signal', async () => {
    const controller = new AbortController();
    const reason = new Error('cancelled');
    const action = prepareActionSchema.parse({ type: 'exec', command: 'sleep 1000' });
    const running = runPrepare(runtime, [action], { uploadRoots: [] }, controller.signal);
    controller.abort(reason);
    await expect(running).rejects.toBe(reason);
  });
});

import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { makeImage } from '../../../../../verify/fixtures/image.ts';
import { registryMissing, startRegistry, type TestRegistry } from '../../../../../verify/services/registry.ts';
import { sifOf } from '../../../src/images/forms.ts';
import { imageSettingsSchema, openImageStore } from '../../../src/images/node-images.ts';
import type { ImageStore, StoredImage } from '../../../src/images/store.ts';
import { apptainerProgram, missingBackends } from '../../backends/container-bench.ts';
import { Workbench } from '../../backends/workbench.ts';

const missing = registryMissing() ?? (await missingBackends()).apptainer;
const { signal } = new AbortController();

describeIf(missing, 'the SIF file of an image', () => {
  const command = apptainerProgram() ?? '';
  let registry: TestRegistry;
  let dir: string;
  let store: ImageStore;
  let image: StoredImage;
  beforeAll(async () => {
    registry = await startRegistry();
    dir = mkdtempSync(join(tmpdir(), 'floe-sif-'));
    makeImage(join(dir, 'root'), ['env']);
    registry.push('team/tool:1', join(dir, 'root'));
    const settings = imageSettingsSchema.parse({ insecure_registries: [registry.host] });
    store = openImageStore({ ...settings, dir: join(dir, 'store') }, systemClock);
    image = await store.pull(`${registry.host}/team/tool:1`, signal);
  }, 60_000);
  afterAll(async () => {
    await registry?.stop();
    rmSync(dir, { recursive: true, force: true });
  });

  it('is made once, and is an image of Apptainer sandboxes', async () => {
    const paths = await Promise.all([1, 2].map(() => sifOf(store, image, [command], signal)));
    const [path = ''] = paths;
    expect(paths).toEqual([path, path]);
    const before = statSync(path).ino;
    expect(statSync(await sifOf(store, image, [command], signal)).ino).toBe(before);
    const bench = await Workbench.open({ apptainerCommand: command });
    try {
      const runtime = await bench.start('apptainer', { image: path, workdir: '/testbed' });
      const ran = await runtime.exec({ command: 'cat file; echo changed >file; cat file' }, signal);
      expect(ran).toMatchObject({ exitCode: 0, stdout: 'from the imagechanged\n' });
      await runtime.stop();
    } finally {
      await bench.close();
    }
  }, 120_000);

  it('is not left in parts when Apptainer fails', async () => {
    const other = await store.alias('localhost/other:1', image);
    rmSync(join(image.dir, 'image.sif'), { force: true });
    await expect(sifOf(store, other, ['/bin/false'], signal)).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining('cannot make a SIF file of localhost/other:1'),
    });
    expect(() => statSync(join(image.dir, 'image.sif'))).toThrow('ENOENT');
  });
});

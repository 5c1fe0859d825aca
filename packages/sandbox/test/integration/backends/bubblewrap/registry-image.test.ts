import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { makeImage } from '../../../../../../verify/fixtures/image.ts';
import { registryMissing, startRegistry, type TestRegistry } from '../../../../../../verify/services/registry.ts';
import { imageSettingsSchema, NodeImages } from '../../../../src/images/node-images.ts';
import { bubblewrapMissing, never, Workbench } from '../../../backends/workbench.ts';

describeIf((await bubblewrapMissing()) ?? registryMissing(), 'a sandbox with an image of a registry', () => {
  let registry: TestRegistry;
  let bench: Workbench;
  let dir: string;
  beforeAll(async () => {
    registry = await startRegistry();
    dir = mkdtempSync(join(tmpdir(), 'floe-images-'));
    const settings = imageSettingsSchema.parse({ insecure_registries: [registry.host] });
    bench = await Workbench.open({ images: new NodeImages({ ...settings, dir: join(dir, 'store') }, systemClock) });
    const root = join(dir, 'root');
    makeImage(root);
    registry.push('team/tools:1', root, { env: { COLOR: 'blue', PATH: '/testbed:/usr/bin:/bin', HOME: '/testbed' } });
  });
  afterAll(async () => {
    await bench.close();
    await registry.stop();
    rmSync(dir, { recursive: true, force: true });
  });

  const image = () => `${registry.host}/team/tools:1`;

  it("has the image's files and variables, the home directory of the sandbox, and a working directory", async () => {
    const runtime = await bench.start('bubblewrap', { image: image(), workdir: '/work/deep', env: { OWN: 'yes' } });
    const command = 'cat /testbed/file; echo " $COLOR $PATH $HOME $OWN"; echo x > made; cat made';
    const { stdout, stderr } = await runtime.exec({ command }, never);
    expect([stdout, stderr]).toEqual(['from the image blue /testbed:/usr/bin:/bin /home/agent yes\nx\n', '']);
    await runtime.stop();
  });

  it('does not see changes of an earlier sandbox with the same image', async () => {
    const first = await bench.start('bubblewrap', { image: image() });
    await first.exec({ command: 'echo changed > /testbed/file; rm /usr/bin/wc' }, never);
    await first.stop();
    const second = await bench.start('bubblewrap', { image: image() });
    expect((await second.exec({ command: 'cat /testbed/file; ls /usr/bin/wc' }, never)).stdout).toBe(
      'from the image/usr/bin/wc\n',
    );
    await second.stop();
  });

  it('is not started when the registry does not have the image', async () => {
    const started = bench.start('bubblewrap', { image: `${registry.host}/team/absent:1` });
    await expect(started).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining('team/absent:1'),
    });
    expect(await bench.sessionDirs()).toEqual([]);
  });
});

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { imageSettingsSchema, openImageStore, rootFileSystemOf } from '@floe-rl/sandbox';
import { afterAll, afterEach, beforeAll, expect, it, vi } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { firstMissing, removeEngineDirectory } from '../../../../../verify/services/container-engine.ts';
import { type PodmanHome, podmanHome } from '../../../../../verify/services/podman-service.ts';
import { buildIntoStore } from '../../../src/commands/image-builders.ts';

const missing = firstMissing(['podman', 'skopeo', 'umoci']);
const { signal } = new AbortController();
const SOCKETS = { dockerSocket: '/nowhere/docker', podmanSocket: '/nowhere/podman' };

describeIf(missing === null ? null : `${missing} is not installed`, 'buildIntoStore without a container engine', () => {
  let dir: string;
  let home: PodmanHome;
  beforeAll(() => {
    dir = mkdtempSync(join(tmpdir(), 'floe-build-'));
    home = podmanHome();
  });
  afterEach(() => vi.unstubAllEnvs());
  afterAll(() => {
    rmSync(dir, { recursive: true, force: true });
    removeEngineDirectory(home.dir);
  });

  function built(dockerfile: string, env: Readonly<Record<string, string>> = home.env) {
    for (const [name, value] of Object.entries(env)) vi.stubEnv(name, value);
    const context = mkdtempSync(join(dir, 'context-'));
    writeFileSync(join(context, 'Dockerfile'), dockerfile);
    writeFileSync(join(context, 'data'), 'from the context');
    const settings = imageSettingsSchema.parse({});
    const store = openImageStore({ ...settings, dir: join(dir, 'store') }, systemClock);
    const build = { context, dockerfile: 'Dockerfile', name: 'task', limitSeconds: 60, network: 'none' };
    return { store, context, image: buildIntoStore(store, build, SOCKETS, signal) };
  }

  it('builds with the program podman, and finds the image again without it', async () => {
    const dockerfile = 'FROM scratch\nCOPY data /data\nENV COLOR=blue\nWORKDIR /srv\n';
    const { store, image } = built(dockerfile);
    const first = await image;
    expect(first).toMatchObject({ env: { COLOR: 'blue' }, workdir: '/srv' });
    expect(first.reference).toMatch(/^localhost\/task:[0-9a-f]{16}$/);
    const root = await rootFileSystemOf(store, first, signal);
    expect(readFileSync(join(root, 'data'), 'utf8')).toBe('from the context');
    expect(await built(dockerfile, { PATH: '/nowhere' }).image).toEqual(first);
  }, 60_000);

  it('rejects with setup_failed and the output of a build that fails', async () => {
    await expect(built('FROM scratch\nCOPY absent /\n').image).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(/^the image localhost\/task:.* could not be built: .*absent/s),
    });
  }, 60_000);

  it('rejects with setup_failed and what can be installed when nothing builds images', async () => {
    const { context, image } = built('FROM scratch\nCOPY data /other\n', { PATH: '/nowhere' });
    await expect(image).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining(`${context}: nothing on this machine builds images: start Docker or Podman`),
    });
  });
});

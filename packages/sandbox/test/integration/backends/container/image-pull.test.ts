import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock, VirtualClock } from '@floe-rl/core';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { makeImage } from '../../../../../../verify/fixtures/image.ts';
import type { PrivateEngine } from '../../../../../../verify/services/container-engine.ts';
import { dockerMissing, startDockerDaemon } from '../../../../../../verify/services/docker-daemon.ts';
import { registryMissing, startRegistry, type TestRegistry } from '../../../../../../verify/services/registry.ts';
import { ContainerEngine } from '../../../../src/backends/container/engine-api.ts';
import { ImagePulls } from '../../../../src/backends/container/image-pull.ts';
import { imageSettingsSchema, NodeImages } from '../../../../src/images/node-images.ts';
import { never, Workbench } from '../../../backends/workbench.ts';

describeIf((await dockerMissing()) ?? registryMissing(), 'an image that a container engine does not have', () => {
  let dir: string;
  let docker: PrivateEngine;
  let registry: TestRegistry;
  let bench: Workbench;
  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'floe-pull-'));
    docker = await startDockerDaemon();
    registry = await startRegistry();
    const images = new NodeImages({ ...imageSettingsSchema.parse({}), dir: join(dir, 'store') }, systemClock);
    bench = await Workbench.open({ dockerSocket: docker.socketPath, images });
    makeImage(join(dir, 'root'));
    for (const name of ['team/one:1', 'team/two:1', 'team/three:1']) registry.push(name, join(dir, 'root'));
  });
  afterAll(async () => {
    await bench.close();
    await registry.stop();
    await docker.stop();
    rmSync(dir, { recursive: true, force: true });
  });
  beforeEach(() => {
    registry.failNext(200, 0);
    registry.requests.length = 0;
  });

  const manifests = () => registry.requests.filter((path) => path.includes('/manifests/')).length;

  it('is pulled when a sandbox starts', async () => {
    const runtime = await bench.start('docker', { image: `${registry.host}/team/one:1` });
    expect((await runtime.exec({ command: 'cat /testbed/file' }, never)).stdout).toBe('from the image');
    await runtime.stop();
  });

  it('is pulled once for sandboxes that start at the same time', async () => {
    const image = `${registry.host}/team/two:1`;
    const started = await Promise.all([1, 2, 3].map(() => bench.start('docker', { image })));
    const layers = registry.requests.filter((path) => path.includes('/blobs/'));
    expect(layers.length).toBe(new Set(layers).size);
    await Promise.all(started.map((runtime) => runtime.stop()));
  });

  it('ends the start with not_found when the registry does not have it', async () => {
    const started = bench.start('docker', { image: `${registry.host}/team/absent:1` });
    await expect(started).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining('team/absent:1'),
    });
  });

  it('is refused with the command that pulls it on a node that may not pull', async () => {
    const settings = imageSettingsSchema.parse({ pull: 'never' });
    const images = new NodeImages({ ...settings, dir: join(dir, 'store') }, systemClock);
    const strict = await Workbench.open({ dockerSocket: docker.socketPath, images });
    const image = `${registry.host}/team/three:1`;
    await expect(strict.start('docker', { image })).rejects.toMatchObject({
      code: 'runtime_failed',
      message: expect.stringContaining(`docker pull ${image}`),
    });
    expect(registry.requests).toEqual([]);
    await strict.close();
  });

  it('is asked for again after growing pauses while the registry limits the rate, and then fails the start', async () => {
    const clock = new PauseClock();
    const engine = new ContainerEngine(docker.socketPath);
    const pulls = new ImagePulls(engine, clock, 1);
    registry.failNext(429, 1000);
    const pulled = pulls.pull(`${registry.host}/team/three:1`);
    await expect(pulled).rejects.toMatchObject({
      code: 'runtime_failed',
      message: expect.stringContaining('cannot be pulled'),
    });
    expect(clock.pausesMs).toEqual([5_000, 20_000, 60_000]);
    expect(manifests()).toBeGreaterThanOrEqual(4);
    registry.failNext(200, 0);
    await pulls.pull(`${registry.host}/team/three:1`);
    expect(await engine.image(`${registry.host}/team/three:1`, never)).not.toBeNull();
    await engine.close();
  });

  it('has an invalid name when it is no image reference', async () => {
    await expect(
      new ImagePulls(new ContainerEngine(docker.socketPath), systemClock, 1).pull('No Image'),
    ).rejects.toMatchObject({
      code: 'schema_violation',
      message: expect.stringContaining('runtime.image'),
    });
  });
});

/** A clock on which pauses take no time. */
class PauseClock extends VirtualClock {
  readonly pausesMs: number[] = [];

  override schedule(delayMs: number, callback: () => void): () => void {
    const cancel = super.schedule(delayMs, callback);
    this.pausesMs.push(delayMs);
    setImmediate(() => this.advance(delayMs));
    return cancel;
  }
}

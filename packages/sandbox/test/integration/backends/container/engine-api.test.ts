import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ContainerEngine } from '../../../../src/backends/container/engine-api.ts';
import { never } from '../../../backends/workbench.ts';

const ALL_LIMITS = { MemoryLimit: true, PidsLimit: true, CpuCfsQuota: true };

describe('a container engine', () => {
  let dir: string;
  let server: Server;
  let engine: ContainerEngine;
  let info: object;
  beforeEach(async () => {
    dir = mkdtempSync(join(tmpdir(), 'floe-engine-'));
    server = createServer((_request, response) => response.end(JSON.stringify(info)));
    await new Promise<void>((resolve) => server.listen(join(dir, 'socket'), resolve));
    engine = new ContainerEngine(join(dir, 'socket'));
  });
  afterEach(async () => {
    await engine.close();
    await new Promise((resolve) => server.close(resolve));
    rmSync(dir, { recursive: true, force: true });
  });

  it.each([
    ['as root', { CgroupVersion: '1' }, { isRootless: false, memory_mb: true }],
    [
      'as rootless Docker',
      { CgroupVersion: '2', SecurityOptions: ['name=rootless'] },
      { isRootless: true, memory_mb: true },
    ],
    ['as rootless Podman', { CgroupVersion: '2', Rootless: true }, { isRootless: true, memory_mb: true }],
    [
      'rootless with old control groups',
      { CgroupVersion: '1', Rootless: true },
      { isRootless: true, memory_mb: false },
    ],
    ['without the controller memory', { MemoryLimit: false }, { isRootless: false, memory_mb: false }],
  ])('reports what it enforces when it runs %s', async (_how, reply, { isRootless, memory_mb }) => {
    info = { ...ALL_LIMITS, ...reply };
    const reported = await engine.info(never);
    expect(reported.isRootless).toBe(isRootless);
    expect(reported.limits.memory_mb).toBe(memory_mb);
  });

  it('reports each limit that it cannot enforce', async () => {
    info = { MemoryLimit: true, PidsLimit: false, CpuCfsQuota: false };
    expect((await engine.info(never)).limits).toEqual({ memory_mb: true, max_processes: false, cpus: false });
  });
});

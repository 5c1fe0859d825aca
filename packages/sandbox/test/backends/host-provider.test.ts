import { mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeError, VirtualClock } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Runtime, StartRequest } from '../../src/api/runtime.ts';
import { type HostBackend, HostProvider, type SandboxStart, tryCommand } from '../../src/backends/host-provider.ts';
import { never } from './workbench.ts';

let stateDir: string;
beforeEach(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'floe-host-'));
});
afterEach(() => rm(stateDir, { recursive: true, force: true }));

type Start = SandboxStart<string | null, string>;

/** A back end that records the starts. `overrides` replaces parts of it. */
function provider(overrides: Partial<HostBackend<string | null, string>> = {}) {
  const starts: Start[] = [];
  const refuse = () => Promise.reject(new Error('not used'));
  const backend: HostBackend<string | null, string> = {
    backend: 'docker',
    dirMode: 0o700,
    describe: refuse,
    probe: refuse,
    check: () => {},
    imageOf: async (reference) => reference,
    prepare: async (dir) => dir,
    startIn: async (start) => {
      starts.push(start);
      return { stop: async () => {} } as Runtime;
    },
    ...overrides,
  };
  const options = {
    ...{ stateDir, clock: new VirtualClock(), allowHostNetwork: false },
    spawner: { spawn: refuse, close: refuse },
    owner: { id: 'o', instance: 'i' },
  };
  return { provider: new HostProvider(options, backend), starts };
}

function request(spec: Partial<StartRequest['spec']> = {}): StartRequest {
  return { name: 's', spec: { ...runtimeSpecSchema.parse({}), ...spec }, proxy: null, readOnlyMounts: [] };
}

describe('a provider of this machine', () => {
  it('starts a sandbox in a directory of its own, with its image and the shared files', async () => {
    const { provider: started, starts } = provider();
    await started.start(request({ image: 'python' }), never);
    const own = join(stateDir, `docker-${process.pid}`);
    expect(starts).toMatchObject([{ dir: join(own, 's'), image: 'python', shared: own }]);
    expect(await readdir(own)).toEqual(['s']);
  });

  it('removes the directories of gateways that have ended, and no others', async () => {
    // The kernel assigns no process id above 2 ** 22.
    const others = ['docker-5000000', 'podman-5000000', 'docker-x', `docker-${process.ppid}`];
    for (const name of others) await mkdir(join(stateDir, name, 's'), { recursive: true });
    await provider().provider.start(request(), never);
    const left = [...others.slice(1), `docker-${process.pid}`];
    expect((await readdir(stateDir)).sort()).toEqual(left.sort());
  });

  it.each<[string, Partial<StartRequest['spec']>, object]>([
    ['the network of the host', { network: 'host' }, { code: 'unsupported' }],
    ['a variable that no process can have', { env: { 'A=B': '' } }, { code: 'schema_violation' }],
  ])('refuses %s before the back end does anything', async (_what, spec, error) => {
    const { provider: refusing } = provider({ imageOf: () => Promise.reject(new Error('called')) });
    await expect(refusing.start(request(spec), never)).rejects.toMatchObject(error);
    expect(await readdir(stateDir)).toEqual([]);
  });

  it('prepares the shared files once, and tries again after a failure', async () => {
    let calls = 0;
    const { provider: failing } = provider({
      prepare: async (dir) => {
        calls += 1;
        if (calls === 1) throw new Error('disk full');
        return dir;
      },
    });
    await expect(failing.start(request(), never)).rejects.toMatchObject({
      code: 'runtime_failed',
      message: 'the sandbox directory cannot be prepared: Error: disk full',
    });
    await failing.start(request(), never);
    await failing.start(request(), never);
    expect(calls).toBe(2);
  });

  it('leaves no directory of a sandbox that cannot be started', async () => {
    const { provider: failing } = provider({
      startIn: async ({ dir }) => {
        await mkdir(join(dir, 'sockets'));
        throw new Error('broken');
      },
    });
    const starting = failing.start(request(), never);
    await expect(starting).rejects.toMatchObject({ code: 'runtime_failed', message: 'broken' });
    expect(await readdir(join(stateDir, `docker-${process.pid}`))).toEqual([]);
  });

  it('rejects an aborted start with the reason of the signal', async () => {
    const aborted = new AbortController();
    const reason = new FloeError('cancelled', 'enough');
    const { provider: failing } = provider({
      startIn: () => {
        aborted.abort(reason);
        return Promise.reject(new Error('broken'));
      },
    });
    await expect(failing.start(request(), aborted.signal)).rejects.toBe(reason);
  });

  it('stops the sandbox of a check whose command fails', async () => {
    let stops = 0;
    const runtime = { exec: () => Promise.reject(new Error('broken')), stop: async () => void stops++ };
    const { provider: checked } = provider({ startIn: async () => runtime as unknown as Runtime });
    await expect(tryCommand(checked, runtimeSpecSchema.parse({}))).rejects.toThrow('broken');
    expect(stops).toBe(1);
  });
});

import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { dockerMissing } from '../../../../../../verify/services/docker-daemon.ts';
import { podmanMissing } from '../../../../../../verify/services/podman-service.ts';
import type { Runtime } from '../../../../src/api/runtime.ts';
import { ContainerEngine } from '../../../../src/backends/container/engine-api.ts';
import { createRuntimeProviders } from '../../../../src/backends/providers.ts';
import { type ContainerBench, IMAGE, openWorkbench } from '../../../backends/container-bench.ts';
import { never } from '../../../backends/workbench.ts';

const missing = { docker: await dockerMissing(), podman: podmanMissing() };

const PROGRAMS = ['grep', 'sleep'];

describe.each(['docker', 'podman'] as const)('a %s sandbox', (backend) => {
  describeIf(missing[backend], 'of a container engine', () => {
    let opened: ContainerBench;
    let runtime: Runtime;
    beforeAll(async () => {
      opened = await openWorkbench(backend, PROGRAMS);
      runtime = await opened.start(backend);
    }, 120_000);
    afterAll(async () => {
      await runtime?.stop();
      await opened?.close();
    });
    const sh = (command: string) => runtime.exec({ command }, never);

    it('has no network except its own loopback', async () => {
      expect((await sh('grep -c : /proc/net/dev; grep lo: /proc/net/dev')).stdout).toMatch(/^1\n *lo:/);
    });

    it('cannot gain privileges, and has only the capabilities with which root manages files and users', async () => {
      const { stdout } = await sh('grep -E "^(CapEff|CapBnd|NoNewPrivs)" /proc/self/status');
      // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID and SYS_PTRACE.
      expect(stdout).toBe('CapEff:\t00000000000800fb\nCapBnd:\t00000000000800fb\nNoNewPrivs:\t1\n');
    });

    it('cannot change the programs of floe that are mounted in it', async () => {
      const { stderr } = await sh(
        'for file in /.floe/node /.floe/programs/new /.floe/sockets/new; do echo x >$file; done',
      );
      expect(stderr.match(/Read-only file system/g)).toHaveLength(3);
    });

    it('finds no socket of the gateway after its box server has connected', async () => {
      expect((await sh('ls -A /.floe/sockets')).stdout).toBe('');
    });

    it('names the command that gets a missing image', async () => {
      await expect(opened.bench.start(backend, { image: 'not/there:1' })).rejects.toMatchObject({
        code: 'runtime_failed',
        message: `runtime.image: this node has no image not/there:1; run "${backend} pull not/there:1"`,
      });
    });

    it('requires an image', async () => {
      await expect(opened.bench.start(backend, {})).rejects.toMatchObject({
        code: 'schema_violation',
        details: { path: 'runtime.image' },
      });
    });

    it('is refused the network of the host unless the node allows it', async () => {
      await expect(opened.start(backend, { network: 'host' })).rejects.toMatchObject({ code: 'unsupported' });
    });

    it('reports a command whose agent has killed the box server as killed', async () => {
      const broken = await opened.start(backend);
      expect(await broken.exec({ command: 'kill -KILL $PPID; sleep 60' }, never)).toMatchObject({
        exitCode: null,
        signal: 'SIGKILL',
      });
      await expect(broken.exec({ command: 'true' }, never)).rejects.toMatchObject({ code: 'runtime_failed' });
      expect((await sh('echo unaffected')).stdout).toBe('unaffected\n');
      await broken.stop();
    });

    it('is ended with the command when its agent has stopped the box server', async () => {
      const stopped = await opened.start(backend);
      const controller = new AbortController();
      const reason = new Error('the time is up');
      const running = stopped.exec(
        { command: 'echo begun >/work/begun; kill -STOP $PPID; sleep 60' },
        controller.signal,
      );
      controller.abort(reason);
      await expect(running).rejects.toBe(reason);
      await stopped.stop();
    });

    it('is removed by the next gateway with the same state directory', async () => {
      const { spawner, dir } = opened.bench;
      const engine = new ContainerEngine(opened.engineSocket ?? '');
      const gateway = (instance: string) => {
        const owner = { id: 'same-directory', instance };
        // Gateways are separate processes, whose directories have different names. In the test, both are in this process.
        const stateDir = join(dir, instance);
        const options = {
          spawner,
          clock: systemClock,
          stateDir,
          owner,
          dockerSocket: engine.socketPath,
          podmanSocket: engine.socketPath,
        };
        return createRuntimeProviders(options).get(backend);
      };
      const spec = runtimeSpecSchema.parse({ image: IMAGE });
      const request = { spec, proxy: null, readOnlyMounts: [] };
      const left = await gateway('first')?.start({ ...request, name: 'left' }, never);
      const names = async () =>
        (await engine.labelled('floe.owner=same-directory', never)).map(({ labels }) => labels['floe.sandbox']);
      expect(await names()).toEqual(['left']);
      const next = await gateway('second')?.start({ ...request, name: 'next' }, never);
      expect(await names()).toEqual(['next']);
      await left?.stop();
      await next?.stop();
      expect(await names()).toEqual([]);
      await engine.close();
    });
  });
});

describeIf(missing.docker, 'a command in a Docker sandbox', () => {
  it('fails as a failure of the host when the Docker daemon ends', async () => {
    const opened = await openWorkbench('docker', PROGRAMS);
    const runtime = await opened.start('docker');
    const running = runtime.exec({ command: 'sleep 60' }, never);
    const failed = expect(running).rejects.toMatchObject({ code: 'runtime_failed' });
    await opened.close();
    await failed;
    await runtime.stop();
  }, 120_000);
});

import { type RuntimeSpec, runtimeSpecSchema } from '@floe-rl/core/schema';
import { ContainerEngine } from '@floe-rl/sandbox';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import {
  type ContainerBench,
  missingBackends,
  openWorkbench,
} from '../../../../../sandbox/test/backends/container-bench.ts';
import {
  never,
  processesMentioning,
  uniqueSeconds,
  untilNone,
} from '../../../../../sandbox/test/backends/workbench.ts';
import { ask, closed, output, pool, prewarm, serve } from '../../../gateway/reuse-bench.ts';

const missing = await missingBackends();
const PROGRAMS = ['node', 'setsid', 'sleep', 'env', 'cat', 'ls', 'rm', 'tar', 'mkdir', 'chmod', 'touch'];

type SpecInput = Parameters<typeof runtimeSpecSchema.parse>[0] & object;

describe.each(['docker', 'podman', 'apptainer'] as const)('%s', (backend) => {
  describeIf(missing[backend], 'a sandbox with a box server', () => {
    let opened: ContainerBench;
    beforeAll(async () => {
      opened = await openWorkbench(backend, PROGRAMS);
    }, 120_000);
    afterAll(() => opened?.close());

    const specOf = (more: SpecInput): RuntimeSpec => runtimeSpecSchema.parse({ image: opened.image, ...more });

    /** Lets `act` run and end a session with this spec. Expects that the next session gets a new sandbox, and that it works. */
    async function expectReplaced(spec: RuntimeSpec, act: (pooled: ReturnType<typeof pool>) => Promise<void>) {
      const pooled = pool(opened.bench, backend);
      await act(pooled);
      const second = await pooled.begin(spec);
      expect(second.reusable.uses).toBe(1);
      expect(await output(second.runtime, 'echo works')).toBe('works\n');
      expect(['reset_failed', 'unhealthy']).toContain(pooled.events[1]);
      expect(pooled.events).toHaveLength(3);
      await pooled.end(second);
      await pooled.reused.close();
      expect(await opened.bench.sessionDirs()).toEqual([]);
    }

    it('has the workdir as prepared, its own services and the proxy of its present session', async ({ signal }) => {
      const { begin, end, reused, events } = pool(opened.bench, backend);
      const seconds = uniqueSeconds();
      const hidden = uniqueSeconds();
      const spec = specOf({
        prepare: [{ type: 'exec', command: 'echo prepared >data' }],
        reuse: {
          restore: 'workdir',
          services: [`touch /tmp/up; exec sleep ${seconds}`],
          health_command: 'test -e /tmp/up',
        },
      });
      for (const uses of [1, 2, 3]) {
        const session = await begin(spec);
        expect(session.reusable.uses).toBe(uses);
        expect(await processesMentioning(hidden)).toEqual([]);
        expect(await processesMentioning(seconds)).not.toEqual([]);
        expect(await output(session.runtime, 'ls -A; cat data')).toBe('data\nprepared\n');
        const server = await serve(session.reusable.place.socketPath, `proxy ${uses}`);
        expect(await ask(session.runtime, session.runtime.proxyOrigin)).toBe(`proxy ${uses}\n`);
        await closed(server);
        const daemon = `env -i setsid sleep ${hidden} </dev/null >/dev/null 2>&1 &`;
        await output(session.runtime, `echo forged >data; touch left; chmod 0 .; ${daemon}`);
        await end(session);
      }
      expect(events).toEqual(['started', 'reused', 'reused']);
      await reused.close();
      await untilNone(seconds, signal);
      expect(await opened.bench.sessionDirs()).toEqual([]);
    }, 60_000);

    it.each([
      ['ends its box server', 'kill -9 -1'],
      ['lets the restore of the files end it', 'printf "#!/bin/sh\\nkill -9 -1\\n" >"$(command -v tar)"'],
      ['lets a service end it', 'touch /tmp/armed'],
    ])(
      'is replaced when the agent %s',
      async (_how, command) => {
        const service = 'if [ -e /tmp/armed ]; then kill -9 -1; fi; touch up; exec sleep 1000';
        const reuse = { services: [service], health_command: 'test -e up', timeout_seconds: 10 };
        const spec = specOf({ reuse: { ...reuse, restore: 'workdir' } });
        await expectReplaced(spec, async ({ begin, end }) => {
          const first = await begin(spec);
          await output(first.runtime, command);
          await end(first);
        });
      },
      60_000,
    );

    it('is replaced when the agent stops its box server', async () => {
      const spec = specOf({ reuse: { restore: 'workdir' } });
      await expectReplaced(spec, async ({ begin, end }) => {
        const first = await begin(spec);
        const agent = first.runtime.exec({ command: 'kill -STOP "$PPID"' }, never);
        const rejected = expect(agent).rejects.toMatchObject({ code: 'runtime_failed' });
        const upload = (): Promise<string> =>
          first.runtime.uploadDir(import.meta.dirname, 'up', AbortSignal.timeout(500)).then(
            () => 'works',
            () => 'aborted',
          );
        await expect.poll(upload).toBe('aborted');
        await end(first);
        await rejected;
      });
    }, 60_000);

    if (backend !== 'apptainer') {
      it('is replaced when its container is removed during a reset', async () => {
        const engine = new ContainerEngine(opened.engineSocket ?? '');
        const prepare = [{ type: 'exec' as const, command: 'head -c 64000000 /dev/urandom >data' }];
        const spec = specOf({ prepare, reuse: { restore: 'workdir' } });
        await expectReplaced(spec, async ({ begin, end }) => {
          const first = await begin(spec);
          const [container] = await engine.labelled(`floe.sandbox=${first.reusable.name}`, never);
          await end(first);
          await engine.remove(container?.id ?? '', never);
        });
        await engine.close();
      }, 60_000);
    }

    it('that was started in advance reaches the proxy of the session that gets it', async () => {
      const { prewarmed, warm } = await prewarm(opened.bench, backend, specOf({}));
      const server = await serve(warm.place.socketPath, 'mine');
      expect(await ask(warm.runtime, warm.runtime.proxyOrigin)).toBe('mine\n');
      await closed(server);
      await prewarmed.close();
      expect(await opened.bench.sessionDirs()).toEqual([]);
    }, 60_000);

    it.each([
      [{}, 'runtime.reuse.restore'],
      [{ restore: 'none' as const, reset_command: 'true', services: ['sleep 9'] }, 'runtime.reuse.services'],
    ])('refuses %j', async (reuse, path) => {
      const { begin } = pool(opened.bench, backend);
      await expect(begin(specOf({ reuse }))).rejects.toMatchObject({ code: 'unsupported', details: { path } });
    });
  });
});

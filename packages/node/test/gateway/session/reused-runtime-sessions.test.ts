import type { ProxySessionSpec } from '@floe-rl/capture';
import { parseAs } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import type { StartRequest } from '@floe-rl/sandbox';
import { expect, it } from 'vitest';
import { NoneProvider } from '../../../../sandbox/src/backends/none.ts';
import { Sandboxes, StartLimits } from '../../../src/gateway/session/sandbox.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { type BenchParts, bench, ENDED_WELL, runtimeOf, settle, untilAborted } from '../session-bench.ts';

const reuse = { restore: 'none', reset_command: 'clean' } as const;

/** Sessions of one node, whose agents run in fake sandboxes. */
function node(exec: BenchParts['exec'] = async () => ENDED_WELL) {
  const alive: Parameters<typeof runtimeOf>[1] = new Set();
  const requests: StartRequest[] = [];
  const opened: ProxySessionSpec[] = [];
  const parts: BenchParts = {
    task: {
      runtime: { backend: 'local', reuse },
      evaluator: { strategy: 'fake', refresh_runtime: true },
    },
    exec,
    start: async (_purpose, request) => {
      requests.push(request);
      return { ...runtimeOf(exec, alive), isolation: 'container' };
    },
  };
  const { deps } = bench(parts);
  const run = async (task: BenchParts['task'] = {}) => {
    const { attempt, deps: own } = bench({ ...parts, task: { ...parts.task, ...task } });
    const proxy = {
      ...own.proxy,
      open: (spec: ProxySessionSpec) => {
        opened.push(spec);
        return own.proxy.open(spec);
      },
    };
    const { sandboxes, reused } = deps;
    const ended = runSession(attempt, { ...own, proxy, sandboxes, reused });
    return { attempt, ended };
  };
  const summary = async (task?: BenchParts['task']) => {
    const { ended } = await run(task);
    const result = await ended;
    await settle();
    return result?.summary;
  };
  return { deps, requests, opened, run, summary };
}

it("a node uses one sandbox for two sessions, and a new one for each evaluator's fresh runtime", async () => {
  const { requests, summary, deps } = node();
  expect(await summary()).toMatchObject({ outcome: 'completed', runtime: { reused: false, uses: 1 } });
  expect(await summary()).toMatchObject({ outcome: 'completed', runtime: { reused: true, uses: 2 } });
  expect(requests.map(({ name }) => name.replace(/^reused-.*/, 'reused'))).toEqual([
    'reused',
    'ses_1-1-eval',
    'ses_1-1-eval',
  ]);
  expect(deps.reused.sandboxes).toEqual([requests[0]?.name]);
});

it('a node opens the proxies of all sessions at the sockets that the sandbox was started with', async () => {
  const { requests, opened, summary } = node();
  await summary();
  await summary();
  const paths = opened.map(({ socketPath }) => socketPath);
  expect(paths).toEqual([requests[0]?.proxy?.socketPath, requests[0]?.proxy?.socketPath]);
  expect(opened[0]?.key).not.toBe(opened[1]?.key);
});

it('a node gives no session a sandbox that was started with other settings', async () => {
  const { summary } = node();
  await summary();
  const specs = [{ memory_mb: 512 }, { env: { A: 'b' } }, { reuse: { ...reuse, max_uses: 7 } }];
  for (const spec of specs) {
    const runtime = runtimeSpecSchema.parse({ backend: 'local', reuse, ...spec });
    expect(await summary({ runtime })).toMatchObject({ runtime: { reused: false, uses: 1 } });
  }
});

it('a node gives the sandbox of a session that was cancelled to the next session', async () => {
  let agents = 0;
  const { run, summary } = node((signal) => (++agents === 1 ? untilAborted(signal) : Promise.resolve(ENDED_WELL)));
  const { attempt, ended } = await run();
  await settle();
  attempt.stop('cancelled');
  expect(await ended).toBe(null);
  await settle();
  expect(await summary()).toMatchObject({ outcome: 'completed', runtime: { reused: true, uses: 2 } });
});

it.each([
  [{}, 'runtime.reuse.restore'],
  [{ restore: 'workdir' }, 'runtime.reuse.restore'],
] as const)('a node refuses %j on a back end that takes no snapshots', async (settings, path) => {
  const { summary } = node();
  const runtime = runtimeSpecSchema.parse({ backend: 'local', reuse: settings });
  expect(await summary({ runtime })).toMatchObject({
    outcome: 'env_error',
    error: { code: 'unsupported', details: { path } },
    runtime: null,
  });
});

it.each([
  [{ restore: 'none' }, 'reuse.reset_command'],
  [{ reset_command: '' }, 'reuse.reset_command'],
  [{ reset_command: 'a\0b' }, 'reuse.reset_command'],
  [{ reset_command: ['rm', '-r'] }, 'reuse.reset_command'],
  [{ health_command: '' }, 'reuse.health_command'],
  [{ health_command: 'a\0b' }, 'reuse.health_command'],
  [{ health_command: true }, 'reuse.health_command'],
  [{ restore: 'files' }, 'reuse.restore'],
  [{ restore: null }, 'reuse.restore'],
  [{ services: 'serve' }, 'reuse.services'],
  [{ services: ['serve', ''] }, 'reuse.services.1'],
  [{ services: ['a\0b'] }, 'reuse.services.0'],
  [{ services: Array.from({ length: 33 }, () => 'serve') }, 'reuse.services'],
  [{ max_uses: 0 }, 'reuse.max_uses'],
  [{ max_uses: 1.5 }, 'reuse.max_uses'],
  [{ max_uses: '9' }, 'reuse.max_uses'],
  [{ max_uses: 1_000_001 }, 'reuse.max_uses'],
  [{ timeout_seconds: 0 }, 'reuse.timeout_seconds'],
  [{ timeout_seconds: 3601 }, 'reuse.timeout_seconds'],
  [{ command: 'true' }, 'reuse'],
  [[], 'reuse'],
  [true, 'reuse'],
])('a node refuses the settings %j with an error that names %s', (reuse, path) => {
  const parse = () => parseAs(runtimeSpecSchema, { reuse }, 'runtime');
  const issues = [expect.objectContaining({ path })];
  expect(parse).toThrow(expect.objectContaining({ code: 'schema_violation', details: { issues } }));
});

it('a node refuses the back end none', async () => {
  const none = new Sandboxes({
    providers: new Map([['none', new NoneProvider()]]),
    defaultBackend: 'none',
    allowLocal: false,
    uploadRoots: [],
    startLimits: new StartLimits({}),
  });
  const spec = runtimeSpecSchema.parse({ reuse });
  const request = none.reuseRequest({ name: 's', spec, proxy: null, readOnlyMounts: [] });
  await expect(request).rejects.toMatchObject({ code: 'unsupported', details: { path: 'runtime.reuse' } });
});

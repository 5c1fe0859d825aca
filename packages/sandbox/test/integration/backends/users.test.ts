import { prepareActionSchema, type RuntimeBackend } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Runtime } from '../../../src/api/runtime.ts';
import { runPrepare } from '../../../src/workspace/prepare.ts';
import { never, Workbench } from '../../backends/workbench.ts';

describe('a user of the task', () => {
  let bench: Workbench;
  beforeAll(async () => {
    bench = await Workbench.open();
  });
  afterAll(() => bench.close());

  it.each<[RuntimeBackend, string | number, string]>([
    ['bubblewrap', 'root', 'is root, and a sandbox of bubblewrap has only the user agent'],
    ['bubblewrap', 1000, 'is 1000, and a sandbox of bubblewrap has only the user agent'],
    ['apptainer', 'dev', 'is dev, and a sandbox of apptainer has only the user root'],
    ['local', 'root', 'is root, and a sandbox of local has only one user'],
    ['none', 0, 'is 0, and a sandbox of none has only one user'],
  ])('is refused by %s: %s', async (backend, user, message) => {
    await expect(bench.start(backend, { user })).rejects.toMatchObject({
      code: 'unsupported',
      message: `runtime.user: ${message}`,
      details: { path: 'runtime.user' },
    });
  });

  it('cannot have a name that no user has', async () => {
    for (const user of ['a b', '1000', '', -1]) {
      await expect(bench.start('local', { user })).rejects.toMatchObject({ code: 'schema_violation' });
    }
  });
});

describe('a prepare action', () => {
  it('runs as the user of the sandbox, or as root where the action states it', async () => {
    const ran: string[] = [];
    const runtimeOf = (name: string, root: () => Runtime): Runtime =>
      ({
        exec: async ({ command }: { command: string }) => {
          ran.push(`${name}: ${command}`);
          return { exitCode: 0, killedBy: null };
        },
        asRoot: root,
      }) as unknown as Runtime;
    const root = runtimeOf('root', () => root);
    const actions = [
      { type: 'exec', command: 'one' },
      { type: 'exec', command: 'two', user: 'root' },
    ];
    const parsed = actions.map((action) => prepareActionSchema.parse(action));
    await runPrepare(
      runtimeOf('agent', () => root),
      parsed,
      { uploadRoots: [] },
      never,
    );
    expect(ran).toEqual(['agent: one', 'root: two']);
  });
});

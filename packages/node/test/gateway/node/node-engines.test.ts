import { FloeError } from '@floe-rl/core';
import { type EngineDirectory, type EngineSpec, engineSpecSchema, type PauseMode } from '@floe-rl/core/schema';
import { silentLogger } from '@floe-rl/observe';
import { describe, expect, it } from 'vitest';
import type { EnginePools, UnpausedEngine } from '../../../../capture/src/engines/pool/engine-pools.ts';
import { NodeEngines } from '../../../src/gateway/node/node-engines.ts';

/** A fake engine pool that records the calls of its methods. `refuse` contains the ids of engines that cannot be registered. */
class RecordingPool {
  readonly ids = new Set<string>();
  readonly refuse = new Set<string>();
  readonly log: string[] = [];
  paused: PauseMode | null = null;
  unpaused: UnpausedEngine[] = [];
  hold: Promise<void> = Promise.resolve();

  info() {
    return [...this.ids].map((engine_id) => ({ engine_id }));
  }

  async register(spec: EngineSpec) {
    const id = spec.engine_id ?? '';
    await this.hold;
    if (this.refuse.has(id)) throw new FloeError('engine_unavailable', `${id} cannot be reached`);
    this.log.push(`+${id}`);
    this.ids.add(id);
  }

  deregister(id: string) {
    if (this.ids.delete(id)) this.log.push(`-${id}`);
    return [];
  }

  async pause({ mode }: { mode: PauseMode }) {
    this.paused = mode;
    this.log.push(`pause ${mode}`);
  }

  async resume() {
    this.paused = null;
    this.log.push('resume');
  }

  setPolicyVersion(version: string) {
    this.log.push(`version ${version}`);
  }
}

const spec = (id: string, port = 1): EngineSpec =>
  engineSpecSchema.parse({ engine_id: id, base_url: `http://${id}:${port}` });

function directory(revision: number, fields: Partial<EngineDirectory> = {}): EngineDirectory {
  return { revision, engines: [], removed: [], paused: null, while_paused: 'hold', policy_version: null, ...fields };
}

function node(own: EngineSpec[] = []) {
  const pool = new RecordingPool();
  for (const { engine_id } of own) pool.ids.add(engine_id ?? '');
  const engines = new NodeEngines({
    pool: pool as unknown as EnginePools,
    own,
    log: silentLogger,
    onChange: () => {},
  });
  return { pool, engines };
}

describe('NodeEngines', () => {
  it('registers and removes engines as the directory lists them, in addition to those of the node', async () => {
    const { pool, engines } = node([spec('own')]);
    engines.apply(directory(1, { engines: [spec('a'), spec('b')], policy_version: 'v1' }));
    await engines.idle();
    expect([...pool.ids].sort()).toEqual(['a', 'b', 'own']);
    expect(engines.report()).toMatchObject({ revision: 1, heard: 1, problems: [] });
    engines.apply(directory(2, { engines: [spec('b')], removed: ['own', 'a'], policy_version: 'v1' }));
    // The pool is checked without waiting, because no model call may start at a removed engine once `apply` has returned.
    expect([...pool.ids]).toEqual(['b']);
    await engines.idle();
    expect(pool.log.filter((entry) => entry.startsWith('version'))).toEqual(['version v1']);
  });

  it('ignores a directory that is not newer', async () => {
    const { pool, engines } = node();
    engines.apply(directory(5, { engines: [spec('a')] }));
    engines.apply(directory(4, { engines: [] }));
    await engines.idle();
    expect([...pool.ids]).toEqual(['a']);
    expect(engines.report().revision).toBe(5);
  });

  it('reports a revision as applied only after its engines were registered or failed', async () => {
    const { pool, engines } = node();
    let go = (): void => {};
    pool.hold = new Promise((resolve) => {
      go = resolve;
    });
    engines.apply(directory(1, { engines: [spec('a')] }));
    expect(engines.report()).toMatchObject({ revision: 0, heard: 1 });
    go();
    await engines.idle();
    expect(engines.report()).toMatchObject({ revision: 1 });
  });

  it('reports an engine that cannot be registered and retries it', async () => {
    const { pool, engines } = node();
    pool.refuse.add('a');
    engines.apply(directory(1, { engines: [spec('a')] }));
    await engines.idle();
    expect(engines.report()).toMatchObject({
      revision: 1,
      problems: [{ engine_id: 'a', message: 'a cannot be reached' }],
    });
    pool.refuse.clear();
    engines.retry();
    await new Promise(setImmediate);
    expect(engines.report().problems).toEqual([]);
    expect([...pool.ids]).toEqual(['a']);
  });

  it('removes an engine that was removed from the directory during its registration', async () => {
    const { pool, engines } = node();
    let go = (): void => {};
    pool.hold = new Promise((resolve) => {
      go = resolve;
    });
    engines.apply(directory(1, { engines: [spec('a')] }));
    engines.apply(directory(2));
    go();
    await engines.idle();
    expect([...pool.ids]).toEqual([]);
    expect(engines.report()).toMatchObject({ revision: 2, problems: [] });
  });

  it('registers the new spec of an engine that changed during its registration', async () => {
    const { pool, engines } = node();
    let go = (): void => {};
    pool.hold = new Promise((resolve) => {
      go = resolve;
    });
    engines.apply(directory(1, { engines: [spec('a', 1)] }));
    engines.apply(directory(2, { engines: [spec('a', 2)] }));
    go();
    await engines.idle();
    expect(pool.log).toEqual(['+a', '-a', '+a']);
  });

  it('replaces an engine whose URL has changed', async () => {
    const { pool, engines } = node();
    engines.apply(directory(1, { engines: [spec('a', 1)] }));
    await engines.idle();
    engines.apply(directory(2, { engines: [spec('a', 2)] }));
    await engines.idle();
    expect(pool.log).toEqual(['+a', '-a', '+a']);
  });

  it('reports the engines that the pause does not stop', async () => {
    const { pool, engines } = node();
    engines.apply(directory(1, { paused: 'keep' }));
    pool.unpaused = [{ engineId: 'a', message: 'it cannot be paused' }];
    await engines.idle();
    expect(engines.report()).toMatchObject({
      revision: 1,
      problems: [],
      unpaused: [{ engine_id: 'a', message: 'it cannot be paused' }],
    });
  });

  it('pauses and resumes the pool as the directory states', async () => {
    const { pool, engines } = node();
    engines.apply(directory(1, { paused: 'abort' }));
    await engines.idle();
    engines.apply(directory(2, { paused: null }));
    await engines.idle();
    engines.apply(directory(3, { paused: null }));
    await engines.idle();
    expect(pool.log).toEqual(['pause abort', 'resume']);
  });
});

import { sessionMemoryMb } from '@floe-rl/core/protocol';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { usesFreshRuntime } from '../src/evaluator.ts';
import { evaluatorRegistry } from '../src/registry.ts';
import { directoryRuntime } from './directory-runtime.ts';
import { sessionOf } from './evaluated-session.ts';

const registry = evaluatorRegistry();

describe('evaluatorRegistry', () => {
  it('lists the names of all evaluators when a name is unknown', () => {
    expect(() => registry.get('nope')).toThrow(
      expect.objectContaining({
        code: 'unknown_evaluator',
        message: `no evaluator "nope"; there are ${registry.names().join(', ')}`,
      }),
    );
  });

  it.each([
    ['session_completed', { x: 1 }, 'x'],
    ['test_on_output', {}, 'test_command'],
    ['test_on_output', { test_command: 'x', expected_output_json: {} }, 'expected_output_json'],
    ['test_on_output', { test_command: 'x', expected_output_json: { a: 'OK' } }, 'expected_output_json'],
    ['test_on_output', { test_command: 'x', expected_output_json: { a: 'PASSED' }, timeout: 3 }, 'timeout'],
    ['test_on_output', { test_command: 'x', expected_output_json: { a: 'PASSED' }, exclude_patterns: [':!a'] }, ':!a'],
  ])('rejects, for %s, the config %j and names the field', (strategy, config, field) => {
    const spec = { strategy, config, env: {}, refresh_runtime: true };
    expect(() => registry.check(spec)).toThrow(
      expect.objectContaining({ code: 'schema_violation', message: expect.stringContaining(field) }),
    );
  });

  it('uses a fresh runtime by default for evaluators that run tests', () => {
    const specOf = (strategy: string, refresh_runtime: boolean | null) => ({
      strategy,
      config: {},
      env: {},
      refresh_runtime,
    });
    const uses = (strategy: string, refresh: boolean | null): boolean =>
      usesFreshRuntime(specOf(strategy, refresh), registry.get(strategy));
    expect([uses('test_on_output', null), uses('session_completed', null)]).toEqual([true, false]);
    expect([uses('test_on_output', false), uses('session_completed', true)]).toEqual([false, true]);
  });

  it('needs memory for a second sandbox when a Harbor task declares what crosses', () => {
    const runtime = runtimeSpecSchema.parse({});
    const config = { tests: ['/t'], artifacts: ['out'] };
    const evaluator = { strategy: 'harbor', config, env: {}, refresh_runtime: null };
    const added = sessionMemoryMb({ runtime, evaluator }) - sessionMemoryMb({ runtime, evaluator: null });
    expect(added).toBe(runtime.storage_mb);
  });

  it.each(registry.names())('needs memory for a second sandbox exactly when %s uses a fresh runtime', (strategy) => {
    const config =
      strategy === 'multi' ? { evaluators: [{ name: 'a', evaluator: { strategy: 'session_completed' } }] } : {};
    const evaluator = { strategy, config, env: {}, refresh_runtime: null };
    const runtime = runtimeSpecSchema.parse({});
    const added = sessionMemoryMb({ runtime, evaluator }) - sessionMemoryMb({ runtime, evaluator: null });
    expect(added > 0).toBe(usesFreshRuntime(evaluator, registry.get(strategy)));
  });

  it.each(['docker', 'podman', 'apptainer', 'local'] as const)(
    'needs no memory for the files of %s, which are on the disk',
    (backend) => {
      const config = { evaluators: [{ name: 'a', evaluator: { strategy: 'swebench', config: {} } }] };
      const evaluator = { strategy: 'multi', config, env: {}, refresh_runtime: null };
      const runtime = runtimeSpecSchema.parse({ backend, memory_mb: 300, storage_mb: 7000 });
      expect(sessionMemoryMb({ runtime, evaluator })).toBe(300);
      expect(sessionMemoryMb({ runtime: { ...runtime, backend: 'bubblewrap' }, evaluator })).toBe(14_300);
    },
  );

  it('rejects expectations that are not JSON', () => {
    const config = { test_command: 'x', expected_output_json: '{a' };
    expect(() => registry.get('test_on_output').checkConfig(config)).toThrow(
      expect.objectContaining({ code: 'schema_violation' }),
    );
  });

  it.each([
    ['COMPLETED', 1],
    ['TIMEOUT', 0],
    ['ERROR', 0],
    ['CANCELLED', 0],
  ] as const)('session_completed gives a run that ended as %s a reward of %i', async (status, reward) => {
    const runtime = await directoryRuntime();
    const spec = { strategy: 'session_completed', config: {}, env: {}, refresh_runtime: false };
    const context = { spec, status, runtime, freshRuntime: null, session: sessionOf() };
    const evaluation = await registry.get('session_completed').evaluate(context, new AbortController().signal);
    await runtime.stop();
    expect(evaluation).toEqual({ reward, details: { status } });
    expect(runtime.commands).toEqual([]);
  });
});

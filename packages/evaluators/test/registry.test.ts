import { systemClock } from '@floe-rl/core';
import { sessionMemoryMb } from '@floe-rl/core/protocol';
import { type EvaluatorSpec, evaluatorSpecSchema, type RuntimeSpec, runtimeSpecSchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { evaluatorOfNodes } from '../src/custom.ts';
import { usesFreshRuntime } from '../src/evaluator.ts';
import { evaluatorRegistry } from '../src/registry.ts';
import { directoryRuntime } from './directory-runtime.ts';
import { sessionOf } from './evaluated-session.ts';

const registry = evaluatorRegistry();

const memoryOf = (runtime: RuntimeSpec, evaluator: EvaluatorSpec): number =>
  sessionMemoryMb(runtime, registry.usesFreshRuntime(evaluator));

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
    expect(memoryOf(runtime, evaluator) - sessionMemoryMb(runtime, false)).toBe(runtime.storage_mb);
  });

  it.each(registry.names())('needs memory for a second sandbox exactly when %s uses a fresh runtime', (strategy) => {
    const config =
      strategy === 'multi' ? { evaluators: [{ name: 'a', evaluator: { strategy: 'session_completed' } }] } : {};
    const evaluator = { strategy, config, env: {}, refresh_runtime: null };
    const runtime = runtimeSpecSchema.parse({});
    const added = memoryOf(runtime, evaluator) - sessionMemoryMb(runtime, false);
    expect(added > 0).toBe(usesFreshRuntime(evaluator, registry.get(strategy)));
  });

  it.each(['docker', 'podman', 'apptainer', 'local'] as const)(
    'needs no memory for the files of %s, which are on the disk',
    (backend) => {
      const config = { evaluators: [{ name: 'a', evaluator: { strategy: 'swebench', config: {} } }] };
      const evaluator = { strategy: 'multi', config, env: {}, refresh_runtime: null };
      const runtime = runtimeSpecSchema.parse({ backend, memory_mb: 300, storage_mb: 7000 });
      expect(memoryOf(runtime, evaluator)).toBe(300);
      expect(memoryOf({ ...runtime, backend: 'bubblewrap' }, evaluator)).toBe(14_300);
    },
  );

  const multi = (evaluator: unknown) => ({ strategy: 'multi', config: { evaluators: [{ name: 'a', evaluator }] } });
  const tests = { strategy: 'test_on_output', config: { test_command: 'x', expected_output_json: {} } };

  it.each([
    ['no memory for a second sandbox when it grades in place', { strategy: 'session_completed' }, 1100],
    ['the files of a second sandbox when it grades in a fresh runtime', { strategy: 'test_on_output' }, 1200],
    ['one sandbox when the task refuses a fresh runtime', { strategy: 'test_on_output', refresh_runtime: false }, 1100],
    ['a second sandbox that the task requests', { strategy: 'session_completed', refresh_runtime: true }, 1200],
    ['one sandbox when all of several evaluators grade in place', multi({ strategy: 'session_completed' }), 1100],
    ['a second sandbox when one of several evaluators uses it', multi(tests), 1200],
    ['a second sandbox when one of several evaluators cannot be read', multi('none'), 1200],
    ['a second sandbox when it is unknown', { strategy: 'nope' }, 1200],
    ['a second sandbox when its config is refused', { strategy: 'multi', config: { evaluators: 7 } }, 1200],
  ])('counts, for an evaluator, %s', (_, fields, mb) => {
    const runtime = runtimeSpecSchema.parse({ memory_mb: 1000, storage_mb: 100 });
    expect(memoryOf(runtime, evaluatorSpecSchema.parse(fields))).toBe(mb);
  });

  it('counts a second sandbox for a new evaluator as the evaluator states', () => {
    const named = (name: string, freshRuntimeByDefault: boolean) => ({
      ...evaluatorOfNodes(name),
      freshRuntimeByDefault,
    });
    const { usesFreshRuntime: uses } = evaluatorRegistry(systemClock, {}, [
      named('tests', true),
      named('score', false),
    ]);
    expect(['tests', 'score'].map((strategy) => uses(evaluatorSpecSchema.parse({ strategy })))).toEqual([true, false]);
  });

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

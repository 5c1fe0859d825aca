import { FloeError } from '../../core/errors.ts';
import type { StrategySpec } from '../../schema/index.ts';
import type { Builder } from './builder.ts';
import { BUILT_IN_BUILDERS } from './built-in.ts';

export type BuilderRegistry = {
  names(): string[];
  /** Throws `unknown_builder`, whose message lists the registered names. */
  get(strategy: string): Builder;
  /** Throws `unknown_builder` or `schema_violation`. Called when a task is submitted, before any work is done. */
  check(spec: StrategySpec): void;
};

/**
 * A registry of the built-in builders and of `custom` ones by the strategies that select them; several strategies may select one
 * builder. Throws `setup_failed` for a strategy that is already registered.
 */
export function builderRegistry(custom: ReadonlyMap<string, Builder> = new Map()): BuilderRegistry {
  const builders = new Map(BUILT_IN_BUILDERS.map((builder) => [builder.name, builder]));
  for (const [strategy, builder] of custom) {
    if (builders.has(strategy)) throw new FloeError('setup_failed', `there is a builder "${strategy}" already`);
    builders.set(strategy, builder);
  }
  const names = (): string[] => [...new Set([...builders.values()].map((builder) => builder.name))];
  const get = (strategy: string): Builder => {
    const builder = builders.get(strategy);
    if (builder !== undefined) return builder;
    const known = names();
    throw new FloeError('unknown_builder', `builder.strategy: no "${strategy}"; there are ${known.join(', ')}`, {
      path: 'builder.strategy',
      known,
    });
  };
  return { names, get, check: (spec) => get(spec.strategy).checkConfig(spec.config) };
}

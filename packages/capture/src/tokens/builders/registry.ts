import { FloeError } from '@floe-rl/core';
import type { StrategySpec } from '@floe-rl/core/schema';
import type { Builder } from './builder.ts';
import { BUILT_IN_BUILDERS } from './built-in.ts';

export type BuilderRegistry = {
  names(): string[];
  /** Returns the builder of a strategy. Throws `unknown_builder` with a message that lists the registered names. */
  get(strategy: string): Builder;
  /**
   * Checks the builder and its configuration when a task is submitted, before any session starts. Throws `unknown_builder` for an unknown
   * name, and `schema_violation` for a wrong configuration.
   */
  check(spec: StrategySpec): void;
};

/**
 * Creates a registry of the built-in builders and the `custom` builders of the operator. `custom` maps each strategy name to a builder;
 * several names may select the same builder. Throws `setup_failed` for a strategy name that is already registered.
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

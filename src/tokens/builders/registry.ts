import { FloeError } from '../../core/errors.ts';
import type { StrategySpec } from '../../schema/index.ts';
import type { Builder } from './builder.ts';
import { perRequestBuilder } from './per-request.ts';
import { prefixMergingBuilder } from './prefix-merging.ts';
import { stepBuilder } from './step.ts';

const BUILT_IN: readonly Builder[] = [prefixMergingBuilder, perRequestBuilder, stepBuilder];

export type BuilderRegistry = {
  names(): string[];
  /** Throws `unknown_builder`, naming those there are. */
  get(strategy: string): Builder;
  /** Throws `unknown_builder` or `schema_violation`; for submission, before any work is done. */
  check(spec: StrategySpec): void;
};

/**
 * floe's own builders and `custom` ones, which a task may call by their name or by any of the other names that lead to them. Throws
 * `setup_failed` for a name that is taken.
 */
export function builderRegistry(custom: ReadonlyMap<string, Builder> = new Map()): BuilderRegistry {
  const builders = new Map(BUILT_IN.map((builder) => [builder.name, builder]));
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

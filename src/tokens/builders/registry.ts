import { FloeError } from '../../core/errors.ts';
import type { StrategySpec } from '../../schema/index.ts';
import type { Builder } from './builder.ts';
import { perRequestBuilder } from './per-request.ts';
import { prefixMergingBuilder } from './prefix-merging.ts';

const BUILDERS: ReadonlyMap<string, Builder> = new Map(
  [prefixMergingBuilder, perRequestBuilder].map((builder) => [builder.name, builder]),
);

export function builderNames(): string[] {
  return [...BUILDERS.keys()];
}

/** Throws `unknown_builder`, naming those there are. */
export function builderOf(name: string): Builder {
  const builder = BUILDERS.get(name);
  if (builder !== undefined) return builder;
  const known = builderNames();
  throw new FloeError('unknown_builder', `no builder "${name}"; there are ${known.join(', ')}`, { known });
}

/** Throws `unknown_builder` or `schema_violation`. */
export function checkBuilder(spec: StrategySpec): void {
  builderOf(spec.strategy).checkConfig(spec.config);
}

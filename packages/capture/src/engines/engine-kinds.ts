import { type Clock, FloeError } from '@floe-rl/core';
import { type EngineKind, type EngineSpec, engineKindSchema } from '@floe-rl/core/schema';
import type { EngineDefinition } from './custom/definition.ts';
import { createCustomEngine } from './custom/engine.ts';
import type { Engine, EngineNotice } from './engine.ts';
import { createLlamaCppEngine } from './llama-cpp/engine.ts';
import { createOpenaiEngine } from './openai/engine.ts';
import { createSglangEngine } from './sglang/engine.ts';
import { createTinkerEngine } from './tinker/engine.ts';
import { createVllmEngine } from './vllm/engine.ts';

/** The engine modules of the operator, by the kind that they define. */
export type EngineKinds = ReadonlyMap<string, EngineDefinition>;

type EngineDeps = { readonly clock: Clock; readonly notice?: EngineNotice; readonly kinds?: EngineKinds };

/** An adapter of floe. */
type BuiltInKind = {
  readonly create: (spec: EngineSpec, deps: EngineDeps) => Promise<Engine>;
  /** Whether the metrics of these engines report their load. */
  readonly reportsLoad: boolean;
};

const BUILT_IN: Readonly<Record<EngineKind, BuiltInKind>> = {
  vllm: { create: createVllmEngine, reportsLoad: true },
  sglang: { create: createSglangEngine, reportsLoad: true },
  llama_cpp: { create: createLlamaCppEngine, reportsLoad: true },
  openai: { create: createOpenaiEngine, reportsLoad: false },
  tinker: { create: createTinkerEngine, reportsLoad: false },
};

/**
 * Connects to a server of `spec.kind` and determines what it supports. Rejects with one of these codes:
 * - `engine_unavailable`: the server cannot be reached.
 * - `engine_error`: it is not a server of that kind, or it does not serve the model that `spec` names.
 * - `setup_failed`: the engine needs a file that `spec` does not name, or there is no engine of that kind.
 */
export async function createEngine(spec: EngineSpec, deps: EngineDeps): Promise<Engine> {
  const known = builtIn(spec.kind);
  if (known !== null) return known.create(spec, deps);
  return createCustomEngine(spec, customKind(spec.kind, deps.kinds), deps.clock);
}

/** Whether engines of a kind report their load. Engines of an operator's module do not. */
export function reportsLoad(kind: string): boolean {
  return builtIn(kind)?.reportsLoad ?? false;
}

/** Returns floe's adapter for a kind; `null` for a kind that a module of the operator defines. */
function builtIn(kind: string): BuiltInKind | null {
  const known = engineKindSchema.safeParse(kind);
  return known.success ? BUILT_IN[known.data] : null;
}

function customKind(kind: string, kinds: EngineKinds = new Map()): EngineDefinition {
  const definition = kinds.get(kind);
  if (definition !== undefined) return definition;
  const known = [...engineKindSchema.options, ...kinds.keys()];
  throw new FloeError(
    'setup_failed',
    `kind: this node has no engine module ${kind}; it has ${known.join(', ')}. List the module in plugins.engines of the node`,
    { kind, known },
  );
}

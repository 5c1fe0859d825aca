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

/**
 * Connects to a server of `spec.kind` and determines what it supports. Rejects with one of these codes:
 * - `engine_unavailable`: the server cannot be reached.
 * - `engine_error`: it is not a server of that kind, or it does not serve the model that `spec` names.
 * - `setup_failed`: the engine needs a file that `spec` does not name, or there is no engine of that kind.
 */
export async function createEngine(spec: EngineSpec, deps: EngineDeps): Promise<Engine> {
  switch (spec.kind) {
    case 'vllm':
      return createVllmEngine(spec, deps);
    case 'llama_cpp':
      return createLlamaCppEngine(spec, deps);
    case 'sglang':
      return createSglangEngine(spec, deps);
    case 'openai':
      return createOpenaiEngine(spec, deps);
    case 'tinker':
      return createTinkerEngine(spec, deps);
    default:
      return createCustomEngine(spec, customKind(spec.kind, deps.kinds), deps.clock);
  }
}

/** Whether the metrics of a kind report the load of an engine. */
const REPORTS_LOAD: Readonly<Record<EngineKind, boolean>> = {
  vllm: true,
  sglang: true,
  llama_cpp: true,
  openai: false,
  tinker: false,
};

/** Whether engines of a kind report their load. Engines of an operator's module do not. */
export function reportsLoad(kind: string): boolean {
  const known = engineKindSchema.safeParse(kind);
  return known.success && REPORTS_LOAD[known.data];
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

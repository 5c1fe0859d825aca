import type { Clock } from '@floe-rl/core';
import type { EngineSpec } from '@floe-rl/core/schema';
import type { Engine, EngineNotice } from './engine.ts';
import { createLlamaCppEngine } from './llama-cpp/engine.ts';
import { createOpenaiEngine } from './openai/engine.ts';
import { createSglangEngine } from './sglang/engine.ts';
import { createTinkerEngine } from './tinker/engine.ts';
import { createVllmEngine } from './vllm/engine.ts';

type EngineDeps = { readonly clock: Clock; readonly notice?: EngineNotice };

/**
 * Connects to a server of `spec.kind` and determines what it supports. Rejects with `engine_unavailable` when the server cannot be
 * reached, with `engine_error` when it is not a server of that kind or does not serve the model that `spec` names, and with `setup_failed`
 * when it needs a file that `spec` does not name.
 */
export function createEngine(spec: EngineSpec, deps: EngineDeps): Promise<Engine> {
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
  }
}

import type { CanonicalRequest } from '../../dialects/dialect.ts';
import type { GenerateRequest, PromptIds } from '../../engines/engine.ts';
import type { Sampling, TaskEngine } from '../../schema/index.ts';
import type { CompletionRequest } from '../../tokens/completion.ts';

/**
 * Distance between the seeds of two consecutive calls. It is the largest `num_samples` of a task, so that a call's seed never equals that
 * of another sample's call.
 */
const SEED_STRIDE = 100_000;

/** What a call needs to know about the attempt that it belongs to. */
export type AttemptSpec = {
  readonly sessionId: string;
  readonly attempt: number;
  readonly sampleIndex: number;
  readonly sampling: Sampling;
  /** The task's choice of the engine pool, the capture mode and the thinking retention. */
  readonly engine: TaskEngine;
};

/**
 * Returns the sampling in effect for call `index`: the task's, whatever the harness requests, except that the smaller of the two limits on
 * tokens applies. If the task has a seed, every call gets a different one: `seed + sample_index` for the first call, and {@link
 * SEED_STRIDE} more for each further call.
 */
export function effectiveSampling(spec: AttemptSpec, request: CanonicalRequest, index: number): Sampling {
  const { sampling, sampleIndex } = spec;
  const requested = request.samplingAsked.max_tokens ?? null;
  const maxTokens =
    requested === null || sampling.max_tokens === null
      ? (requested ?? sampling.max_tokens)
      : Math.min(requested, sampling.max_tokens);
  const seed = sampling.seed === null ? null : sampling.seed + sampleIndex + index * SEED_STRIDE;
  return { ...sampling, max_tokens: maxTokens, seed };
}

/** Creates the request to an engine. The engine renders `messageTexts` when `prompt` is `null`. */
export function engineRequest(
  completionId: string,
  { sessionId, engine }: AttemptSpec,
  request: CanonicalRequest,
  recorded: CompletionRequest,
  messageTexts: readonly string[],
  prompt: PromptIds | null,
): GenerateRequest {
  return {
    completionId,
    sessionId,
    pool: engine.pool,
    messageTexts,
    tools: recorded.tools,
    toolsText: recorded.toolsText,
    toolChoice: request.toolChoice,
    parallelToolCalls: request.parallelToolCalls,
    sampling: recorded.sampling,
    maxTokens: recorded.sampling.max_tokens,
    stop: request.samplingAsked.stop ?? [],
    responseFormat: request.samplingAsked.response_format ?? null,
    seed: recorded.sampling.seed,
    prompt,
    resumeFrom: null,
    cacheSalt: null,
  };
}

import type { CanonicalRequest } from '../../dialects/dialect.ts';
import type { GenerateRequest, PromptIds } from '../../engines/engine.ts';
import type { Sampling, TaskEngine } from '../../schema/index.ts';
import type { CompletionRequest } from '../../tokens/completion.ts';

/** The largest `num_samples` of a task, so that the seeds of different calls never equal those of another sample. */
const SEED_STRIDE = 100_000;

/** The attempt that a call belongs to. */
export type AttemptSpec = {
  readonly sessionId: string;
  readonly attempt: number;
  readonly sampleIndex: number;
  readonly sampling: Sampling;
  /** Selects the engines and the capture mode. */
  readonly engine: TaskEngine;
};

/**
 * The sampling in effect for call `index`: the task's, whatever the harness requests, except that the lower bound on tokens applies.
 * Every call has a different seed: `seed + sample_index` for the first, and {@link SEED_STRIDE} more for each further one.
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

/** The request to an engine. The engine renders `messageTexts` when `prompt` is `null`. */
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

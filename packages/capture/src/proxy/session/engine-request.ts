import type { Sampling, TaskEngine } from '@floe-rl/core/schema';
import type { CanonicalRequest } from '../../dialects/dialect.ts';
import { constraintKindOf } from '../../engines/constraint.ts';
import type { CallContext, GenerateRequest, PromptIds, ReplyListener } from '../../engines/engine.ts';
import type { CompletionRequest } from '../../tokens/completion.ts';
import { NO_IMAGES } from '../../tokens/images.ts';
import type { RequestTexts } from './request-memory.ts';

/**
 * Distance between the seeds of two consecutive calls of a session. It equals the maximum `num_samples` of a task, so that calls of
 * different samples of a task never have the same seed.
 */
const SEED_STRIDE = 100_000;

/** The facts about a session's attempt that its model calls need. */
export type AttemptSpec = {
  readonly sessionId: string;
  readonly attempt: number;
  readonly sampleIndex: number;
  readonly sampling: Sampling;
  /**
   * The task's engine settings: the engine pool, how prompts are sent (capture mode), and how long thinking stays in prompts (thinking
   * retention).
   */
  readonly engine: TaskEngine;
};

/**
 * Returns the sampling parameters in effect for call `index`. The parameters of the task apply, whatever the harness requests. Only for
 * `max_tokens`, the smaller of the task's and the harness's values applies. If the task has a seed, every call gets a different seed: `seed
 * + sample_index` for the first call, and {@link SEED_STRIDE} more for each further call.
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

/**
 * Returns the part of the completion record that states what the harness requested. `sampling` are the parameters of the call to the engine,
 * which {@link effectiveSampling} determines.
 */
export function recordedRequest(
  { samplingAsked, toolChoice, parallelToolCalls, tools, adjusted }: CanonicalRequest,
  texts: RequestTexts,
  sampling: Sampling,
): CompletionRequest {
  return {
    messages: texts.messages,
    messageTexts: texts.messageTexts,
    tools: texts.tools,
    toolsText: texts.toolsText,
    // The completion gets its images when it is recorded, because another call may record them first.
    images: NO_IMAGES,
    samplingAsked,
    toolChoice,
    parallelToolCalls,
    constraint: constraintKindOf({ tools, toolChoice, responseFormat: samplingAsked.response_format ?? null }),
    adjusted,
    sampling,
  };
}

/** Creates the request to an engine. When `prompt` is `null`, the engine renders `messageTexts` itself. */
export function engineRequest(
  { completionId, sessionId, pool, traceparent }: CallContext,
  request: CanonicalRequest,
  recorded: CompletionRequest,
  messageTexts: readonly string[],
  prompt: PromptIds | null,
  listener?: ReplyListener,
): GenerateRequest {
  return {
    completionId,
    sessionId,
    pool,
    traceparent,
    listener,
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
    policyVersion: null,
  };
}

import type { AssistantMessage, ChatMessage, ConstraintKind, StopCause } from '@floe-rl/core/schema';
import type { Completion } from '../../src/tokens/completion.ts';
import { type ImageUrls, NO_IMAGES } from '../../src/tokens/images.ts';

/** The id that ends a turn in the invented chat template of the tests' sessions. */
export const CLOSE = 2;
/** The id that may end an assistant turn with a tool call, instead of {@link CLOSE}. */
export const CALL_CLOSE = 3;

export type CompletionInput = Partial<
  Omit<Completion, 'promptIds' | 'responseIds' | 'responseLogprobs' | 'request'>
> & {
  readonly prompt: readonly number[];
  readonly response: readonly number[];
  readonly logprobs?: readonly number[];
  readonly messages?: readonly ChatMessage[];
  readonly toolsText?: string;
  readonly images?: ImageUrls;
  readonly constraint?: ConstraintKind | null;
};

/** Makes log-probabilities that differ between completions and between positions. */
function logprobsOf(index: number, length: number): Float32Array {
  return Float32Array.from({ length }, (_, i) => -((index * 31 + i * 7 + 1) % 97) / 13);
}

/** Makes a completion, with default values for the fields that a test does not set. By default, the last response id is its stop token. */
export function makeCompletion(input: CompletionInput): Completion {
  const {
    prompt,
    response,
    logprobs,
    messages = [],
    toolsText = '[]',
    constraint = null,
    images = NO_IMAGES,
    ...rest
  } = input;
  const index = input.index ?? 0;
  const last = response.at(-1);
  const stop: StopCause | null = last === undefined ? null : { kind: 'token', id: last };
  const message: AssistantMessage = { role: 'assistant', content: `reply ${index}` };
  return {
    completionId: `c${index}`,
    sessionId: 'ses',
    attempt: 1,
    index,
    timestampMs: 1_700_000_000_000 + index,
    dialect: 'openai_chat',
    callKind: 'main',
    thread: 'main',
    capture: {
      mode: 'chat',
      logprobs_mode: 'processed',
      thinking_retention: 'template',
      spliced_onto: null,
      rendered_because: 'chat_mode',
    },
    routedExperts: null,
    engineCallIds: [],
    versionSpans: response.length > 0 ? [{ version: 'v1', start: 0, end: response.length }] : [],
    message,
    finishReason: 'stop',
    stop,
    engineId: 'engine',
    model: 'policy',
    usage: { prompt_tokens: prompt.length, completion_tokens: response.length, cached_tokens: null },
    engineMs: 1,
    totalMs: 2,
    abandoned: false,
    auxiliary: false,
    undelivered: false,
    ...rest,
    request: {
      messages,
      messageTexts: messages.map((one) => JSON.stringify(one)),
      images,
      tools: JSON.parse(toolsText),
      toolsText,
      samplingAsked: {},
      toolChoice: constraint === 'tool_choice' ? 'required' : null,
      parallelToolCalls: null,
      constraint,
      sampling: { temperature: 1, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1, max_tokens: null, seed: null },
      adjusted: [],
    },
    promptIds: Int32Array.from(prompt),
    responseIds: Int32Array.from(response),
    responseLogprobs: logprobs === undefined ? logprobsOf(index, response.length) : Float32Array.from(logprobs),
  };
}

import { FloeError } from '@floe-rl/core';
import type { SimContext } from '../context.ts';
import { messageSchema, templateMessages } from '../messages.ts';
import { ReplyParser } from '../reply-parser.ts';
import { parsesToolCalls, requestedConstraint } from '../requested-constraint.ts';
import type { SamplingParams } from '../sampler.ts';
import { renderChat } from '../template.ts';
import { boundedMaxTokens, checkModel } from './context.ts';
import { type ChatRequest, refuseUnsupported, samplingParams, type TokenizeChatRequest } from './request.ts';

/** The prompt and the sampling parameters of a chat request. */
export type ChatTask = { readonly promptIds: readonly number[]; readonly params: SamplingParams };

/** Validates a chat request and converts it for the engine. Throws `engine_rejected` or `not_found` for a request that vLLM refuses. */
export function chatTask(context: SimContext, request: ChatRequest): ChatTask {
  checkModel(context, request.model);
  refuseUnsupported(request, 'chat');
  if ((request.top_logprobs ?? 0) > 0 && request.logprobs !== true) {
    throw new FloeError('engine_rejected', 'when using `top_logprobs`, `logprobs` must be set to true.');
  }
  const promptIds = chatPromptIds(context, request);
  const requestedTokens = request.max_completion_tokens ?? request.max_tokens ?? null;
  const maxTokens = boundedMaxTokens(context.engine.options.maxModelLen, promptIds.length, requestedTokens);
  const constraint = requestedConstraint(request, context.engine.options.policy, promptIds);
  return { promptIds, params: samplingParams(request, context.config.generationConfig, maxTokens, constraint) };
}

/** Renders and encodes a chat request's prompt. Throws `engine_rejected` for messages that vLLM refuses to render. */
export function chatPromptIds(context: SimContext, request: TokenizeChatRequest): number[] {
  const continueFinalMessage = request.continue_final_message ?? false;
  const addGenerationPrompt = request.add_generation_prompt ?? true;
  if (continueFinalMessage && addGenerationPrompt) {
    throw new FloeError(
      'engine_rejected',
      'Cannot set both `continue_final_message` and `add_generation_prompt` to True.',
    );
  }
  if (request.messages.length === 0) {
    throw new FloeError(
      'engine_rejected',
      'Cannot apply chat template to an empty conversation. Provide at least one message.',
    );
  }
  // Messages with an unknown role are dropped, as chat templates do.
  const messages = request.messages.flatMap((message) => messageSchema.safeParse(message).data ?? []);
  const text = renderChat(templateMessages(messages, { vision: context.config.vision, anyArguments: true }), {
    mode: context.mode,
    tools: request.tools ?? [],
    addGenerationPrompt,
    continueFinalMessage,
  });
  return context.vocabulary.encode(text);
}

/** Whether the prompt ends inside a thinking block. */
export function promptOpensThinking(context: SimContext, request: ChatRequest): boolean {
  return context.mode === 'open_think' && (request.add_generation_prompt ?? true);
}

/** Creates the parser for replies to a chat request. It combines vLLM's reasoning parser and tool-call parser. */
export function chatParser(
  context: SimContext,
  request: ChatRequest,
  newCallId: (index: number) => string,
): ReplyParser {
  return new ReplyParser({
    special: context.vocabulary.special,
    insideThinking: promptOpensThinking(context, request),
    parseCalls: parsesToolCalls(request),
    newCallId,
  });
}

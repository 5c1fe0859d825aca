import { FloeError } from '../../core/errors.ts';
import type { SimContext } from '../context.ts';
import { messageSchema, templateMessages } from '../messages.ts';
import { ReplyParser } from '../reply-parser.ts';
import { parsesToolCalls, requestedConstraint } from '../requested-constraint.ts';
import type { SamplingParams } from '../sampler.ts';
import { renderChat } from '../template.ts';
import { boundedMaxTokens, checkModel } from './context.ts';
import { type ChatRequest, refuseUnsupported, samplingParams, type TokenizeChatRequest } from './request.ts';

/** What a chat request comes down to for the engine. */
export type ChatTask = { readonly promptIds: readonly number[]; readonly params: SamplingParams };

/** Throws `engine_rejected` or `not_found`, as vLLM refuses the request. */
export function chatTask(context: SimContext, request: ChatRequest): ChatTask {
  checkModel(context, request.model);
  refuseUnsupported(request, 'chat');
  if ((request.top_logprobs ?? 0) > 0 && request.logprobs !== true) {
    throw new FloeError('engine_rejected', 'when using `top_logprobs`, `logprobs` must be set to true.');
  }
  const promptIds = chatPromptIds(context, request);
  const asked = request.max_completion_tokens ?? request.max_tokens ?? null;
  const maxTokens = boundedMaxTokens(context.engine.options.maxModelLen, promptIds.length, asked);
  const constraint = requestedConstraint(request, context.engine.options.policy, promptIds);
  return { promptIds, params: samplingParams(request, context.config.generationConfig, maxTokens, constraint) };
}

/** Renders and encodes a chat request's prompt. */
export function chatPromptIds(context: SimContext, request: TokenizeChatRequest): number[] {
  const continued = request.continue_final_message ?? false;
  const open = request.add_generation_prompt ?? true;
  if (continued && open) {
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
  // A template passes over roles that it does not know.
  const known = request.messages.flatMap((message) => messageSchema.safeParse(message).data ?? []);
  const text = renderChat(templateMessages(known, { vision: context.config.vision, anyArguments: true }), {
    mode: context.mode,
    tools: request.tools ?? [],
    addGenerationPrompt: open,
    continueFinalMessage: continued,
  });
  return context.vocabulary.encode(text);
}

/** Whether the prompt ends within thinking. */
export function promptOpensThinking(context: SimContext, request: ChatRequest): boolean {
  return context.mode === 'open_think' && (request.add_generation_prompt ?? true);
}

/** Reads the replies to a chat request, as the server's reasoning and tool parsers do. */
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

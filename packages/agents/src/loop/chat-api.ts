import { ERROR_TABLE, type ErrorCode, FloeError, parseJson } from '@floe-rl/core';
import type { FinishReason } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { Turn } from '../tools/conversation.ts';
import type { ModelRequest } from './model.ts';

/** Error code of OpenAI's API, and of floe's proxy, for a prompt that is longer than the context window. */
const OVERFLOW_CODE = 'context_length_exceeded';
/** Maximum number of characters of an error reply that an error message quotes. */
const QUOTED_CHARS = 500;

const replySchema = z.looseObject({
  id: z.string().nullish(),
  choices: z
    .array(
      z.looseObject({
        message: z.looseObject({
          content: z.string().nullish(),
          refusal: z.string().nullish(),
          reasoning: z.string().nullish(),
          reasoning_content: z.string().nullish(),
          tool_calls: z
            .array(
              z.looseObject({
                id: z.string().min(1),
                function: z.looseObject({ name: z.string(), arguments: z.string() }),
              }),
            )
            .nullish(),
        }),
        finish_reason: z.string().nullish(),
      }),
    )
    .min(1),
  usage: z
    .looseObject({
      prompt_tokens: z.int(),
      completion_tokens: z.int(),
      prompt_tokens_details: z.looseObject({ cached_tokens: z.int().nullish() }).nullish(),
    })
    .nullish(),
});

const errorSchema = z.looseObject({
  error: z.union([z.string(), z.looseObject({ message: z.string().nullish(), code: z.unknown().optional() })]),
});

/** Returns the body of a request for a chat completion, which contains the whole conversation. */
export function chatBody(
  { messages, tools, toolChoice, maxTokens }: ModelRequest,
  model: string,
): Record<string, unknown> {
  return {
    model,
    messages,
    ...(tools.length === 0 ? {} : { tools }),
    ...(toolChoice === null ? {} : { tool_choice: toolChoice }),
    ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
  };
}

/** Returns the headers that label a call for floe's proxy. Other servers ignore them. */
export function callHeaders({
  thread,
  isTrained,
  enginePool,
}: Pick<ModelRequest, 'thread' | 'isTrained' | 'enginePool'>): Record<string, string> {
  return {
    'x-floe-thread': thread,
    ...(isTrained ? {} : { 'x-floe-kind': 'untrained' }),
    ...(enginePool === null ? {} : { 'x-floe-engine-pool': enginePool }),
  };
}

/**
 * Reads a chat completion. `fallbackId` is the id of the reply where the server gives none. A reply without usage counts no tokens. Throws
 * `engine_error` for a reply that is no chat completion, and `engine_rejected` for a reply that a content filter withheld.
 */
export function turnOf(body: string, fallbackId: string): Turn {
  const parsed = replySchema.safeParse(jsonOf(body));
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    const where = issue === undefined ? '' : `${issue.path.map(String).join('.')}: ${issue.message}`;
    throw new FloeError('engine_error', `the reply of the model is no chat completion: ${where}`);
  }
  const { id, choices, usage } = parsed.data;
  const [choice] = choices;
  if (choice === undefined) throw new FloeError('engine_error', 'the reply of the model has no choice');
  const { message, finish_reason } = choice;
  const reasoning = message.reasoning_content ?? message.reasoning;
  const calls = message.tool_calls ?? [];
  return {
    completionId: id ?? fallbackId,
    message: {
      role: 'assistant',
      content: message.content ?? message.refusal ?? null,
      ...(reasoning == null ? {} : { reasoning_content: reasoning }),
      ...(calls.length === 0
        ? {}
        : {
            tool_calls: calls.map(({ id, function: { name, arguments: args } }) => ({
              id,
              type: 'function' as const,
              function: { name, arguments: args },
            })),
          }),
    },
    finishReason: finishReasonOf(finish_reason ?? null, calls.length > 0),
    usage: {
      prompt_tokens: usage?.prompt_tokens ?? 0,
      completion_tokens: usage?.completion_tokens ?? 0,
      cached_tokens: usage?.prompt_tokens_details?.cached_tokens ?? null,
    },
  };
}

function jsonOf(body: string): unknown {
  try {
    return parseJson(body);
  } catch (cause) {
    const quoted = body.slice(0, QUOTED_CHARS);
    throw new FloeError('engine_error', `the reply of the model is not JSON: ${quoted}`, {}, cause);
  }
}

function finishReasonOf(reason: string | null, hasCalls: boolean): FinishReason {
  if (reason === 'length') return 'length';
  if (reason === 'content_filter') {
    throw new FloeError('engine_rejected', 'the content filter of the model withheld the reply');
  }
  return hasCalls ? 'tool_calls' : 'stop';
}

/**
 * Returns the error that a reply with a status of 400 or more stands for. Errors of floe's proxy keep their code. `where` is the address of
 * the model.
 */
export function replyError(status: number, body: string, where: string): FloeError {
  const { message, code } = errorFields(body);
  const details = { status, ...(code === OVERFLOW_CODE ? { context_overflow: true } : {}) };
  return new FloeError(errorCodeOf(status, code), `${where} replied ${status}: ${message}`, details);
}

function errorFields(body: string): { readonly message: string; readonly code: unknown } {
  const quoted = body.slice(0, QUOTED_CHARS).trim();
  try {
    const parsed = errorSchema.safeParse(JSON.parse(body));
    if (!parsed.success) return { message: quoted, code: null };
    const { error } = parsed.data;
    if (typeof error === 'string') return { message: error, code: null };
    return { message: error.message ?? quoted, code: error.code };
  } catch {
    // A gateway between the agent and the server may reply with text or HTML.
    return { message: quoted, code: null };
  }
}

function errorCodeOf(status: number, code: unknown): ErrorCode {
  if (typeof code === 'string' && Object.hasOwn(ERROR_TABLE, code)) return code as ErrorCode;
  if (status === 401) return 'unauthorized';
  if (status === 403) return 'forbidden';
  if (status === 404) return 'not_found';
  if (status === 413) return 'body_too_large';
  if (status === 429) return 'overloaded';
  if (status === 503) return 'engine_unavailable';
  return status >= 500 ? 'engine_error' : 'engine_rejected';
}

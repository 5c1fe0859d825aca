import { FloeError } from '@floe-rl/core';
import type { SimContext } from '../context.ts';
import { applyEarlyFault } from '../fault-effects.ts';
import type { Exchange } from '../http.ts';
import { type CallHead, newCallHead } from '../sampled-call.ts';

/** The request fields that identify a call and its session. */
type CallIdentity = {
  readonly request_id?: string | null | undefined;
  readonly session_id?: string | null | undefined;
};

/**
 * Counts a call for the fault injector and returns its ids and faults. The headers `X-Request-Id` and `X-Session-ID` take precedence over
 * the body's fields.
 */
export function readCallHead(exchange: Exchange, context: SimContext, request: CallIdentity): CallHead {
  const requestId = exchange.header('x-request-id') ?? request.request_id ?? null;
  return newCallHead(context, requestId, exchange.header('x-session-id') ?? request.session_id ?? null);
}

/** Applies the injected faults that replace the whole reply, with vLLM's error texts; see {@link applyEarlyFault}. */
export function applyEarlyVllmFault(exchange: Exchange, context: SimContext, head: CallHead, stream: boolean): boolean {
  const { maxModelLen } = context.engine.options;
  return applyEarlyFault(exchange, head.plan, stream, {
    errorBody: vllmError,
    replyContextOverflow: () => replyVllmError(exchange, contextOverflow(maxModelLen, maxModelLen + 1)),
  });
}

/** Throws `not_found`, as vLLM does, when a request names a model that is not served. */
export function checkModel(context: SimContext, model: string | null | undefined): void {
  if (model !== undefined && model !== null && model !== '' && !context.servedModel.accepts(model)) {
    const aliases = `Valid aliases: ${context.servedModel.name}.`;
    throw new FloeError('not_found', `The model \`${model}\` does not exist. ${aliases}`, { param: 'model' });
  }
}

/** Returns vLLM's error object. `param` names the invalid field; `null` where vLLM names none. */
export function vllmError(message: string, status: number, param: string | null = null, type?: string): object {
  const defaultType = status === 404 ? 'NotFoundError' : status < 500 ? 'BadRequestError' : 'InternalServerError';
  return { error: { message, type: type ?? defaultType, param, code: status } };
}

/** Matches the schema's error message for a number outside its range. */
const OUT_OF_RANGE = /^Too (small|big): expected (number|int)/;

/** Sends an error as vLLM does: an invalid request (422) gets status 400, and `param` names the invalid field. */
export function replyVllmError(exchange: Exchange, error: FloeError): void {
  const status = error.status === 422 ? 400 : error.status;
  const { param, issues } = error.details;
  const [issue] = Array.isArray(issues) ? (issues as { readonly path: string; readonly message: string }[]) : [];
  if (issue === undefined) {
    const [prefix] = typeof param === 'string' ? param.split('.') : [];
    const shape = error.code === 'malformed_json' ? 'body' : prefix === 'query' ? String(param) : null;
    const named = typeof param === 'string' ? param : shape;
    exchange.json(status, vllmError(error.message, status, named, shape === null ? undefined : 'Bad Request'));
    return;
  }
  // vLLM reports a number outside its range with the field's name alone, and a value of the wrong type with the field's path in the body.
  const isOutOfRange = OUT_OF_RANGE.test(issue.message);
  const field = isOutOfRange ? (issue.path.split('.').at(-1) ?? null) : `body.${issue.path}`;
  exchange.json(status, vllmError(error.message, status, field, isOutOfRange ? undefined : 'Bad Request'));
}

/** Returns vLLM's error for a prompt that fills the whole context. */
function contextOverflow(maxModelLen: number, promptTokens: number): FloeError {
  return new FloeError(
    'engine_rejected',
    `This model's maximum context length is ${maxModelLen} tokens. However, your prompt contains at least ${promptTokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=${promptTokens})`,
    { param: 'input_tokens' },
  );
}

/**
 * Returns the maximum reply length in tokens: `requested`, limited to the part of the context length that the prompt leaves free. When
 * `requested` is `null`, this is all of that part. Throws `engine_rejected` with vLLM's text when the prompt alone, or `requested` alone,
 * exceeds the context length.
 */
export function boundedMaxTokens(maxModelLen: number, promptTokens: number, requested: number | null): number {
  if (promptTokens >= maxModelLen) throw contextOverflow(maxModelLen, promptTokens);
  if (requested !== null && requested > maxModelLen) {
    throw new FloeError(
      'engine_rejected',
      `max_tokens=${requested} cannot be greater than max_model_len=${maxModelLen}. Please request fewer output tokens. (parameter=max_tokens, value=${requested})`,
      { param: 'max_tokens' },
    );
  }
  return Math.min(requested ?? maxModelLen, maxModelLen - promptTokens);
}

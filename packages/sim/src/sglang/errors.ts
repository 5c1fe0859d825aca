import { FloeError } from '@floe-rl/core';
import type { FaultReplies } from '../fault-effects.ts';
import type { ErrorReplier, Exchange } from '../http.ts';

/** Path of SGLang's native route. Its errors have another form than the errors of all other routes. */
const NATIVE_ROUTE = '/generate';

const ERROR_TYPES: Readonly<Record<number, string>> = {
  429: 'TooManyRequestsError',
  500: 'InternalServerError',
  503: 'ServiceUnavailableError',
};

/** Returns the error object that all routes except `/generate` send. */
function sglangError(message: string, status: number): object {
  return { object: 'error', message, type: ERROR_TYPES[status] ?? 'BadRequestError', param: null, code: status };
}

/** Returns the error object that `/generate` sends. */
export function nativeError(message: string): object {
  return { error: { message } };
}

function errorBody(exchange: Exchange, message: string, status: number): object {
  return exchange.url.pathname === NATIVE_ROUTE ? nativeError(message) : sglangError(message, status);
}

/** Sends an error as SGLang does: every invalid request gets status 400. */
export const replySglangError: ErrorReplier = (exchange, error) => {
  const status = [404, 409, 422].includes(error.status) ? 400 : error.status;
  exchange.json(status, errorBody(exchange, error.message, status));
};

/** Returns the replies for injected failures with SGLang's texts, in the error format of the route that `exchange` calls. */
export function faultReplies(exchange: Exchange, maxModelLen: number): FaultReplies {
  return {
    errorBody: (message, status) => errorBody(exchange, message, status),
    replyContextOverflow: () => replySglangError(exchange, inputTooLong(maxModelLen, maxModelLen + 1)),
  };
}

function inputTooLong(maxModelLen: number, promptTokens: number): FloeError {
  return new FloeError(
    'engine_rejected',
    `The input (${promptTokens} tokens) is longer than the model's context length (${maxModelLen} tokens).`,
  );
}

/**
 * Returns the maximum reply length in tokens: `requested`, or the part of the context length that the prompt leaves free when `requested`
 * is `null`. Throws `engine_rejected` with SGLang's text when the prompt alone, or prompt and `requested` together, exceed the context
 * length.
 */
export function boundedNewTokens(maxModelLen: number, promptTokens: number, requested: number | null): number {
  if (promptTokens >= maxModelLen) throw inputTooLong(maxModelLen, promptTokens);
  const total = promptTokens + (requested ?? 0);
  if (total > maxModelLen) {
    throw new FloeError(
      'engine_rejected',
      `Requested token count exceeds the model's maximum context length of ${maxModelLen} tokens. You requested a total of ${total} tokens: ${promptTokens} tokens from the input messages and ${requested} tokens for the completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit.`,
    );
  }
  return requested ?? maxModelLen - promptTokens;
}

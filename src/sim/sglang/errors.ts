import { FloeError } from '../../core/errors.ts';
import type { FaultReplies } from '../fault-effects.ts';
import type { ErrorReplier, Exchange } from '../http.ts';

/** The native route has its own form of errors. */
const NATIVE_ROUTE = '/generate';

const ERROR_TYPES: Readonly<Record<number, string>> = {
  429: 'TooManyRequestsError',
  500: 'InternalServerError',
  503: 'ServiceUnavailableError',
};

/** The error object of all routes except `/generate`. */
function sglangError(message: string, status: number): object {
  return { object: 'error', message, type: ERROR_TYPES[status] ?? 'BadRequestError', param: null, code: status };
}

/** The error object of `/generate`. */
export function nativeError(message: string): object {
  return { error: { message } };
}

function errorBody(exchange: Exchange, message: string, status: number): object {
  return exchange.url.pathname === NATIVE_ROUTE ? nativeError(message) : sglangError(message, status);
}

/** Sends an error as SGLang does: every invalid request is a 400. */
export const replySglangError: ErrorReplier = (exchange, error) => {
  const status = [404, 409, 422].includes(error.status) ? 400 : error.status;
  exchange.json(status, errorBody(exchange, error.message, status));
};

/** Injected failures in SGLang's words, in the form of the route of `exchange`. */
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
 * The maximum reply length in tokens: `requested`, or with `null` all of the context length that the prompt leaves. Throws
 * `engine_rejected` in SGLang's words when the prompt, or prompt and `requested` together, exceed the context length.
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

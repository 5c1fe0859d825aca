import { FloeError } from '../../core/errors.ts';
import type { EarlyReplies } from '../early-fault.ts';
import type { ErrorReplier, Exchange } from '../http.ts';

/** The native route words its errors in its own way. */
const NATIVE_ROUTE = '/generate';

const ERROR_TYPES: Readonly<Record<number, string>> = {
  429: 'TooManyRequestsError',
  500: 'InternalServerError',
  503: 'ServiceUnavailableError',
};

/** The error object of everything that is not `/generate`. */
export function sglangError(message: string, status: number): object {
  return { object: 'error', message, type: ERROR_TYPES[status] ?? 'BadRequestError', param: null, code: status };
}

/** The error object of `/generate`. */
export function nativeError(message: string): object {
  return { error: { message } };
}

function errorBody(exchange: Exchange, message: string, status: number): object {
  return exchange.url.pathname === NATIVE_ROUTE ? nativeError(message) : sglangError(message, status);
}

/** Everything that a client did wrong is a 400. */
export const replySglangError: ErrorReplier = (exchange, error) => {
  const status = [404, 409, 422].includes(error.status) ? 400 : error.status;
  exchange.json(status, errorBody(exchange, error.message, status));
};

/** How injected failures are worded in the reply to `exchange`. */
export function earlyReplies(exchange: Exchange, maxModelLen: number): EarlyReplies {
  return {
    errorBody: (message, status) => errorBody(exchange, message, status),
    overflow: () => replySglangError(exchange, inputTooLong(maxModelLen, maxModelLen + 1)),
  };
}

function inputTooLong(maxModelLen: number, promptTokens: number): FloeError {
  return new FloeError(
    'engine_rejected',
    `The input (${promptTokens} tokens) is longer than the model's context length (${maxModelLen} tokens).`,
  );
}

/**
 * Bounds a reply by the context length; `asked` null means as long as fits. Throws `engine_rejected` in SGLang's words
 * when the prompt, or prompt and `asked`, do not fit.
 */
export function boundedNewTokens(maxModelLen: number, promptTokens: number, asked: number | null): number {
  if (promptTokens >= maxModelLen) throw inputTooLong(maxModelLen, promptTokens);
  const total = promptTokens + (asked ?? 0);
  if (total > maxModelLen) {
    throw new FloeError(
      'engine_rejected',
      `Requested token count exceeds the model's maximum context length of ${maxModelLen} tokens. You requested a total of ${total} tokens: ${promptTokens} tokens from the input messages and ${asked} tokens for the completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit.`,
    );
  }
  return asked ?? maxModelLen - promptTokens;
}

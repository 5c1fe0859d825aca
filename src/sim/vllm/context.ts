import { FloeError } from '../../core/errors.ts';
import type { SimContext } from '../context.ts';
import type { Exchange } from '../http.ts';

/** What vLLM's routes share. */
export type VllmContext = SimContext;

/** Refuses another model's name, as vLLM. */
export function checkModel(context: VllmContext, model: string | null | undefined): void {
  if (model !== undefined && model !== null && model !== '' && !context.identity.answersTo(model)) {
    throw new FloeError('not_found', `The model \`${model}\` does not exist.`);
  }
}

/** vLLM's error object. `param` names the field that is to blame, where vLLM does. */
export function vllmError(message: string, status: number, param: string | null = null): object {
  const type = status === 404 ? 'NotFoundError' : status < 500 ? 'BadRequestError' : 'InternalServerError';
  return { error: { message, type, param, code: status } };
}

/** Every 4xx that is no 404 is a 400 in vLLM. */
export function replyVllmError(exchange: Exchange, error: FloeError): void {
  const status = error.status === 422 ? 400 : error.status;
  const { param } = error.details;
  exchange.json(status, vllmError(error.message, status, typeof param === 'string' ? param : null));
}

/** vLLM's refusal of a prompt that leaves no room for a reply. */
export function contextOverflow(maxModelLen: number, promptTokens: number): FloeError {
  return new FloeError(
    'engine_rejected',
    `This model's maximum context length is ${maxModelLen} tokens. However, your request has ${promptTokens} input tokens. Please reduce the length of the input messages.`,
    { param: 'input_tokens' },
  );
}

/**
 * Bounds a reply by the context length. Throws `engine_rejected` with vLLM's words when the prompt, or prompt and
 * `asked`, do not fit.
 */
export function boundedMaxTokens(maxModelLen: number, promptTokens: number, asked: number | null): number {
  if (promptTokens >= maxModelLen) throw contextOverflow(maxModelLen, promptTokens);
  const room = maxModelLen - promptTokens;
  if (asked !== null && asked > room) {
    throw new FloeError(
      'engine_rejected',
      `'max_tokens' or 'max_completion_tokens' is too large: ${asked}. This model's maximum context length is ${maxModelLen} tokens and your request has ${promptTokens} input tokens (${asked} > ${maxModelLen} - ${promptTokens}).`,
    );
  }
  return asked ?? room;
}

import { FloeError } from '../../core/errors.ts';
import type { SimContext } from '../context.ts';
import type { Exchange } from '../http.ts';

/** What vLLM's routes share. */
export type VllmContext = SimContext;

/** Refuses another model's name, as vLLM. */
export function checkModel(context: VllmContext, model: string | null | undefined): void {
  if (model !== undefined && model !== null && model !== '' && !context.identity.answersTo(model)) {
    const known = `Valid aliases: ${context.identity.model}.`;
    throw new FloeError('not_found', `The model \`${model}\` does not exist. ${known}`, { param: 'model' });
  }
}

/** vLLM's error object. `param` names the field that is to blame, where vLLM does. */
export function vllmError(message: string, status: number, param: string | null = null, type?: string): object {
  const usual = status === 404 ? 'NotFoundError' : status < 500 ? 'BadRequestError' : 'InternalServerError';
  return { error: { message, type: type ?? usual, param, code: status } };
}

/** How a number beyond its bounds is worded in a schema's issue. */
const OUT_OF_RANGE = /^Too (small|big): expected (number|int)/;

/** Every 4xx that is no 404 is a 400 in vLLM. */
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
  // Numbers out of their range are looked at by vLLM itself, what has the wrong type by its reader of requests.
  const ranged = OUT_OF_RANGE.test(issue.message);
  const field = ranged ? (issue.path.split('.').at(-1) ?? null) : `body.${issue.path}`;
  exchange.json(status, vllmError(error.message, status, field, ranged ? undefined : 'Bad Request'));
}

/** vLLM's refusal of a prompt that leaves no room for a reply. */
export function contextOverflow(maxModelLen: number, promptTokens: number): FloeError {
  return new FloeError(
    'engine_rejected',
    `This model's maximum context length is ${maxModelLen} tokens. However, your prompt contains at least ${promptTokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=${promptTokens})`,
    { param: 'input_tokens' },
  );
}

/**
 * Bounds a reply by the context length: a bound beyond the room behind the prompt is lowered to it. Throws `engine_rejected` with
 * vLLM's words when the prompt alone, or `asked` alone, does not fit.
 */
export function boundedMaxTokens(maxModelLen: number, promptTokens: number, asked: number | null): number {
  if (promptTokens >= maxModelLen) throw contextOverflow(maxModelLen, promptTokens);
  if (asked !== null && asked > maxModelLen) {
    throw new FloeError(
      'engine_rejected',
      `max_tokens=${asked} cannot be greater than max_model_len=${maxModelLen}. Please request fewer output tokens. (parameter=max_tokens, value=${asked})`,
      { param: 'max_tokens' },
    );
  }
  return Math.min(asked ?? maxModelLen, maxModelLen - promptTokens);
}

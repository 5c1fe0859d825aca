import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { SimConfig } from '../config.ts';
import type { SimEngine } from '../engine.ts';
import type { FaultInjector } from '../faults.ts';
import type { Exchange } from '../http.ts';
import type { Ledger } from '../ledger.ts';
import type { SimMetrics } from '../metrics.ts';
import type { TemplateMode } from '../template.ts';
import type { Vocabulary } from '../vocabulary.ts';
import type { WeightStore } from '../weights.ts';
import type { CallIds } from './call-ids.ts';

export type LogprobsMode = SimConfig['logprobsMode'];

/** What vLLM's routes share. */
export type VllmContext = {
  readonly engine: SimEngine;
  readonly vocabulary: Vocabulary;
  readonly weights: WeightStore;
  readonly ledger: Ledger;
  readonly faults: FaultInjector;
  readonly metrics: SimMetrics;
  readonly clock: Clock;
  readonly model: string;
  readonly mode: TemplateMode;
  readonly logprobsMode: LogprobsMode;
  readonly generationConfig: SimConfig['generationConfig'];
  /** Whether replies carry `weight_versions`. */
  readonly reportVersions: boolean;
  /** Whether usage carries `prompt_tokens_details.cached_tokens`. */
  readonly reportCachedTokens: boolean;
  /** Least tokens per streamed chunk. */
  readonly streamInterval: number;
  /** Whether messages may have images. */
  readonly vision: boolean;
  /** What `/version` answers. */
  readonly version: string;
  readonly callIds: CallIds;
  readonly startedMs: number;
};

/** Refuses another model's name, as vLLM. */
export function checkModel(context: VllmContext, model: string | null | undefined): void {
  if (model !== undefined && model !== null && model !== '' && model !== context.model) {
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

import type { CallHead } from '../call-head.ts';
import { failEarly } from '../early-fault.ts';
import type { Exchange } from '../http.ts';
import { contextOverflow, replyVllmError, type VllmContext, vllmError } from './context.ts';

/** As {@link failEarly}, in vLLM's words. */
export function failAsVllm(exchange: Exchange, context: VllmContext, head: CallHead, stream: boolean): boolean {
  const { maxModelLen } = context.engine.options;
  return failEarly(exchange, head, stream, {
    errorBody: vllmError,
    overflow: () => replyVllmError(exchange, contextOverflow(maxModelLen, maxModelLen + 1)),
  });
}

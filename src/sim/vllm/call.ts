import { randomUUID } from 'node:crypto';
import type { Fault, FaultPlan } from '../faults.ts';
import type { Exchange } from '../http.ts';
import type { CallFaults } from '../run.ts';
import { contextOverflow, replyVllmError, type VllmContext, vllmError } from './context.ts';

/** What is known of a generation call before its body is understood. */
export type CallHead = {
  /** `X-Request-Id`, else the body's `request_id`, else a new one. */
  readonly requestId: string;
  readonly sessionId: string | null;
  readonly plan: FaultPlan;
};

type HeadFields = { readonly request_id?: string | null | undefined; readonly session_id?: string | null | undefined };

export function callHead(exchange: Exchange, context: VllmContext, request: HeadFields): CallHead {
  const sessionId = exchange.header('x-session-id') ?? request.session_id ?? null;
  return {
    requestId: exchange.header('x-request-id') ?? request.request_id ?? randomUUID().replaceAll('-', ''),
    sessionId,
    plan: context.faults.plan(sessionId),
  };
}

/**
 * Carries out a fault that leaves no room for a reply. True when it did; then nothing is sampled. Prepares those that
 * lie below the reply's text.
 */
export function failEarly(exchange: Exchange, context: VllmContext, { plan }: CallHead, stream: boolean): boolean {
  if (plan.has('chunk_split')) exchange.splitWrites();
  if (plan.has('reset_before')) {
    exchange.reset();
  } else if (plan.has('http_400_context')) {
    const { maxModelLen } = context.engine.options;
    replyVllmError(exchange, contextOverflow(maxModelLen, maxModelLen + 1));
  } else if (plan.has('http_429')) {
    exchange.json(429, vllmError('Too many requests (injected).', 429), { 'retry-after': '1' });
  } else if (plan.has('http_500')) {
    exchange.json(500, vllmError('Internal server error (injected).', 500));
  } else if (plan.has('http_503')) {
    exchange.json(503, vllmError('Service unavailable (injected).', 503));
  } else if (plan.has('error_body_200')) {
    const error = vllmError('The engine has died (injected).', 500);
    if (!stream) exchange.json(200, error);
    else {
      exchange.beginStream();
      exchange.response.end(`data: ${JSON.stringify(error)}\n\ndata: [DONE]\n\n`);
    }
  } else if (plan.has('garbage')) {
    if (!stream) exchange.text(200, '<html>upstream', { 'content-type': 'application/json' });
    else {
      exchange.beginStream();
      exchange.response.end('data: {"id": "chatcmpl-\n\n');
    }
  } else {
    return false;
  }
  return true;
}

/** The faults that the engine itself carries out. */
export function engineFaults({ hits }: FaultPlan): CallFaults {
  const at = (kind: Fault['kind']): number | null => hits.find((fault) => fault.kind === kind)?.after_tokens ?? null;
  return {
    names: hits.map(({ kind }) => kind),
    malformedCalls: hits.some(({ kind }) => kind === 'malformed_tool_call'),
    abortAt: at('abort'),
    stallAt: at('stall'),
  };
}

/** Reply length at which the connection is to be reset; null: never. */
export function resetAt({ hits }: FaultPlan): number | null {
  return hits.find(({ kind }) => kind === 'reset_mid')?.after_tokens ?? null;
}

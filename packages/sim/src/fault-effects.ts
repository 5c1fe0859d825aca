import type { Fault, FaultPlan } from './faults.ts';
import type { Exchange } from './http.ts';
import type { CallFaults } from './run.ts';

/** Creates the replies for injected failures in the format of one API. */
export type FaultReplies = {
  /** Returns the body of an error reply with this message and HTTP status. */
  errorBody(message: string, status: number): object;
  /** Sends the error reply for a prompt that exceeds the context length. */
  replyContextOverflow(exchange: Exchange): void;
};

/**
 * Applies the injected faults that replace the whole reply. Returns `true` when it sent such a reply or reset the connection; the caller
 * must then sample nothing. For the fault `chunk_split`, it returns `false`, and the later writes of the reply are sent in small pieces.
 */
export function applyEarlyFault(
  exchange: Exchange,
  plan: FaultPlan,
  stream: boolean,
  { errorBody, replyContextOverflow }: FaultReplies,
): boolean {
  if (plan.has('chunk_split')) exchange.splitWrites();
  if (plan.has('reset_before')) {
    exchange.reset();
  } else if (plan.has('http_400_context')) {
    replyContextOverflow(exchange);
  } else if (plan.has('http_429')) {
    exchange.json(429, errorBody('Too many requests (injected).', 429), { 'retry-after': '1' });
  } else if (plan.has('http_500')) {
    exchange.json(500, errorBody('Internal server error (injected).', 500));
  } else if (plan.has('http_503')) {
    exchange.json(503, errorBody('Service unavailable (injected).', 503));
  } else if (plan.has('error_body_200')) {
    const error = errorBody('The engine has died (injected).', 500);
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

/** Returns the part of a call's injected faults that the engine itself applies during sampling. */
export function engineFaults({ hits }: FaultPlan): CallFaults {
  const lengthOf = (kind: Fault['kind']): number | null =>
    hits.find((fault) => fault.kind === kind)?.after_tokens ?? null;
  return {
    names: hits.map(({ kind }) => kind),
    malformedCalls: hits.some(({ kind }) => kind === 'malformed_tool_call'),
    abortAt: lengthOf('abort'),
    stallAt: lengthOf('stall'),
    swapAt: lengthOf('version_changed'),
    slowFactor: hits.find(({ kind }) => kind === 'slow')?.factor ?? 1,
  };
}

/** An injected fault that resets the connection in the middle of a reply. */
export type ConnectionBreak = {
  /** Reply length in tokens at which the connection is reset. */
  readonly atTokens: number;
  /** Number of later connections that are refused because the fault also crashes the server; `null` when the server keeps running. */
  readonly downCalls: number | null;
};

/** Returns the connection reset that an injected fault of the call demands; `null` when no fault demands one. */
export function connectionBreak({ hits }: FaultPlan): ConnectionBreak | null {
  const fault = hits.find(({ kind }) => kind === 'dies_mid_stream' || kind === 'reset_mid');
  if (fault === undefined) return null;
  return { atTokens: fault.after_tokens, downCalls: fault.kind === 'reset_mid' ? null : fault.down_calls };
}

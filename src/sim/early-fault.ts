import type { CallHead } from './call-head.ts';
import type { Exchange } from './http.ts';

/** How a face words its errors. */
export type EarlyReplies = {
  errorBody(message: string, status: number): object;
  /** Refuses the call as an overlong prompt. */
  overflow(exchange: Exchange): void;
};

/**
 * Carries out a fault that leaves no room for a reply. True when it did; then nothing is sampled. Prepares those that
 * lie below the reply's text.
 */
export function failEarly(exchange: Exchange, { plan }: CallHead, stream: boolean, face: EarlyReplies): boolean {
  if (plan.has('chunk_split')) exchange.splitWrites();
  if (plan.has('reset_before')) {
    exchange.reset();
  } else if (plan.has('http_400_context')) {
    face.overflow(exchange);
  } else if (plan.has('http_429')) {
    exchange.json(429, face.errorBody('Too many requests (injected).', 429), { 'retry-after': '1' });
  } else if (plan.has('http_500')) {
    exchange.json(500, face.errorBody('Internal server error (injected).', 500));
  } else if (plan.has('http_503')) {
    exchange.json(503, face.errorBody('Service unavailable (injected).', 503));
  } else if (plan.has('error_body_200')) {
    const error = face.errorBody('The engine has died (injected).', 500);
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

import { randomUUID } from 'node:crypto';
import type { SimContext } from './context.ts';
import type { Fault, FaultPlan } from './faults.ts';
import type { Exchange } from './http.ts';
import type { CallFaults } from './run.ts';

/** What is known of a generation call before its body is understood. */
export type CallHead = {
  /** `X-Request-Id`, else the body's `request_id`, else a new one. */
  readonly requestId: string;
  readonly sessionId: string | null;
  readonly plan: FaultPlan;
};

type HeadFields = { readonly request_id?: string | null | undefined; readonly session_id?: string | null | undefined };

/** Counts the call for the faults. */
export function callHead(exchange: Exchange, context: SimContext, request: HeadFields): CallHead {
  const sessionId = exchange.header('x-session-id') ?? request.session_id ?? null;
  const plan = context.faults.plan(sessionId);
  if (plan.has('model_changed')) context.identity.changeModel();
  return {
    requestId: exchange.header('x-request-id') ?? request.request_id ?? randomUUID().replaceAll('-', ''),
    sessionId,
    plan,
  };
}

/** The faults that the engine itself carries out. */
export function engineFaults({ hits }: FaultPlan): CallFaults {
  const at = (kind: Fault['kind']): number | null => hits.find((fault) => fault.kind === kind)?.after_tokens ?? null;
  return {
    names: hits.map(({ kind }) => kind),
    malformedCalls: hits.some(({ kind }) => kind === 'malformed_tool_call'),
    abortAt: at('abort'),
    stallAt: at('stall'),
    swapAt: at('version_changed'),
    slowFactor: hits.find(({ kind }) => kind === 'slow')?.factor ?? 1,
  };
}

/** How the connection is to break, and at which reply length. */
export type Breakage = {
  readonly atTokens: number;
  /** Connections that are refused afterwards: the server has died. Null: it goes on. */
  readonly downCalls: number | null;
};

/** Null: it does not break. */
export function breakageOf({ hits }: FaultPlan): Breakage | null {
  const fault = hits.find(({ kind }) => kind === 'dies_mid_stream' || kind === 'reset_mid');
  if (fault === undefined) return null;
  return { atTokens: fault.after_tokens, downCalls: fault.kind === 'reset_mid' ? null : fault.down_calls };
}

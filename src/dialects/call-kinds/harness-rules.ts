import type { CallKind } from '../../schema/index.ts';
import type { Headers } from '../dialect.ts';
import type { CallView } from './prompt-view.ts';

/** What a harness says of a call in its headers. */
export type HeaderFacts = {
  /** Whose call it is; null: not told, the prompt decides. */
  readonly agent: { readonly kind: 'main' } | { readonly kind: 'subagent'; readonly id: string | null } | null;
  /** What the call is for; null: the agent's own work, or not told. */
  readonly purpose: CallKind | null;
};

/**
 * How the calls of one harness, and of those that descend from it, are told apart. Pure; nothing throws. Each rule must be so
 * narrow that no other harness's call meets it: the families are asked one after the other, and the first word counts.
 */
export type Family = {
  /** Null: these headers are not this harness's. */
  readonly headers?: (headers: Headers) => HeaderFacts | null;
  /** What the prompt shows the call to be for; null: the agent's own work, or another harness's. */
  readonly purpose?: (call: CallView) => CallKind | null;
  /** Whether the prompt is a sub-agent's. */
  readonly subagent?: (call: CallView) => boolean;
};

/** Headers come from the sandboxed agent, and may come several times. */
export function headerOf(headers: Headers, name: string): string | null {
  const value = headers[name];
  const first = Array.isArray(value) ? value[0] : value;
  return first === undefined || first === '' ? null : first;
}

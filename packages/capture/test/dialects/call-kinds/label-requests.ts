import { type CallRules, type ChatMessage, type ChatTool, callRulesSchema } from '@floe-rl/core/schema';
import { expect } from 'vitest';
import { labelCall } from '../../../src/dialects/call-kinds/label.ts';
import type { Headers } from '../../../src/dialects/dialect.ts';

type LabelInput = Parameters<typeof labelCall>[1];

export const chat = (...messages: ChatMessage[]): Partial<LabelInput> => ({ messages });
export const system = (content: string): ChatMessage => ({ role: 'system', content });
export const user = (content: string): ChatMessage => ({ role: 'user', content });
export const assistant = (content: string): ChatMessage => ({ role: 'assistant', content });
export const tool = (name: string, parameters?: Record<string, unknown>): ChatTool => ({
  type: 'function',
  function: { name, ...(parameters ? { parameters } : {}) },
});
export const json = (...fields: string[]) => ({
  type: 'object',
  properties: Object.fromEntries(fields.map((field) => [field, { type: 'string' }])),
});
export const format = (...fields: string[]): Partial<LabelInput> => ({
  responseFormat: { type: 'json_schema', json_schema: { name: 'response', schema: json(...fields) } },
});

export const label = (rules: CallRules | null, headers: Headers, more: Partial<LabelInput> = {}) =>
  labelCall(rules, { headers, messages: [user('do it')], tools: [], responseFormat: undefined, ...more });
export const codexHeaders = (metadata: object, more: Headers = {}): Headers => ({
  'session-id': 's',
  'thread-id': 's',
  'x-codex-turn-metadata': JSON.stringify(metadata),
  ...more,
});
export const MAIN = { thread: 'main', callKind: 'main' };
/** Every set of call rules, and `null` for a session without such rules, for example one of the `shell` harness. */
export const ALL_RULES = [...callRulesSchema.options, null];

/**
 * Applies the call rules of every harness that is not in `owners` to a request. Checks that all of these rules label the request as a model
 * call of the main agent.
 */
export function expectForeign(owners: readonly CallRules[], headers: Headers, more: Partial<LabelInput> = {}): void {
  for (const rules of ALL_RULES) {
    if (rules === null || !owners.includes(rules))
      expect(label(rules, headers, more), `rules of ${rules}`).toEqual(MAIN);
  }
}

export function jsonTool(...fields: string[]): Partial<LabelInput> {
  return { tools: [tool('respond_in_schema', json(...fields))] };
}

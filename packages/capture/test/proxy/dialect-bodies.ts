import type { DialectName } from '@floe-rl/core/schema';

export type Asked = { readonly path: string; readonly body: Record<string, unknown> };

/** Returns a chat request in the given dialect. Its conversation is one user message, the same in every dialect. */
export function ask(dialect: DialectName, options: { stream?: boolean; model?: string; text?: string } = {}): Asked {
  const { stream = false, model = 'policy', text = 'hi' } = options;
  switch (dialect) {
    case 'openai_chat':
      return { path: '/v1/chat/completions', body: { model, stream, messages: [{ role: 'user', content: text }] } };
    case 'openai_responses':
      return { path: '/v1/responses', body: { model, stream, input: text } };
    case 'anthropic':
      return {
        path: '/v1/messages',
        body: { model, stream, max_tokens: 100, messages: [{ role: 'user', content: text }] },
      };
    case 'gemini':
      return {
        path: `/v1beta/models/${model}:${stream ? 'streamGenerateContent?alt=sse' : 'generateContent'}`,
        body: { contents: [{ role: 'user', parts: [{ text }] }] },
      };
  }
}

/** Returns a request to count the tokens of the conversation that `ask` sends; `null` when the dialect has no path for token counts. */
export function askCount(dialect: DialectName, model = 'policy'): Asked | null {
  const { body } = ask(dialect, { model });
  switch (dialect) {
    case 'openai_chat':
      return null;
    case 'openai_responses':
      return { path: '/v1/responses/input_tokens', body };
    case 'anthropic':
      return { path: '/v1/messages/count_tokens', body };
    case 'gemini':
      return { path: `/v1beta/models/${model}:countTokens`, body };
  }
}

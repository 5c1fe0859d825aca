import { IdScanner } from '../chat/reply-scan.ts';
import type { EngineServer } from '../engine-server.ts';
import { PLACEHOLDER_ANSWER } from '../turn-close.ts';
import { derender, derenderChunk } from './message-reader.ts';
import { render } from './rendering.ts';
import { PROBE_REQUEST, type ServerFacts } from './server-facts.ts';

/** Which part of a reply to a prompt of token ids can be shown before the reply is complete. */
export type PreviewSupport = {
  /** Whether the server parses incomplete replies as it does in a stream. If not, nothing is shown. */
  readonly isSupported: boolean;
  /**
   * Whether the parsers keep text that precedes a tool call. If not, text is shown only in replies to requests without tools, because the
   * text might not be part of the complete message.
   */
  readonly keepsTextBeforeCalls: boolean;
};

export const NO_PREVIEW: PreviewSupport = { isSupported: false, keepsTextBeforeCalls: false };

const QUESTION = JSON.stringify({ role: 'user', content: 'What is the number?' });
const CALL = { id: 'abcdefgh1', type: 'function' as const, function: { name: 'look', arguments: '{"id": 1}' } };
const TURN = JSON.stringify({
  role: 'assistant',
  reasoning_content: 'One call is enough.',
  content: PLACEHOLDER_ANSWER,
  tool_calls: [CALL],
});
const TOOL = {
  type: 'function' as const,
  function: {
    name: 'look',
    description: 'Looks up a number.',
    parameters: { type: 'object', properties: { id: { type: 'integer' } } },
  },
};
const REQUEST_WITH_TOOLS = {
  ...PROBE_REQUEST,
  tools: [TOOL],
  toolsText: JSON.stringify([TOOL]),
  toolChoice: 'auto' as const,
};

/**
 * Determines what can be shown of replies that are still being sampled. `word` contains the token ids of one word. Rejects when the server
 * does not parse streams of ids, or refuses the probe's conversation.
 */
export async function previewSupportOf(
  server: EngineServer,
  facts: ServerFacts,
  closeIds: ReadonlySet<number>,
  word: Int32Array,
  signal: AbortSignal,
): Promise<PreviewSupport> {
  const { completionId, sessionId } = PROBE_REQUEST;
  const context = { completionId, sessionId, models: facts.modelNames, scanner: new IdScanner() };
  const options = { ...context, model: facts.model, includeReasoning: !facts.unknownFields.has('include_reasoning') };
  const sampled = { promptIds: new Int32Array(0), ids: word, finishReason: 'length' };
  await derenderChunk(server, PROBE_REQUEST, sampled, options, signal);
  const ids = await replyWithCall(server, facts, closeIds, signal);
  if (ids.length === 0) return { isSupported: true, keepsTextBeforeCalls: false };
  const { content } = await derender(server, REQUEST_WITH_TOOLS, { ...sampled, ids }, options, signal);
  return { isSupported: true, keepsTextBeforeCalls: (content ?? '').trimStart().startsWith(PLACEHOLDER_ANSWER) };
}

/** Returns a reply of text and a tool call as the chat template renders it, without the id that closes the turn. */
async function replyWithCall(
  server: EngineServer,
  facts: ServerFacts,
  closeIds: ReadonlySet<number>,
  signal: AbortSignal,
): Promise<Int32Array> {
  const rendered = (messageTexts: readonly string[], generationPrompt: boolean): Promise<Int32Array> =>
    render(server, facts, { ...REQUEST_WITH_TOOLS, messageTexts, generationPrompt }, signal);
  const prompt = await rendered([QUESTION], true);
  const history = await rendered([QUESTION, TURN], false);
  let start = 0;
  while (start < prompt.length && prompt[start] === history[start]) start++;
  const reply = history.subarray(start);
  const close = reply.findIndex((id) => closeIds.has(id));
  return close < 0 ? reply : reply.subarray(0, close);
}

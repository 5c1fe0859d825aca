// The client of the proxy bench: makes request bodies, sends requests and measures their latency.

import { systemClock } from '@floe-rl/core';
import type { Dispatcher } from 'undici';
import { inParallel } from '../child.ts';

export const CHAT_PATH = '/v1/chat/completions';

/** Sizes of a model call: bytes of the request body, number of token ids in the prompt, and number of sampled token ids in the reply. */
export type CallKind = { readonly requestBytes: number; readonly promptIds: number; readonly responseIds: number };

/** Sizes of a typical model call in the middle of a coding session. */
export const TURN: CallKind = { requestBytes: 62_000, promptIds: 16_000, responseIds: 300 };
export const SMALL: CallKind = { requestBytes: 350, promptIds: 60, responseIds: 20 };
/** Number of sampled token ids in one chunk of a streamed reply. The first chunk contains only the prompt's ids. */
export const CHUNK_IDS = 16;

/**
 * Sizes of a conversation of the client. Its first request has about `firstBytes` bytes, and each turn adds the reply and a tool result of
 * `resultChars` characters.
 */
const SESSION = { turns: 20, firstBytes: 44_000, resultChars: 380 };

const TOOL_OUTPUT = 'def f(x):\n    return "a\\tb"  # some code with "quotes"\n';
const HEADERS = { 'content-type': 'application/json' };

type ToolCall = { readonly id: string; readonly type: 'function'; readonly function: object };
type Message = {
  readonly role: string;
  readonly content: string | null;
  readonly reasoning_content?: string;
  readonly tool_calls?: readonly ToolCall[];
  readonly tool_call_id?: string;
};

export type Load = { readonly connections: number; readonly calls: number };
export type Post = Pick<Dispatcher, 'request'>;

function historyOf(bytes: number, name: string): Message[] {
  const messages: Message[] = [{ role: 'system', content: `You are an agent in a repository. ${name}` }];
  for (let i = 0; JSON.stringify(messages).length < bytes - 2_200; i++) {
    const call: ToolCall = {
      id: `call_${i}`,
      type: 'function',
      function: { name: 'bash', arguments: `{"command":"cat f${i}.py"}` },
    };
    const reasoning_content = 'Hm, which file?';
    messages.push({ role: 'assistant', content: 'Let me look.', reasoning_content, tool_calls: [call] });
    messages.push({ role: 'tool', tool_call_id: call.id, content: TOOL_OUTPUT.repeat(30) });
  }
  return messages;
}

/**
 * Returns a function that makes request bodies. The bodies differ in their last few characters, so that the proxy does not treat any of
 * them as a repeated request.
 */
export function bodiesOf({ requestBytes }: CallKind): (nonce: number) => string {
  const messages = historyOf(requestBytes, '');
  const head = JSON.stringify({ model: 'policy', max_tokens: 512, messages }).slice(0, -2);
  return (nonce) => `${head},{"role":"user","content":"continue ${nonce}"}]}`;
}

/** Sends one request and resolves to the complete body of the reply. Rejects with an Error for any status other than 200. */
export async function send(client: Post, path: string, body: string, signal?: AbortSignal): Promise<string> {
  const reply = await client.request({ method: 'POST', path, headers: HEADERS, body, signal: signal ?? null });
  const text = await reply.body.text();
  if (reply.statusCode !== 200) throw new Error(`status ${reply.statusCode}: ${text.slice(0, 300)}`);
  return text;
}

/**
 * Sends `calls` requests over `connections` connections. The requests are distributed evenly over the proxy sessions. `paths` has the URL path
 * of each session. Resolves to the latencies in ms.
 */
export async function round(
  client: Post,
  paths: readonly string[],
  body: (nonce: number) => string,
  { connections, calls }: Load,
): Promise<number[]> {
  const latencies: number[] = [];
  await inParallel(calls, connections, async (n) => {
    const text = body(n);
    const startMs = systemClock.monotonicMs();
    await send(client, pathAt(paths, n % paths.length), text);
    latencies.push(systemClock.monotonicMs() - startMs);
  });
  return latencies;
}

export type Conversation = {
  /** Returns the body of the conversation's next request. */
  body(): string;
  /** Appends the model's reply and the result of its tool call to the conversation. */
  addReply(text: string): void;
};

/** Returns a conversation in which every reply contains a tool call. The result of this call is the last message of the next request. */
export function conversation(name: number): Conversation {
  const messages = historyOf(SESSION.firstBytes, `Task ${name}.`);
  messages.push({ role: 'user', content: 'continue' });
  return {
    body: () => JSON.stringify({ model: 'policy', max_tokens: 512, messages }),
    addReply(text) {
      const { choices } = JSON.parse(text) as { choices: [{ message: Message }] };
      const [{ message }] = choices;
      const [call] = message.tool_calls ?? [];
      if (call === undefined) throw new Error(`the reply has no call: ${text.slice(0, 300)}`);
      const content = `${messages.length}: ${TOOL_OUTPUT.repeat(20)}`.slice(0, SESSION.resultChars);
      messages.push(message, { role: 'tool', tool_call_id: call.id, content });
    },
  };
}

/**
 * Runs one conversation in each proxy session, with `connections` of them running concurrently. `paths` contains the URL path of each
 * session. Resolves to the latencies of all requests in ms.
 */
export async function converse(client: Post, paths: readonly string[], { connections }: Load): Promise<number[]> {
  const latencies: number[] = [];
  await inParallel(paths.length, connections, async (n) => {
    const talk = conversation(n);
    for (let turn = 0; turn < SESSION.turns; turn++) {
      const body = talk.body();
      const startMs = systemClock.monotonicMs();
      const text = await send(client, pathAt(paths, n), body);
      latencies.push(systemClock.monotonicMs() - startMs);
      talk.addReply(text);
    }
  });
  return latencies;
}

function pathAt(paths: readonly string[], index: number): string {
  const path = paths[index];
  if (path === undefined) throw new RangeError(`there is no path ${index}`);
  return path;
}

/** Returns the number of conversations that are needed for at least `calls` calls in total. */
export function conversationsOf(calls: number): number {
  return Math.ceil(calls / SESSION.turns);
}

export function callsOf(conversations: number): number {
  return conversations * SESSION.turns;
}

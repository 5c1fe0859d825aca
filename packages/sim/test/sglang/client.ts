import type { VirtualClock } from '@floe-rl/core';
import { afterEach, expect } from 'vitest';
import { loadScenarios, type SimOptions, type SimServer, startSim } from '../../src/index.ts';
import type { LedgerEntry } from '../../src/ledger.ts';
import { post } from '../sse.ts';

export const tools = [{ type: 'function', function: { name: 'bash', parameters: { type: 'object' } } }];
export const user = { role: 'user', content: 'Please repair the failing test.' };

export type Tuple = [logprob: number | null, id: number | null, text: string | null];

export type MetaInfo = {
  id: string;
  finish_reason: { type: string; matched?: number | string | null; length?: number; message?: string } | null;
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  reasoning_tokens?: number;
  weight_version: string;
  weight_versions?: { version: string; start: number; end: number }[];
  num_retractions: number;
  e2e_latency?: number;
  input_token_logprobs?: Tuple[];
  output_token_logprobs?: Tuple[];
  output_token_logprobs_length?: number;
  output_top_logprobs?: Tuple[][];
  routed_experts?: string;
};

/** The reply of `/generate`, or one chunk of its stream. */
export type Generated = { text: string; output_ids?: number[]; prompt_token_ids?: number[]; meta_info: MetaInfo };

type CallPart = {
  index: number;
  id: string | null;
  type: string;
  function: { name: string | null; arguments: string };
};

export type ChatChoice = {
  index: number;
  message: {
    role: string;
    content: string;
    reasoning_content: string | null;
    tool_calls: CallPart[] | null;
  };
  delta: { role?: string; content?: string; reasoning_content?: string; tool_calls?: CallPart[] };
  text: string;
  logprobs: { content: { token: string; logprob: number | null }[] } | null;
  finish_reason: string | null;
  matched_stop: number | string | null;
  prompt_token_ids?: number[];
  token_ids?: number[];
  meta_info?: MetaInfo;
};

/** The reply of an OpenAI route, or one chunk of its stream. */
export type ChatReply = {
  id: string;
  object: string;
  model: string;
  choices: ChatChoice[];
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    total_tokens: number;
    reasoning_tokens: number;
    prompt_tokens_details: { cached_tokens: number } | null;
  };
  metadata?: { weight_version: string; weight_versions?: { version: string; start: number; end: number }[] };
  sglext?: { input_ids?: number[]; output_ids?: number[][]; routed_experts?: string };
};

const running: SimServer[] = [];

/** Starts a simulated SGLang server, which is closed after the test. */
export async function start(options: SimOptions = {}): Promise<SimServer> {
  const scenarios = options.scenarios ?? (await loadScenarios(['examples/scenarios/failing-test.yaml']));
  const sim = await startSim({ face: 'sglang', ...options, scenarios });
  running.push(sim);
  return sim;
}

afterEach(async () => {
  for (const sim of running.splice(0)) await sim.close();
});

/** Posts a request and returns the parsed reply, which must have status 200. */
export async function postOk<T>(
  sim: SimServer,
  path: string,
  body: object,
  headers?: Record<string, string>,
): Promise<T> {
  const response = await post(`${sim.url}${path}`, body, headers);
  const text = await response.text();
  expect(response.status, text).toBe(200);
  return JSON.parse(text) as T;
}

export function generate(sim: SimServer, body: object, headers?: Record<string, string>): Promise<Generated> {
  return postOk<Generated>(sim, '/generate', body, headers);
}

export function chat(sim: SimServer, body: object, headers?: Record<string, string>): Promise<ChatReply> {
  return postOk<ChatReply>(sim, '/v1/chat/completions', { messages: [user], tools, ...body }, headers);
}

/** Returns the prompt ids of a conversation; the default is the conversation that {@link chat} sends. */
export async function promptOf(sim: SimServer, body: object = { messages: [user], tools }): Promise<number[]> {
  return (await postOk<{ tokens: number[] }>(sim, '/tokenize', body)).tokens;
}

/** Returns the events of a stream, which must end with `[DONE]`. */
export async function stream<T>(
  sim: SimServer,
  path: string,
  body: object,
  headers?: Record<string, string>,
): Promise<T[]> {
  const response = await post(`${sim.url}${path}`, { ...body, stream: true }, headers);
  expect(response.status).toBe(200);
  expect(response.headers.get('content-type')).toContain('text/event-stream');
  const text = await response.text();
  expect(text.endsWith('data: [DONE]\n\n')).toBe(true);
  return eventsOf<T>(text);
}

/** Parses the complete events in a text, without the closing `[DONE]`. */
export function eventsOf<T>(text: string): T[] {
  return text
    .slice(0, text.lastIndexOf('\n\n') + 2)
    .split('\n\n')
    .filter((line) => line !== '' && line !== 'data: [DONE]')
    .map((line) => JSON.parse(line.replace(/^data: /, '')));
}

/** The message that a client assembles from a chat stream. */
export type Streamed = {
  readonly content: string;
  readonly reasoning: string;
  readonly calls: { name: string; arguments: string }[];
  readonly ids: number[];
  readonly finish: ChatChoice;
};

export function assembled(chunks: readonly ChatReply[]): Streamed {
  const choices = chunks.flatMap((chunk) => chunk.choices);
  const calls: { name: string; arguments: string }[] = [];
  for (const part of choices.flatMap(({ delta }) => delta.tool_calls ?? [])) {
    const known = calls[part.index];
    if (known === undefined) calls[part.index] = { name: part.function.name ?? '', arguments: part.function.arguments };
    else known.arguments += part.function.arguments;
  }
  const finish = choices.find(({ finish_reason: reason }) => reason !== null);
  if (finish === undefined) throw new Error('the stream has no finish');
  return {
    content: choices.map(({ delta }) => delta.content ?? '').join(''),
    reasoning: choices.map(({ delta }) => delta.reasoning_content ?? '').join(''),
    calls,
    ids: choices.flatMap(({ token_ids: ids }) => ids ?? []),
    finish,
  };
}

/** Returns the ledger entry of a call, which must have exactly one. */
export function entryOf(sim: SimServer, requestId: string): LedgerEntry {
  const entries = sim.ledger.entries({ requestId });
  expect(entries).toHaveLength(1);
  return entries[0] as LedgerEntry;
}

/** Advances virtual time token by token until `done` returns true. */
export async function passTime(clock: VirtualClock, done: () => boolean): Promise<void> {
  while (!done()) {
    clock.advance(10);
    await nextTurn();
  }
}

/** Yields to the event loop until `done` returns true. */
export async function until(done: () => boolean): Promise<void> {
  while (!done()) await nextTurn();
}

function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** A streamed reply whose events the test reads one after another. */
export class LiveStream<T> {
  text = '';
  ended = false;

  constructor(sim: SimServer, path: string, body: object) {
    void this.read(sim, path, body);
  }

  get events(): T[] {
    return eventsOf<T>(this.text);
  }

  private async read(sim: SimServer, path: string, body: object): Promise<void> {
    const response = await post(`${sim.url}${path}`, { ...body, stream: true });
    const decoder = new TextDecoder();
    for await (const part of response.body as unknown as AsyncIterable<Uint8Array>) this.text += decoder.decode(part);
    this.ended = true;
  }
}

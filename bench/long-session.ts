import type { Completion } from '@floe-rl/capture';
import { type AssistantMessage, type ChatMessage, samplingSchema } from '@floe-rl/core/schema';
import { RequestMemory } from '#capture/proxy/session/request-memory';
import { NO_IMAGES } from '#capture/tokens/images';

const VOCABULARY = 151_643;
const CLOSE = 151_645;
const CHARS_PER_TOKEN = 4;

/**
 * Returns a generator of pseudorandom numbers from 0 inclusive to 1 exclusive, which depend only on the seed. It is a linear congruential
 * generator, because that kind is fast.
 */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

const WORDS = 'the file holds a function that reads each line and returns what it finds in "src/main.rs"\n'.split(' ');

function textOf(next: () => number, tokens: number): string {
  let text = '';
  while (text.length < tokens * CHARS_PER_TOKEN) text += `${WORDS[Math.floor(next() * WORDS.length)]} `;
  return text;
}

/**
 * Returns the completions of a session with the given number of turns and tokens, one completion per turn. The prompt ids of all
 * completions are views of one buffer.
 */
export function sessionOf(turns: number, tokens: number, sampledShare = 0.5): Completion[] {
  const next = random(turns * 7 + tokens);
  const perTurn = Math.round(tokens / turns);
  const sampled = Math.round(perTurn * sampledShare);
  const memory = new RequestMemory();
  const history: ChatMessage[] = [];
  const ids: number[] = [];
  const push = (count: number): void => {
    for (let i = 0; i < count - 1; i++) ids.push(Math.floor(next() * VOCABULARY));
    ids.push(CLOSE);
  };
  return Array.from({ length: turns }, (_, index) => {
    push(perTurn - sampled);
    const text = textOf(next, perTurn - sampled);
    history.push(
      index === 0 ? { role: 'user', content: text } : { role: 'tool', tool_call_id: `c${index - 1}.0`, content: text },
    );
    const request = memory.request(
      'main',
      history.map((message) => ({ ...message })),
      [],
    );
    const promptIds = memory.prompt('main', Int32Array.from(ids));
    const from = ids.length;
    push(sampled);
    const message = assistant(index, textOf(next, sampled));
    history.push(message);
    return {
      completionId: `c${index}`,
      sessionId: 'ses_bench',
      attempt: 1,
      index,
      timestampMs: 1_700_000_000_000 + index,
      dialect: 'openai_chat',
      callKind: 'main',
      thread: 'main',
      request: {
        ...request,
        images: NO_IMAGES,
        samplingAsked: {},
        toolChoice: null,
        parallelToolCalls: null,
        constraint: null,
        sampling: samplingSchema.parse({}),
        adjusted: [],
      },
      capture: {
        mode: 'tokens',
        logprobs_mode: 'processed',
        thinking_retention: 'template',
        spliced_onto: index === 0 ? null : `c${index - 1}`,
        rendered_because: index === 0 ? 'first' : null,
      },
      promptIds,
      responseIds: Int32Array.from(ids.slice(from)),
      responseLogprobs: Float32Array.from({ length: sampled }, () => Math.log(1 - next() ** 3)),
      versionSpans: [{ version: '7', start: 0, end: sampled }],
      routedExperts: null,
      message,
      engineCallIds: [`call_${index}`],
      finishReason: 'tool_calls',
      stop: { kind: 'token', id: CLOSE },
      engineId: 'engine',
      model: 'policy',
      usage: { prompt_tokens: promptIds.length, completion_tokens: sampled, cached_tokens: null },
      engineMs: 1,
      totalMs: 2,
      abandoned: false,
      auxiliary: false,
      undelivered: false,
    };
  });
}

function assistant(index: number, text: string): AssistantMessage {
  const call = { name: 'shell', arguments: JSON.stringify({ command: text.slice(0, text.length / 2) }) };
  return {
    role: 'assistant',
    content: text.slice(text.length / 2),
    tool_calls: [{ id: `c${index}.0`, type: 'function', function: call }],
  };
}

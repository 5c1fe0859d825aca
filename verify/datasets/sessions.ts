import { createHash } from 'node:crypto';
import { seededRandom } from '@floe-rl/core';
import { sessionSummary } from '@floe-rl/core/protocol';
import { type CallSums, type ChatMessage, IMAGE_REFERENCE, type Trace } from '@floe-rl/core/schema';
import type { SetRow } from '@floe-rl/data';

/** Texts that agents may write and that files, terminals or other languages treat specially. */
const HOSTILE_TEXTS = [
  'a\u0000b\u0007\u001b[31m',
  'line\u2028separator\u2029and\r\n\ttabs',
  'a lone \ud800 surrogate, and \udc00',
  '\u202etxt.exe <script>alert(1)</script>',
  '{"role": "assistant"}\n{"role":',
  '\ufeff\ufffe\uffff \u{1f600} \u{10ffff}',
  '',
] as const;

const OUTCOMES = ['completed', 'agent_error', 'truncated_turns', 'no_completions'] as const;
const SOURCES = ['getmoto/moto', 'pandas-dev/pandas', 'dask|dask', null] as const;
const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const IMAGES = [
  `data:image/png;base64,${PIXEL}`,
  // The last bits of this base64 text are not zero, so its decoded bytes would be encoded as a different text.
  'data:image/png;base64,QUJD_',
  'data:image/png;base64,QUJDRF==',
] as const;

const ENDED_AT = '2026-11-26T12:00:00.000Z';
const VOCABULARY = 151_643;

export type SessionsOptions = {
  readonly seed: number;
  readonly tasks: number;
  readonly samples: number;
  /** Approximate number of tokens of a trace. */
  readonly tokens: number;
};

/** Yields made-up sessions that have every kind of value that a result may have. Equal options give equal sessions. */
export function* madeUpSessions({ seed, tasks, samples, tokens }: SessionsOptions): Generator<SetRow> {
  const next = seededRandom(seed);
  for (let task = 0; task < tasks; task++) {
    const source = SOURCES[task % SOURCES.length] ?? null;
    for (let sample = 0; sample < samples; sample++) yield sessionOf(next, { task, sample, source, tokens });
  }
}

type Place = {
  readonly task: number;
  readonly sample: number;
  readonly source: string | null;
  readonly tokens: number;
};

function sessionOf(next: () => number, { task, sample, source, tokens }: Place): SetRow {
  const pick = <T>(values: readonly T[]): T => values[Math.floor(next() * values.length)] as T;
  const outcome = sample % 7 === 6 ? pick(OUTCOMES) : 'completed';
  const session_id = `ses-${task}-${sample}`;
  const count = outcome === 'no_completions' ? 0 : sample % 5 === 4 ? 3 : 1;
  const images = next() < 0.3 ? [pick(IMAGES), IMAGES[0]] : [];
  const traces = Array.from({ length: count }, (_, index) =>
    traceOf(next, pick, { session_id, index, images, tokens: Math.ceil(tokens * (0.5 + next())) }),
  );
  const text = pick(HOSTILE_TEXTS);
  const reward = outcome === 'completed' ? pick([0, 1, 0.1 + 0.2, -1e-7, 1e15, null]) : null;
  const attempt = { session_id, task_id: `task-${task}`, sample_index: sample, attempt: 0, epoch: 1 };
  const tokenCounts = { sampled: 10, trained: 9, excluded: { [`reason ${text}`]: 1 }, constrained: 0 };
  const audit = {
    tokens: tokenCounts,
    completions: { recorded: 1, trained: 1, excluded: {} },
    links: { exact: 1, rerendered: 0, fork: 0, root: 1 },
    drift: {},
    exact_context_share: pick([null, 1, 1 / 3]),
    context_images: images.length,
    rendered_for_images: 0,
    context_special_tokens: 0,
  };
  const callSums: CallSums = {
    dialects: ['openai_chat'],
    engines: ['vllm'],
    engine_ms: 1.5,
    spliced: 0,
    rendered: { first: traces.length },
    tools: [],
  };
  const summary = sessionSummary(attempt, outcome, {
    reward,
    reward_components: { [text]: pick([null, 0.7]), lint: 1 },
    reward_details: { text, nested: [{ deep: [text, null, 1e300, -0.5] }] },
    dropped: next() < 0.1 ? text : null,
    trace_count: traces.length,
    trainable_tokens: 9,
    completion_count: traces.length,
    policy_versions: pick([null, { first: 'step-1', last: text }]),
    audit: traces.length === 0 ? null : audit,
    calls: traces.length === 0 ? null : callSums,
    agent: { exit_code: 0, turns: 1, stdout_tail: text, stderr_tail: pick(HOSTILE_TEXTS), isolation: 'none' } as never,
    node_id: pick([null, 'node-1', text]),
    error: outcome === 'completed' ? null : { code: 'agent_failed', message: text, stage: null, details: { text } },
    metadata: { data_source: source, repo: source, text, number: pick([1, -1, 2 ** 53, 1.5]) },
  });
  return {
    ...summary,
    unusable: outcome === 'completed' && reward !== null ? null : 'no_reward',
    trajectory:
      traces.length === 0
        ? null
        : {
            status: 'COMPLETED',
            builder: 'chains',
            traces,
            images: Object.fromEntries(images.map((url) => [referenceOf(url), url])),
            audit,
            error: next() < 0.1 ? text : null,
            metadata: { text },
          },
    origin: pick([null, originOf(source)]),
  };
}

const originOf = (source: string | null): SetRow['origin'] => ({
  ...{ trainer: 'policy', harness: 'shell', agent: null, source, split: 'train', ended_at: ENDED_AT },
});

function referenceOf(url: string): string {
  return `${IMAGE_REFERENCE}${createHash('sha256').update(url).digest('hex')}`;
}

type TracePlace = {
  readonly session_id: string;
  readonly index: number;
  readonly images: readonly string[];
  readonly tokens: number;
};

function traceOf(
  next: () => number,
  pick: <T>(values: readonly T[]) => T,
  { session_id, index, images, tokens }: TracePlace,
): Trace {
  const ids = (count: number): number[] => Array.from({ length: count }, () => Math.floor(next() * VOCABULARY));
  const prompt = Math.ceil(tokens / 4);
  const mask = Array.from({ length: tokens - prompt }, (_, at) => (at % 50 < 17 ? 1 : 0));
  const call = {
    id: 'call-1',
    type: 'function' as const,
    function: { name: 'bash', arguments: pick(['{"cmd": "ls"}', '{"cmd": ', '[1]']) },
  };
  const parts = images.map((url) => ({ type: 'image_url' as const, image_url: { url: referenceOf(url) } }));
  const prompts: ChatMessage[] = [
    { role: 'system', content: pick(HOSTILE_TEXTS) },
    {
      role: 'user',
      content: parts.length === 0 ? pick(HOSTILE_TEXTS) : [{ type: 'text', text: pick(HOSTILE_TEXTS) }, ...parts],
    },
  ];
  return {
    trace_id: `${session_id}.0.${index}`,
    prompt_ids: ids(prompt),
    response_ids: ids(mask.length),
    loss_mask: mask,
    response_logprobs: mask.map((trained) => (trained === 1 ? logprobOf(next) : 0)),
    version_spans: [{ version: pick(['step-1', null]), start: 0, end: mask.length }],
    constrained_spans: [{ constraint: 'tool_choice', start: 0, end: 1 }],
    prompt_messages: prompts,
    response_messages: [
      {
        role: 'assistant',
        content: pick([null, ...HOSTILE_TEXTS]),
        reasoning_content: pick(HOSTILE_TEXTS),
        tool_calls: [call],
      },
      { role: 'tool', tool_call_id: 'call-1', content: pick(HOSTILE_TEXTS) },
      { role: 'assistant', content: pick(HOSTILE_TEXTS) },
    ],
    tools: [
      {
        type: 'function',
        function: { name: 'bash', description: pick(HOSTILE_TEXTS), parameters: { type: 'object' } },
      },
    ],
    routed_experts: pick([null, { dtype: 'uint8', shape: [1, 1, 1], start: 0, data: 'AA==' }]),
    finish_reason: pick(['stop', 'length', null]),
    reward: pick([1, 1 / 3, null]),
    completion_ids: ['c1', 'c2'],
    metadata: { call_kind: index === 2 ? 'subagent' : 'main', model: 'policy', text: pick(HOSTILE_TEXTS) },
  };
}

/** Returns the shortest decimal of a float32, as floe writes it, or a number that only a float64 holds, or -0. */
function logprobOf(next: () => number): number {
  const value = Math.log(1 - next() ** 3);
  const kind = next();
  if (kind < 0.02) return -0;
  return kind < 0.1 ? value : Number(Math.fround(value).toPrecision(8));
}

import { sessionSummary, unusableReason } from '@floe-rl/core/protocol';
import type { SessionResult, Trace } from '@floe-rl/core/schema';
import {
  type ExportOptions,
  encodeExport,
  FORMAT_NAMES,
  type FormatName,
  trainingGroups,
} from '@floe-rl/data/trainers';

/** Options of the formats that need some. */
const OPTIONS: Partial<Record<FormatName, Record<string, unknown>>> = {
  verl_batch: { prompt_length: 8, response_length: 8, pad_token_id: 0 },
  roll: { sequence_length: 16, pad_token_id: 0 },
};
/** Formats that carry one trace for each session. */
const ONE_TRACE: readonly FormatName[] = ['trl', 'openrlhf'];

/**
 * Returns the records for the tests of the Python adapters, as JSON lines. For each case and format, these are the records of each group alone
 * (`groups`) and of both together (`batch`). In the case `single` each session has one trace; in `several` the first session has two. The last
 * sample of the first group is masked.
 */
export function adapterRecords(): string {
  const lines = (['single', 'several'] as const).flatMap((name) => {
    const groups = [0, 1].map((task) => [0, 1, 2].map((sample) => session(name, task, sample)));
    const formats = FORMAT_NAMES.filter((format) => name === 'single' || !ONE_TRACE.includes(format));
    return formats.map((format) => {
      const options = { ...OPTIONS[format], ...(format === 'skyrl' && name === 'several' ? { step_wise: true } : {}) };
      const records = (results: readonly SessionResult[]): unknown[] => encoded(results, { format, options });
      return JSON.stringify({ case: name, format, groups: groups.map(records), batch: records(groups.flat()) });
    });
  });
  return `${lines.join('\n')}\n`;
}

function encoded(results: readonly SessionResult[], options: ExportOptions): unknown[] {
  const lines = encodeExport(trainingGroups(results), options, 'jsonl').toString('utf8').trimEnd();
  return lines === '' ? [] : lines.split('\n').map((line) => JSON.parse(line) as unknown);
}

function session(name: 'single' | 'several', task: number, sample: number): SessionResult {
  const reward = sample === 1 ? 1 : 0;
  const isTimeout = task === 0 && sample === 2;
  const traceCount = name === 'several' && sample === 0 ? 2 : 1;
  const traces = Array.from({ length: traceCount }, (_, index) => trace(task, sample, index, reward));
  const attempt = {
    session_id: `session-${task}-${sample}`,
    task_id: `task-${task}`,
    sample_index: sample,
    attempt: 1,
    epoch: 1,
  };
  const summary = sessionSummary(attempt, isTimeout ? 'agent_timeout' : 'completed', {
    reward,
    reward_components: { tests: reward },
    trainable_tokens: 4 * traceCount,
    trace_count: traceCount,
  });
  const trajectory = {
    status: 'COMPLETED' as const,
    builder: 'prefix_merging',
    traces,
    images: {},
    audit: {
      tokens: { sampled: 4 * traceCount, trained: 4 * traceCount, excluded: {}, constrained: 0 },
      completions: { recorded: traceCount, trained: traceCount, excluded: {} },
      links: { exact: 0, rerendered: 0, fork: 0, root: traceCount },
      drift: {},
      exact_context_share: 1,
      context_images: 0,
      rendered_for_images: 0,
      context_special_tokens: 0,
    },
    error: null,
    metadata: {},
  };
  return { ...summary, unusable: unusableReason(summary, true), trajectory };
}

/** Returns a trace of 3 prompt and 6 response tokens: two sampled by policy step 6, two of the environment, two sampled by step 7. */
function trace(task: number, sample: number, index: number, reward: number): Trace {
  const first = 100 * (task + 1) + 20 * sample + 10 * index;
  return {
    trace_id: `trace-${task}-${sample}-${index}`,
    prompt_ids: [1, 2, 3 + index],
    response_ids: [first, first + 1, 7, 8, first + 2, first + 3],
    loss_mask: [1, 1, 0, 0, 1, 1],
    response_logprobs: [-0.5, -0.25, 0, 0, -1.5, -0.125],
    version_spans: [
      { version: 'step-6', start: 0, end: 2 },
      { version: 'step-7', start: 4, end: 6 },
    ],
    constrained_spans: [],
    prompt_messages: [{ role: 'user', content: 'Say hello.' }],
    response_messages: [{ role: 'assistant', content: 'hello' }],
    tools: [],
    // Two layers with two experts for each token but the last.
    routed_experts: {
      dtype: 'uint8',
      shape: [8, 2, 2],
      start: 0,
      data: Buffer.from(Array.from({ length: 32 }, (_, i) => i)).toString('base64'),
    },
    finish_reason: 'stop',
    reward,
    completion_ids: [`completion-${task}-${sample}-${index}`],
    metadata: {},
  };
}

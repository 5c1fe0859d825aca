import { sessionSummary } from '@floe-rl/core/protocol';
import type { Outcome, SessionResult, Trace, Trajectory } from '@floe-rl/core/schema';
import { tableFromIPC, Vector } from 'apache-arrow';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type ExportOptions, encodeExport, type FormatName, trainingGroups } from '../../src/trainers/index.ts';
import { randomResults } from './random-results.ts';

/** A trace as read from a record of a trainer's format: ids and mask of prompt and response, and the logprobs of the trained tokens. */
type ReadTrace = {
  readonly ids: readonly number[];
  readonly mask: readonly number[];
  readonly logprobs: readonly number[];
};

// biome-ignore lint/suspicious/noExplicitAny: records are read as a trainer's Python code reads them, by the names of their fields
type Fields = any;

/**
 * Reads the traces of a record as the trainer does. These functions share no code with the formats, so that a shift or an offset that is
 * wrong in a format is not repeated here.
 */
const READERS: Partial<Record<FormatName, (record: Fields) => ReadTrace[]>> = {
  floe: (r) => [
    read(
      [...r.prompt_ids, ...r.response_ids],
      [...zeros(r.prompt_ids), ...r.loss_mask],
      [...zeros(r.prompt_ids), ...r.logprobs],
    ),
  ],
  slime: (r) => {
    const context = r.tokens.length - r.response_length;
    return [
      read(r.tokens, [...Array(context).fill(0), ...r.loss_mask], [...Array(context).fill(0), ...r.rollout_log_probs]),
    ];
  },
  verl: (r) => [
    read(
      [...r.prompt_ids, ...r.response_ids],
      [...zeros(r.prompt_ids), ...r.response_mask],
      [...zeros(r.prompt_ids), ...r.response_logprobs],
    ),
  ],
  verl_batch: (r) =>
    r.input_ids.map((ids: number[], i: number) => {
      const used = (values: number[]) => values.filter((_, at) => r.attention_mask[i][at] === 1);
      const context = zeros(r.prompts[i]);
      return read(used(ids), used([...context, ...r.response_mask[i]]), used([...context, ...r.rollout_log_probs[i]]));
    }),
  nemo_rl: (r) => {
    const log: Fields[] = r.message_log;
    return [
      read(
        log.flatMap((message) => message.token_ids),
        log.flatMap((message) => message.token_ids.map(() => (message.role === 'assistant' ? 1 : 0))),
        log.flatMap((message) => message.generation_logprobs),
      ),
    ];
  },
  skyrl: (r) =>
    r.response_ids.map((response: number[], i: number) => {
      const context = zeros(r.prompt_token_ids[i]);
      return read(
        [...r.prompt_token_ids[i], ...response],
        [...context, ...r.loss_masks[i]],
        [...context, ...r.rollout_logprobs[i]],
      );
    }),
  tinker: (r) => {
    const { target_tokens: targets, mask, logprobs } = r.loss_fn_inputs;
    const [first] = r.model_input.chunks[0].tokens;
    expect(r.model_input.chunks[0].tokens.slice(1)).toEqual(targets.data.slice(0, -1));
    expect(targets.shape).toEqual([targets.data.length]);
    return [read([first, ...targets.data], [0, ...mask.data], [0, ...logprobs.data])];
  },
  prime_rl: (r) => [read(r.token_ids, r.mask.map(Number), r.logprobs)],
  trl_async: (r) => [read(r.input_ids, r.completion_mask, r.old_log_probs)],
  areal: (r) => [read(r.input_ids[0], r.loss_mask[0], r.logprobs[0])],
  roll: (r) => {
    const used = r.attention_mask.filter((mask: number) => mask === 1).length;
    return [
      read(
        r.input_ids.slice(0, used),
        r.response_mask.slice(0, used).map(Number),
        [0, ...r.infer_logprobs].slice(0, used),
      ),
    ];
  },
};

/** Reads the sequences of ART's trajectories, whose choices have all tokens before them. Context after the last reply is not part of them. */
function artSequences(record: Fields): ReadTrace[] {
  const histories: Fields[] = [record, ...record.additional_histories];
  return histories.flatMap(({ messages_and_choices: choices }) => {
    const ids: number[] = [];
    const [mask, logprobs]: [number[], number[]] = [[], []];
    for (const choice of choices) {
      expect(choice.prompt_token_ids.slice(0, ids.length)).toEqual(ids);
      const context = choice.prompt_token_ids.slice(ids.length);
      ids.push(...context, ...choice.token_ids);
      mask.push(...zeros(context), ...choice.token_ids.map(() => 1));
      logprobs.push(...zeros(context), ...choice.compact_logprobs);
    }
    return choices.length === 0 ? [] : [read(ids, mask, logprobs)];
  });
}

/** The formats that leave out traces without trained tokens. */
const TRAINED_ONLY: readonly FormatName[] = ['tinker', 'prime_rl', 'trl_async', 'areal', 'roll'];

const OPTIONS: Partial<Record<FormatName, ExportOptions['options']>> = {
  verl_batch: { prompt_length: 4000, response_length: 4000, pad_token_id: 0 },
  skyrl: { step_wise: true },
  roll: { sequence_length: 8000, pad_token_id: 0 },
};

const ROLL_8 = { sequence_length: 8, pad_token_id: 0 };

/** Gives the first trace of a result one expert in one layer for the positions from `start` on. */
function withExperts(result: SessionResult, start: number, experts: readonly number[]): SessionResult {
  const data = Buffer.from(experts).toString('base64');
  const [trace] = result.trajectory?.traces ?? [];
  Object.assign(trace ?? {}, { routed_experts: { dtype: 'uint8', shape: [experts.length, 1, 1], start, data } });
  return result;
}

function int16(base64: string): number[] {
  const data = Buffer.from(base64, 'base64');
  return Array.from({ length: data.length / 2 }, (_, at) => data.readInt16LE(2 * at));
}

function zeros(values: readonly number[]): number[] {
  return values.map(() => 0);
}

/** `mask` and `logprobs` have an entry for each of `ids`. Only logprobs of trained tokens are compared. */
function read(ids: readonly number[], mask: readonly number[], logprobs: readonly number[]): ReadTrace {
  expect(mask).toHaveLength(ids.length);
  expect(logprobs).toHaveLength(ids.length);
  return { ids, mask, logprobs: logprobs.flatMap((logprob, at) => (mask[at] === 1 ? [Math.fround(logprob)] : [])) };
}

/**
 * Returns the traces that an export must contain, computed from the results without floe's formats. They are in the order of tasks, samples
 * and traces.
 */
function expectedTraces(
  results: readonly SessionResult[],
): { readonly trace: Trace; readonly result: SessionResult }[] {
  const tasks = [...new Set(results.map((result) => result.task_id))];
  return tasks.flatMap((task) =>
    results
      .filter((result) => result.task_id === task)
      .filter(({ policy, unusable, reward }) =>
        policy.use === 'train' ? unusable === null : policy.use === 'mask' && reward !== null,
      )
      .flatMap((result) => (result.trajectory?.traces ?? []).map((trace) => ({ trace, result }))),
  );
}

function expectedTrace({ trace, result }: { readonly trace: Trace; readonly result: SessionResult }): ReadTrace {
  const isTrained = result.policy.use === 'train';
  const mask = trace.loss_mask.map((value) => (isTrained ? value : 0));
  return {
    ids: [...trace.prompt_ids, ...trace.response_ids],
    mask: [...zeros(trace.prompt_ids), ...mask],
    logprobs: trace.response_logprobs.flatMap((logprob, at) => (mask[at] === 1 ? [Math.fround(logprob)] : [])),
  };
}

function recordsOf(
  results: readonly SessionResult[],
  format: FormatName,
  request: Partial<ExportOptions> = {},
): Fields[] {
  const options = OPTIONS[format];
  const bytes = encodeExport(trainingGroups(results), { format, ...(options ? { options } : {}), ...request }, 'jsonl');
  return bytes
    .toString()
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line));
}

describe('trainer formats', () => {
  it.each(Object.keys(READERS) as FormatName[])('%s carries every token, mask and logprob unchanged', (format) => {
    fc.assert(
      fc.property(randomResults, (results) => {
        const expected = expectedTraces(results)
          .map(expectedTrace)
          .filter(({ mask }) => !TRAINED_ONLY.includes(format) || mask.includes(1));
        expect(recordsOf(results, format).flatMap(READERS[format] ?? (() => []))).toEqual(expected);
      }),
      { numRuns: 40 },
    );
  });

  it.each(Object.keys(READERS) as FormatName[])('%s has the same content in Arrow as in JSON lines', (format) => {
    fc.assert(
      fc.property(randomResults, (results) => {
        const options = OPTIONS[format] ?? {};
        const arrow = encodeExport(trainingGroups(results), { format, options }, 'arrow');
        const lines = recordsOf(results, format);
        expect(arrowRecords(arrow).map((record, i) => asJson(record, lines[i]))).toEqual(
          lines.map((line) => asJson(line, line)),
        );
      }),
      { numRuns: 8 },
    );
  });

  it('gives the traces of one sample to slime with one rollout_id, and removes masked samples from the loss', () => {
    const results = [
      made(0, 'completed', [
        [1, 1],
        [0, 1],
      ]),
      made(1, 'agent_timeout', [[1, 1]]),
    ];
    expect(recordsOf(results, 'slime')).toMatchObject([
      { group_index: 0, index: 0, rollout_id: 0, status: 'completed', remove_sample: false, weight_versions: ['v7'] },
      { group_index: 0, index: 1, rollout_id: 0, loss_mask: [0, 1] },
      { group_index: 0, index: 2, rollout_id: 1, status: 'aborted', remove_sample: true, loss_mask: [0, 0] },
    ]);
  });

  it('puts the reward on the last trained token for verl, and on the last token of the row for ROLL', () => {
    const results = [made(0, 'completed', [[1, 0, 1, 0]])];
    const [batch] = recordsOf(results, 'verl_batch', {
      options: { prompt_length: 3, response_length: 6, pad_token_id: 99 },
    });
    expect(batch).toMatchObject({
      prompts: [[99, 10, 11]],
      responses: [[20, 21, 22, 23, 99, 99]],
      rm_scores: [[0, 0, 0.5, 0, 0, 0]],
      position_ids: [[0, 0, 1, 2, 3, 4, 5, 5, 5]],
      attention_mask: [[0, 1, 1, 1, 1, 1, 1, 0, 0]],
    });
    const [row] = recordsOf(results, 'roll', { options: { sequence_length: 8, pad_token_id: 99 } });
    expect(row).toMatchObject({
      input_ids: [10, 11, 20, 21, 22, 23, 99, 99],
      scores: [0, 0, 0, 0, 0, 0.5, 0, 0],
      position_ids: [0, 1, 2, 3, 4, 5, 0, 0],
      prompt_mask: [true, true, false, false, false, false, false, false],
    });
    expect(row.infer_logprobs).toHaveLength(7);
  });

  it('marks the last step of each sample for SkyRL, whose steps are adjacent', () => {
    const results = [made(0, 'completed', [[1], [1], [1]]), made(1, 'truncated_turns', [[1]])];
    const [output] = recordsOf(results, 'skyrl', { options: { step_wise: 'true' } });
    expect(output).toMatchObject({
      is_last_step: [false, false, true, true],
      stop_reasons: ['stop', 'stop', 'stop', 'length'],
      trajectory_ids: [0, 0, 0, 1].map((repetition) => ({ instance_id: 't', repetition_id: repetition })),
    });
  });

  it('names the step of each trained token for AReaL, and the range of steps for verl', () => {
    const result = made(0, 'completed', [[1, 1, 0, 1]]);
    const [trace] = result.trajectory?.traces ?? [];
    trace?.version_spans.splice(0, 1, { version: 'v7', start: 0, end: 1 }, { version: 'v9', start: 1, end: 4 });
    expect(recordsOf([result], 'areal')).toMatchObject([{ versions: [[-1, -1, 7, 9, -1, 9]] }]);
    expect(recordsOf([result], 'verl')).toMatchObject([{ extra_fields: { min_global_steps: 7, max_global_steps: 9 } }]);
    expect(recordsOf([result], 'trl_async', { advantages: 'centered' })).toMatchObject([{ model_version: 7 }]);
  });

  it.each(['12', 'v12', 'step-12', 'qwen3-step-12'])('reads step 12 from the policy version %s', (version) => {
    expect(recordsOf([versioned(version)], 'areal')).toMatchObject([{ versions: [[-1, -1, 12]] }]);
  });

  it('has a column of advantages in every format with a record for each trace, when they are requested', () => {
    const results = [made(0, 'completed', [[1, 0, 1]]), made(1, 'completed', [[1]])];
    Object.assign(results[1] ?? {}, { reward: 1.5 });
    const first = (format: FormatName, request: Partial<ExportOptions> = { advantages: 'centered' }) =>
      recordsOf(results, format, { ...request, ...(format === 'roll' ? { options: ROLL_8 } : {}) })[0];
    expect(first('floe').advantages).toEqual([-0.5, 0, -0.5]);
    expect(first('slime').advantages).toEqual([-0.5, 0, -0.5]);
    expect(first('verl').extra_fields.advantages).toEqual([-0.5, 0, -0.5]);
    expect(first('nemo_rl').message_log.map((message: Fields) => message.advantages)).toEqual([
      [0, 0],
      [-0.5],
      [0],
      [-0.5],
    ]);
    expect(first('areal').advantages).toEqual([[0, 0, -0.5, 0, -0.5]]);
    expect(first('roll').advantages).toEqual([0, -0.5, 0, -0.5, 0, 0, 0]);
    expect(first('prime_rl').advantages).toEqual([0, 0, -0.5, 0, -0.5]);
    expect(first('tinker').loss_fn_inputs.advantages.data).toEqual([0, -0.5, 0, -0.5]);
    expect(first('rllm').trajectories[0].steps.map((step: Fields) => step.advantage)).toEqual([-0.5, -0.5]);
    for (const format of ['slime', 'areal', 'roll'] as const) {
      expect(first(format, {})).not.toHaveProperty('advantages');
    }
    expect(first('verl', {}).extra_fields).not.toHaveProperty('advantages');
  });

  it('has the advantage of each reply in formats with one for each token or step', () => {
    const [one, two] = [withReplies(made(0, 'completed', [[1, 0, 1]]), [1, 0]), made(1, 'completed', [[1]])];
    const request = { advantages: 'leave_one_out', perTurn: true } as const;
    const [prime] = recordsOf([one, two], 'prime_rl', request);
    expect(prime.advantages).toEqual([0, 0, 0, 0, -0.5]);
    const [episode] = recordsOf([one, two], 'rllm', request);
    expect(episode.trajectories[0].steps.map((step: Fields) => step.advantage)).toEqual([0, -0.5]);
    expect(() => recordsOf([one, two], 'trl_async', request)).toThrow('trace s0.0 has an advantage for each reply');
  });

  it('does not train tokens that a constraint restricted, when these are masked', () => {
    const result = made(0, 'completed', [[1, 0, 1, 1]]);
    result.trajectory?.traces[0]?.constrained_spans.push({ constraint: 'tool_choice', start: 2, end: 4 });
    expect(recordsOf([result], 'slime', { constrained: 'mask' })).toMatchObject([{ loss_mask: [1, 0, 0, 0] }]);
    expect(recordsOf([result], 'slime')).toMatchObject([{ loss_mask: [1, 0, 1, 1] }]);
    result.trajectory?.traces[0]?.constrained_spans.push({ constraint: 'tool_choice', start: 0, end: 1 });
    expect(recordsOf([result], 'areal', { constrained: 'mask' })).toEqual([]);
  });

  it('has the reward of each reply on its last token for verl and SkyRL, when these are requested', () => {
    const result = withReplies(made(0, 'completed', [[1, 1, 0, 1]]), [0.25, null], [2, 4]);
    const padding = { prompt_length: 2, response_length: 5, pad_token_id: 0 };
    expect(recordsOf([result], 'verl_batch', { options: { ...padding, rewards: 'replies' } })).toMatchObject([
      { rm_scores: [[0, 0.25, 0, 0.5, 0]] },
    ]);
    expect(recordsOf([result], 'skyrl', { options: { rewards: 'replies' } })).toMatchObject([
      { rewards: [[0, 0.25, 0, 0.5]] },
    ]);
    expect(recordsOf([result], 'skyrl', { options: {} })).toMatchObject([{ rewards: [0.5] }]);
  });

  it.each(['areal', 'trl_async', 'verl'] as const)(
    'leaves traces with tokens of an unknown version out of %s',
    (format) => {
      const known = versioned('v3');
      const unknown = made(2, 'completed', [[1, 1]]);
      const [trace] = unknown.trajectory?.traces ?? [];
      trace?.version_spans.splice(0, 1, { version: 'v3', start: 0, end: 1 }, { version: null, start: 1, end: 2 });
      expect(recordsOf([known, unknown], format, { advantages: 'grpo' })).toHaveLength(1);
      expect(() => recordsOf([unknown], format, { advantages: 'grpo' })).toThrow('the policy version is unknown');
    },
  );

  it('makes a step of each reply for rLLM, with everything before the reply as its prompt', () => {
    const [episode] = recordsOf([made(0, 'completed', [[1, 0, 1, 1]])], 'rllm');
    expect(episode.trajectories[0].steps).toMatchObject([
      { prompt_ids: [10, 11], response_ids: [20], logprobs: [-1], reward: 0, done: false },
      { prompt_ids: [10, 11, 20, 21], response_ids: [22, 23], logprobs: [-1, -1], reward: 0.5, done: true },
    ]);
  });

  it('gives NeMo-RL the experts of each message, and -1 where the engine reported none', () => {
    const result = withExperts(made(0, 'completed', [[1, 0, 1]]), 1, [5, 6, 7]);
    const [{ message_log: log }] = recordsOf([result], 'nemo_rl');
    const rows = log.map(({ routed_experts: experts }: Fields) => [experts.shape, int16(experts.data)]);
    expect(rows).toEqual([
      [
        [2, 1, 1],
        [-1, 5],
      ],
      [[1, 1, 1], [6]],
      [[1, 1, 1], [7]],
      [[1, 1, 1], [-1]],
    ]);
    const [{ message_log: plain }] = recordsOf([made(0, 'completed', [[1]])], 'nemo_rl');
    expect(plain.map((message: Fields) => message.routed_experts)).toEqual([null, null]);
  });

  it('gives the last step of rLLM the experts of all tokens before its end', () => {
    const [episode] = recordsOf([withExperts(made(0, 'completed', [[1, 0, 1]]), 0, [4, 5, 6, 7])], 'rllm');
    const [first, last] = episode.trajectories[0].steps;
    expect(first.routing_matrices).toBeNull();
    expect(JSON.parse(last.routing_matrices[0])).toEqual({ shape: [1, 1], dtype: 'int16' });
    expect(int16(last.routing_matrices[1])).toEqual([4, 5, 6, 7, 0]);
    const [partly] = recordsOf([withExperts(made(0, 'completed', [[1, 0, 1]]), 1, [5, 6, 7])], 'rllm');
    expect(partly.trajectories[0].steps.at(-1).routing_matrices).toBeNull();
  });

  it('makes a choice of each reply for ART, with the ids of everything before it, and a history of each trace', () => {
    const two = made(0, 'completed', [
      [1, 0, 1, 1, 0],
      [1, 1],
    ]);
    const [trajectory] = recordsOf([two], 'art');
    expect(trajectory).toMatchObject({
      messages_and_choices: [
        { prompt_token_ids: [10, 11], token_ids: [20], compact_logprobs: [-1] },
        { prompt_token_ids: [10, 11, 20, 21], token_ids: [22, 23], compact_logprobs: [-1, -1] },
      ],
      additional_histories: [{ messages_and_choices: [{ prompt_token_ids: [10, 11], token_ids: [20, 21] }] }],
      reward: 0.5,
      metadata: { session_id: two.session_id, group_id: two.task_id, sample_index: 0 },
    });
    const sequences = artSequences(trajectory).map(({ ids, mask }) => [ids, mask]);
    expect(sequences).toEqual([
      [
        [10, 11, 20, 21, 22, 23],
        [0, 0, 1, 0, 1, 1],
      ],
      [
        [10, 11, 20, 21],
        [0, 0, 1, 1],
      ],
    ]);
  });

  it('gives ART a masked sample without choices, since its reward counts in the mean of the group', () => {
    const [trajectory] = recordsOf([made(0, 'agent_timeout', [[1, 1], [1]])], 'art');
    expect(trajectory).toMatchObject({
      messages_and_choices: [],
      additional_histories: [{ messages_and_choices: [] }],
      reward: 0.5,
    });
  });

  it('gives ART the oldest and the newest version as steps, and null where a version names none', () => {
    const result = made(0, 'completed', [[1, 1]]);
    const [trace] = result.trajectory?.traces ?? [];
    const versions = (...names: (string | null)[]) => {
      trace?.version_spans.splice(0, 2, ...names.map((version, at) => ({ version, start: at, end: at + 1 })));
      const [{ initial_policy_version: initial, final_policy_version: final }] = recordsOf([result], 'art');
      return [initial, final];
    };
    expect(versions('step-7', 'step-9')).toEqual([7, 9]);
    expect(versions('step-7', 'main')).toEqual([null, null]);
    expect(versions('step-7', null)).toEqual([null, null]);
  });

  it('gives ART the components of a reward that are numbers', () => {
    const result = { ...made(0, 'completed', [[1]]), reward_components: { tests: 1, style: null } };
    expect(recordsOf([result], 'art')).toMatchObject([{ metrics: { tests: 1 } }]);
    expect(recordsOf([result], 'art')[0].metrics).not.toHaveProperty('style');
  });

  it('refuses a sample without a reward for ART, whose reward is a number', () => {
    const result = { ...made(0, 'completed', [[1]]), reward: null };
    expect(() => recordsOf([result], 'art')).toThrow(/session .* has no reward, which the format art needs/);
  });

  it('names the ranges of trained tokens for OpenRLHF', () => {
    expect(recordsOf([made(0, 'truncated_context', [[1, 0, 1, 1]])], 'openrlhf')).toMatchObject([
      {
        observation_tokens: [10, 11, 20, 21, 22, 23],
        action_ranges: [
          [2, 3],
          [4, 6],
        ],
        truncated: true,
        reward: 0.5,
      },
    ]);
  });

  it('carries experts in the layout of each trainer', () => {
    const result = made(0, 'completed', [[1, 1]]);
    const [trace] = result.trajectory?.traces ?? [];
    const experts = { dtype: 'uint8', shape: [2, 1, 2], start: 1, data: Buffer.from([5, 6, 7, 8]).toString('base64') };
    Object.assign(trace ?? {}, { routed_experts: experts });
    const [verl] = recordsOf([result], 'verl');
    expect(verl.routed_experts).toMatchObject({ dtype: 'int16', shape: [4, 1, 2] });
    const rows = Buffer.from(verl.routed_experts.data, 'base64');
    expect([...new Int16Array(rows.buffer, rows.byteOffset, 8)]).toEqual([0, 0, 5, 6, 7, 8, 0, 0]);
    expect(recordsOf([result], 'slime')).toMatchObject([{ rollout_routed_experts: null }]);
    Object.assign(experts, { shape: [3, 1, 2], start: 0, data: Buffer.from([3, 4, 5, 6, 7, 8]).toString('base64') });
    expect(recordsOf([result], 'slime')).toMatchObject([
      { rollout_routed_experts: { dtype: 'int32', shape: [3, 1, 2] } },
    ]);
  });

  it('refuses what a format cannot carry, and names the trace or session', () => {
    const several = made(0, 'completed', [[1], [1]]);
    const unnumbered = versioned('main');
    const seen = made(2, 'completed', [[1]]);
    const unrewarded = made(3, 'completed', [[1]]);
    Object.assign(unrewarded, { reward: null });
    Object.assign(unrewarded.trajectory?.traces[0] ?? {}, { reward: null });
    const content = [{ type: 'image_url' as const, image_url: { url: 'https://example.com/a.png' } }];
    seen.trajectory?.traces[0]?.prompt_messages.push({ role: 'user', content });
    const refusals: [SessionResult, FormatName, Partial<ExportOptions>, string][] = [
      [several, 'skyrl', { options: {} }, 'session s0 has 2 traces'],
      [several, 'trl', {}, 'use the format trl_async'],
      [unnumbered, 'areal', {}, 'the policy version "main" does not end in a step number'],
      [versioned('a1b2c3'), 'verl', {}, 'the policy version "a1b2c3" does not end in a step number'],
      [versioned('v4294967296'), 'areal', {}, 'the policy version "v4294967296" does not end in a step number'],
      [seen, 'tinker', {}, 'trace s2.0 has 1 images in its context'],
      [unrewarded, 'skyrl', {}, 'session s3 has no reward, which the format skyrl needs'],
      [unrewarded, 'areal', {}, 'has no reward'],
      [several, 'tinker', { advantages: 'none' }, 'the format tinker needs advantages'],
      [
        several,
        'roll',
        { options: { sequence_length: 2, pad_token_id: 0 } },
        '3 tokens are more than sequence_length 2',
      ],
      [several, 'roll', { options: { pad_token_id: 0 } }, 'sequence_length'],
      [
        several,
        'roll',
        { options: { sequence_length: 99_999_999, pad_token_id: 0 } },
        '2 traces padded to 99999999 tokens',
      ],
      [several, 'skyrl', { options: { step_wise: 'maybe' } }, 'step_wise: must be true or false'],
      [several, 'roll', { options: { sequence_length: 8, pad_token_id: '' } }, 'pad_token_id: must be a number'],
      [several, 'prime_rl', { options: { temperature: '' } }, 'temperature: must be a number'],
      [several, 'slime', { options: { padding: 1 } }, 'padding'],
    ];
    for (const [result, format, request, message] of refusals) {
      expect(() => recordsOf([result], format, request), format).toThrow(message);
    }
    expect(recordsOf([seen], 'slime')).toMatchObject([
      { multimodal_inputs: { images: ['https://example.com/a.png'] } },
    ]);
  });

  it('counts the results that contribute no sample, by reason', () => {
    const results = [
      made(0, 'infra_error', []),
      made(1, 'completed', [[1]]),
      { ...made(2, 'completed', [[1]]), unusable: 'no_reward' as const },
    ];
    results.push({ ...made(3, 'agent_timeout', [[1]]), reward: null });
    results.push({ ...made(4, 'agent_timeout', [[1]]), policy: { use: 'mask', in_baseline: false } });
    const [group] = trainingGroups(results);
    expect(group).toMatchObject({ groupId: 't', omitted: { infra_error: 1, no_reward: 2, agent_timeout: 1 } });
    expect(group?.samples.map(({ sessionId }) => sessionId)).toEqual(['s1']);
  });

  it('refuses a trace whose columns differ in length', () => {
    const result = made(0, 'completed', [[1, 1]]);
    result.trajectory?.traces[0]?.loss_mask.pop();
    expect(() => trainingGroups([result])).toThrow('trace s0.0: loss_mask and response_ids differ in length');
  });
});

/** Makes a result with the reward 0.5 and a trace for each mask. Prompts are [10, 11], responses [20, 21, …], all logprobs -1. */
function made(index: number, outcome: Outcome, masks: readonly (readonly number[])[]): SessionResult {
  const attempt = { session_id: `s${index}`, task_id: 't', sample_index: index, attempt: 1, epoch: 1 };
  const summary = sessionSummary(attempt, outcome, { reward: 0.5, trainable_tokens: 1, trace_count: masks.length });
  const traces = masks.map((mask, i) => ({
    trace_id: `s${index}.${i}`,
    prompt_ids: [10, 11],
    response_ids: mask.map((_, at) => 20 + at),
    loss_mask: [...mask],
    response_logprobs: mask.map((trained) => -trained),
    version_spans: [{ version: 'v7', start: 0, end: mask.length }],
    constrained_spans: [],
    prompt_messages: [{ role: 'user' as const, content: 'go' }],
    response_messages: [{ role: 'assistant' as const, content: 'done' }],
    tools: [],
    routed_experts: null,
    finish_reason: 'stop',
    reward: 0.5,
    completion_ids: [],
    metadata: {},
  }));
  return { ...summary, trajectory: { images: {}, traces } as unknown as Trajectory };
}

/** Gives the replies of the only trace rewards of the evaluator. */
function withReplies(result: SessionResult, rewards: readonly (number | null)[], ends = [1, 3]): SessionResult {
  Object.assign(result.trajectory?.traces[0]?.metadata ?? {}, { step_rewards: rewards, step_ends: ends });
  return result;
}

/** Makes a result with one trained token that this policy version sampled. */
function versioned(version: string): SessionResult {
  const result = made(1, 'completed', [[1]]);
  result.trajectory?.traces[0]?.version_spans.splice(0, 1, { version, start: 0, end: 1 });
  return result;
}

/**
 * Returns a value of an Arrow record in the form that it has in JSON lines: texts that are objects there are parsed. Numbers are rounded to
 * float32, the precision of token columns.
 */
function asJson(value: unknown, json: unknown): unknown {
  if (typeof value === 'number') return Math.fround(value);
  if (typeof value === 'string' && typeof json !== 'string') return asJson(JSON.parse(value), json);
  if (value === null || typeof value !== 'object') return value;
  if (Array.isArray(value)) return value.map((element, i) => asJson(element, (json as unknown[] | undefined)?.[i]));
  const fields = Object.entries(value);
  return Object.fromEntries(fields.map(([name, member]) => [name, asJson(member, (json as Fields)?.[name])]));
}

/** Reads the records of an Arrow stream as plain values. */
function arrowRecords(bytes: Buffer): unknown[] {
  return tableFromIPC(bytes)
    .toArray()
    .map((row) => plain(row.toJSON()));
}

function plain(value: unknown): unknown {
  if (value === null || typeof value !== 'object') return value;
  if (value instanceof Vector) return [...value].map(plain);
  if (ArrayBuffer.isView(value)) return [...(value as Int32Array)];
  const fields = 'toJSON' in value ? (value as { toJSON(): object }).toJSON() : value;
  return Object.fromEntries(Object.entries(fields).map(([name, member]) => [name, plain(member)]));
}

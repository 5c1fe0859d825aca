import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Constraint } from '../../src/policy/constraint.ts';
import { satisfies } from '../../src/policy/json-schema.ts';
import { newOracle } from '../../src/policy/oracle.ts';
import { Policy } from '../../src/policy/policy.ts';
import { parseScenarios } from '../../src/policy/scenario.ts';
import { WeightStore } from '../../src/policy/weights.ts';
import { ReplyParser } from '../../src/reply-parser.ts';
import { NO_FAULTS, Run } from '../../src/run.ts';
import { processLogprobs, type SamplingParams } from '../../src/sampler.ts';
import { renderChat, TEMPLATE_MODES, type TemplateMode } from '../../src/template.ts';
import { bundledVocabulary } from '../../src/vocabulary.ts';

const vocabulary = bundledVocabulary();

const plain: SamplingParams = {
  temperature: 1,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  maxTokens: 500,
  stop: [],
  stopTokenIds: [],
  ignoreEos: false,
  includeStop: false,
  skipSpecial: true,
  seed: null,
  constraint: null,
};

function bench(reply: unknown, mode: TemplateMode = 'append_only') {
  const scenarios = parseScenarios({ scenarios: [{ name: 's', rules: [{ reply }] }] }, 'test');
  const policy = new Policy(vocabulary, scenarios, mode);
  const weights = new WeightStore(policy.scenarios, 'v0');
  const oracle = newOracle({ vocabulary, scenarios: policy.scenarios, mode, weights });
  const turn = { role: 'user' as const, text: 'go', reasoning: null, toolCalls: [] };
  const promptIds = vocabulary.encode(renderChat([turn], { mode, tools: [], addGenerationPrompt: true }));
  const sample = (params: Partial<SamplingParams>, malformedCalls = false): Run => {
    const run = new Run(
      {
        requestId: 'r',
        choice: 0,
        endpoint: '/test',
        promptForm: 'ids',
        sessionId: null,
        promptIds,
        params: { ...plain, ...params },
        topCount: 20,
        cacheSalt: '',
        eventTokens: null,
        signal: new AbortController().signal,
        faults: { ...NO_FAULTS, malformedCalls },
      },
      { vocabulary, policy, randomKey: [1], nowMs: 0 },
    );
    while (run.finish === null) run.step(weights.current);
    return run;
  };
  const parsed = (run: Run, parseCalls: boolean) => {
    const parser = new ReplyParser({
      special: vocabulary.special,
      insideThinking: mode === 'open_think',
      parseCalls,
      newCallId: String,
    });
    parser.push(run.text.finish());
    return parser.parsed;
  };
  return { policy, weights, oracle, promptIds, sample, parsed };
}

const samplerParams = fc.record({
  temperature: fc.constantFrom(0, 0.3, 1, 1.7),
  topP: fc.constantFrom(1, 0.93, 0.47),
  topK: fc.constantFrom(0, 1, 3),
  minP: fc.constantFrom(0, 0.2),
  repetitionPenalty: fc.constantFrom(1, 1.3),
  presencePenalty: fc.constantFrom(0, 0.5),
  frequencyPenalty: fc.constantFrom(0, 0.4),
});

const thinking = fc.constantFrom<unknown[][]>(
  [],
  [{ think: 3 }],
  [{ think: { text: 'Let me see', noise: 2 } }],
  [{ think: { text: 'Let me see what is' } }],
);
const ending = fc.constantFrom<unknown[][]>(
  [{ text: '{"answer": "yes"}' }],
  [{ text: '{"answer": 42}' }],
  [{ text: '{"answer": "yes", "why": "Because."}' }],
  [{ text: '[1, 2]' }],
  [{ text: '{"answer": ' }],
  [{ text: 'The answer is yes.' }],
  [{ call: { tool: 'bash', arguments: { command: 'ls' } } }],
  [{ text: 'Look.' }, { call: { tool: 'read', arguments: { path: 'a' } } }],
  [{ call: { tool: 'bash', arguments: {} } }, { call: { tool: 'read', arguments: {} } }],
  [{ raw: '<tool_call>\n{"name": "bash", "argu' }],
);
/**
 * Returns a fast-check arbitrary of lists of options, among which the simulated policy chooses by their logits. All logits differ, because
 * engine and oracle may round equal probabilities differently and would then cut off different tokens.
 */
const options = (part: fc.Arbitrary<unknown[]>) =>
  fc
    .array(fc.record({ logit: fc.integer({ min: -8, max: 8 }), reply: part }), { minLength: 2, maxLength: 5 })
    .map((list) => list.map(({ logit, reply }, index) => ({ logit: logit * 0.37 + index * 0.0137, reply })));
const randomReply = fc
  .tuple(options(thinking), options(ending))
  .map(([first, second]) => [{ choice: { id: 'think', options: first } }, { choice: { id: 'end', options: second } }]);

const answer = { type: 'object', properties: { answer: { type: 'string' } }, required: ['answer'] };
const constraints = fc.constantFrom<Constraint>(
  { kind: 'json', schema: { type: 'object' }, or_calls: [] },
  { kind: 'json', schema: true, or_calls: [] },
  { kind: 'json', schema: answer, or_calls: [] },
  { kind: 'json', schema: answer, or_calls: ['bash', 'read'] },
  { kind: 'call', names: ['bash', 'read'] },
  { kind: 'call', names: ['read'] },
);

describe('a constraint', () => {
  it('gives only replies that satisfy it, with the logprobs that the oracle computes and probabilities that sum to one', () => {
    let admitted = 0;
    fc.assert(
      fc.property(
        randomReply,
        constraints,
        samplerParams,
        fc.integer(),
        fc.constantFrom(...TEMPLATE_MODES),
        (reply, constraint, params, seed, mode) => {
          const { policy, sample, parsed, oracle, promptIds, weights } = bench(reply, mode);
          if (!policy.canSatisfy(promptIds, constraint)) return;
          admitted++;
          const run = sample({ ...params, seed, constraint });
          const ids = run.tokens.map(({ id }) => id);
          const expected = oracle(promptIds, ids, 'v0', { ...params, constraint });
          for (const [index, token] of run.tokens.entries()) {
            expect(Math.abs(token.raw - (expected.raw[index] as number))).toBeLessThan(1e-9);
            expect(Math.abs(token.processed - (expected.processed[index] as number))).toBeLessThan(1e-9);
          }
          const walk = policy.beginReply(promptIds, false, constraint);
          for (const id of ids) {
            const next = walk.next(weights.current);
            const logps = processLogprobs(next, { ...plain, ...params }, { prompt: new Set(), counts: new Map() });
            expect(logps.reduce((sum, logp) => sum + Math.exp(logp), 0)).toBeCloseTo(1, 9);
            expect(next.permitted?.[next.ids.indexOf(id)] ?? true).toBe(true);
            walk.advance(id);
          }
          const { content, calls } = parsed(run, constraint.kind === 'call' || constraint.or_calls.length > 0);
          if (constraint.kind === 'call') {
            expect(calls.length).toBeGreaterThan(0);
            expect(constraint.names).toEqual(expect.arrayContaining(calls.map(({ name }) => name)));
          } else if (calls.length === 0) {
            expect(satisfies(JSON.parse(content ?? ''), constraint.schema)).toBe(true);
          } else expect([constraint.or_calls.length, content]).toEqual([2, null]);
        },
      ),
      { numRuns: 150 },
    );
    expect(admitted).toBeGreaterThan(30);
  });

  const twoWays = (good: number, bad: number) => [
    {
      choice: {
        id: 'c',
        options: [
          { logit: good, reply: [{ text: '{"a": 1}' }] },
          { logit: bad, reply: [{ text: '{"a": 1' }] },
          { logit: bad, reply: [{ text: 'No.' }] },
        ],
      },
    },
  ];
  const json: Constraint = { kind: 'json', schema: true, or_calls: [] };

  it('masks only tokens that no allowed turn continues with, and keeps the policy’s own probability as the raw one', () => {
    const { sample } = bench(twoWays(0, 0));
    const { tokens } = sample({ seed: 1, constraint: json });
    const total = tokens.reduce((sum, { raw }) => sum + raw, 0);
    expect(total).toBeCloseTo(Math.log(1 / 3), 9);
    expect(tokens.map(({ processed: logp }) => logp)).toEqual(tokens.map(() => 0));
    // Two of the three equally likely options begin with `{`, so its raw probability is 2/3. The constraint masks the first token of the
    // third option.
    expect(tokens[0]?.raw).toBeCloseTo(Math.log(2 / 3), 9);
  });

  it('forces even the least likely reply with probability one', () => {
    const { sample, oracle, promptIds } = bench(twoWays(-30, 30));
    const run = sample({ seed: 1, topP: 0.5, topK: 1, minP: 0.4, constraint: json });
    const ids = run.tokens.map(({ id }) => id);
    expect(vocabulary.decode(ids)).toBe('{"a": 1}<|im_end|>');
    expect(run.tokens.every((token) => token.processed === 0)).toBe(true);
    expect(oracle(promptIds, ids, 'v0', { ...plain, constraint: json }).processed.every((logp) => logp === 0)).toBe(
      true,
    );
  });

  it('leaves masked tokens out of the alternatives', () => {
    const { sample } = bench(twoWays(0, 0));
    const masked = sample({ seed: 1, constraint: json });
    const free = sample({ seed: 1 });
    expect(masked.tokens[0]?.top.length).toBe(1);
    expect(free.tokens[0]?.top.length).toBe(2);
    expect(free.tokens[0]?.processed).toBe(free.tokens[0]?.raw);
  });

  it('cannot be satisfied when no allowed turn begins with the tokens of the turn that the prompt began', () => {
    const { policy, promptIds } = bench(twoWays(0, 0));
    const number: Constraint = { kind: 'json', schema: { type: 'number' }, or_calls: [] };
    expect(policy.canSatisfy(promptIds, number)).toBe(false);
    expect(policy.canSatisfy(promptIds, { kind: 'call', names: ['bash'] })).toBe(false);
    expect(policy.canSatisfy(promptIds, json)).toBe(true);
    expect(policy.canSatisfy([...promptIds, ...vocabulary.encode('No')], json)).toBe(false);
  });

  it('knows only the text that is sampled under it, as a grammar of a real engine does', () => {
    const { policy, promptIds } = bench([{ think: 3 }, { text: '{"a": 1}' }]);
    const thinking = [...promptIds, ...vocabulary.encode('<think>\n')];
    expect(policy.canSatisfy(thinking, json)).toBe(true);
    const plainBench = bench(twoWays(0, 0));
    const begun = [...plainBench.promptIds, ...vocabulary.encode('{"a": 1}').slice(0, -1)];
    expect(plainBench.policy.canSatisfy(begun, json)).toBe(false);
    expect(plainBench.policy.beginReply(begun).canContinue).toBe(true);
  });

  it('treats calls that a fault makes malformed as if they were valid', () => {
    const { sample, oracle, promptIds } = bench([
      {
        choice: {
          id: 'c',
          options: [{ reply: [{ call: { tool: 'bash' } }] }, { reply: [{ text: 'No.' }] }],
        },
      },
    ]);
    const constraint: Constraint = { kind: 'call', names: ['bash'] };
    const run = sample({ seed: 1, constraint }, true);
    const ids = run.tokens.map(({ id }) => id);
    expect(vocabulary.decode(ids)).toContain('"arguments": {}\n</tool_call>');
    const expected = oracle(promptIds, ids, 'v0', { ...plain, constraint }, { malformedCalls: true });
    expect(run.tokens.map(({ processed: logp }) => logp)).toEqual(expected.processed);
  });
});

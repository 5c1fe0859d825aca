import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { newOracle } from '../../src/policy/oracle.ts';
import { Policy } from '../../src/policy/policy.ts';
import { loadScenarios, parseScenarios, type Scenario } from '../../src/policy/scenario.ts';
import { compileReply, NOISE } from '../../src/policy/scripted-reply.ts';
import { WeightStore } from '../../src/policy/weights.ts';
import { ReplyParser } from '../../src/reply-parser.ts';
import { type GenerateCall, NO_FAULTS, Run } from '../../src/run.ts';
import type { SamplingParams } from '../../src/sampler.ts';
import { renderChat, TEMPLATE_MODES, type TemplateMode } from '../../src/template.ts';
import { bundledVocabulary } from '../../src/vocabulary.ts';

const vocabulary = bundledVocabulary();

const [scenario] = parseScenarios(
  {
    scenarios: [
      {
        name: 'mixed',
        match: { contains: 'go' },
        rules: [
          {
            reply: [
              {
                choice: {
                  id: 'style',
                  options: [
                    { logit: 1, reply: [{ think: 6 }] },
                    { logit: 0.3, reply: [{ think: { text: 'Let me see', noise: 3 } }] },
                    { logit: -0.4, reply: [{ think: { text: 'Let me think about the file' } }] },
                    { logit: 0, reply: [] },
                  ],
                },
              },
              {
                choice: {
                  id: 'tool',
                  options: [
                    { logit: 0.7, reply: [{ call: { tool: 'bash', arguments: { command: 'ls -la' } } }] },
                    { logit: 0, reply: [{ call: { tool: 'bash', arguments: { command: 'ls' } } }] },
                    { logit: -1, reply: [{ text: 'Nothing to do.' }] },
                  ],
                },
              },
            ],
          },
        ],
      },
    ],
  },
  'test',
) as [Scenario];

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

function bench(mode: TemplateMode, scenarios: readonly Scenario[] = [scenario]) {
  const policy = new Policy(vocabulary, scenarios, mode);
  const weights = new WeightStore(policy.scenarios, 'v0');
  const promptIds = vocabulary.encode(
    renderChat([{ role: 'user', text: 'go on', reasoning: null, toolCalls: [] }], {
      mode,
      tools: [],
      addGenerationPrompt: true,
    }),
  );
  const oracle = newOracle({ vocabulary, scenarios: policy.scenarios, mode, weights });
  const open = (params: Partial<SamplingParams>, prompt: readonly number[] = promptIds): Run => {
    const call: GenerateCall = {
      requestId: 'r',
      choice: 0,
      endpoint: '/test',
      promptForm: 'ids',
      sessionId: null,
      promptIds: prompt,
      params: { ...plain, ...params },
      topCount: 0,
      cacheSalt: '',
      eventTokens: null,
      signal: new AbortController().signal,
      faults: NO_FAULTS,
    };
    return new Run(call, { vocabulary, policy, randomKey: [1, 2], nowMs: 0 });
  };
  const sample = (params: Partial<SamplingParams>, prompt?: readonly number[]): Run => {
    const run = open(params, prompt);
    while (run.finish === null) run.step(weights.current);
    return run;
  };
  return { policy, weights, promptIds, oracle, open, sample };
}

const samplerParams = fc.record({
  temperature: fc.constantFrom(0, 0.3, 0.7, 1, 1.7),
  topP: fc.constantFrom(1, 0.95, 0.6),
  topK: fc.constantFrom(0, 1, 3, 12),
  minP: fc.constantFrom(0, 0.1, 0.4),
  repetitionPenalty: fc.constantFrom(1, 1.3),
  presencePenalty: fc.constantFrom(0, 0.5),
  frequencyPenalty: fc.constantFrom(0, 0.4),
});

function expectClose(actual: readonly number[], wanted: readonly number[]): void {
  expect(actual.length).toBe(wanted.length);
  for (const [index, value] of actual.entries()) expect(Math.abs(value - (wanted[index] as number))).toBeLessThan(1e-9);
}

describe('the policy', () => {
  for (const mode of TEMPLATE_MODES) {
    it(`${mode}: reports the logprobs that the oracle computes for any sampling parameters`, () => {
      const { sample, oracle, promptIds } = bench(mode);
      fc.assert(
        fc.property(samplerParams, fc.integer(), (params, seed) => {
          const run = sample({ ...params, seed });
          const ids = run.tokens.map(({ id }) => id);
          const wanted = oracle(promptIds, ids, 'v0', params as SamplingParams);
          expectClose(
            run.tokens.map(({ raw }) => raw),
            wanted.raw,
          );
          expectClose(
            run.tokens.map(({ processed }) => processed),
            wanted.processed,
          );
        }),
        { numRuns: 150 },
      );
    });

    it(`${mode}: reports spans whose logprobs the oracle confirms when the weights change during a reply`, () => {
      const { open, oracle, promptIds, weights } = bench(mode);
      weights.update('v1', { mixed: { style: [-1, 2, 0.5, 0], tool: [0, 1, 1] } });
      fc.assert(
        fc.property(fc.integer(), fc.integer({ min: 0, max: 12 }), (seed, changeAt) => {
          const run = open({ seed, temperature: 0.8 });
          while (run.finish === null) run.step(weights.get(run.tokens.length < changeAt ? 'v0' : 'v1'));
          run.finish ??= { reason: 'abort', stop: null };
          const entry = run.entry(0, []);
          const wanted = oracle(promptIds, entry.response_ids, entry.version_spans, entry.params);
          expectClose(entry.raw_logprobs, wanted.raw);
          expectClose(entry.processed_logprobs, wanted.processed);
          const length = entry.response_ids.length;
          const split = Math.min(changeAt, length);
          const spans = [
            { version: 'v0', start: 0, end: split },
            { version: 'v1', start: split, end: length },
          ].filter(({ start, end }) => end > start);
          expect(entry.version_spans).toEqual(spans);
        }),
        { numRuns: 100 },
      );
    });

    it(`${mode}: writes turns whose text encodes to the sampled ids and which the template reproduces`, () => {
      const { sample, promptIds } = bench(mode);
      fc.assert(
        fc.property(fc.integer(), (seed) => {
          const run = sample({ seed });
          const ids = run.tokens.map(({ id }) => id);
          const turn = vocabulary.decode([...promptIds, ...ids]);
          if (mode !== 'open_think') expect(vocabulary.encode(turn)).toEqual([...promptIds, ...ids]);
          const parser = new ReplyParser({
            special: vocabulary.special,
            insideThinking: mode === 'open_think',
            parseCalls: true,
            newCallId: () => 'id',
          });
          parser.push(run.text.finish());
          const { reasoning, content, calls } = parser.parsed;
          // The conversation must not end with the assistant turn: template mode `strip_thinking` adds a thinking block to an assistant
          // turn that is the last message. A tool result is therefore rendered after it.
          const text = renderChat(
            [
              { role: 'user', text: 'go on', reasoning: null, toolCalls: [] },
              { role: 'assistant', text: content ?? '', reasoning, toolCalls: calls },
              { role: 'tool', text: 'x', reasoning: null, toolCalls: [] },
            ],
            { mode, tools: [], addGenerationPrompt: false },
          );
          expect(text.startsWith(turn)).toBe(true);
        }),
        { numRuns: 150 },
      );
    });
  }

  it('sums the probabilities of text and noise for a word that may be either', () => {
    const thinks = (options: object[]): readonly Scenario[] =>
      parseScenarios(
        {
          scenarios: [
            {
              name: 'n',
              rules: [{ reply: [{ choice: { id: 'c', options: options.map((think) => ({ reply: [{ think }] })) } }] }],
            },
          ],
        },
        'test',
      );
    const plainNoise = [{ text: 'Look', noise: 3 }, { text: 'Stop' }];
    const probe = bench('append_only', thinks(plainNoise));
    const walk = probe.policy.beginReply(probe.promptIds);
    for (const id of vocabulary.encode('<think>\nLook')) walk.advance(id);
    const [word = 0] = walk.next(probe.weights.current).ids;
    const ambiguous = [...plainNoise, { text: `Look${vocabulary.decode([word])}`, noise: 1 }];
    const { sample, oracle, promptIds } = bench('append_only', thinks(ambiguous));
    let met = 0;
    for (let seed = 0; seed < 60; seed++) {
      const run = sample({ seed });
      const ids = run.tokens.map(({ id }) => id);
      if (ids.includes(word)) met++;
      expectClose(
        run.tokens.map(({ raw }) => raw),
        oracle(promptIds, ids, 'v0', plain).raw,
      );
    }
    expect(met).toBeGreaterThan(5);
  });

  it('draws tokens with the frequencies of their probabilities', () => {
    const { sample, weights } = bench('append_only');
    const runs = 6000;
    const counts = new Map<string, number>();
    const firstNoise = new Map<number, { count: number; logprob: number }>();
    for (let seed = 0; seed < runs; seed++) {
      const run = sample({ seed });
      const text = vocabulary.decode(run.tokens.map(({ id }) => id));
      const tool = text.includes('ls -la') ? 'long' : text.includes('"ls"') ? 'short' : 'none';
      counts.set(tool, (counts.get(tool) ?? 0) + 1);
      if (!text.startsWith('<think>\n') || text.includes('Let me')) continue;
      const token = run.tokens[4] as (typeof run.tokens)[number];
      const known = firstNoise.get(token.id) ?? { count: 0, logprob: token.raw };
      firstNoise.set(token.id, { ...known, count: known.count + 1 });
    }
    const logits = weights.current.logits.mixed?.tool ?? [];
    const total = logits.reduce((sum, logit) => sum + Math.exp(logit), 0);
    // Pearson's statistic over 3 outcomes. 13.8 is the 0.999 quantile of chi-squared with 2 degrees of freedom.
    const expected = logits.map((logit) => (runs * Math.exp(logit)) / total);
    const observed = ['long', 'short', 'none'].map((tool) => counts.get(tool) ?? 0);
    expect(
      observed.reduce((sum, count, i) => sum + (count - (expected[i] as number)) ** 2 / (expected[i] as number), 0),
    ).toBeLessThan(13.8);
    expect(firstNoise.size).toBeGreaterThan(16);
  });

  it('draws noise with the frequencies of its reported logprobs', () => {
    const noisy = parseScenarios({ scenarios: [{ name: 'n', rules: [{ reply: [{ think: 1 }] }] }] }, 'test');
    const { sample } = bench('append_only', noisy);
    const runs = 8000;
    const observed = new Map<number, { count: number; probability: number }>();
    for (let seed = 0; seed < runs; seed++) {
      const token = sample({ seed }).tokens[2];
      if (token === undefined) throw new Error('the reply has no noise token');
      const known = observed.get(token.id);
      observed.set(token.id, { count: (known?.count ?? 0) + 1, probability: Math.exp(token.raw) });
    }
    expect(observed.size).toBe(16);
    let statistic = 0;
    let mass = 0;
    for (const { count, probability } of observed.values()) {
      statistic += (count - runs * probability) ** 2 / (runs * probability);
      mass += probability;
    }
    expect(mass).toBeCloseTo(1, 9);
    // 37.7 is the 0.999 quantile of chi-squared with 15 degrees of freedom, one less than the number of candidate tokens.
    expect(statistic).toBeLessThan(37.7);
  });

  it('gives importance ratios between versions with a mean of one', () => {
    const { sample, oracle, weights, promptIds } = bench('append_only');
    weights.update('v1', { mixed: { style: [0.5, 0.5, 0, 0], tool: [0.2, 0.4, -0.8] } });
    weights.update('v0');
    let sum = 0;
    const runs = 3000;
    for (let seed = 0; seed < runs; seed++) {
      const run = sample({ seed });
      const ids = run.tokens.map(({ id }) => id);
      const old = run.tokens.reduce((total, { raw }) => total + raw, 0);
      const fresh = oracle(promptIds, ids, 'v1', plain).raw.reduce((total, raw) => total + raw, 0);
      sum += Math.exp(fresh - old);
    }
    expect(Math.abs(sum / runs - 1)).toBeLessThan(0.05);
  });

  it('uses the same noise candidates in every version with other probabilities', () => {
    const noisy = parseScenarios({ scenarios: [{ name: 'n', rules: [{ reply: [{ think: 1 }] }] }] }, 'test');
    const { policy, weights, promptIds } = bench('append_only', noisy);
    const walk = policy.beginReply(promptIds);
    for (const id of vocabulary.encode('<think>\n')) walk.advance(id);
    const before = walk.next(weights.current);
    const after = walk.next(weights.update('v1'));
    const same = walk.next(weights.relabel('v2'));
    expect(after.ids).toEqual(before.ids);
    expect(after.logps).not.toEqual(before.logps);
    expect(same).toEqual(after);
  });

  it('gives the same reply for one seed and different replies for different seeds', () => {
    const { sample } = bench('append_only');
    const ids = (seed: number): number[] => sample({ seed }).tokens.map(({ id }) => id);
    expect(ids(7)).toEqual(ids(7));
    expect(new Set(Array.from({ length: 20 }, (_, seed) => ids(seed).join())).size).toBeGreaterThan(10);
  });

  it('continues a turn that the prompt began and ends one that it cannot have begun', () => {
    const { sample, promptIds } = bench('append_only');
    const begun = [...promptIds, ...vocabulary.encode('<tool_call>\n{"name": "bash')];
    expect(vocabulary.decode(sample({ seed: 1 }, begun).tokens.map(({ id }) => id))).toMatch(/^", "arguments": /);
    const foreign = [...promptIds, ...vocabulary.encode('Something else')];
    expect(sample({ seed: 1 }, foreign).tokens.map(({ id }) => id)).toEqual([vocabulary.special.imEnd]);
  });

  it('leaves out the last brace of malformed calls', () => {
    const reply = compileReply(vocabulary, scenario, 0, 'append_only', true);
    const texts = reply.turns.map(({ symbols }) => vocabulary.decode(symbols.filter((symbol) => symbol !== NOISE)));
    const calls = texts.filter((text) => text.includes('<tool_call>'));
    expect(calls.length).toBe(8);
    for (const text of calls) {
      const inner = /<tool_call>\n(.*)\n<\/tool_call>/s.exec(text)?.[1] ?? '';
      expect(() => JSON.parse(inner)).toThrow();
      expect(() => JSON.parse(`${inner}}`)).not.toThrow();
    }
  });

  it("selects rules by the prompt's content", async () => {
    const scenarios = await loadScenarios(['examples/scenarios/failing-test.yaml']);
    const policy = new Policy(vocabulary, scenarios, 'append_only');
    const conversation = {
      system: '',
      firstUser: 'Repair the failing test.',
      lastUser: 'Repair the failing test.',
      lastRole: 'user' as const,
      lastToolResult: null,
      assistantTurns: 0,
      tools: ['bash'],
      images: 0,
      openTurn: [],
    };
    const rule = (change: object): number => policy.select({ ...conversation, ...change }).rule;
    expect(rule({})).toBe(0);
    expect(rule({ tools: [] })).toBe(3);
    expect(rule({ lastRole: 'tool', lastToolResult: 'OK', assistantTurns: 1 })).toBe(1);
    expect(rule({ lastRole: 'tool', lastToolResult: 'not OK', assistantTurns: 4 })).toBe(2);
    expect(rule({ lastRole: 'tool', lastToolResult: 'not OK', assistantTurns: 5 })).toBe(3);
    expect(policy.select({ ...conversation, firstUser: 'Hello' }).scenario.name).toBe('default');
  });
});

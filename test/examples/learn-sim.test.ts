import type { SessionResult, Trace } from '@floe-rl/core/schema';
import { bundledVocabulary, loadScenarios, renderChat, type SimServer, startSim } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { groupAdvantages, trainOn } from '../../examples/learn-sim/grpo.ts';
import { type Decision, type Placement, SoftmaxPolicy } from '../../examples/learn-sim/policy.ts';
import { post } from '../../packages/sim/test/sse.ts';

const vocabulary = bundledVocabulary();
const tools = [{ type: 'function', function: { name: 'bash', parameters: { type: 'object' } } }];
const LOGITS = { repair: { plan: [0.7, -0.3, 0.2], 'port-billing': [-0.5, 0.4], 'port-search': [1.1, 0] } };
const OPTIONS = { learningRate: 1, epochs: 1, clip: 0.2 };

let sim: SimServer;
beforeAll(async () => {
  sim = await startSim({ scenarios: await loadScenarios(['examples/learn-sim/scenario.yaml']), scaleOut: true });
  sim.updateWeights('v1', LOGITS);
});
afterAll(() => sim.close());

/** Samples a conversation of one service as the agent of the example does, and returns it as the trace of a session. */
async function sampleTrace(seed: number): Promise<Trace> {
  const user = { role: 'user' as const, text: 'The service billing does not start.', reasoning: null, toolCalls: [] };
  const prompt = vocabulary.encode(renderChat([user], { mode: 'append_only', tools, addGenerationPrompt: true }));
  const trace = { response_ids: [] as number[], loss_mask: [] as number[], response_logprobs: [] as number[] };
  const append = (ids: readonly number[], bit: number, logprobs: readonly number[]): void => {
    trace.response_ids.push(...ids);
    trace.loss_mask.push(...ids.map(() => bit));
    trace.response_logprobs.push(...logprobs);
  };
  for (;;) {
    const body = { prompt: [...prompt, ...trace.response_ids], max_tokens: 400, seed, temperature: 1 };
    const requestId = `call-${seed}-${trace.response_ids.length}`;
    expect((await post(`${sim.url}/v1/completions`, body, { 'x-request-id': requestId })).status).toBe(200);
    const [entry] = sim.ledger.entries({ requestId });
    append(entry?.response_ids ?? [], 1, entry?.processed_logprobs ?? []);
    const result = toolResult(vocabulary.decode(entry?.response_ids ?? []));
    if (result === null) break;
    const turn = `\n<|im_start|>user\n<tool_response>\n${result}\n</tool_response><|im_end|>\n<|im_start|>assistant\n`;
    const context = vocabulary.encode(turn);
    append(context, 0, Array(context.length).fill(0));
  }
  const spans = [{ version: 'v1', start: 0, end: trace.response_ids.length }];
  return { ...trace, prompt_ids: prompt, version_spans: spans } as unknown as Trace;
}

/** Returns the output of the command in a reply; `null` for a reply without a command. */
function toolResult(reply: string): string | null {
  if (!reply.includes('<tool_call>')) return null;
  if (reply.includes('cat service.log')) return 'billing must listen on 8081';
  return reply.includes('cat service.conf') ? 'port=0' : 'saved';
}

function sessionOf(trace: Trace, reward: number): SessionResult {
  return { unusable: null, reward, trajectory: { traces: [trace] } } as unknown as SessionResult;
}

function trainedPlacements(policy: SoftmaxPolicy, { prompt_ids, response_ids, loss_mask }: Trace): Placement[] {
  return policy
    .place([...prompt_ids, ...response_ids])
    .slice(prompt_ids.length)
    .filter((_, index) => loss_mask[index] === 1);
}

const isDecision = (placement: Placement | undefined): placement is Decision => typeof placement === 'object';

describe("the trainer's copy of the simulated policy", () => {
  it('gives each sampled token the log-probability that the engine recorded', async () => {
    const policy = await SoftmaxPolicy.load(sim.url, 'repair');
    let decisions = 0;
    for (let seed = 1; seed <= 12; seed++) {
      const trace = await sampleTrace(seed);
      const recorded = trace.response_logprobs.filter((_, index) => trace.loss_mask[index] === 1);
      const placements = trainedPlacements(policy, trace);
      expect(placements).not.toContain('impossible');
      for (const [index, placement] of placements.entries()) {
        expect(policy.logProbability(placement)).toBeCloseTo(recorded[index] ?? Number.NaN, 9);
      }
      decisions += placements.filter(isDecision).length;
    }
    expect(decisions).toBeGreaterThan(12);
  });

  it('differentiates the log-probability as finite differences do', async () => {
    const policy = await SoftmaxPolicy.load(sim.url, 'repair');
    const decisions = (await Promise.all([1, 2, 3, 4, 5].map((seed) => sampleTrace(20 + seed)))).flatMap((trace) =>
      trainedPlacements(policy, trace).filter(isDecision),
    );
    expect(decisions.length).toBeGreaterThan(0);
    for (const decision of decisions) {
      const gradient = new Float64Array(policy.parameters.length);
      policy.addGradient(decision, 1, gradient);
      for (const index of gradient.keys()) {
        const moved = (by: number): number =>
          policy.logProbability(
            decision,
            policy.parameters.map((value, at) => (at === index ? value + by : value)),
          );
        expect(gradient[index]).toBeCloseTo((moved(1e-5) - moved(-1e-5)) / 2e-5, 6);
      }
    }
  });

  it('places no token of a reply whose ids differ from the sampled ones', async () => {
    const policy = await SoftmaxPolicy.load(sim.url, 'repair');
    const [reply] = sim.ledger.entries().filter(({ rule }) => rule === 0);
    const prompt = reply?.prompt_ids ?? [];
    const ids = vocabulary.encode(vocabulary.decode(reply?.response_ids ?? []));
    expect(ids.length).toBeLessThan(reply?.response_ids.length ?? 0);
    expect(new Set(policy.place([...prompt, ...ids]).slice(prompt.length))).toEqual(new Set(['impossible']));
  });

  it('refuses replies that two rules write, and replies with random thinking', () => {
    const turn = { token_ids: [1, 2], picks: [] };
    const rule = { scenario: 'one', rule: 0, turns: [turn] };
    const twice = { turn_start_ids: [0], rules: [rule, { ...rule, rule: 1 }] };
    expect(() => new SoftmaxPolicy(twice, {})).toThrow('rule 1 of scenario one writes the same reply as another rule');
    const noisy = { turn_start_ids: [0], rules: [{ ...rule, turns: [{ ...turn, token_ids: [1, null] }] }] };
    expect(() => new SoftmaxPolicy(noisy, {})).toThrow('random thinking');
  });
});

describe('a step of GRPO', () => {
  async function group(seeds: readonly number[]): Promise<SessionResult[]> {
    const traces = await Promise.all(seeds.map(sampleTrace));
    return traces.map((trace) => sessionOf(trace, vocabulary.decode(trace.response_ids).includes('port=8081') ? 1 : 0));
  }

  it('raises the probability of the options of rewarded samples, and counts what it trained', async () => {
    const policy = await SoftmaxPolicy.load(sim.url, 'repair');
    const before = policy.parameters;
    const sessions = await group(Array.from({ length: 16 }, (_, index) => 100 + index));
    expect(new Set(sessions.map(({ reward }) => reward))).toEqual(new Set([0, 1]));
    const counts = trainOn([sessions], policy, new Map([['v1', before]]), 'v2', OPTIONS);
    const { plan, 'port-billing': port, 'port-search': other } = policy.logits().repair ?? {};
    expect(plan?.[0]).toBeGreaterThan(LOGITS.repair.plan[0] ?? 0);
    expect(port?.[0]).toBeGreaterThan(LOGITS.repair['port-billing'][0] ?? 0);
    expect(other).toEqual(LOGITS.repair['port-search']);
    const trained = sessions.flatMap(({ trajectory }) => trajectory?.traces[0]?.loss_mask ?? []);
    const tokens = trained.filter((bit) => bit === 1).length;
    expect(counts).toMatchObject({ tokens, impossible: 0, stale: tokens, mismatched: 0 });
  });

  it('trains nothing on a token whose ratio left the clip range in the direction of its advantage', async () => {
    const policy = await SoftmaxPolicy.load(sim.url, 'repair');
    const sessions = await group([200, 201, 202, 203, 204, 205]);
    const far = sessions.map((result) => {
      const traces = (result.trajectory?.traces ?? []).map((trace) => ({
        ...trace,
        response_logprobs: trace.response_logprobs.map((value) => value + (result.reward === 1 ? -1 : 1)),
      }));
      return { ...result, trajectory: { ...result.trajectory, traces } } as SessionResult;
    });
    const before = [...policy.parameters];
    trainOn([far], policy, new Map(), 'v1', OPTIONS);
    expect([...policy.parameters]).toEqual(before);
  });

  it('counts tokens with another log-probability than that of their version', async () => {
    const policy = await SoftmaxPolicy.load(sim.url, 'repair');
    const sessions = await group([300, 301]);
    const other = policy.parameters.map((value) => value * 2 + 1);
    const counts = trainOn([sessions], policy, new Map([['v1', other]]), 'v1', OPTIONS);
    expect(counts.mismatched).toBe(counts.choices);
  });

  it('computes advantages of a group that sum to zero, and none for equal rewards', () => {
    const [first = 0, second = 0, third = 0] = groupAdvantages([1, 0, 0]);
    expect(first + second + third).toBeCloseTo(0, 9);
    expect(first).toBeCloseTo(2 / 3 / Math.sqrt(1 / 3), 4);
    expect(groupAdvantages([1, 1])).toEqual([0, 0]);
  });
});

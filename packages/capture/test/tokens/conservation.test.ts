import { type CompletionRecord, completionRecordSchema, type Trace, trajectorySchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { runs } from '../../../../test/effort.ts';
import { buildGraph } from '../../src/tokens/graph.ts';
import { encodeRecords } from '../../src/tokens/records.ts';
import { buildTrajectory } from '../../src/tokens/trajectory.ts';
import { expertRow, type Known, ROW_BYTES, randomSession } from './random-session.ts';

const credit = fc.constantFrom('broadcast', 'divide');
const fork_owner = fc.constantFrom('final_answer', 'longest', 'first');
const constrained = fc.constantFrom('mask', 'train');
const specArbitrary = fc.oneof(
  fc.record({
    strategy: fc.constant('prefix_merging'),
    config: fc.record({ on_drift: fc.constantFrom('auto', 'merge', 'split'), fork_owner, constrained, credit }),
  }),
  fc.record({ strategy: fc.constant('per_request'), config: fc.record({ constrained, credit }) }),
  fc.record({ strategy: fc.constant('step'), config: fc.record({ fork_owner, constrained, credit }) }),
);

type Constrained = 'mask' | 'train';

function reasonOf(known: readonly Known[], { completion }: Known, constrained: Constrained): string | null {
  const { capture, responseIds, request } = completion;
  if (capture.mode === 'text') return 'no_tokens';
  if (responseIds.length === 0) return 'empty';
  if (capture.logprobs_mode === null) return 'no_logprobs';
  if (completion.auxiliary) return 'auxiliary';
  const used = known.some((other) => other.parent === completion.completionId && other.link === 'exact');
  if (completion.abandoned && !used) return 'abandoned';
  if (completion.undelivered && !used) return 'undelivered';
  return request.constraint !== null && constrained === 'mask' ? 'constrained' : null;
}

function constrainedOf({ config }: { readonly config: { readonly constrained: string } }): Constrained {
  return config.constrained === 'train' ? 'train' : 'mask';
}

function sampledTokens({ completion }: Known): number {
  return completion.capture.mode === 'text' ? completion.usage.completion_tokens : completion.responseIds.length;
}

function tracesOf(built: { readonly json: Buffer }): Trace[] {
  return trajectorySchema.parse(JSON.parse(built.json.toString())).traces;
}

/** Returns the trained tokens of traces with their positions. It reads only the JSON of the traces, which trainers receive. */
function readTrained(traces: readonly Trace[]) {
  return traces.flatMap((trace) => {
    const ids = [...trace.prompt_ids, ...trace.response_ids];
    expect(trace.loss_mask).toHaveLength(trace.response_ids.length);
    expect(trace.response_logprobs).toHaveLength(trace.response_ids.length);
    return trace.response_ids.flatMap((id, at) => {
      const version = trace.version_spans.find((span) => span.start <= at && at < span.end)?.version;
      if (trace.loss_mask[at] === 0) {
        expect(trace.response_logprobs[at]).toBe(0);
        expect(version).toBeUndefined();
        return [];
      }
      const logprob = Math.fround(trace.response_logprobs[at] ?? Number.NaN);
      const position = trace.prompt_ids.length + at;
      return [{ id, logprob, version, before: ids, position, row: rowAt(trace, position) }];
    });
  });
}

/**
 * Returns the routed experts at a position of a trace; `null` when the trace has no routed experts, `undefined` when it has none at this
 * position.
 */
function rowAt({ routed_experts }: Trace, position: number): number[] | null | undefined {
  if (routed_experts === null) return null;
  const { data, start, shape } = routed_experts;
  const row = position - start;
  if (row < 0 || row >= shape[0]) return undefined;
  return [...Buffer.from(data, 'base64').subarray(row * ROW_BYTES, (row + 1) * ROW_BYTES)];
}

/** Returns the tokens that a completion sampled, in order, with the log-probabilities and versions that the traces should contain. */
function expectedTokens({ completion }: Known) {
  return [...completion.responseIds].map((id, i) => ({
    id,
    logprob: completion.responseLogprobs[i],
    version: completion.versionSpans.find((span) => span.start <= i && i < span.end)?.version,
  }));
}

/**
 * Checks that the traces train exactly the tokens that the completions sampled. Returns the number of tokens whose preceding tokens in
 * the trace equal the context in which the engine sampled them.
 */
function checkTrained(known: readonly Known[], traces: readonly Trace[], constrained: Constrained): number {
  const trained = readTrained(traces);
  const byFirstId = new Map(trained.map((token, i) => [token.id, i]));
  let exact = 0;
  let seen = 0;
  for (const one of known) {
    const expected = expectedTokens(one);
    const at = byFirstId.get(expected[0]?.id ?? -1);
    if (reasonOf(known, one, constrained) !== null) {
      expect(at).toBeUndefined();
      continue;
    }
    const found = trained.slice(at, (at ?? 0) + expected.length);
    expect(found.map(({ id, logprob, version }) => ({ id, logprob, version }))).toEqual(expected);
    // Compares the routed experts of all tokens but the last. The completion has no routed experts for its last token; the trace has the next
    // completion's experts there.
    for (const [i, { row }] of found.slice(0, -1).entries()) {
      if (row !== null) expect(row).toEqual(expertRow(one.completion.index, one.completion.promptIds.length + i));
    }
    seen += found.length;
    const first = found[0];
    const context = first?.before.slice(0, first.position).join();
    if (context === one.completion.promptIds.join()) exact += found.length;
  }
  expect(trained).toHaveLength(seen);
  return exact;
}

/**
 * Checks that each row of a trace's routed experts comes from the completion that added the position to the trace. Does not check a trace in
 * which a prompt contains an earlier reply with other token ids than the sampled ones.
 */
function checkExperts(known: readonly Known[], trace: Trace): void {
  const chain = trace.completion_ids.map((id) => known.find((one) => one.completion.completionId === id)?.completion);
  const links = trace.completion_ids.slice(1).map((id) => known.find((k) => k.completion.completionId === id)?.link);
  if (links.some((link) => link !== 'exact')) return;
  const positions = trace.prompt_ids.length + trace.response_ids.length;
  const start = chain[0]?.routedExperts?.start;
  const whole = chain.every((one, place) => {
    return one?.routedExperts != null && (place === 0 || one.routedExperts.start === 0);
  });
  expect(trace.routed_experts === null).toBe(!whole);
  if (trace.routed_experts === null || start === undefined) return;
  expect(trace.routed_experts).toMatchObject({ dtype: 'uint8', shape: [positions - 1 - start, 1, ROW_BYTES], start });
  for (let at = start; at < positions - 1; at++) {
    const source = chain.find((one) => at < (one?.promptIds.length ?? 0) + (one?.responseIds.length ?? 0) - 1);
    expect(rowAt(trace, at)).toEqual(expertRow(source?.index ?? -1, at));
  }
}

/**
 * Checks the `constrained_spans` of a trace. They must be exactly the positions of the replies that were sampled under a constraint, such as
 * a forced tool call.
 */
function checkConstrained(known: readonly Known[], trace: Trace): void {
  const expected = trace.completion_ids.flatMap((id) => {
    const completion = known.find((one) => one.completion.completionId === id)?.completion;
    const constraint = completion?.request.constraint ?? null;
    return constraint === null ? [] : [{ constraint, ids: [...(completion?.responseIds ?? [])] }];
  });
  const named = trace.constrained_spans.map(({ constraint, start, end }) => {
    return { constraint, ids: trace.response_ids.slice(start, end) };
  });
  expect(named).toEqual(expected.filter(({ ids }) => ids.length > 0));
}

/**
 * Checks the properties on which step-wise trainers rely: an episode's traces are adjacent, its turns are in order, and its reward is on
 * the last step.
 */
function checkSteps(traces: readonly Trace[]): void {
  const seen: string[] = [];
  traces.forEach((trace, index) => {
    const { trajectory_id, turn_index, last_step, step_reward } = trace.metadata;
    const before = traces[index - 1]?.metadata;
    expect(trace.loss_mask.every((mask) => mask === 1)).toBe(true);
    expect(trace.completion_ids).toHaveLength(1);
    expect(step_reward).toBe(last_step ? trace.reward : 0);
    if (trajectory_id === before?.trajectory_id) {
      expect([turn_index, before?.last_step]).toEqual([Number(before?.turn_index) + 1, false]);
    } else {
      expect(seen).not.toContain(trajectory_id);
      seen.push(String(trajectory_id));
      expect([turn_index, before?.last_step ?? true]).toEqual([0, true]);
    }
  });
  expect(traces.at(-1)?.metadata.last_step ?? true).toBe(true);
}

function countBy(names: readonly (string | null)[], weights: readonly number[] = []): Record<string, number> {
  const counts: Record<string, number> = {};
  names.forEach((name, i) => {
    if (name !== null) counts[name] = (counts[name] ?? 0) + (weights[i] ?? 1);
  });
  return counts;
}

describe('the trajectory of any session', () => {
  it('has the links with which the session was made, in whatever order the completions are given', () => {
    fc.assert(
      fc.property(randomSession, ({ known, completions, options }) => {
        const nodes = buildGraph(completions, options).nodes;
        expect(
          nodes.map((n) => [n.completion.completionId, n.link, n.parent?.completion.completionId ?? null, n.drift]),
        ).toEqual(known.map((one) => [one.completion.completionId, one.link, one.parent, one.drift]));
        for (const node of nodes) {
          const base = (node.parent ?? node.forkOf)?.completion;
          const whole = base === undefined ? [] : [...base.promptIds, ...base.responseIds];
          const prompt = node.completion.promptIds;
          const differs = whole.findIndex((id, i) => id !== prompt[i]);
          expect(node.sharedLength).toBe(base === undefined ? 0 : differs < 0 ? whole.length : differs);
        }
      }),
      { numRuns: runs(300) },
    );
  });

  it('trains every sampled token once and as sampled, or excludes it with a reason', () => {
    fc.assert(
      fc.property(randomSession, specArbitrary, ({ known, completions, options }, spec) => {
        const request = { spec, completions, graphOptions: options, reward: 1, error: null, metadata: {} };
        const built = buildTrajectory({ ...request, status: 'TIMEOUT' });
        const { audit } = built;
        const traces = tracesOf(built);
        const maskSum = traces.flatMap((trace) => trace.loss_mask).reduce((sum, mask) => sum + mask, 0);
        const exact = checkTrained(known, traces, constrainedOf(spec));
        for (const trace of traces) checkExperts(known, trace);
        for (const trace of traces) checkConstrained(known, trace);
        const constrainedTokens = known.filter(
          (one) => one.completion.request.constraint !== null && reasonOf(known, one, constrainedOf(spec)) === null,
        );
        expect(audit.tokens.constrained).toBe(constrainedTokens.reduce((sum, one) => sum + sampledTokens(one), 0));
        if (spec.strategy === 'step') checkSteps(traces);
        const reasons = known.map((one) => reasonOf(known, one, constrainedOf(spec)));
        expect(audit.tokens.excluded).toEqual(countBy(reasons, known.map(sampledTokens)));
        expect(audit.completions.excluded).toEqual(countBy(reasons));
        expect(audit.completions.recorded).toBe(known.length);
        expect(audit.completions.trained).toBe(reasons.filter((reason) => reason === null).length);
        expect(audit.tokens.sampled).toBe(known.reduce((sum, one) => sum + sampledTokens(one), 0));
        const excluded = Object.values(audit.tokens.excluded).reduce((sum, count) => sum + count, 0);
        expect(audit.tokens.trained).toBe(audit.tokens.sampled - excluded);
        expect(audit.tokens.trained).toBe(maskSum);
        expect(audit.drift).toEqual(countBy(known.map((one) => one.drift)));
        expect(audit.links).toEqual({
          exact: 0,
          rerendered: 0,
          fork: 0,
          root: 0,
          ...countBy(known.map((k) => k.link)),
        });
        expect(audit.exact_context_share).toBe(maskSum === 0 ? null : exact / maskSum);
        const merges = spec.strategy === 'prefix_merging' && spec.config.on_drift !== 'split';
        if (!merges) expect(exact).toBe(maskSum);
        expect(built.traces).toHaveLength(traces.length);
        expect(traces.length === 0).toBe(maskSum === 0);
      }),
      { numRuns: runs(500) },
    );
  });

  it('gives the reward to every trace, or divides it among them', () => {
    fc.assert(
      fc.property(randomSession, specArbitrary, ({ completions, options }, spec) => {
        const request = { spec, completions, graphOptions: options, reward: 0.5, error: null, metadata: {} };
        const traces = tracesOf(buildTrajectory({ ...request, status: 'COMPLETED' }));
        const units = new Set(traces.map((trace) => trace.metadata.trajectory_id ?? trace.trace_id));
        const divided = spec.config.credit === 'divide';
        for (const trace of traces) {
          expect(trace.reward).toBe(divided ? 0.5 / units.size : 0.5);
          expect(trace.metadata).toMatchObject({ credit: spec.config.credit, credit_parts: divided ? units.size : 1 });
        }
      }),
      { numRuns: runs(100) },
    );
  });

  it('has counts by dialect and engine that add up to the totals', () => {
    fc.assert(
      fc.property(randomSession, specArbitrary, ({ known, completions, options }, spec) => {
        const request = { spec, completions, graphOptions: options, reward: 1, error: null, metadata: {} };
        const { tallies, audit } = buildTrajectory({ ...request, status: 'COMPLETED' });
        const places = new Set(known.map(({ completion }) => completion.engineId));
        expect(tallies.map((tally) => tally.engineId).sort()).toEqual([...places].sort());
        for (const tally of tallies) {
          const own = known.filter(({ completion }) => completion.engineId === tally.engineId);
          const reasons = own.map((one) => reasonOf(known, one, constrainedOf(spec)));
          expect(tally.dialect).toBe('openai_chat');
          expect(tally.sampled).toBe(own.reduce((sum, one) => sum + sampledTokens(one), 0));
          expect(tally.excluded).toEqual(countBy(reasons, own.map(sampledTokens)));
          expect(tally.links).toMatchObject(countBy(own.map((one) => one.link)));
          expect(tally.drift).toEqual(countBy(own.map((one) => one.drift)));
        }
        const exact = tallies.reduce((sum, tally) => sum + tally.exact, 0);
        expect(tallies.reduce((sum, tally) => sum + tally.trained, 0)).toBe(audit.tokens.trained);
        if (audit.tokens.trained > 0) expect(exact / audit.tokens.trained).toBe(audit.exact_context_share);
      }),
      { numRuns: runs(100) },
    );
  });

  it('can be reconstructed from its records', () => {
    fc.assert(
      fc.property(randomSession, ({ known, completions, options }) => {
        const graph = buildGraph(completions, options);
        const json = encodeRecords(completions, graph).toString();
        const records = completionRecordSchema.array().parse(JSON.parse(json));
        const restored = new Map<string, { record: CompletionRecord; prompt: number[]; messages: unknown[] }>();
        for (const record of records) {
          const base = restored.get(record.prompt.base ?? '');
          const sequence = base === undefined ? [] : [...base.prompt, ...base.record.response_ids];
          const prompt = [...sequence.slice(0, record.prompt.keep), ...record.prompt.ids];
          const messages = [...(base?.messages.slice(0, record.request.keep) ?? []), ...record.request.messages];
          restored.set(record.completion_id, { record, prompt, messages });
        }
        for (const { completion, link, drift } of known) {
          const found = restored.get(completion.completionId);
          expect(found?.prompt).toEqual([...completion.promptIds]);
          expect(found?.messages).toEqual(completion.request.messages);
          expect(found?.record).toMatchObject({ link, drift, response_ids: [...completion.responseIds] });
          expect(found?.record.version_spans).toEqual(completion.versionSpans);
          expect(found?.record.response_logprobs.map(Math.fround)).toEqual([...completion.responseLogprobs]);
          const experts = found?.record.routed_experts ?? null;
          const data = completion.routedExperts?.data.toString('base64');
          expect(experts).toEqual(completion.routedExperts && { ...completion.routedExperts, data });
        }
      }),
      { numRuns: runs(100) },
    );
  });
});

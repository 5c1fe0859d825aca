import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type CompletionRecord, completionRecordSchema, trajectorySchema } from '../../src/schema/index.ts';
import type { Completion } from '../../src/tokens/completion.ts';
import { buildGraph } from '../../src/tokens/graph.ts';
import { encodeRecords } from '../../src/tokens/records.ts';
import { buildTrajectory } from '../../src/tokens/trajectory.ts';
import { CLOSE } from './session.ts';
import { type History, Transcript } from './transcript.ts';

/** What a harness may do next, as numbers that pick a completion to act on and the details. */
const stepArbitrary = fc.record({
  kind: fc.constantFrom('go_on', 'go_on', 'go_on', 'rerender', 'retry', 'edit', 'new_thread', 'other_tools', 'aside'),
  on: fc.nat({ max: 1000 }),
  size: fc.integer({ min: 1, max: 80 }),
  keep: fc.nat({ max: 80 }),
  cut: fc.constantFrom(false, false, false, true),
  empty: fc.constantFrom(false, false, false, false, false, false, true),
  mark: fc.constantFrom('none', 'none', 'none', 'none', 'abandoned', 'undelivered'),
  versionAt: fc.nat({ max: 80 }),
});
type Step = typeof stepArbitrary extends fc.Arbitrary<infer T> ? T : never;

/** A completion with what is known of it because it was made so. */
type Known = {
  readonly completion: Completion;
  readonly history: History;
  readonly link: 'exact' | 'rerendered' | 'fork' | 'root';
  readonly parent: string | null;
  readonly toolsText: string;
};

/** Plays the steps; the truth is written down while the session is made, without looking at ids. */
function play(steps: readonly Step[]): Known[] {
  const t = new Transcript();
  const system = t.fresh(2);
  const known: Known[] = [];
  const add = (step: Step, history: History, facts: Omit<Known, 'completion' | 'history'>, thread: string) => {
    const body = t.fresh(step.size);
    const response = step.empty ? [] : step.cut ? body : [...body, CLOSE];
    const split = Math.min(step.versionAt, response.length);
    const completion = t.call(history, {
      response,
      thread,
      toolsText: facts.toolsText,
      stop: step.cut || step.empty ? null : { kind: 'token', id: CLOSE },
      versionSpans: [
        { version: 'v1', start: 0, end: split },
        { version: 'v2', start: split, end: response.length },
      ],
      abandoned: step.mark === 'abandoned',
      undelivered: step.mark === 'undelivered',
      auxiliary: step.kind === 'aside',
    });
    known.push({ ...facts, completion, history });
  };
  for (const step of steps) {
    const on = known[step.on % Math.max(known.length, 1)];
    if (on === undefined || step.kind === 'new_thread') {
      const root = { link: 'root', parent: null, toolsText: '[]' } as const;
      add(step, t.start(system), root, on === undefined ? 'main' : `sub${known.length}`);
      continue;
    }
    const { completion, history, toolsText } = on;
    const thread = completion.thread;
    const empty = completion.responseIds.length === 0;
    const id = completion.completionId;
    if (step.kind === 'retry' || (empty && step.kind !== 'edit')) {
      add(step, history, { ...on, link: on.link === 'root' ? 'fork' : on.link }, thread);
    } else if (step.kind === 'edit') {
      const edited = t.turn({ ids: history.ids.slice(0, -5), messages: history.messages.slice(0, -1) }, 'tool');
      // Without its last turn a first prompt shares only the system turn; others still continue what they continued.
      if (on.parent !== null) add(step, edited, on, thread);
      else add(step, edited, { ...on, link: history.messages.length === 2 ? 'root' : 'fork' }, thread);
    } else if (step.kind === 'rerender') {
      const kept = [...completion.responseIds.subarray(0, Math.min(step.keep, completion.responseIds.length - 1))];
      const rendered = t.after(history, completion, [...kept, ...t.fresh(2)]);
      add(step, rendered, { link: 'rerendered', parent: id, toolsText }, thread);
    } else if (step.kind === 'other_tools') {
      const other = `[{"type":"function","function":{"name":"tool_${known.length}"}}]`;
      add(step, t.after(history, completion), { link: 'fork', parent: null, toolsText: other }, thread);
    } else {
      add(step, t.after(history, completion), { link: 'exact', parent: id, toolsText }, thread);
    }
  }
  return known;
}

const sessionArbitrary = fc
  .tuple(fc.array(stepArbitrary, { minLength: 1, maxLength: 25 }), fc.infiniteStream(fc.nat()))
  .map(([steps, order]) => {
    const known = play(steps);
    const shuffled = known.map(({ completion }) => ({ completion, at: order.next().value ?? 0 }));
    shuffled.sort((a, b) => a.at - b.at);
    return { known, completions: shuffled.map(({ completion }) => completion) };
  });

const configArbitrary = fc.record({
  on_drift: fc.constantFrom('auto', 'merge', 'split'),
  fork_owner: fc.constantFrom('final_answer', 'longest', 'first'),
});

function isExcluded(known: readonly Known[], { completion }: Known): boolean {
  if (completion.responseIds.length === 0 || completion.auxiliary) return true;
  const used = known.some((other) => other.parent === completion.completionId && other.link === 'exact');
  return (completion.abandoned || completion.undelivered) && !used;
}

/** The trained tokens of a trajectory, read from its JSON alone, each with where it stands. */
function readTrained(json: Buffer) {
  const trajectory = trajectorySchema.parse(JSON.parse(json.toString()));
  return trajectory.traces.flatMap((trace) => {
    const ids = [...trace.prompt_ids, ...trace.response_ids];
    return trace.response_ids.flatMap((id, at) => {
      if (trace.loss_mask[at] === 0) {
        expect(trace.response_logprobs[at]).toBe(0);
        return [];
      }
      const version = trace.version_spans.find((span) => span.start <= at && at < span.end)?.version;
      const logprob = Math.fround(trace.response_logprobs[at] ?? Number.NaN);
      return [{ id, logprob, version, before: ids, position: trace.prompt_ids.length + at }];
    });
  });
}

/** Each completion's tokens as they must come out, in order of sampling. */
function expectedTokens({ completion }: Known) {
  return [...completion.responseIds].map((id, i) => ({
    id,
    logprob: completion.responseLogprobs[i],
    version: completion.versionSpans.find((span) => span.start <= i && i < span.end)?.version,
  }));
}

/** Checks tokens against the truth; returns how many stand in the context that they were sampled in. */
function checkTrained(known: readonly Known[], json: Buffer): number {
  const trained = readTrained(json);
  const byFirstId = new Map(trained.map((token, i) => [token.id, i]));
  let exact = 0;
  let seen = 0;
  for (const one of known) {
    const expected = expectedTokens(one);
    const at = byFirstId.get(expected[0]?.id ?? -1);
    if (isExcluded(known, one)) {
      expect(at).toBeUndefined();
      continue;
    }
    const found = trained.slice(at, (at ?? 0) + expected.length);
    expect(found.map(({ id, logprob, version }) => ({ id, logprob, version }))).toEqual(expected);
    seen += found.length;
    const first = found[0];
    const context = first?.before.slice(0, first.position).join();
    if (context === one.completion.promptIds.join()) exact += found.length;
  }
  expect(trained).toHaveLength(seen);
  return exact;
}

describe('any session', () => {
  test('is linked as it was made, whatever the order in which its completions are given', () => {
    fc.assert(
      fc.property(sessionArbitrary, ({ known, completions }) => {
        const nodes = buildGraph(completions).nodes;
        expect(
          nodes.map((n) => [n.completion.completionId, n.link, n.parent?.completion.completionId ?? null]),
        ).toEqual(known.map((one) => [one.completion.completionId, one.link, one.parent]));
        for (const node of nodes) {
          const base = (node.parent ?? node.forkOf)?.completion;
          const whole = base === undefined ? [] : [...base.promptIds, ...base.responseIds];
          const prompt = node.completion.promptIds;
          const differs = whole.findIndex((id, i) => id !== prompt[i]);
          expect(node.sharedLength).toBe(base === undefined ? 0 : differs < 0 ? whole.length : differs);
        }
      }),
      { numRuns: 300 },
    );
  });

  test('has every sampled token trained once, as sampled, or excluded', () => {
    fc.assert(
      fc.property(sessionArbitrary, configArbitrary, fc.boolean(), ({ known, completions }, config, merging) => {
        const spec = merging ? { strategy: 'prefix_merging', config } : { strategy: 'per_request', config: {} };
        const request = { spec, completions, reward: null, error: null, metadata: {} };
        const { json, audit, trainableTokens, traceCount } = buildTrajectory({ ...request, status: 'TIMEOUT' });
        const exact = checkTrained(known, json);
        const excluded = Object.values(audit.tokens.excluded).reduce((sum, count) => sum + count, 0);
        expect(audit.tokens.trained + excluded).toBe(known.reduce((n, k) => n + k.completion.responseIds.length, 0));
        expect(audit.tokens.trained).toBe(trainableTokens);
        expect(audit.exact_context_share).toBe(trainableTokens === 0 ? null : exact / trainableTokens);
        if (!merging || config.on_drift !== 'merge') expect(exact).toBe(trainableTokens);
        expect(traceCount === 0).toBe(trainableTokens === 0);
      }),
      { numRuns: 400 },
    );
  });

  test('can be put together again from its records', () => {
    fc.assert(
      fc.property(sessionArbitrary, ({ known, completions }) => {
        const records = completionRecordSchema.array().parse(JSON.parse(encodeRecords(completions).toString()));
        const restored = new Map<string, { record: CompletionRecord; prompt: number[]; messages: unknown[] }>();
        for (const record of records) {
          const base = restored.get(record.prompt.base ?? '');
          const sequence = base === undefined ? [] : [...base.prompt, ...base.record.response_ids];
          const prompt = [...sequence.slice(0, record.prompt.keep), ...record.prompt.ids];
          const messages = [...(base?.messages.slice(0, record.request.keep) ?? []), ...record.request.messages];
          restored.set(record.completion_id, { record, prompt, messages });
        }
        for (const { completion, link } of known) {
          const found = restored.get(completion.completionId);
          expect(found?.prompt).toEqual([...completion.promptIds]);
          expect(found?.messages).toEqual(completion.request.messages);
          expect(found?.record).toMatchObject({ link, response_ids: [...completion.responseIds] });
          expect(found?.record.response_logprobs.map(Math.fround)).toEqual([...completion.responseLogprobs]);
        }
      }),
      { numRuns: 100 },
    );
  });
});

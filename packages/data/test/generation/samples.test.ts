import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseCondition } from '../../src/generation/acceptance-conditions.ts';
import { type JournaledSample, journaledSample, RowPlan, SampleIndex } from '../../src/generation/samples.ts';
import { resultOf } from './results.ts';

const LOCATION = { path: 'journal.jsonl', offset: 0, length: 1 };

function sampleOf(sample: number, fields: Partial<JournaledSample> = {}): JournaledSample {
  const base = { row: 0, sample, retry: 0, accepted: false, empty: false, reward: 0, location: LOCATION };
  return { ...base, outcome: 'completed', ...fields };
}

describe('journaledSample', () => {
  const entry = (fields: object) =>
    journaledSample({ row: 0, sample: 0, retry: 0 }, resultOf(fields), [parseCondition('reward>=1')], LOCATION);

  it('finds generations without a reply of the model', () => {
    expect(entry({ outcome: 'no_completions', unusable: 'no_completions' })).toMatchObject({
      empty: true,
      accepted: false,
    });
    expect(entry({ trainable_tokens: 0, unusable: 'no_tokens' })).toMatchObject({ empty: true, accepted: false });
    expect(entry({ outcome: 'agent_error', unusable: 'agent_error' })).toMatchObject({ empty: false, accepted: false });
    expect(entry({})).toMatchObject({ empty: false, accepted: true });
  });
});

describe('SampleIndex', () => {
  it('counts the last generation of a sample, whatever the order of the journals', () => {
    const [first, second] = [sampleOf(1, { empty: true }), sampleOf(1, { retry: 1 })];
    for (const order of [
      [first, second],
      [second, first],
    ]) {
      const index = new SampleIndex();
      for (const entry of order) index.add(entry);
      expect(index.ofRow(0)).toEqual([second]);
      expect([index.has(first), index.has(second), index.has(sampleOf(0))]).toEqual([true, true, false]);
    }
  });

  it('forgets the refusal of a row that has a sample', () => {
    const index = new SampleIndex();
    index.refuse(0, 'no harness');
    expect([index.refusalOf(0), index.refusalOf(1)]).toEqual(['no harness', null]);
    index.add(sampleOf(0));
    expect(index.refusalOf(0)).toBe(null);
  });
});

describe('RowPlan', () => {
  it('repeats an empty generation once', () => {
    const plan = new RowPlan(0, { samples: 1, keep: null }, []);
    expect(plan.next()).toEqual({ row: 0, sample: 0, retry: 0 });
    plan.record(sampleOf(0, { empty: true }));
    expect(plan.next()).toEqual({ row: 0, sample: 0, retry: 1 });
    expect(plan.isDone).toBe(false);
    plan.record(sampleOf(0, { empty: true, retry: 1 }));
    expect([plan.next(), plan.isDone]).toEqual([null, true]);
  });

  it('needs nothing more when its task is refused', () => {
    const plan = new RowPlan(0, { samples: 2, keep: null }, []);
    plan.next();
    plan.refuse();
    expect([plan.next(), plan.isDone]).toEqual([null, true]);
  });

  it('generates the same samples in whatever order sessions end, and however often the process is killed', () => {
    const scenario = fc.record({
      samples: fc.integer({ min: 1, max: 8 }),
      keep: fc.option(fc.integer({ min: 1, max: 3 })),
      accepted: fc.array(fc.boolean(), { minLength: 8, maxLength: 8 }),
      empty: fc.array(fc.integer({ min: 0, max: 2 }), { minLength: 8, maxLength: 8 }),
      choices: fc.infiniteStream(fc.nat(9)),
    });
    fc.assert(
      fc.property(scenario, ({ samples, keep, accepted, empty, choices }) => {
        const submitted = new Set<string>();
        const ended = new Map<string, JournaledSample>();
        const running = new Map<string, { row: number; sample: number; retry: number }>();
        let plan = new RowPlan(0, { samples, keep }, []);
        for (const choice of choices) {
          if (plan.isDone) break;
          const next = choice < 5 ? plan.next() : null;
          if (next !== null) {
            submitted.add(`${next.sample}-${next.retry}`);
            running.set(`${next.sample}-${next.retry}`, next);
          } else if (choice === 9) {
            const index = new SampleIndex();
            for (const entry of ended.values()) index.add(entry);
            plan = new RowPlan(0, { samples, keep }, index.ofRow(0));
            running.clear();
          } else {
            const [key = '', id] = [...running][choice % Math.max(1, running.size)] ?? [];
            if (id === undefined) continue;
            running.delete(key);
            const isEmpty = id.retry < (empty[id.sample] ?? 0);
            const entry = sampleOf(id.sample, {
              retry: id.retry,
              empty: isEmpty,
              accepted: !isEmpty && accepted[id.sample] === true,
            });
            ended.set(key, entry);
            plan.record(entry);
          }
        }
        const expected = new Set<string>();
        let found = 0;
        for (let sample = 0; sample < samples && (keep === null || found < keep); sample++) {
          expected.add(`${sample}-0`);
          const tries = empty[sample] ?? 0;
          if (tries > 0) expected.add(`${sample}-1`);
          if (tries < 2 && accepted[sample] === true) found++;
        }
        expect(submitted).toEqual(expected);
      }),
    );
  });
});

import { trajectorySchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { RoutedExperts } from '../../src/reply.ts';
import type { Completion } from '../../src/tokens/completion.ts';
import { buildTrajectory } from '../../src/tokens/trajectory.ts';
import { CALL_CLOSE } from './session.ts';
import { Transcript } from './transcript.ts';

/**
 * Makes the routed experts of a completion: two layers with one expert each, as uint16. The expert of the first layer is the number of the
 * position. The expert of the second layer is the index of the completion.
 */
function experts({ index, promptIds, responseIds }: Completion, start = 0, rows?: number): RoutedExperts {
  const count = rows ?? promptIds.length + responseIds.length - 1 - start;
  const numbers = Uint16Array.from({ length: count * 2 }, (_, i) => (i % 2 === 0 ? start + i / 2 : index));
  return { dtype: 'uint16', shape: [count, 2, 1], start, data: Buffer.from(numbers.buffer) };
}

function expertsOfTrace(completions: readonly Completion[], config: Record<string, unknown> = {}) {
  const { json } = buildTrajectory({
    spec: { strategy: 'prefix_merging', config },
    completions,
    status: 'COMPLETED',
    reward: 1,
    error: null,
    metadata: {},
  });
  const [trace] = trajectorySchema.parse(JSON.parse(json.toString())).traces;
  if (trace === undefined) throw new Error('no trace');
  if (trace.routed_experts === null) return null;
  const { data, ...head } = trace.routed_experts;
  const bytes = Buffer.from(data, 'base64');
  const numbers = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2);
  const rows = Array.from({ length: numbers.length / 2 }, (_, row) => [numbers[2 * row], numbers[2 * row + 1]]);
  return { ...head, rows, positions: trace.prompt_ids.length + trace.response_ids.length };
}

/**
 * Builds a session of two turns. The second prompt contains the first reply as it was sampled or, when `rendered` is given, as those ids.
 */
function session(rendered?: readonly number[], response?: readonly number[]): [Completion, Completion] {
  const t = new Transcript();
  const h0 = t.start();
  const c0 = t.call(h0, response === undefined ? {} : { response });
  const c1 = t.call(t.after(h0, c0, rendered));
  return [c0, c1];
}

describe('the routed experts of a trace', () => {
  it('are copied from each completion, and those of the last token of a reply from the next prompt', () => {
    const [c0, c1] = session();
    const made = expertsOfTrace([
      { ...c0, routedExperts: experts(c0) },
      { ...c1, routedExperts: experts(c1) },
    ]);
    const first = c0.promptIds.length + c0.responseIds.length - 1;
    const positions = c1.promptIds.length + c1.responseIds.length;
    const rows = Array.from({ length: positions - 1 }, (_, at) => [at, at < first ? 0 : 1]);
    expect(made).toEqual({ dtype: 'uint16', shape: [positions - 1, 2, 1], start: 0, rows, positions });
  });

  it('begin at the first row that the first completion has', () => {
    const [c0, c1] = session();
    const start = c0.promptIds.length - 1;
    const made = expertsOfTrace([
      { ...c0, routedExperts: experts(c0, start) },
      { ...c1, routedExperts: experts(c1, c0.promptIds.length + c0.responseIds.length - 1) },
    ]);
    expect(made).toMatchObject({ start, shape: [(made?.positions ?? 0) - 1 - start, 2, 1] });
    expect(made?.rows[0]).toEqual([start, 0]);
    expect(made?.rows.at(-1)).toEqual([(made?.positions ?? 0) - 2, 1]);
  });

  it('are the rows of the completion in a trace of one completion', () => {
    const [c0] = session();
    expect(expertsOfTrace([{ ...c0, routedExperts: experts(c0, 3) }])).toMatchObject({ start: 3 });
  });

  it.each<[string, (c0: Completion, c1: Completion) => [RoutedExperts | null, RoutedExperts | null]]>([
    ['the first completion has none', (_, c1) => [null, experts(c1)]],
    ['the second has none', (c0) => [experts(c0), null]],
    ['those of the prompt end are missing', (c0, c1) => [experts(c0, c0.promptIds.length), experts(c1)]],
    [
      "the reply's last token has none",
      (c0, c1) => [experts(c0), experts(c1, c0.promptIds.length + c0.responseIds.length)],
    ],
    ['the last row of the first reply is missing', (c0, c1) => [experts(c0, 0, 10), experts(c1)]],
    ['the last row of all is missing', (c0, c1) => [experts(c0), experts(c1, 0, c1.promptIds.length)]],
    [
      'they are numbers of another size',
      (c0, c1) => [experts(c0), { ...experts(c1), dtype: 'uint8', shape: [experts(c1).shape[0], 2, 2] }],
    ],
    ['they are of another model', (c0, c1) => [experts(c0), { ...experts(c1), shape: [experts(c1).shape[0], 1, 2] }]],
  ])('are missing when %s', (_, change) => {
    const [c0, c1] = session();
    const [one, other] = change(c0, c1);
    expect(
      expertsOfTrace([
        { ...c0, routedExperts: one },
        { ...c1, routedExperts: other },
      ]),
    ).toBeNull();
  });

  it('continue after a merged turn from its close', () => {
    const [c0, c1] = session([501, 502]);
    const both = [
      { ...c0, routedExperts: experts(c0) },
      { ...c1, routedExperts: experts(c1) },
    ];
    const made = expertsOfTrace(both, { on_drift: 'merge' });
    const close = c0.promptIds.length + c0.responseIds.length - 1;
    expect(made?.rows[close - 1]).toEqual([close - 1, 0]);
    // The second prompt has two ids in place of the four sampled ids of the first reply. After that reply, a position in the second
    // completion is therefore lower by two than the same position in the trace.
    expect(made?.rows[close]).toEqual([close - 2, 1]);
    expect(made?.rows.at(-1)).toEqual([c1.promptIds.length + c1.responseIds.length - 2, 1]);
    expect(made?.rows).toHaveLength((made?.positions ?? 0) - 1);
  });

  it('are missing when a merged turn ended with another id', () => {
    const [c0, c1] = session([501, 502], [9, 9, CALL_CLOSE]);
    const both = [
      { ...c0, routedExperts: experts(c0) },
      { ...c1, routedExperts: experts(c1) },
    ];
    expect(expertsOfTrace(both, { on_drift: 'merge' })).toBeNull();
  });

  it('are written completely, however many there are', () => {
    const [c0] = session();
    const rows = c0.promptIds.length + c0.responseIds.length - 1;
    const width = 40_001;
    const data = Buffer.from(Array.from({ length: rows * width }, (_, i) => (i * 31) % 256));
    const { json } = buildTrajectory({
      spec: { strategy: 'per_request', config: {} },
      completions: [{ ...c0, routedExperts: { dtype: 'uint8', shape: [rows, width, 1], start: 0, data } }],
      status: 'COMPLETED',
      reward: 1,
      error: null,
      metadata: {},
    });
    const written = JSON.parse(json.toString()).traces[0].routed_experts.data;
    expect(written === data.toString('base64')).toBe(true);
  });
});

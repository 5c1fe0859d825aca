import type { Trajectory, VersionSpan } from '@floe-rl/core/schema';
import { bundledVocabulary, type FaultKind } from '@floe-rl/sim';
import { expect } from 'vitest';
import { assistant, type GoldenSession, results, user } from '../session.ts';
import { ask, expectAllTrained, type GoldenCase, START } from './scene.ts';

/** Settings of a simulated engine that is slow enough for a weight update to happen during a reply. */
const SLOW = { tokenDelayMs: 1 };

const NO_LOGPROBS: readonly FaultKind[] = ['logprob_null', 'logprobs_length', 'logprob_nan', 'logprob_positive'];
const LIES: readonly FaultKind[] = ['foreign_ids', 'missing_ids', 'usage_mismatch', 'error_body_200', 'garbage'];

/** The golden test cases about faults of an engine and about weight updates. */
export const ENGINE: readonly GoldenCase[] = [
  {
    letter: 'g',
    title: 'a reply without valid log-probabilities is refused, and the session continues',
    sim: { seed: 1 },
    async run(scene) {
      for (const kind of NO_LOGPROBS) await survives(scene, kind);
    },
  },
  {
    letter: 'w',
    title: 'a reply that contradicts itself is refused, and the session continues',
    sim: { seed: 1 },
    async run(scene) {
      for (const kind of LIES) await survives(scene, kind);
    },
  },
  {
    letter: 'r',
    title: 'a reply that spans a weight update has a span for each version',
    sim: SLOW,
    async run({ open, golden, stream, client, mode }) {
      const session = await open();
      const turns = [user('SLOW and steady.')];
      const before = golden.sim.engine.options.weights.current.version;
      const after = `${mode.name}-${client.dialect}-${stream}`;
      const sampled = await golden.sampledTokens();
      const answer = session.post(ask(turns));
      await expect.poll(() => golden.sampledTokens(), { interval: 5 }).toBeGreaterThan(sampled + 5);
      golden.sim.updateWeights(after);
      const parsed = session.read(await answer);
      await session.say(ask([...turns, assistant(parsed), user('Then?')]));
      const [first] = session.session.completions();
      const spans = first?.versionSpans ?? [];
      // vLLM does not report a policy version for the tokens of a chat reply. As the weights changed during the reply, the version of each
      // token is unknown.
      if (mode.name === 'vllm chat') {
        expect(spans).toEqual([{ version: null, start: 0, end: first?.responseIds.length }]);
        return;
      }
      expect(spans.map(({ version }) => version)).toEqual([before, after]);
      expect(spans.at(-1)?.end).toBe(first?.responseIds.length);
      expect(spans).toEqual(session.ledger()[0]?.version_spans);
      const { audit, trajectory } = await session.judge();
      expectAllTrained(audit);
      expect(spansOfFirstReply(trajectory, spans)).toEqual(spans);
    },
  },
  {
    letter: 'r',
    title: 'a reply that an update aborted is continued where it stopped',
    sim: SLOW,
    async run({ open, golden, mode, stream, client }) {
      // This case requires prompts as token ids. In chat mode the proxy cannot continue an aborted reply: it records the sampled tokens,
      // and the harness repeats the request.
      if (!mode.tokens) return;
      const session = await open();
      const before = golden.sim.engine.options.weights.current.version;
      const after = `${mode.name}-${client.dialect}-${stream}-abort`;
      const sampled = await golden.sampledTokens();
      const answer = session.post(ask([user('SLOW but broken.')]));
      await expect.poll(() => golden.sampledTokens(), { interval: 5 }).toBeGreaterThan(sampled + 5);
      await golden.engines.pause({ mode: 'abort', whilePaused: 'hold' });
      golden.sim.updateWeights(after);
      await golden.engines.resume();
      const parsed = session.read(await answer);
      expect(parsed.text).toContain('That took a while.');
      const [only, ...others] = session.session.completions();
      expect(others).toEqual([]);
      expect(only?.finishReason).toBe('stop');
      const [begun = 0, resumed = 0, ...more] = session.ledger().map(({ response_ids }) => response_ids.length);
      expect(more).toEqual([]);
      const spans = [
        { version: before, start: 0, end: begun },
        { version: after, start: begun, end: begun + resumed },
      ];
      expect(only?.versionSpans).toEqual(spans);
      const { audit, trajectory } = await session.judge();
      expectAllTrained(audit);
      expect(spansOfFirstReply(trajectory, spans)).toEqual(spans);
    },
  },
  {
    letter: 'z',
    title: 'a stop string that lies across the place where an update aborted the reply ends it',
    // The case needs stop strings, which OpenAI's Responses API does not support.
    plays: (client) => client.dialect !== 'openai_responses',
    async run({ open, golden, mode }) {
      // In this mode the engine accepts only messages, so it cannot continue an interrupted reply from its token ids.
      if (mode.name === 'vllm chat') return;
      const turns = [user('STOPPED in time.')];
      const uninterrupted = await open();
      await uninterrupted.say(ask(turns));
      const seam = lengthUpTo(uninterrupted, 'One, two');
      const session = await open();
      const { sessionId } = session.session;
      golden.sim.setFaults([{ kind: 'abort', session_id: sessionId, times: 1, after_tokens: seam }]);
      const parsed = await session.say(ask(turns, { stop: ['two, three'] }));
      expect(parsed.text.trim()).toBe('One,');
      const [only] = session.session.completions();
      expect(only).toMatchObject({ finishReason: 'stop', stop: { kind: 'string', text: 'two, three' } });
      expect(bundledVocabulary().decode(only?.responseIds ?? [])).toMatch(/One, two, three$/);
      const [begun, rest] = session.ledger();
      expect(begun?.aborted_at).toBe(seam);
      const sampled = [...(begun?.response_ids ?? []), ...(rest?.response_ids ?? [])];
      expect([...(only?.responseIds ?? [])]).toEqual(sampled.slice(0, only?.responseIds.length));
      expect(only?.responseLogprobs).toHaveLength(only?.responseIds.length ?? 0);
    },
  },
  {
    letter: 'y',
    title: 'a reply in a required format that an update aborted is sampled again from its start',
    async run({ open, golden }) {
      const session = await open();
      const { sessionId } = session.session;
      golden.sim.setFaults([{ kind: 'abort', session_id: sessionId, times: 1, after_tokens: 2 }]);
      const schema = { type: 'object', properties: { answer: { type: 'integer' } }, required: ['answer'] };
      const parsed = await session.say(ask([user('FORMS. Fill in the form.')], { schema }));
      expect(JSON.parse(parsed.text)).toEqual({ answer: 7 });
      const [begun, whole] = session.ledger();
      expect(begun).toMatchObject({ aborted_at: 2, prompt_ids: whole?.prompt_ids });
      const [only] = session.session.completions();
      expect(only).toMatchObject({ finishReason: 'stop', request: { constraint: 'response_format' } });
      expect([...(only?.responseIds ?? [])]).toEqual(whole?.response_ids);
    },
  },
];

/**
 * Returns those version spans of the session's first trace that begin before the end of `spans`, the version spans of the session's first
 * reply.
 */
function spansOfFirstReply({ traces }: Trajectory, spans: readonly VersionSpan[]): VersionSpan[] {
  const end = spans.at(-1)?.end ?? 0;
  return (traces[0]?.version_spans ?? []).filter(({ start }) => start < end);
}

/** Returns how many ids of the session's first reply are needed until their text ends with `end`. */
function lengthUpTo(session: GoldenSession, end: string): number {
  const ids = session.session.completions()[0]?.responseIds ?? new Int32Array();
  for (let count = 1; count <= ids.length; count++) {
    if (bundledVocabulary().decode(ids.subarray(0, count)).endsWith(end)) return count;
  }
  throw new Error(`no beginning of the reply ends with "${end}"`);
}

/**
 * Checks that a faulty reply of the engine causes an `engine_error` and is not recorded, and that neither the session's next reply nor
 * another session is affected.
 */
async function survives({ golden, open }: Parameters<GoldenCase['run']>[0], kind: FaultKind): Promise<void> {
  const session = await open();
  const first = await session.say(ask([START]));
  golden.sim.setFaults([{ kind, session_id: session.session.sessionId, times: 1 }]);
  const bystander = await open();
  const history = [START, assistant(first), results(first)];
  const [bad, good] = await Promise.all([session.post(ask(history)), bystander.post(ask([START]))]);
  expect(good.status, kind).toBe(200);
  expect(bad.status === 502 || bad.body.includes('error'), `${kind}: ${bad.status} ${bad.body}`).toBe(true);
  expect(session.session.failures.ofMain?.code, kind).toBe('engine_error');
  golden.sim.setFaults([]);
  await session.say(ask(history));
  expect(session.session.failures.ofMain, kind).toBeNull();
  const { audit } = await session.judge();
  expect(audit.completions, kind).toEqual({ recorded: 2, trained: 2, excluded: {} });
  await bystander.judge();
}

import { expect } from 'vitest';
import type { FaultKind } from '../../../src/sim/index.ts';
import { assistant, results, user } from '../session.ts';
import { ask, expectAllTrained, type GoldenCase, START } from './scene.ts';

/** Settings of an engine that is slow enough for a weight update to happen during a reply. */
const SLOW = { tokenDelayMs: 1 };

const NO_LOGPROBS: readonly FaultKind[] = ['logprob_null', 'logprobs_length', 'logprob_nan', 'logprob_positive'];
const LIES: readonly FaultKind[] = ['foreign_ids', 'missing_ids', 'usage_mismatch', 'error_body_200', 'garbage'];

/** The cases about faults and weight updates of an engine. */
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
      // vLLM does not report versions for the tokens of a chat reply. Two versions are possible here, so the version of each token is
      // unknown.
      if (mode.name === 'vllm chat') {
        expect(spans).toEqual([{ version: null, start: 0, end: first?.responseIds.length }]);
        return;
      }
      expect(spans.map(({ version }) => version)).toEqual([before, after]);
      expect(spans.at(-1)?.end).toBe(first?.responseIds.length);
      expect(spans).toEqual(session.ledger()[0]?.version_spans);
      const { audit } = await session.judge();
      expectAllTrained(audit);
    },
  },
  {
    letter: 'r',
    title: 'a reply that an update aborted is continued where it stopped',
    sim: SLOW,
    async run({ open, golden, mode, stream, client }) {
      // A mode without ids cannot continue the reply: it records the sampled tokens, and the harness repeats the request. The case does
      // not apply to it.
      if (!mode.tokens) return;
      const session = await open();
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
      expect(only?.versionSpans.at(-1)?.version).toBe(after);
      expect(only?.versionSpans).toHaveLength(2);
      expect(session.ledger()).toHaveLength(2);
      const { audit } = await session.judge();
      expectAllTrained(audit);
    },
  },
];

/**
 * Checks that a faulty reply causes a typed error and is not recorded, and that neither the next reply nor those of other sessions are
 * affected.
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
  expect(session.session.lastError?.code, kind).toBe('engine_error');
  golden.sim.setFaults([]);
  await session.say(ask(history));
  expect(session.session.lastError, kind).toBeNull();
  const { audit } = await session.judge();
  expect(audit.completions, kind).toEqual({ recorded: 2, trained: 2, excluded: {} });
  await bystander.judge();
}

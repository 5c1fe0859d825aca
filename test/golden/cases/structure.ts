import { samplingSchema } from '@floe-rl/core/schema';
import { expect } from 'vitest';
import type { ConversationTurn, DialectClient } from '../dialect-clients.ts';
import { assistant, type GoldenSession, results, user } from '../session.ts';
import { ask, begin, comesBack, expectAllTrained, expectChains, type GoldenCase, linksOf, START } from './scene.ts';

/** Returns the header that states which agent of the client (main or sub-agent) sends a request. */
const agentHeaders = (client: DialectClient, agent: string): Record<string, string> =>
  client.dialect === 'anthropic'
    ? { 'x-claude-code-agent-id': agent }
    : { 'x-session-id': agent, 'x-parent-session-id': 'p' };

/** Number of turns of a long session. The case takes a second, so it runs only with one streaming client and three non-streaming ones. */
const LONG_TURNS = 200;

/** Number of samples that an agent takes of one prompt, for example for a majority vote. */
const SAMPLES = 6;
const SEEDED = { sampling: samplingSchema.parse({ seed: 7 }) };

/** Checks that every request had its own sample with its own seed, and that all samples are trained, each in its own trace. */
async function expectSamples(session: GoldenSession): Promise<void> {
  const { trajectory, audit, report } = await session.judge();
  expect(session.ledger()).toHaveLength(SAMPLES);
  const seeds = session.session.completions().map(({ request }) => request.sampling.seed);
  expect(new Set(seeds).size).toBe(SAMPLES);
  expect(audit.completions).toEqual({ recorded: SAMPLES, trained: SAMPLES, excluded: {} });
  expectAllTrained(audit);
  expect(trajectory.traces).toHaveLength(SAMPLES);
  expect(report.exact_context_tokens).toBe(audit.tokens.sampled);
}

/** The golden test cases about the order and nesting of a session's model calls. */
export const STRUCTURE: readonly GoldenCase[] = [
  {
    letter: 'b',
    title: 'parallel calls and their results make one trace in exact context',
    async run({ open, ...scene }) {
      const session = await open();
      const last = await session.say(ask(await begin(session)));
      expect(last.text).toContain('All done.');
      const judged = await session.judge();
      const { audit, report } = judged;
      expectChains(scene, judged, [['root', 'exact', 'exact']]);
      expectAllTrained(audit);
      expect(report.exact_context_tokens).toBe(audit.tokens.sampled);
    },
  },
  {
    letter: 'c',
    title: 'a sub-agent that runs between the turns of the main agent is a separate trace',
    async run({ open, ...scene }) {
      const { client } = scene;
      const session = await open();
      const helper = agentHeaders(client, 'helper-1');
      const first = await session.say(ask([START]));
      const HELP = user('HELPER: list the files.');
      const step = await session.say(ask([HELP]), helper);
      const history = [START, assistant(first), results(first)];
      const [second, found] = await Promise.all([
        session.say(ask(history)),
        session.say(ask([HELP, assistant(step), results(step)]), helper),
      ]);
      expect(found.text).toContain('There are three files.');
      await session.say(ask([...history, assistant(second), results(second)]));
      const { trajectory, audit } = await session.judge();
      expectAllTrained(audit);
      const kinds = trajectory.traces.map((trace) => trace.metadata.call_kind);
      expect(new Set(kinds)).toEqual(new Set(['main', 'subagent']));
      expect(audit.links.root).toBe(2);
      if (!comesBack(scene)) return;
      const lengths = linksOf(trajectory).map((links) => links.length);
      expect(lengths.sort()).toEqual([2, 3]);
      expect(audit.links.exact).toBe(3);
    },
  },
  {
    letter: 'd',
    title: 'two overlapping requests of one session are linked correctly',
    async run({ open, ...scene }) {
      const session = await open();
      const first = await session.say(ask([START]));
      const history = [START, assistant(first)];
      const [one, two] = await Promise.all([
        session.say(ask([...history, results(first, 'one')])),
        session.say(ask([...history, results(first, 'two')])),
      ]);
      await session.say(ask([...history, results(first, 'one'), assistant(one), results(one)]));
      await session.say(ask([...history, results(first, 'two'), assistant(two), results(two)]));
      const { trajectory, audit } = await session.judge();
      expect(audit.completions).toMatchObject({ recorded: 5, trained: 5 });
      if (!comesBack(scene)) return;
      expect(audit.links.exact).toBe(4);
      // There are two traces for the two branches. The branches share their first turn, which is trained in only one of the traces.
      expect(trajectory.traces).toHaveLength(2);
    },
  },
  {
    letter: 's',
    title: 'a prompt that is sampled twice on purpose has two branches, and both are trained',
    async run({ open, ...scene }) {
      const session = await open();
      const one = await session.say(ask([START]));
      const two = await session.say(ask([START]));
      for (const parsed of [one, two]) await session.say(ask([START, assistant(parsed), results(parsed)]));
      const { trajectory, audit, report } = await session.judge();
      expect(audit.completions).toMatchObject({ recorded: 4, trained: 4 });
      expect(report.exact_context_tokens).toBe(audit.tokens.sampled);
      if (comesBack(scene)) expect(linksOf(trajectory).map((links) => links.length)).toEqual([2, 2]);
    },
  },
  {
    letter: 's',
    title: 'a prompt that is sampled six times in sequence has six samples, and all are trained',
    async run({ open }) {
      const session = await open(SEEDED);
      for (let i = 0; i < SAMPLES; i++) await session.say(ask([START]));
      await expectSamples(session);
    },
  },
  {
    letter: 's',
    title: 'a prompt that is sampled six times in parallel has six samples, and all are trained',
    async run({ open, golden }) {
      const session = await open(SEEDED);
      // The engine's replies are held back from the clients, so that all requests run at the same time.
      golden.journal.hold = true;
      const replies = Array.from({ length: SAMPLES }, () => session.say(ask([START])));
      await expect.poll(() => golden.journal.held.length).toBe(SAMPLES);
      golden.journal.hold = false;
      for (const held of golden.journal.held.splice(0)) held.commit();
      await Promise.all(replies);
      await expectSamples(session);
    },
  },
  {
    letter: 'v',
    title: `a session of ${LONG_TURNS} turns is one trace`,
    sim: { maxModelLen: 131_072 },
    plays: (client, stream) => stream === (client.dialect === 'anthropic'),
    async run({ open, ...scene }) {
      const session = await open();
      const turns: ConversationTurn[] = [user('LONG work.')];
      for (let turn = 0; turn < LONG_TURNS; turn++) {
        const parsed = await session.say(ask(turns));
        turns.push(assistant(parsed), results(parsed, `ok ${turn}`));
      }
      const judged = await session.judge();
      const { audit, report } = judged;
      expectChains(scene, judged, [['root', ...Array<'exact'>(LONG_TURNS - 1).fill('exact')]]);
      expectAllTrained(audit);
      expect(report.exact_context_tokens).toBe(audit.tokens.sampled);
    },
  },
];

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { LinkKind, Trajectory } from '../../src/schema/index.ts';
import { samplingSchema } from '../../src/schema/index.ts';
import type { ScenarioInput } from '../../src/sim/scenario.ts';
import { scenarioSchema } from '../../src/sim/scenario.ts';
import { assistant, Golden, type GoldenSession, results, user } from './session.ts';
import { type Said, SPEAKERS, type Speaker, type Turn } from './speakers.ts';

/** Thinks, talks and calls two tools at once; then one; then answers. Every step can be said in two ways. */
const SCENARIOS: ScenarioInput[] = [
  {
    name: 'helper',
    match: { contains: 'HELPER' },
    rules: [
      { when: { assistant_turns: 0 }, reply: [{ think: 5 }, { call: { tool: 'bash', arguments: { command: 'ls' } } }] },
      { when: {}, reply: [{ text: 'There are three files.' }] },
    ],
  },
  {
    name: 'summary',
    match: { contains: 'SUMMARY' },
    rules: [{ when: {}, reply: [{ think: 3 }, { text: 'The work is finished.' }] }],
  },
  {
    name: 'main',
    rules: [
      { when: { last_user: { contains: 'Summarise' } }, reply: [{ text: 'SUMMARY: two files were read.' }] },
      { when: { last_user: { contains: 'go on' } }, reply: [{ think: 4 }, { text: 'Going on.' }] },
      {
        when: { assistant_turns: 0 },
        reply: [
          { think: 12 },
          { text: 'I look at both.' },
          {
            choice: {
              id: 'first',
              options: [
                {
                  logit: 0.4,
                  reply: [
                    { call: { tool: 'bash', arguments: { command: 'cat a.txt', timeout: 5 } } },
                    { call: { tool: 'bash', arguments: { command: 'cat b.txt' } } },
                  ],
                },
                {
                  logit: 0,
                  reply: [
                    { call: { tool: 'bash', arguments: { command: 'head a.txt', timeout: 7 } } },
                    { call: { tool: 'bash', arguments: { command: 'head b.txt' } } },
                  ],
                },
              ],
            },
          },
        ],
      },
      {
        when: { assistant_turns: 1 },
        reply: [{ think: 8 }, { call: { tool: 'bash', arguments: { command: 'echo "é\\n" > c.txt' } } }],
      },
      { when: {}, reply: [{ think: 6 }, { text: 'All done.' }] },
    ],
  },
];

const SYSTEM = 'You are careful.';
const TOOLS = ['bash'];
const START = user('Read both files.');

const ask = (turns: readonly Turn[], tools = TOOLS) => ({ system: SYSTEM, turns, tools });

const linksOf = (trajectory: Trajectory): LinkKind[][] =>
  trajectory.traces.map((trace) => trace.metadata.links as LinkKind[]);

/** How each speaker tells which of its agents asks; the others are told apart by what they send. */
const agentHeaders = (speaker: Speaker, agent: string): Record<string, string> =>
  speaker.dialect === 'anthropic'
    ? { 'x-claude-code-agent-id': agent }
    : { 'x-session-id': agent, 'x-parent-session-id': 'p' };

const cases = SPEAKERS.flatMap((speaker) => [
  { name: `${speaker.dialect}`, speaker, stream: false },
  { name: `${speaker.dialect}, streamed`, speaker, stream: true },
]);

let golden: Golden;
beforeAll(async () => {
  golden = await Golden.start({ scenarios: SCENARIOS.map((scenario) => scenarioSchema.parse(scenario)) });
});
afterAll(() => golden.close());

describe.each(cases)('$name', ({ speaker, stream }) => {
  const open = (over = {}) => golden.open(speaker, stream, over);

  /** The first two turns of the main agent, echoed as `echo` would have them. */
  async function begin(session: GoldenSession, echo: (said: Said) => Said = (said) => said): Promise<Turn[]> {
    const first = await session.say(ask([START]));
    expect(first.text).toContain('I look at both.');
    expect(first.reasoning).not.toBe('');
    expect(first.calls).toHaveLength(2);
    const history = [START, assistant(echo(first)), results(first)];
    const second = await session.say(ask(history));
    expect(second.calls).toHaveLength(1);
    return [...history, assistant(echo(second)), results(second)];
  }

  test('parallel calls and their results make one trace in exact context (b)', async () => {
    const session = await open();
    const last = await session.say(ask(await begin(session)));
    expect(last.text).toContain('All done.');
    const { trajectory, audit, report } = await session.judge();
    expect(linksOf(trajectory)).toEqual([['root', 'exact', 'exact']]);
    expect(audit.tokens.trained).toBe(audit.tokens.sampled);
    expect(report.exact_context_tokens).toBe(audit.tokens.sampled);
  });

  test('an assistant turn that was edited opens a new trace, and every reply is trained once (a)', async () => {
    const session = await open();
    const first = await session.say(ask([START]));
    const edited = { ...first, text: 'I look at neither.' };
    await session.say(ask([START, assistant(edited), results(first)]));
    const { trajectory, audit, report } = await session.judge();
    expect(trajectory.traces.map((trace) => trace.completion_ids)).toHaveLength(2);
    expect(audit.links.exact).toBe(0);
    expect(audit.tokens.trained).toBe(audit.tokens.sampled);
    expect(report.exact_context_tokens).toBe(audit.tokens.sampled);
  });

  test('a sub-agent between the turns of the main agent is a trace of its own (c)', async () => {
    const session = await open();
    const helper = agentHeaders(speaker, 'helper-1');
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
    expect(
      linksOf(trajectory)
        .map((links) => links.length)
        .sort(),
    ).toEqual([2, 3]);
    expect(new Set(trajectory.traces.map((trace) => trace.metadata.call_kind))).toEqual(new Set(['main', 'subagent']));
    expect(audit.links).toMatchObject({ root: 2, exact: 3 });
  });

  test('two overlapping requests of one session are told apart (d)', async () => {
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
    expect(audit).toMatchObject({ completions: { recorded: 5, trained: 5 }, links: { exact: 4 } });
    // The turn that both go on from is trained in one of them.
    expect(trajectory.traces).toHaveLength(2);
  });

  test('a compaction right before the answer ends one trace and begins another (e)', async () => {
    const session = await open();
    const history = await begin(session);
    const summary = await session.say(ask([...history, user('Summarise everything so far.')]));
    expect(summary.text).toContain('SUMMARY');
    const last = await session.say(ask([user(`Read both files. ${summary.text}`)]));
    expect(last.text).toContain('The work is finished.');
    const { trajectory, audit } = await session.judge();
    expect(linksOf(trajectory)).toEqual([['root', 'exact', 'exact'], ['root']]);
    expect(audit.tokens.trained).toBe(audit.tokens.sampled);
  });

  test('an identical retry joins while the first runs, and is a new sample once that was delivered (h)', async () => {
    const session = await open();
    golden.journal.hold = true;
    const waiting = golden.journal.waiting();
    const both = [session.post(ask([START])), session.post(ask([START]))];
    await waiting;
    golden.journal.hold = false;
    for (const held of golden.journal.held.splice(0)) held.commit();
    const [one, two] = await Promise.all(both);
    expect(one?.body).toBe(two?.body);
    expect(session.ledger()).toHaveLength(1);
    await session.say(ask([START]));
    expect(session.ledger()).toHaveLength(2);
    const { audit } = await session.judge();
    expect(audit.completions).toEqual({ recorded: 2, trained: 1, excluded: { abandoned: 1 } });
  });

  test('a reply that no client got is replayed to the one that asks again (h)', async () => {
    const session = await open();
    golden.journal.hold = true;
    const waiting = golden.journal.waiting();
    const gone = new AbortController();
    const lost = session.post(ask([START]), {}, gone.signal).catch((error: unknown) => error);
    await waiting;
    const noticed = golden.clientGone();
    gone.abort();
    await Promise.all([lost, noticed]);
    golden.journal.hold = false;
    for (const held of golden.journal.held.splice(0)) held.commit();
    await expect.poll(() => session.session.turns).toBe(1);
    const first = await session.say(ask([START]));
    expect(session.ledger()).toHaveLength(1);
    await session.say(ask([START, assistant(first), results(first)]));
    const { audit } = await session.judge();
    expect(audit.completions).toEqual({ recorded: 2, trained: 2, excluded: {} });
  });

  test('a call after the session has ended is refused and recorded nowhere (i)', async () => {
    const session = await open();
    await session.say(ask([START]));
    await session.session.close();
    const late = await session.post(ask([START, user('More.')]));
    expect(late.status).toBe(410);
    expect(JSON.parse(late.body)).toHaveProperty('error');
    const { audit } = await session.judge();
    expect(audit.completions.recorded).toBe(1);
    expect(session.ledger()).toHaveLength(1);
  });

  test('a reply that was cut in the middle of a call is trained as it was sampled (m)', async () => {
    const bound = 35;
    const session = await open({ sampling: samplingSchema.parse({ max_tokens: bound }) });
    const cut = await session.say(ask([START]));
    const [entry] = session.ledger();
    expect(entry).toMatchObject({ finish_reason: 'length', response_ids: { length: bound } });
    expect(cut.text).toContain('I look at both.');
    const whole = cut.calls.filter((call) => isJson(call.arguments));
    await session.say(
      ask([
        START,
        assistant({ ...cut, calls: whole }),
        ...(whole.length > 0 ? [results({ ...cut, calls: whole })] : []),
        user('Please go on.'),
      ]),
    );
    const { audit } = await session.judge();
    expect(audit.tokens.trained).toBe(audit.tokens.sampled);
    expect(audit.completions).toEqual({ recorded: 2, trained: 2, excluded: {} });
  });

  test('thinking that the harness drops breaks no token and pretends nothing (n)', async () => {
    const session = await open();
    await session.say(ask(await begin(session, (said) => ({ ...said, reasoning: '' }))));
    const { trajectory, audit, report } = await session.judge();
    expect(audit.links).toMatchObject({ root: 1, exact: 0 });
    expect(trajectory.traces).toHaveLength(3);
    expect(audit.tokens.trained).toBe(audit.tokens.sampled);
    expect(report.exact_context_tokens).toBe(audit.tokens.sampled);
  });

  test('arguments that the harness writes anew break no token and pretend nothing (o)', async () => {
    const session = await open();
    const respelt = (said: Said): Said => ({
      ...said,
      calls: said.calls.map((call) => ({ ...call, arguments: respell(call.arguments) })),
    });
    await session.say(ask(await begin(session, respelt)));
    const { audit, report } = await session.judge();
    expect(audit.tokens.trained).toBe(audit.tokens.sampled);
    expect(report.exact_context_tokens).toBe(audit.tokens.sampled);
    expect(audit.completions).toEqual({ recorded: 3, trained: 3, excluded: {} });
    // The first turn has two keys to swap; that shows in every dialect.
    expect(audit.links.exact).toBeLessThan(2);
  });
});

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** The same object with its keys the other way round and spaces between. */
function respell(text: string): string {
  const entries = Object.entries(JSON.parse(text)).reverse();
  return JSON.stringify(Object.fromEntries(entries), null, 1).replaceAll('\n', '');
}

import { type Scenario, type ScenarioInput, scenarioSchema } from '@floe-rl/sim';

/** A text in several scripts, whose characters take one to four bytes in UTF-8. */
export const MULTI_BYTE = 'Größe: 漢字, naïve café, 🙂🚀 👩‍👩‍👧 done.';

const bash = (command: string, timeout?: number) => ({
  call: { tool: 'bash', arguments: timeout === undefined ? { command } : { command, timeout } },
});

/**
 * The scripted replies of the simulated engine. The main scenario replies with thinking, text and two parallel tool calls, then with a
 * single call, then with an answer. Most steps have two wordings, and the engine samples one of them.
 */
const INPUTS: ScenarioInput[] = [
  {
    name: 'helper',
    match: { contains: 'HELPER' },
    rules: [
      { when: { assistant_turns: 0 }, reply: [{ think: 5 }, bash('ls')] },
      { when: {}, reply: [{ text: 'There are three files.' }] },
    ],
  },
  {
    name: 'summary',
    match: { contains: 'SUMMARY' },
    rules: [{ when: {}, reply: [{ think: 3 }, { text: 'The work is finished.' }] }],
  },
  {
    name: 'stopped',
    match: { contains: 'STOPPED' },
    rules: [
      { when: { assistant_turns: 0 }, reply: [{ think: 4 }, { text: 'One, two, three, four.' }] },
      { when: {}, reply: [{ think: 4 }, { text: 'Five.' }] },
    ],
  },
  {
    name: 'trailing',
    match: { contains: 'TRAILING' },
    rules: [
      { when: { assistant_turns: 0 }, reply: [{ think: 4 }, bash('ls'), { raw: '\nNothing is left, I guess.' }] },
      { when: {}, reply: [{ think: 4 }, { text: 'Three files.' }] },
    ],
  },
  {
    name: 'endings',
    match: { contains: 'ENDINGS' },
    rules: [
      { when: { assistant_turns: 0 }, reply: [{ think: 4 }, bash('ls')], end: '<|endoftext|>' },
      { when: { assistant_turns: 1 }, reply: [{ think: 4 }, bash('pwd')] },
      { when: {}, reply: [{ think: 2 }, { text: 'Done.' }], end: '<|endoftext|>' },
    ],
  },
  {
    name: 'letters',
    match: { contains: 'LETTERS' },
    rules: [
      {
        when: { assistant_turns: 0 },
        reply: [{ think: 3 }, { text: 'reading the returned values' }, bash('ls')],
        spelling: 'letters',
      },
      { when: {}, reply: [{ text: 'nothing is left to be done here' }], spelling: 'letters' },
    ],
  },
  {
    name: 'scripts',
    match: { contains: 'SCRIPTS' },
    rules: [
      { when: { assistant_turns: 0 }, reply: [{ think: 3 }, { text: MULTI_BYTE }, bash('echo "é 🙂 漢"')] },
      { when: {}, reply: [{ text: MULTI_BYTE }] },
    ],
  },
  {
    name: 'forms',
    match: { contains: 'FORMS' },
    rules: [
      {
        when: { last_user: { contains: 'Act' } },
        reply: [{ choice: { id: 'act', options: [{ reply: [bash('ls')] }, { reply: [{ text: 'Rather not.' }] }] } }],
      },
      {
        when: { last_user: { contains: 'Fill in' } },
        reply: [
          {
            choice: { id: 'form', options: [{ reply: [{ text: '{"answer": 7}' }] }, { reply: [{ text: 'Seven.' }] }] },
          },
        ],
      },
      { when: {}, reply: [{ think: 3 }, { text: 'Fine.' }] },
    ],
  },
  {
    name: 'talk',
    match: { contains: 'TALK' },
    rules: [{ when: {}, reply: [{ think: 6 }, { text: 'I see.' }] }],
  },
  {
    name: 'slow',
    match: { contains: 'SLOW' },
    rules: [
      { when: { assistant_turns: 0 }, reply: [{ think: 400 }, { text: 'That took a while.' }] },
      { when: {}, reply: [{ text: 'And this did not.' }] },
    ],
  },
  {
    name: 'long',
    match: { contains: 'LONG' },
    rules: [
      { when: { assistant_turns: { min: 199 } }, reply: [{ think: 2 }, { text: 'The end.' }] },
      { when: {}, reply: [{ think: 4 }, bash('step')] },
    ],
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
                { logit: 0.4, reply: [bash('cat a.txt', 5), bash('cat b.txt')] },
                { logit: 0, reply: [bash('head a.txt', 7), bash('head b.txt')] },
              ],
            },
          },
        ],
      },
      { when: { assistant_turns: 1 }, reply: [{ think: 8 }, bash('echo "é\\n" > c.txt')] },
      { when: {}, reply: [{ think: 6 }, { text: 'All done.' }] },
    ],
  },
];

export const SCENARIOS: readonly Scenario[] = INPUTS.map((scenario) => scenarioSchema.parse(scenario));

import type { ScenarioInput } from '@floe-rl/sim';

type Reply = ScenarioInput['rules'][number]['reply'];

const reply = (...segments: Reply): { reply: Reply } => ({ reply: segments });
const weather = (city: string): Reply[number] => ({ call: { tool: 'get_weather', arguments: { city } } });

export const CITY = { city: 'Paris', population: 2_100_000 };

/** The scripted replies of the simulated policy. The text of the first user message selects the scenario. */
export const SCENARIOS: ScenarioInput[] = [
  {
    name: 'weather',
    match: { contains: 'weather' },
    rules: [
      {
        when: { assistant_turns: 0, tools: ['get_weather'], last_user: { contains: 'Paris and Oslo' } },
        ...reply({ think: { text: 'Two cities.', noise: 6 } }, weather('Paris'), weather('Oslo')),
      },
      {
        when: { assistant_turns: 0, tools: ['get_weather'] },
        ...reply({ think: { text: 'I should look.', noise: 6 } }, { text: 'Let me look.' }, weather('Paris')),
      },
      // The proxy moves images of a tool result into a user message after the result, so this rule matches a user message.
      { when: { last_role: 'user', images: 1 }, ...reply({ text: 'The map shows sun.' }) },
      {
        when: { last_role: 'tool', last_tool_result: { regex: 'rain' } },
        ...reply({ think: 4 }, { text: 'Sun in Paris, rain in Oslo.' }),
      },
      { when: { last_role: 'tool' }, ...reply({ think: 4 }, { text: 'It is sunny in Paris.' }) },
      reply({ text: 'There is nothing more to say about the weather.' }),
    ],
  },
  {
    // The simulated policy almost never calls the tool (logit -10) unless the request forces a tool call.
    name: 'note',
    match: { contains: 'remember' },
    rules: [
      {
        when: { last_role: 'tool' },
        ...reply({ text: 'Noted.' }),
      },
      reply({
        choice: {
          id: 'call',
          options: [
            { logit: 10, reply: [{ text: 'I will keep it in mind.' }] },
            { logit: -10, reply: [{ call: { tool: 'save_note', arguments: { text: 'milk' } } }] },
          ],
        },
      }),
    ],
  },
  {
    name: 'riddle',
    match: { contains: 'riddle' },
    rules: [
      { when: { assistant_turns: 0 }, ...reply({ think: { text: 'It melts.', noise: 12 } }, { text: 'A candle.' }) },
      reply({ think: { text: 'Again.', noise: 8 } }, { text: 'Still a candle.' }),
    ],
  },
  {
    // The simulated policy almost never answers with this JSON (logit -10) unless the request forces a JSON schema.
    name: 'facts',
    match: { contains: 'facts' },
    rules: [
      reply({
        choice: {
          id: 'form',
          options: [
            { logit: 10, reply: [{ text: 'Paris is the capital of France.' }] },
            { logit: 0, reply: [{ text: '{"name":"Paris"}' }] },
            { logit: -10, reply: [{ text: JSON.stringify(CITY) }] },
            // Some frameworks request a structured answer as a call of a tool that they name `json`.
            { logit: -10, reply: [{ call: { tool: 'json', arguments: CITY } }] },
          ],
        },
      }),
    ],
  },
  {
    name: 'picture',
    match: { contains: 'picture' },
    rules: [
      { when: { images: 2 }, ...reply({ text: 'Two pictures.' }) },
      { when: { images: 1 }, ...reply({ text: 'One picture.' }) },
      reply({ text: 'I see no picture.' }),
    ],
  },
  {
    name: 'story',
    match: { contains: 'story' },
    rules: [
      { when: { last_user: { contains: 'again' } }, ...reply({ text: 'Once more, then.' }) },
      reply({ text: `Once upon a time ${'there was a fox, and '.repeat(100)}that was it.` }),
    ],
  },
];

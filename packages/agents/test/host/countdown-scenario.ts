import type { ScenarioInput } from '@floe-rl/sim';

/** With this scenario the simulated policy plays the environment of plugins/countdown.js. */
export const countdownScenario: ScenarioInput = {
  name: 'countdown',
  match: { contains: 'say ' },
  rules: [3, 2, 1].map((number) => ({
    when: { last_user: { regex: `say ${number}$` } },
    reply: [{ text: String(number) }],
  })),
};

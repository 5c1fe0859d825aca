import { call, FINAL, grader, mainScenario, say, sideScenario, think } from '../script.mjs';

/** Room for every other reply of the cell. */
const BOUND = 160;
const LONG_TEXT = 'The file is written, and this is a very long report about a very small thing. '.repeat(30);

/**
 * The second reply is longer than it may be. `row.lengthStop.reaction`: what the harness makes of it: 'ends', 'continues' (asks
 * the model to go on), 'resamples' (asks for the same turn again with more room) or 'fails'.
 */
export const cell = {
  name: 'length_stop',
  title: 'a reply is cut at the bound on its tokens',
  build({ row }) {
    const { reaction, outcome = 'completed', settings, bound = BOUND } = row.lengthStop;
    return {
      instruction: 'Write the word long into long.txt and give a report.',
      settings,
      sampling: { max_tokens: bound },
      scenarios: [
        mainScenario(row, [
          [think(), call(row.calls.shell('echo long > long.txt; echo wrote-long'))],
          [think(), say(LONG_TEXT)],
          FINAL,
        ]),
        sideScenario(row),
      ],
      grader: grader('grep -q long long.txt'),
      expect: { outcome },
      check({ main }) {
        const at = main.findIndex(({ finish_reason }) => finish_reason === 'length');
        if (at < 0) return ['no reply was cut'];
        const goesOn = at < main.length - 1;
        const should = reaction === 'continues' || reaction === 'resamples';
        if (goesOn === should) return [];
        return [
          should
            ? 'nothing follows the reply that was cut'
            : `${main.length - 1 - at} replies follow the one that was cut`,
        ];
      },
    };
  },
};

import type { Cell } from '../cell.ts';
import { call, FINAL, grader, mainScenario, say, sideScenario, think } from '../script.ts';

/** Maximum reply length in tokens that the task sets. Every reply of the test case fits, except the reply that must be cut. */
const BOUND = 160;
const LONG_TEXT = 'The file is written, and this is a very long report about a very small thing. '.repeat(30);

/** The test case in which the simulated policy's second reply exceeds the maximum reply length and is cut. */
export const lengthStopCell: Cell = {
  title: 'a reply is cut at the bound on its tokens',
  build({ row }) {
    if (row.lengthStop === undefined) throw new Error(`the row ${row.harness} has no lengthStop`);
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
        const cut = main.findIndex(({ finish_reason }) => finish_reason === 'length');
        if (cut < 0) return ['no reply was cut'];
        const following = main.length - 1 - cut;
        const shouldContinue = reaction === 'continues' || reaction === 'resamples';
        if (following > 0 === shouldContinue) return [];
        return [
          shouldContinue
            ? 'nothing follows the reply that was cut'
            : `${following} replies follow the one that was cut`,
        ];
      },
    };
  },
};

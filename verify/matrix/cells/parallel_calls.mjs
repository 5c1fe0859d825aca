import { toolResults } from '../checks.mjs';
import { call, FINAL, grader, mainScenario, sideScenario, think } from '../script.mjs';

/** Two calls in one reply, and both results in the next prompt. */
export const cell = {
  name: 'parallel_calls',
  title: 'two tool calls in one reply, both results in the next prompt',
  build({ row }) {
    const { shell } = row.calls;
    return {
      instruction: 'Write alpha into a.txt and beta into b.txt, both at the same time. Then show both files.',
      scenarios: [
        mainScenario(row, [
          [
            think(),
            call(shell('echo alpha > a.txt; echo wrote-alpha')),
            call(shell('echo beta > b.txt; echo wrote-beta')),
          ],
          [think(), call(shell('cat a.txt b.txt'))],
          FINAL,
        ]),
        sideScenario(row),
      ],
      grader: grader('grep -q alpha a.txt && grep -q beta b.txt'),
      check({ main, messages }) {
        const at = main.findIndex(({ message }) => message.tool_calls?.length === 2);
        if (at < 0) return ['no reply has two tool calls'];
        const next = main[at + 1];
        if (next === undefined) return ['nothing follows the reply with two tool calls'];
        const results = toolResults(messages(next));
        const told = (word) => results.filter((text) => text.includes(word)).length === 1;
        return ['wrote-alpha', 'wrote-beta']
          .filter((result) => !told(result))
          .map((result) => `the prompt after the two calls lacks the result ${result}`);
      },
    };
  },
};

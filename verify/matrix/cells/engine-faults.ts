import type { FaultKind } from '../../../src/sim/index.ts';
import type { Cell } from '../cell.ts';
import { call, FINAL, grader, mainScenario, sideScenario, think } from '../script.ts';

/** Numbers of the engine calls that fail: the first call of the session, and one in its middle. */
const HIT_CALLS = [1, 3];

/** Returns a test case in which some engine calls of the session fail. */
function faultyCell(kind: FaultKind, title: string): Cell {
  return {
    title,
    build({ row }) {
      const { shell } = row.calls;
      return {
        instruction: 'Write one into one.txt, then two into two.txt.',
        faults: [{ kind, on_calls: HIT_CALLS }],
        scenarios: [
          mainScenario(row, [
            [think(), call(shell('echo one > one.txt; echo wrote-one'))],
            [think(), call(shell('echo two > two.txt; echo wrote-two'))],
            FINAL,
          ]),
          sideScenario(row),
        ],
        grader: grader('grep -q one one.txt && grep -q two two.txt'),
        check({ firedFaults }) {
          return firedFaults === HIT_CALLS.length ? [] : [`${firedFaults} of ${HIT_CALLS.length} faults were met`];
        },
      };
    },
  };
}

export const engine429Cell = faultyCell('http_429', 'the engine answers 429 with Retry-After twice');
export const engine500Cell = faultyCell('http_500', 'the engine answers 500 twice');

import type { FaultKind } from '@floe-rl/sim';
import type { Cell } from '../cell.ts';
import { call, FINAL, grader, mainScenario, sideScenario, think } from '../script.ts';

/** Returns a test case in which the calls to the engine with the numbers in `hitCalls`, counted from 1, fail with the given kind of fault. */
function faultyCell(kind: FaultKind, hitCalls: [number, number], title: string): Cell {
  return {
    title,
    build({ row }) {
      const { shell } = row.calls;
      return {
        instruction: 'Write one into one.txt, then two into two.txt.',
        faults: [{ kind, on_calls: hitCalls }],
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
          return firedFaults === hitCalls.length ? [] : [`${firedFaults} of ${hitCalls.length} faults were met`];
        },
      };
    },
  };
}

export const engine429Cell = faultyCell('http_429', [1, 3], 'the engine answers 429 with Retry-After twice');
// After a 500, floe probes the engine with two calls before it is used again. Call 4 repeats the first call.
export const engine500Cell = faultyCell('http_500', [1, 5], 'the engine answers 500 twice');

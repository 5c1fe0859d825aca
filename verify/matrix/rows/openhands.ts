import { CELL_NAMES } from '../plan.ts';
import type { Row, ToolCall } from '../row.ts';

/** Reason for skipping all test cases: floe does not install OpenHands, so the matrix cannot test it. */
const REASON =
  'OpenHands comes with an image (its packages need Python 3.12: https://pypi.org/project/openhands-sdk/) and the matrix has none; ' +
  'a stand-in for its documented command line is run by test/integration/image-harness.test.ts';

const execute = (command: string): ToolCall => ({ tool: 'terminal', arguments: { command } });

export const openhandsRow: Row = {
  harness: 'openhands',
  variants: [{ label: 'openhands', settings: {} }],
  calls: {
    shell: execute,
    read: (path) => execute(`cat ${path}`),
    edit: (path, from, to) => execute(`sed -i 's/${from}/${to}/' ${path}`),
    write: (path, content) => execute(`printf '%s' '${content}' > ${path}`),
    image: null,
    subagent: null,
  },
  lengthStop: { reaction: 'ends' },
  skips: Object.fromEntries(CELL_NAMES.map((cell) => [cell, REASON])),
};

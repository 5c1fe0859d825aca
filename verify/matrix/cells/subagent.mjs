import {
  call,
  FINAL,
  grader,
  mainScenario,
  SUBAGENT_MARK,
  say,
  sideScenario,
  subagentScenario,
  think,
} from '../script.mjs';

/** A sub-agent works while its parent waits: by the harness itself, or by looking for the sub-agent's file. */
const WAIT =
  'i=0; while [ ! -f report.txt ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done; sleep 1; cat report.txt';

export const cell = {
  name: 'subagent',
  title: 'a sub-agent works in a thread of its own',
  build({ row }) {
    const { shell, subagent } = row.calls;
    const finish = row.finishSubagent ?? ((text) => [say(text)]);
    const prompt = `${SUBAGENT_MARK}: write the word report into report.txt and say so.`;
    return {
      instruction: 'Let a sub-agent write the file report.txt, then look at it.',
      scenarios: [
        subagentScenario(row, [
          [think(), call(shell('echo report > report.txt; echo wrote-report'))],
          [think(), ...finish('The file report.txt is written.')],
        ]),
        mainScenario(row, [
          [think(), say('A sub-agent can do that.'), call(subagent(prompt))],
          [think(), call(shell(WAIT))],
          FINAL,
        ]),
        sideScenario(row),
      ],
      grader: grader('grep -q report report.txt'),
      check: checkThreads,
    };
  },
};

/** The engine's ledger knows which replies the sub-agent's script gave; floe has to find that out from the requests. */
function checkThreads({ byScenario, completions, traces }) {
  const problems = [];
  const theirs = byScenario('subagent');
  if (theirs.length < 2) problems.push(`the sub-agent gave ${theirs.length} replies instead of 2`);
  const threads = new Set(theirs.map(({ thread }) => thread));
  for (const { completion_id, call_kind, thread } of theirs) {
    if (call_kind !== 'subagent') problems.push(`${completion_id} of the sub-agent is labelled ${call_kind}`);
    if (thread === 'main') problems.push(`${completion_id} of the sub-agent is in the main thread`);
  }
  if (threads.size > 1) problems.push(`one sub-agent has the threads ${[...threads].join(', ')}`);
  for (const { completion_id, call_kind } of byScenario('main')) {
    if (call_kind !== 'main') problems.push(`${completion_id} of the main agent is labelled ${call_kind}`);
  }
  const threadOf = new Map(completions.map(({ completion_id, thread }) => [completion_id, thread]));
  for (const trace of traces) {
    const inTrace = new Set(trace.completion_ids.map((id) => threadOf.get(id)));
    if (inTrace.size > 1) problems.push(`trace ${trace.trace_id} mixes the threads ${[...inTrace].join(', ')}`);
  }
  return problems;
}

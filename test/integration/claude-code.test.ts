import { describe, expect, it } from 'vitest';
import { EXTRAS, expectTrainedAsSampled, harnessProblem, runRealHarness } from './real-harness.ts';

const problem = await harnessProblem('claude_code');

const read = { tool: 'Read', arguments: { file_path: '/work/config.txt' } };
const edit = {
  tool: 'Edit',
  arguments: { file_path: '/work/config.txt', old_string: 'colour = red', new_string: 'colour = blue' },
};
const ask = { tool: 'mcp__words__secret_word', arguments: {} };
const shell = { tool: 'Bash', arguments: { command: 'cat config.txt' } };
const turns = [read, edit, ask, shell, 'Done.'];

describe.each([
  ['in its default mode', false],
  ['in its simple mode', true],
])('Claude Code, %s', (_, simple) => {
  it('completes its task and trains exactly what was sampled', async (context) => {
    if (problem !== null) context.skip(problem);
    const { skills, ...plain } = EXTRAS;
    const agent = { harness: 'claude_code', settings: { simple }, ...plain, ...(simple ? {} : { skills }) };
    const run = await runRealHarness(agent, turns);
    expectTrainedAsSampled(run);
    const { result, sent } = run;
    // Claude Code adds a default argument to the Edit call when it returns the call. The next prompt therefore differs from the sampled
    // tokens, which starts a second trace.
    expect(result).toMatchObject({ completion_count: turns.length, trace_count: 2 });
    expect(sent).toContain('the word is xyzzy');
    expect(sent).toContain(JSON.stringify(EXTRAS.system_prompt).slice(1, -1));
    if (!simple) expect(sent).toContain('lamp-rules: How lamps are coloured.');
  });
});

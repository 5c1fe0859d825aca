import { findHarness } from '@floe-rl/node';
import { describe, expect, it } from 'vitest';
import { EXTRAS, expectTrainedAsSampled, harnessProblem, runRealHarness } from './real-harness.ts';

const problem = await harnessProblem('qwen_code');

/** Test options with a time limit of 120 s. The session takes 5 s, but many times that on a busy machine. */
const TIMEOUT = { timeout: 120_000 };

const read = { tool: 'read_file', arguments: { file_path: '/work/config.txt' } };
const edit = {
  tool: 'edit',
  arguments: { file_path: '/work/config.txt', old_string: 'colour = red', new_string: 'colour = blue' },
};
const ask = { tool: 'tool_call', arguments: { name: 'mcp__words__secret_word', arguments: {} } };
const shell = { tool: 'run_shell_command', arguments: { command: 'cat config.txt', is_background: false } };
const turns = [read, edit, ask, shell, 'Done.'];

describe.each(findHarness('qwen_code').dialects)('Qwen Code over %s', (dialect) => {
  it('completes its task and trains exactly what was sampled', TIMEOUT, async (context) => {
    if (problem !== null) context.skip(problem);
    const agent = { harness: 'qwen_code', dialect, ...EXTRAS };
    const run = await runRealHarness(agent, turns);
    expectTrainedAsSampled(run);
    const { result, sent } = run;
    expect(result).toMatchObject({ completion_count: turns.length });
    expect(sent).toContain('the word is xyzzy');
    expect(sent).toContain(JSON.stringify(EXTRAS.system_prompt).slice(1, -1));
    expect(sent).toContain('How lamps are coloured.');
    expect(sent).toContain(JSON.stringify('/config.txt: "replace" the colour red by blue\n--help $(id)').slice(1, -1));
  });
});

import { describe, expect, it } from 'vitest';
import { EXTRAS, expectTrainedAsSampled, harnessProblem, runRealHarness } from './real-harness.ts';

const problem = await harnessProblem('gemini_cli');

/** Test options with a time limit of 120 s. The session takes 4 s, but many times that on a busy machine. */
const TIMEOUT = { timeout: 120_000 };

const read = { tool: 'read_file', arguments: { file_path: 'config.txt' } };
const edit = {
  tool: 'replace',
  arguments: {
    file_path: 'config.txt',
    instruction: 'Make the lamp blue.',
    old_string: 'colour = red',
    new_string: 'colour = blue',
  },
};
const ask = { tool: 'mcp_words_secret_word', arguments: {} };
const shell = { tool: 'run_shell_command', arguments: { command: 'cat config.txt' } };
const turns = [read, edit, ask, shell, 'Done.'];

describe('Gemini CLI', () => {
  it('completes its task and trains exactly what was sampled', TIMEOUT, async (context) => {
    if (problem !== null) context.skip(problem);
    const run = await runRealHarness({ harness: 'gemini_cli', ...EXTRAS }, turns);
    expectTrainedAsSampled(run);
    const { result, sent } = run;
    expect(result).toMatchObject({ completion_count: turns.length, trace_count: 1 });
    expect(sent).toContain('the word is xyzzy');
    expect(sent).toContain(JSON.stringify(EXTRAS.system_prompt).slice(1, -1));
    expect(sent).toContain('How lamps are coloured.');
    expect(sent).toContain(JSON.stringify('/config.txt: "replace" the colour red by blue\n--help $(id)').slice(1, -1));
  });
});

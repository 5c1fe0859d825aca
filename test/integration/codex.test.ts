import { describe, expect, it } from 'vitest';
import { EXTRAS, expectTrainedAsSampled, harnessProblem, runRealHarness } from './real-harness.ts';

const problem = await harnessProblem('codex');

const shell = (cmd: string) => ({ tool: 'exec_command', arguments: { cmd } });
const turns = [
  shell('cat config.txt'),
  shell("sed -i 's/colour = red/colour = blue/' config.txt"),
  { tool: 'mcp__words__secret_word', arguments: {} },
  'Done.',
];

describe('Codex', () => {
  it('completes its task and trains exactly what was sampled', async (context) => {
    if (problem !== null) context.skip(problem);
    const run = await runRealHarness({ harness: 'codex', ...EXTRAS }, turns);
    expectTrainedAsSampled(run);
    const { result, sent } = run;
    expect(result).toMatchObject({ completion_count: turns.length, trace_count: 1 });
    expect(sent).toContain('the word is xyzzy');
    expect(sent).toContain(JSON.stringify(EXTRAS.system_prompt).slice(1, -1));
    expect(sent).toContain('lamp-rules: How lamps are coloured.');
  });
});

import { describe, expect, it } from 'vitest';
import { EXTRAS, expectTrainedAsSampled, harnessProblem, runRealHarness } from './real-harness.ts';

const problem = await harnessProblem('opencode');

const turns = [
  { tool: 'read', arguments: { filePath: '/work/config.txt' } },
  {
    tool: 'edit',
    arguments: { filePath: '/work/config.txt', oldString: 'colour = red', newString: 'colour = blue' },
  },
  { tool: 'words_secret_word', arguments: {} },
  { tool: 'bash', arguments: { command: 'cat config.txt' } },
  'Done.',
];

describe.each(['openai_chat', 'anthropic', 'openai_responses'] as const)('opencode over %s', (dialect) => {
  it('completes its task and trains exactly what was sampled', async (context) => {
    if (problem !== null) context.skip(problem);
    const run = await runRealHarness({ harness: 'opencode', dialect, ...EXTRAS }, turns);
    expectTrainedAsSampled(run);
    const { result, sent } = run;
    expect(result).toMatchObject({ completion_count: turns.length, trace_count: 1 });
    expect(sent).toContain('the word is xyzzy');
    expect(sent).toContain('lamp-rules');
    expect(sent).toContain(JSON.stringify(EXTRAS.system_prompt).slice(1, -1));
  });
});

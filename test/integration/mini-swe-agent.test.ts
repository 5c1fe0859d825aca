import { describe, expect, it } from 'vitest';
import { expectTrainedAsSampled, harnessProblem, runRealHarness } from './real-harness.ts';

const problem = await harnessProblem('mini_swe_agent');

const shell = (command: string) => ({ tool: 'bash', arguments: { command } });
const turns = [
  shell('cat config.txt'),
  shell('sed -i s/red/blue/ config.txt'),
  shell('echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT'),
];

describe.each(['openai_chat', 'anthropic', 'openai_responses', 'gemini'] as const)(
  'mini-SWE-agent over %s',
  (dialect) => {
    it('completes its task and trains exactly what was sampled', async (context) => {
      if (problem !== null) context.skip(problem);
      const run = await runRealHarness({ harness: 'mini_swe_agent', dialect }, turns);
      expectTrainedAsSampled(run);
      const { result, sent } = run;
      expect(result).toMatchObject({ completion_count: turns.length, trace_count: 1 });
      expect(sent).toContain('colour = red');
    });
  },
);

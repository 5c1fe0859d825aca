import { describe, expect, it } from 'vitest';
import { type Call, EXTRAS, expectTrainedAsSampled, harnessProblem, runRealHarness } from './real-harness.ts';

/** Test options with a time limit of 120 s. A session takes about 5 s, but many times that on a busy machine. */
const TIMEOUT = { timeout: 120_000 };

/** Makes the tool call that reaches floe's tool `bash`, for each harness. */
const calls: readonly [string, (command: string) => Call][] = [
  ['claude_code', (command) => ({ tool: 'mcp__floe__bash', arguments: { command } })],
  ['codex', (command) => ({ tool: 'mcp__floe__bash', arguments: { command } })],
  ['gemini_cli', (command) => ({ tool: 'mcp_floe_bash', arguments: { command } })],
  ['qwen_code', (command) => ({ tool: 'tool_call', arguments: { name: 'mcp__floe__bash', arguments: { command } } })],
  ['opencode', (command) => ({ tool: 'floe_bash', arguments: { command } })],
];

describe.each(calls)("floe's tools in %s", (harness, bash) => {
  it('change files of the task, keep their state and have its variables', TIMEOUT, async (context) => {
    const problem = await harnessProblem(harness);
    if (problem !== null) context.skip(problem);
    const turns = [
      bash('wanted=$LAMP_COLOUR'),
      bash('sed -i "s/colour = red/colour = $wanted/" config.txt && echo "now it is $wanted"'),
      'Done.',
    ];
    const env = { LAMP_COLOUR: 'blue' };
    const run = await runRealHarness({ harness, floe_tools: true, mcp_servers: EXTRAS.mcp_servers, env }, turns);
    expectTrainedAsSampled(run);
    expect(run.result).toMatchObject({ completion_count: turns.length });
    expect(run.sent).toContain('now it is blue');
  });
});

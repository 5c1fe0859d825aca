import type { AgentSpec, SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { harnessStatus } from '@floe-rl/node';
import { checkAgainstLedger, type LedgerReport, parseScenarios, type Scenario, type ScenarioInput } from '@floe-rl/sim';
import { expect } from 'vitest';
import { harnessDir } from '#floe/commands/home';
import { bubblewrapMissing } from '../../packages/sandbox/test/backends/workbench.ts';
import { harnessMissing } from '../skip.ts';
import { startTestStack } from './stack.ts';

/**
 * Context window of the simulated model, in tokens. The prompts of every harness (about 25,000 tokens) fit, so that no harness compacts its
 * history.
 */
const WINDOW_TOKENS = 131_072;

export type Rule = ScenarioInput['rules'][number];
export type Call = { readonly tool: string; readonly arguments: Record<string, unknown> };

/**
 * Resolves with the reason why the harness cannot run in a sandbox on this machine, and the command that solves the problem; `null` when
 * the harness can run.
 */
export async function harnessProblem(name: string): Promise<string | null> {
  const { installed } = await harnessStatus(name, harnessDir());
  return harnessMissing(name, installed) ?? (await bubblewrapMissing());
}

/** Source of an MCP server for Node. Its only tool, `secret_word`, returns the environment variable WORD. */
const MCP_SERVER = `
const send = (id, result) => process.stdout.write(JSON.stringify({ jsonrpc: '2.0', id, result }) + '\\n');
const tool = { name: 'secret_word', description: 'Returns the secret word.', inputSchema: { type: 'object', properties: {} } };
require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  if (method === 'initialize') {
    const serverInfo = { name: 'words', version: '1' };
    send(id, { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo });
  } else if (method === 'tools/list') send(id, { tools: [tool] });
  else if (method === 'tools/call') send(id, { content: [{ type: 'text', text: 'the word is ' + process.env.WORD }] });
  else send(id, {});
});
`;

/** Agent settings that add the MCP server of this file, a skill, and a text after the system prompt. */
export const EXTRAS = {
  mcp_servers: [
    { name: 'words', transport: 'stdio', command: 'node', args: ['/tmp/words.cjs'], env: { WORD: 'xyzzy' } },
  ],
  skills: [
    { name: 'lamp-rules', files: { 'SKILL.md': '---\nname: lamp-rules\ndescription: How lamps are coloured.\n---\n' } },
  ],
  system_prompt: 'Greet with "moin" — $(always) \\ \'\'\' """\nand in full.',
} satisfies Partial<TaskRequestInput['agent']>;

/**
 * Returns a scenario for the simulated engine, which then replies with the given turns in order. Each reply starts with sampled thinking
 * tokens, so that there are log-probabilities to compare.
 */
export function scenarioOf(turns: readonly (string | Call)[]): Scenario[] {
  const rules: Rule[] = turns.map((turn, index) => ({
    when: { assistant_turns: index },
    reply: [{ think: 12 }, typeof turn === 'string' ? { text: turn } : { call: turn }],
  }));
  return parseScenarios({ scenarios: [{ name: 'turns', rules }] }, 'the turns');
}

type RealRun = {
  readonly result: SessionResult;
  readonly report: LedgerReport;
  readonly sampledTokens: number;
  /** The session's completion records as JSON text. They contain the requests that the harness sent. */
  readonly sent: string;
};

/**
 * Runs one session of a harness in a sandbox. Its task is to change the colour in config.txt to blue, and a test command decides the
 * reward.
 */
export async function runRealHarness(
  agent: Pick<AgentSpec, 'harness'> & Partial<TaskRequestInput['agent']>,
  turns: readonly (string | Call)[],
): Promise<RealRun> {
  const stack = await startTestStack({
    scenarios: scenarioOf(turns),
    sim: { maxModelLen: WINDOW_TOKENS },
    node: { default_backend: 'bubblewrap', harness_dir: harnessDir() },
  });
  try {
    const [result] = await stack.run({
      instruction: '/config.txt: "replace" the colour red by blue\n--help $(id)',
      timeout_seconds: 240,
      max_attempts: 1,
      agent,
      runtime: {
        prepare: [
          { type: 'write_file', target: 'config.txt', content: 'name = lamp\ncolour = red\n' },
          { type: 'write_file', target: '/tmp/words.cjs', content: MCP_SERVER },
        ],
      },
      evaluator: {
        strategy: 'test_on_output',
        refresh_runtime: false,
        config: {
          test_command: 'if grep -q "colour = blue" config.txt; then echo PASSED colour; else echo FAILED colour; fi',
          expected_output_json: { colour: 'PASSED' },
        },
      },
    });
    if (result === undefined) throw new Error('the session has no result');
    const { ledger } = stack.sim;
    // The two replies that floe samples itself when it registers the engine are left out.
    const entries = ledger.entries().filter((entry) => entry.session_id !== null);
    return {
      result,
      report: checkAgainstLedger([result], ledger.entries(), 'processed'),
      sampledTokens: entries.reduce((sum, entry) => sum + entry.response_ids.length, 0),
      sent: (await stack.client.completions(result.session_id)).toString(),
    };
  } finally {
    await stack.close();
  }
}

/** Expects that the session completed with reward 1, and that the trained tokens are exactly the tokens that the engine sampled. */
export function expectTrainedAsSampled({ result, report, sampledTokens }: RealRun): void {
  expect(result.error?.message ?? result.outcome).toBe('completed');
  expect(result.reward).toBe(1);
  expect(report.mismatches).toEqual([]);
  expect(report.trainable_tokens).toBe(sampledTokens);
  expect(report.exact_context_tokens).toBe(sampledTokens);
}

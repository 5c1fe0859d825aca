import { type AgentSpec, agentSpecSchema } from '@floe-rl/core/schema';
import type {
  HarnessAdapter,
  HarnessReport,
  HarnessVerdict,
  Launch,
  LaunchContext,
} from '../../src/harnesses/harness.ts';

type AgentInput = Parameters<typeof agentSpecSchema.parse>[0] & object;

/** Instruction of the test's task. Tests check that it does not occur on a command line. */
export const INSTRUCTION = "fix 'it'\n--now";
/** API key of the test's session. Tests check that it does not occur on a command line. */
export const KEY = 'secret-key';

/** The command of floe's MCP server in the test's sandbox. */
export const TOOL_SERVER = { command: ['/.floe/node', '/.floe/$mcp.js'], env: { LANG: 'C', PRICE: '$5' } };

/**
 * Returns the launch that the adapter makes for the agent, with paths like those in a bubblewrap sandbox and a context window of 32,768
 * tokens. `more` overrides these values.
 */
export function launchOf(adapter: HarnessAdapter, input: AgentInput = {}, more: Partial<LaunchContext> = {}): Launch {
  const agent = agentOf(adapter, input);
  return adapter.launch({
    instruction: INSTRUCTION,
    agent,
    skills: agent.skills,
    baseUrl: `http://127.0.0.1:1/s/${KEY}`,
    apiKey: KEY,
    contextWindow: 32_768,
    paths: { workdir: '/work', home: '/home/agent', logs: '/logs' },
    toolServer: TOOL_SERVER,
    installDir: '/opt/harness',
    ...more,
  });
}

/** Returns an agent that uses the adapter's harness. Fields that `input` lacks have the defaults of the schema. */
export function agentOf(adapter: HarnessAdapter, input: AgentInput = {}): AgentSpec {
  return agentSpecSchema.parse({ harness: adapter.name, ...input });
}

/** Returns the text of the file with a path that ends in `end`. Throws when the launch writes no such file. */
export function fileOf(launch: Launch, end: string): string {
  const file = launch.files.find(({ path }) => path.endsWith(end));
  if (file === undefined) throw new Error(`no file ${end} among ${launch.files.map(({ path }) => path).join(', ')}`);
  return String(file.content);
}

export function judgeOf(adapter: HarnessAdapter, stdout: string, report: Partial<HarnessReport> = {}): HarnessVerdict {
  return adapter.judge({ exitCode: 0, stderr: '', turns: 1, stdout, ...report });
}

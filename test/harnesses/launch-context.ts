import type {
  HarnessAdapter,
  HarnessReport,
  HarnessVerdict,
  Launch,
  LaunchContext,
} from '../../src/harnesses/harness.ts';
import { type AgentSpec, agentSpecSchema } from '../../src/schema/index.ts';

type AgentInput = Parameters<typeof agentSpecSchema.parse>[0] & object;

/** What must be on no command line. */
export const INSTRUCTION = "fix 'it'\n--now";
export const KEY = 'secret-key';

/** A launch for the agent in a sandbox as bubblewrap's, with a window of 32,768 tokens unless told otherwise. */
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
    installDir: '/opt/harness',
    ...more,
  });
}

/** The agent with the adapter's name, as the schema completes it. */
export function agentOf(adapter: HarnessAdapter, input: AgentInput = {}): AgentSpec {
  return agentSpecSchema.parse({ harness: adapter.name, ...input });
}

/** The text of the file that ends in this path; fails where there is none. */
export function fileOf(launch: Launch, end: string): string {
  const file = launch.files.find(({ path }) => path.endsWith(end));
  if (file === undefined) throw new Error(`no file ${end} among ${launch.files.map(({ path }) => path).join(', ')}`);
  return String(file.content);
}

export function judgeOf(adapter: HarnessAdapter, stdout: string, report: Partial<HarnessReport> = {}): HarnessVerdict {
  return adapter.judge({ exitCode: 0, stderr: '', turns: 1, stdout, ...report });
}

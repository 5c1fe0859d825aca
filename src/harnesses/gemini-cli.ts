import { z } from 'zod';
import type { SandboxFile } from '../core/sandbox.ts';
import type { AgentSpec } from '../schema/index.ts';
import { LITERAL_ENV } from './config-text.ts';
import { type CheckedContext, defineHarness, refuseAgent } from './define.ts';
import { type GeminiCliSettings, geminiCliSettings, geminiCliSettingsSchema } from './gemini-cli-settings.ts';
import { compileCacheDir, type HarnessReport, type HarnessVerdict, type Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { lastLine } from './json-lines.ts';
import { withLogsIn } from './log-link.ts';
import { failedExit } from './report.ts';
import { skillFiles } from './skill-files.ts';

/** In the line that ends the output; in other lines its quotes are escaped. */
const RESULT_MARK = '{"type":"result"';
/** In the lines that tell of errors; the last of them says why a result is one that names none. */
const ERROR_MARK = '{"type":"error"';

/** What it says of tool servers that do not start, without their names. */
const SERVERS_MARK = 'MCP issues detected.';

/** Names that it takes for one of Google's models, whatever its settings say. */
/** It puts the model's name into a header, which takes no other characters. */
const HEADER_TEXT = /^[\x20-\x7e\x80-\xff]*$/;

const TAKEN_NAMES = ['auto', 'auto-gemini-2.5', 'auto-gemini-3', 'flash', 'flash-lite', 'none', 'pro'];

/** The policy used its room up, or would say nothing: the agent has ended, and can be graded. */
const POLICY_ENDINGS = [
  'Model response was truncated because it exceeded the token limit.',
  'The model returned reasoning thoughts but no final response text.',
  'The model returned an empty response with no text or thoughts.',
];

const resultSchema = z.looseObject({
  type: z.literal('result'),
  status: z.string(),
  error: z.looseObject({ type: z.string(), message: z.string() }).optional(),
});
const errorSchema = z.looseObject({ type: z.literal('error'), message: z.string() });

/** Gemini CLI, headless. Its sub-agents and helpers are the policy, too. */
export const geminiCliHarness = defineHarness<GeminiCliSettings>({
  name: 'gemini_cli',
  dialects: ['gemini'],
  features: ['mcp_servers', 'skills', 'system_prompt'],
  install: HARNESS_INSTALLS.gemini_cli,
  settings: geminiCliSettingsSchema,
  check({ model_name: name }: AgentSpec) {
    if (TAKEN_NAMES.includes(name)) refuseAgent('agent.model_name', `gemini_cli takes ${name} for a model of Google's`);
    if (!HEADER_TEXT.test(name)) refuseAgent('agent.model_name', 'gemini_cli takes characters of Latin-1 only');
  },
  launch,
  judge,
});

function launch(context: CheckedContext<GeminiCliSettings>): Launch {
  const { agent, apiKey, baseUrl, instruction, installDir, paths } = context;
  const geminiDir = `${paths.home}/.gemini`;
  const files: SandboxFile[] = [
    // Not the system's settings, which would go over those of the work tree: it takes them from root only.
    { path: `${geminiDir}/settings.json`, content: JSON.stringify(geminiCliSettings(context)), mode: 0o600 },
    ...skillFiles(`${geminiDir}/skills`, context.skills),
  ];
  // Added to its own prompt, in front of such files of the work tree.
  if (agent.system_prompt !== undefined) files.push({ path: `${geminiDir}/GEMINI.md`, content: agent.system_prompt });
  return {
    files,
    env: {
      ...LITERAL_ENV,
      GEMINI_CLI_HOME: paths.home,
      GEMINI_API_KEY: apiKey,
      GOOGLE_GEMINI_BASE_URL: baseUrl,
      GEMINI_CLI_TRUST_WORKSPACE: 'true',
      GEMINI_SANDBOX: 'false',
      // It would start itself again for a larger heap.
      GEMINI_CLI_NO_RELAUNCH: 'true',
      NODE_COMPILE_CACHE: compileCacheDir(installDir),
    },
    command: withLogsIn(`${paths.logs}/gemini_cli`, `${geminiDir}/tmp`, [
      ...commandOf(HARNESS_INSTALLS.gemini_cli, installDir),
      // In one argument with the option's name, since it may begin like an option itself.
      `--model=${agent.model_name}`,
      ...['--yolo', '--output-format', 'stream-json'],
    ]),
    // At the very start, a slash makes it a command of the program's own, which never reaches the model.
    stdin: instruction.startsWith('/') ? `\n${instruction}` : instruction,
  };
}

/** It exits with 0 after replies that it can make nothing of, so its own result is read as well. */
function judge(report: HarnessReport): HarnessVerdict {
  const result = lastLine(report.stdout, RESULT_MARK, resultSchema);
  if (result?.error !== undefined) return { ok: false, message: result.error.message };
  const failed = failedExit('gemini', report);
  if (failed !== null) return failed;
  if (result === null) return { ok: false, message: 'gemini ended without a result' };
  if (report.stderr.includes(SERVERS_MARK))
    return { ok: false, message: 'MCP servers did not start, or have no tools' };
  if (result.status === 'success') return { ok: true };
  const message = lastLine(report.stdout, ERROR_MARK, errorSchema)?.message ?? `the result is ${result.status}`;
  return POLICY_ENDINGS.some((ending) => message.startsWith(ending)) ? { ok: true } : { ok: false, message };
}

import { z } from 'zod';
import type { SandboxFile } from '../core/sandbox.ts';
import { type CheckedContext, defineHarness } from './define.ts';
import type { HarnessReport, HarnessVerdict, Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { lastLine } from './json-lines.ts';
import { windowOf } from './launch.ts';
import { withLogsIn } from './log-link.ts';
import { opencodeConfig, opencodeJson, opencodeLastWord, opencodeModel } from './opencode-config.ts';
import { failedExit } from './report.ts';
import { skillFiles } from './skill-files.ts';

/** How the lines begin that end a call of the model, or tell of an error; in other lines their quotes are escaped. */
const STEP_MARK = '{"type":"step_finish"';
const ERROR_MARK = '{"type":"error"';

/** In its warnings, which go to the error output. */
const MISSING_SERVER = /message="server unavailable" key=([A-Za-z0-9_-]+) type=\w+ status=failed/g;

const settingsSchema = z.strictObject({
  /** Bound that is sent with each request; default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
  /** Whether the policy takes images. */
  vision: z.boolean().default(false),
});
export type OpencodeSettings = z.output<typeof settingsSchema>;

const stepSchema = z.looseObject({
  type: z.literal('step_finish'),
  timestamp: z.number(),
  part: z.looseObject({ reason: z.string() }),
});
const errorSchema = z.looseObject({
  type: z.literal('error'),
  timestamp: z.number(),
  error: z.looseObject({ name: z.string(), data: z.looseObject({ message: z.string().optional() }).optional() }),
});

/** opencode's `run`. Its sub-agents and its compaction are the policy, too. */
export const opencodeHarness = defineHarness<OpencodeSettings>({
  name: 'opencode',
  dialects: ['openai_chat', 'anthropic', 'openai_responses'],
  features: ['mcp_servers', 'skills', 'system_prompt'],
  install: HARNESS_INSTALLS.opencode,
  settings: settingsSchema,
  launch,
  judge,
});

function launch(context: CheckedContext<OpencodeSettings>): Launch {
  const { agent, contextWindow, instruction, installDir, paths, settings } = context;
  const configDir = `${paths.home}/.config/opencode`;
  const dataDir = `${paths.home}/.local/share/opencode`;
  const logDir = `${paths.logs}/opencode`;
  const configFile = `${dataDir}/floe.json`;
  const promptFile = agent.system_prompt === undefined ? null : `${dataDir}/floe-prompt.md`;
  const files: SandboxFile[] = [
    { path: configFile, content: opencodeJson(opencodeConfig(context, promptFile)), mode: 0o600 },
    ...skillFiles(`${configDir}/skills`, context.skills),
  ];
  if (promptFile !== null) files.push({ path: promptFile, content: agent.system_prompt ?? '' });
  return {
    files,
    env: {
      ...QUIET,
      OPENCODE_CONFIG: configFile,
      OPENCODE_CONFIG_CONTENT: opencodeJson(opencodeLastWord(agent.model_name)),
      OPENCODE_DB: `${logDir}/opencode.db`,
      // It sends no more than 32,000 otherwise, whatever the model's limit.
      OPENCODE_EXPERIMENTAL_OUTPUT_TOKEN_MAX: String(windowOf(contextWindow, settings.max_tokens).replyTokens),
    },
    command: withLogsIn(logDir, `${dataDir}/log`, [
      ...commandOf(HARNESS_INSTALLS.opencode, installDir),
      ...['run', '--format', 'json', '--print-logs', '--log-level', 'WARN', '--model', opencodeModel(agent.model_name)],
    ]),
    stdin: instruction,
  };
}

/** Nothing from the network, which the sandbox does not have. */
const QUIET = {
  OPENCODE_DISABLE_AUTOUPDATE: '1',
  OPENCODE_DISABLE_MODELS_FETCH: '1',
  OPENCODE_DISABLE_LSP_DOWNLOAD: '1',
  OPENCODE_DISABLE_DEFAULT_PLUGINS: '1',
};

/**
 * The last word on the session is an error, or the end of a call of the model. An error that it went on from, such as a
 * context that it then compacted, makes it exit with 1 all the same.
 */
function judge(report: HarnessReport): HarnessVerdict {
  const step = lastLine(report.stdout, STEP_MARK, stepSchema);
  const error = lastLine(report.stdout, ERROR_MARK, errorSchema);
  if (error !== null && (step === null || error.timestamp >= step.timestamp)) {
    return { ok: false, message: error.error.data?.message ?? error.error.name };
  }
  const failed = failedExit('opencode', report);
  if (failed !== null && (error === null || report.exitCode !== 1)) return failed;
  if (step === null) return { ok: false, message: 'opencode ended without a turn of the model' };
  // Tools were called, and their results never went back.
  if (step.part.reason === 'tool-calls') return { ok: false, message: 'opencode ended within its turn' };
  return missingServers(report.stderr) ?? { ok: true };
}

/** It works on without a tool server that does not start, so that the agent was not the one that the task asked for. */
function missingServers(stderr: string): HarnessVerdict | null {
  const names = [...stderr.matchAll(MISSING_SERVER)].map((found) => found[1]);
  return names.length === 0 ? null : { ok: false, message: `MCP servers did not start: ${names.join(', ')}` };
}

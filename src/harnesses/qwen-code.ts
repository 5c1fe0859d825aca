import { z } from 'zod';
import type { AgentSpec } from '../schema/index.ts';
import { LITERAL_ENV } from './config-text.ts';
import { type CheckedContext, defineHarness, refuseAgent } from './define.ts';
import { compileCacheDir, type HarnessReport, type HarnessVerdict, type Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { lastLine } from './json-lines.ts';
import { windowOf } from './launch.ts';
import { QWEN_APIS, type QwenCodeSettings, qwenCodeSettings, qwenCodeSettingsSchema } from './qwen-code-settings.ts';
import { failedExit } from './report.ts';
import { skillFiles } from './skill-files.ts';

/** In the line that ends the output; in other lines its quotes are escaped. */
const RESULT_MARK = '"type":"result"';

/** In the error output, before the names of tool servers that do not start; it works on without them. */
const SERVERS_MARK = /^Warning: MCP server\(s\) failed to start: (.*?)\. Continuing/m;

/** The only way to add to its system prompt. */
const SYSTEM_OPTION = '--append-system-prompt=';

/** Linux starts no program with a longer argument; one byte ends it. */
const MAX_ARGUMENT_BYTES = 128 * 1024 - 1;

/** The policy's own doing: the agent has ended, and can be graded. */
const POLICY_ENDINGS = ['Loop detection halted the run', 'malformed tool call arguments'];

const resultSchema = z.looseObject({
  type: z.literal('result'),
  subtype: z.string(),
  is_error: z.boolean(),
  error: z.looseObject({ message: z.string() }).optional(),
});

/** Qwen Code, headless: it speaks every dialect, and its sub-agents are the policy, too. */
export const qwenCodeHarness = defineHarness<QwenCodeSettings>({
  name: 'qwen_code',
  dialects: ['openai_chat', 'anthropic', 'openai_responses', 'gemini'],
  features: ['mcp_servers', 'skills', 'system_prompt'],
  install: HARNESS_INSTALLS.qwen_code,
  settings: qwenCodeSettingsSchema,
  check({ system_prompt: prompt = '' }: AgentSpec) {
    if (prompt.includes('\0')) refuseAgent('agent.system_prompt', 'must not contain a NUL byte', 'schema_violation');
    if (Buffer.byteLength(`${SYSTEM_OPTION}${prompt}`) <= MAX_ARGUMENT_BYTES) return;
    refuseAgent('agent.system_prompt', 'qwen_code takes it on its command line, which has room for 128 KiB');
  },
  launch,
  judge,
});

function launch(context: CheckedContext<QwenCodeSettings>): Launch {
  const { agent, apiKey, contextWindow, dialect, instruction, installDir, paths, settings } = context;
  const settingsFile = `${paths.home}/.floe/qwen-code-settings.json`;
  // In one argument with the option's name, since it may begin like an option itself.
  const system = agent.system_prompt === undefined ? [] : [`${SYSTEM_OPTION}${agent.system_prompt}`];
  const { authType, keyVariable } = QWEN_APIS[dialect];
  return {
    files: [
      { path: settingsFile, content: JSON.stringify(qwenCodeSettings(context)), mode: 0o600 },
      ...skillFiles(`${paths.home}/.qwen/skills`, context.skills),
    ],
    env: {
      ...QUIET,
      ...LITERAL_ENV,
      QWEN_HOME: `${paths.home}/.qwen`,
      [keyVariable]: apiKey,
      // The system's settings: those of the work tree do not go over them.
      QWEN_CODE_SYSTEM_SETTINGS_PATH: settingsFile,
      QWEN_RUNTIME_DIR: `${paths.logs}/qwen_code`,
      // With a bound of its own it does not ask for more room after a reply that was cut, which is another sample.
      QWEN_CODE_MAX_OUTPUT_TOKENS: String(windowOf(contextWindow, settings.max_tokens).replyTokens),
      NODE_COMPILE_CACHE: compileCacheDir(installDir),
    },
    command: [
      ...commandOf(HARNESS_INSTALLS.qwen_code, installDir),
      ...['--auth-type', authType, `--model=${agent.model_name}`],
      ...['--yolo', '--output-format', 'stream-json', ...system],
    ],
    // At the very start, a slash makes it a command of the program's own, which never reaches the model.
    stdin: instruction.startsWith('/') ? `\n${instruction}` : instruction,
  };
}

/** No calls but those for the task, to nobody but the policy. */
const QUIET = {
  QWEN_USAGE_STATISTICS_ENABLED: 'false',
  QWEN_TELEMETRY_ENABLED: 'false',
  QWEN_DISABLE_AUTO_TITLE: '1',
  QWEN_CODE_DISABLE_PRECONNECT: '1',
  QWEN_CODE_NO_RELAUNCH: 'true',
  QWEN_CODE_SUPPRESS_YOLO_WARNING: '1',
  QWEN_SANDBOX: 'false',
  // Otherwise the first prompt may come before the tools of a server that is slow to start.
  QWEN_CODE_LEGACY_MCP_BLOCKING: '1',
};

/** It exits with 1 after errors; its own result says which. */
function judge(report: HarnessReport): HarnessVerdict {
  const result = lastLine(report.stdout, RESULT_MARK, resultSchema);
  if (result?.is_error) {
    const message = result.error?.message ?? '';
    if (POLICY_ENDINGS.some((ending) => message.includes(ending))) return { ok: true };
    return { ok: false, message: `the result is an error (${result.subtype}): ${message}` };
  }
  const failed = failedExit('qwen', report);
  if (failed !== null) return failed;
  if (result === null) return { ok: false, message: 'qwen ended without a result' };
  const missing = SERVERS_MARK.exec(report.stderr)?.[1];
  return missing === undefined ? { ok: true } : { ok: false, message: `MCP servers did not start: ${missing}` };
}

import { z } from 'zod';
import type { SandboxFile } from '../core/sandbox-file.ts';
import { type CheckedContext, defineHarness } from './define.ts';
import { failedExit } from './exit.ts';
import { compileCacheDir, type HarnessReport, type HarnessVerdict, type Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './installs.ts';
import { lastLine } from './json-lines.ts';
import { QWEN_APIS, type QwenCodeSettings, qwenCodeSettings, qwenCodeSettingsSchema } from './qwen-code-settings.ts';
import { skillFiles } from './skill-files.ts';
import { windowOf } from './window.ts';

/** In the line that ends the output; in other lines its quotes are escaped. */
const RESULT_MARK = '"type":"result"';

const resultSchema = z.looseObject({
  type: z.literal('result'),
  subtype: z.string(),
  is_error: z.boolean(),
  error: z.looseObject({ message: z.string() }).optional(),
});

/** Qwen Code, headless. */
export const qwenCodeHarness = defineHarness<QwenCodeSettings>({
  name: 'qwen_code',
  dialects: ['openai_chat', 'anthropic', 'openai_responses', 'gemini'],
  features: ['mcp_servers', 'skills', 'system_prompt'],
  install: HARNESS_INSTALLS.qwen_code,
  settings: qwenCodeSettingsSchema,
  launch,
  judge,
});

function launch(context: CheckedContext<QwenCodeSettings>): Launch {
  const { agent, apiKey, contextWindow, dialect, instruction, installDir, paths, settings } = context;
  const qwenDir = `${paths.home}/.qwen`;
  const settingsFile = `${paths.home}/.floe/qwen-code-settings.json`;
  const files: SandboxFile[] = [
    { path: settingsFile, content: JSON.stringify(qwenCodeSettings(context)), mode: 0o600 },
    ...skillFiles(`${qwenDir}/skills`, context.skills),
  ];
  const system = agent.system_prompt === undefined ? [] : ['--append-system-prompt', agent.system_prompt];
  const { authType, keyVariable } = QWEN_APIS[dialect];
  return {
    files,
    env: {
      [keyVariable]: apiKey,
      QWEN_CODE_SYSTEM_SETTINGS_PATH: settingsFile,
      QWEN_RUNTIME_DIR: `${paths.logs}/qwen_code`,
      QWEN_CODE_MAX_OUTPUT_TOKENS: String(windowOf(contextWindow, settings.max_tokens).replyTokens),
      QWEN_USAGE_STATISTICS_ENABLED: 'false',
      QWEN_TELEMETRY_ENABLED: 'false',
      QWEN_DISABLE_AUTO_TITLE: '1',
      QWEN_CODE_DISABLE_PRECONNECT: '1',
      QWEN_CODE_NO_RELAUNCH: 'true',
      QWEN_CODE_LEGACY_MCP_BLOCKING: '1',
      QWEN_SANDBOX: 'false',
      NODE_COMPILE_CACHE: compileCacheDir(installDir),
    },
    command: [
      ...commandOf(HARNESS_INSTALLS.qwen_code, installDir),
      ...['--auth-type', authType, '--model', agent.model_name],
      ...['--yolo', '--output-format', 'stream-json', ...system],
    ],
    stdin: instruction.startsWith('/') ? `\n${instruction}` : instruction,
  };
}

function judge(report: HarnessReport): HarnessVerdict {
  const result = lastLine(report.stdout, RESULT_MARK, resultSchema);
  if (result === null) return failedExit('qwen', report) ?? { ok: false, message: 'qwen ended without a result' };
  if (result.is_error)
    return { ok: false, message: `the result is an error (${result.subtype}): ${result.error?.message ?? ''}` };
  return failedExit('qwen', report) ?? { ok: true };
}

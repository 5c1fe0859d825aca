import { KIB } from '@floe-rl/core';
import type { AgentSpec, DialectName } from '@floe-rl/core/schema';
import { z } from 'zod';
import { DOLLAR_ENV, escapeDollars } from './config-text.ts';
import { type CheckedContext, defineHarness, refuseAgent } from './define.ts';
import { geminiMcpServer } from './gemini-cli.ts';
import { compileCacheDir, type HarnessReport, type HarnessVerdict, type Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { MODEL_TIMEOUT_MS, promptOf, skillFiles, tokenLimits } from './launch.ts';
import { exitFailure, lastJsonLine } from './report.ts';

/**
 * Text that identifies the result line, the last line of Qwen Code's JSON output. Other lines cannot contain it inside a JSON string, because
 * quotes are escaped there.
 */
const RESULT_MARKER = '"type":"result"';

/** Matches the warning on stderr that names the MCP servers that did not start. Qwen Code continues without these servers. */
const MISSING_SERVERS = /^Warning: MCP server\(s\) failed to start: (.*?)\. Continuing/m;

/** Command-line option that adds a text to Qwen Code's system prompt. Qwen Code offers no other way to add a text. */
const SYSTEM_OPTION = '--append-system-prompt=';

/**
 * Maximum number of bytes of one command-line argument. Linux refuses to start a program with an argument longer than 128 KiB, including
 * the terminating zero byte.
 */
const MAX_ARGUMENT_BYTES = 128 * KIB - 1;

/**
 * Error messages of Qwen Code for errors that the policy caused. A run that ends with one of them counts as completed by the agent and is
 * graded.
 */
const POLICY_ENDINGS = ['Loop detection halted the run', 'malformed tool call arguments'];

const settingsSchema = z.strictObject({
  /** Maximum number of tokens of a reply, sent with each model request. Default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
  /** Whether the policy accepts images. */
  vision: z.boolean().default(false),
});
type Settings = z.output<typeof settingsSchema>;

type QwenApi = {
  readonly authType: string;
  readonly keyVariable: string;
  readonly wireApi?: string;
  /** Path that is appended to the session's base URL. Qwen Code appends the rest of the API's path itself. */
  readonly path: string;
};

/**
 * Settings for each dialect: Qwen Code's names of the API, the environment variable from which it reads the API key, and the path of the
 * base URL.
 */
const APIS: Readonly<Record<DialectName, QwenApi>> = {
  openai_chat: { authType: 'openai', keyVariable: 'OPENAI_API_KEY', path: '/v1' },
  openai_responses: { authType: 'openai', keyVariable: 'OPENAI_API_KEY', path: '/v1', wireApi: 'responses' },
  anthropic: { authType: 'anthropic', keyVariable: 'ANTHROPIC_API_KEY', path: '' },
  gemini: { authType: 'gemini', keyVariable: 'GEMINI_API_KEY', path: '' },
};

const resultSchema = z.looseObject({
  type: z.literal('result'),
  subtype: z.string(),
  is_error: z.boolean(),
  error: z.looseObject({ message: z.string() }).optional(),
});

/**
 * Adapter for Qwen Code in headless mode, checked against version 0.24.4. It supports every dialect. Its sub-agents also use the policy.
 */
export const qwenCodeHarness = defineHarness<Settings>({
  name: 'qwen_code',
  dialects: ['openai_chat', 'anthropic', 'openai_responses', 'gemini'],
  features: ['mcp_servers', 'skills', 'system_prompt'],
  install: HARNESS_INSTALLS.qwen_code,
  settings: settingsSchema,
  check({ system_prompt: prompt = '' }: AgentSpec) {
    if (prompt.includes('\0')) refuseAgent('agent.system_prompt', 'must not contain a NUL byte', 'schema_violation');
    if (Buffer.byteLength(`${SYSTEM_OPTION}${prompt}`) <= MAX_ARGUMENT_BYTES) return;
    refuseAgent('agent.system_prompt', 'qwen_code receives it as a command-line argument of at most 128 KiB');
  },
  launch,
  judge,
});

function launch(context: CheckedContext<Settings>): Launch {
  const { agent, apiKey, contextWindow, dialect, instruction, installDir, paths, settings } = context;
  const settingsPath = `${paths.home}/.floe/qwen-code-settings.json`;
  // The option and the system prompt form one argument, because the prompt may start with a dash like an option.
  const system = agent.system_prompt === undefined ? [] : [`${SYSTEM_OPTION}${agent.system_prompt}`];
  const { authType, keyVariable } = APIS[dialect];
  return {
    files: [
      { path: settingsPath, content: JSON.stringify(settingsFile(context)), mode: 0o600 },
      ...skillFiles(`${paths.home}/.qwen/skills`, context.skills),
    ],
    env: {
      ...QUIET_ENV,
      ...DOLLAR_ENV,
      QWEN_HOME: `${paths.home}/.qwen`,
      [keyVariable]: apiKey,
      // The settings file is passed as system settings, because the settings of the task's repository do not override these.
      QWEN_CODE_SYSTEM_SETTINGS_PATH: settingsPath,
      QWEN_RUNTIME_DIR: `${paths.logs}/qwen_code`,
      // Without an explicit token limit, Qwen Code repeats a truncated reply with a higher limit, which would sample another reply.
      QWEN_CODE_MAX_OUTPUT_TOKENS: String(tokenLimits(contextWindow, settings.max_tokens).replyTokens),
      NODE_COMPILE_CACHE: compileCacheDir(installDir),
    },
    command: [
      ...commandOf(HARNESS_INSTALLS.qwen_code, installDir),
      ...['--auth-type', authType, `--model=${agent.model_name}`],
      ...['--yolo', '--output-format', 'stream-json', ...system],
    ],
    stdin: promptOf(instruction),
  };
}

/** Environment variables that suppress model calls and network requests which are not part of the task. */
const QUIET_ENV = {
  QWEN_USAGE_STATISTICS_ENABLED: 'false',
  QWEN_TELEMETRY_ENABLED: 'false',
  QWEN_DISABLE_AUTO_TITLE: '1',
  QWEN_CODE_DISABLE_PRECONNECT: '1',
  QWEN_CODE_NO_RELAUNCH: 'true',
  QWEN_CODE_SUPPRESS_YOLO_WARNING: '1',
  QWEN_SANDBOX: 'false',
  // Makes Qwen Code wait for the tools of a slowly starting MCP server before its first model call.
  QWEN_CODE_LEGACY_MCP_BLOCKING: '1',
};

/** Returns the content of Qwen Code's settings file. */
function settingsFile(context: CheckedContext<Settings>): object {
  const { agent, baseUrl, contextWindow, dialect, settings } = context;
  const { contextTokens, replyTokens } = tokenLimits(contextWindow, settings.max_tokens);
  const { authType, keyVariable, path, wireApi } = APIS[dialect];
  return escapeDollars({
    // Version of the settings file's format. Qwen Code migrates and rewrites files of earlier versions.
    $version: 4,
    // Co-authoring is off. Otherwise Qwen Code's prompt asks the model to sign commits as Qwen.
    general: { enableAutoUpdate: false, gitCoAuthor: { commit: false, pr: false } },
    privacy: { usageStatisticsEnabled: false },
    telemetry: { enabled: false },
    security: { auth: { selectedType: authType }, folderTrust: { enabled: false } },
    model: { name: agent.model_name },
    modelProviders: {
      [authType]: [
        {
          id: agent.model_name,
          baseUrl: `${baseUrl}${path}`,
          envKey: keyVariable,
          ...(wireApi === undefined ? {} : { wireApi }),
          generationConfig: {
            contextWindowSize: contextTokens,
            samplingParams: { max_tokens: replyTokens },
            modalities: { image: settings.vision },
            timeout: MODEL_TIMEOUT_MS,
            streamIdleTimeoutMs: 0,
            // Retries of the API client are off, because Qwen Code itself retries failed requests.
            maxRetries: 0,
            // Requests encrypted reasoning content. Without it, Qwen Code sends earlier thinking back to the model as the text of an
            // assistant message.
            ...(wireApi === 'responses' ? { extra_body: { include: ['reasoning.encrypted_content'] } } : {}),
          },
        },
      ],
    },
    // Memories are off, because they are lost with the session and writing them takes model calls.
    memory: { enableManagedAutoMemory: false, enableManagedAutoDream: false, enableAutoSkill: false },
    experimental: { emitToolUseSummaries: false },
    agents: { crossSessionMessaging: false },
    mcpServers: Object.fromEntries(agent.mcp_servers.map((server) => [server.name, geminiMcpServer(agent, server)])),
  });
}

/**
 * Decides from the result line and the exit code whether the agent completed its run. Qwen Code exits with 1 after every error, and its
 * result line states the error.
 */
function judge(report: HarnessReport): HarnessVerdict {
  const result = lastJsonLine(report.stdout, RESULT_MARKER, resultSchema);
  if (result?.is_error) {
    const message = result.error?.message ?? '';
    if (POLICY_ENDINGS.some((ending) => message.includes(ending))) return { ok: true };
    return { ok: false, message: `the result is an error (${result.subtype}): ${message}` };
  }
  const failed = exitFailure('qwen', report);
  if (failed !== null) return failed;
  if (result === null) return { ok: false, message: 'qwen ended without a result' };
  const missing = MISSING_SERVERS.exec(report.stderr)?.[1];
  return missing === undefined ? { ok: true } : { ok: false, message: `MCP servers did not start: ${missing}` };
}

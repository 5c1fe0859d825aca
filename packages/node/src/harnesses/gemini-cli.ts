import type { AgentSpec, McpServer } from '@floe-rl/core/schema';
import type { SandboxFile } from '@floe-rl/sandbox';
import { z } from 'zod';
import { DOLLAR_ENV, escapeDollars, escapeDollarsTwice } from './config-text.ts';
import { type CheckedContext, defineHarness, refuseAgent, toolCallMs } from './define.ts';
import { compileCacheDir, type HarnessReport, type HarnessVerdict, type Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { promptOf, skillFiles, tokenLimits, withLogLink } from './launch.ts';
import { exitFailure, lastJsonLine } from './report.ts';

/**
 * Text that identifies the result line, the last line of Gemini CLI's JSON output. Other lines cannot contain it inside a JSON string, because
 * quotes are escaped there.
 */
const RESULT_MARKER = '{"type":"result"';
/** Text that identifies the lines that report an error. The last of these lines states the cause of a failure when the result line does not. */
const ERROR_MARKER = '{"type":"error"';

/** Text that Gemini CLI writes to stderr when MCP servers did not start. It does not contain the servers' names. */
const SERVERS_MARKER = 'MCP issues detected.';

/** Matches texts that an HTTP header may contain. Gemini CLI sends the model's name in a header, so other names are refused. */
const HEADER_TEXT = /^[\x20-\x7e\x80-\xff]*$/;

/**
 * Model names that Gemini CLI always resolves to a model of Google's, whatever its settings contain. They are refused as names of the
 * policy.
 */
const RESERVED_NAMES = ['auto', 'auto-gemini-2.5', 'auto-gemini-3', 'flash', 'flash-lite', 'none', 'pro'];

/**
 * Error messages of Gemini CLI for truncated or empty replies of the policy. A run that ends with one of them counts as completed by the
 * agent and is graded.
 */
const POLICY_ENDINGS = [
  'Model response was truncated because it exceeded the token limit.',
  'The model returned reasoning thoughts but no final response text.',
  'The model returned an empty response with no text or thoughts.',
];

/**
 * Context window in tokens that Gemini CLI assumes for every unknown model. Its compaction threshold is set as a fraction of this window.
 */
const ASSUMED_WINDOW_TOKENS = 1_048_576;

/** Maximum number of characters of a tool's output that Gemini CLI sends to the model. The value is Gemini CLI's default. */
const TOOL_OUTPUT_CHARS = 40_000;
/**
 * Assumed number of characters per token of dense text such as code and logs. With it, a tool's output is limited to about the token limit
 * of a reply.
 */
const CHARS_PER_TOKEN = 3;

/** Names of Gemini CLI's model configurations whose model is overridden: `base`, and the configurations that do not inherit from `base`. */
const MODEL_CONFIGS = [
  'base',
  'agent-history-provider-summarizer',
  'chat-compression-2.5-flash',
  'chat-compression-2.5-flash-lite',
  'chat-compression-2.5-pro',
  'chat-compression-3-flash',
  'chat-compression-3-pro',
  'chat-compression-3.1-flash-lite',
  'chat-compression-default',
  'context-calibrator',
];

/**
 * Maximum number of attempts of one model call, 5 to 10 s apart. Gemini CLI's default of ten takes minutes, and the proxy retries as well.
 */
const MAX_ATTEMPTS = 3;

/** Names of the tools that run on Google's servers. They are disabled, because only Google's own models can use them. */
const HOSTED_TOOLS = ['google_web_search', 'web_fetch'];

const settingsSchema = z.strictObject({
  /** Maximum number of tokens of a reply, sent with each model request of an agent. Default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
});
type Settings = z.output<typeof settingsSchema>;

const resultSchema = z.looseObject({
  type: z.literal('result'),
  status: z.string(),
  error: z.looseObject({ type: z.string(), message: z.string() }).optional(),
});
const errorSchema = z.looseObject({ type: z.literal('error'), message: z.string() });

/**
 * Adapter for Gemini CLI in headless mode, checked against version 0.61.0. Its sub-agents and auxiliary model calls also use the policy.
 */
export const geminiCliHarness = defineHarness<Settings>({
  name: 'gemini_cli',
  dialects: ['gemini'],
  features: ['mcp_servers', 'skills', 'system_prompt'],
  install: HARNESS_INSTALLS.gemini_cli,
  settings: settingsSchema,
  check({ model_name: name }: AgentSpec) {
    if (RESERVED_NAMES.includes(name)) {
      refuseAgent('agent.model_name', `gemini_cli resolves ${name} to a model of Google's; choose another name`);
    }
    if (!HEADER_TEXT.test(name)) refuseAgent('agent.model_name', 'gemini_cli supports only Latin-1 characters in it');
  },
  launch,
  judge,
});

function launch(context: CheckedContext<Settings>): Launch {
  const { agent, apiKey, baseUrl, instruction, installDir, paths } = context;
  const geminiDir = `${paths.home}/.gemini`;
  const files: SandboxFile[] = [
    // The file contains user settings, which settings files in the task's repository override. System settings would not be overridden, but
    // Gemini CLI reads a system settings file only if root owns it.
    { path: `${geminiDir}/settings.json`, content: JSON.stringify(settingsFile(context)), mode: 0o600 },
    ...skillFiles(`${geminiDir}/skills`, context.skills),
  ];
  // Gemini CLI appends this file to its system prompt, before the GEMINI.md files of the task's repository.
  if (agent.system_prompt !== undefined) files.push({ path: `${geminiDir}/GEMINI.md`, content: agent.system_prompt });
  return {
    files,
    env: {
      ...DOLLAR_ENV,
      GEMINI_CLI_HOME: paths.home,
      GEMINI_API_KEY: apiKey,
      GOOGLE_GEMINI_BASE_URL: baseUrl,
      GEMINI_CLI_TRUST_WORKSPACE: 'true',
      GEMINI_SANDBOX: 'false',
      // Keeps Gemini CLI from restarting itself with a larger heap, which it does by default.
      GEMINI_CLI_NO_RELAUNCH: 'true',
      NODE_COMPILE_CACHE: compileCacheDir(installDir),
    },
    command: withLogLink(`${paths.logs}/gemini_cli`, `${geminiDir}/tmp`, [
      ...commandOf(HARNESS_INSTALLS.gemini_cli, installDir),
      // The option and the model's name form one argument, because the name may start with a dash like an option.
      `--model=${agent.model_name}`,
      ...['--yolo', '--output-format', 'stream-json'],
    ]),
    stdin: promptOf(instruction),
  };
}

/** Returns the content of Gemini CLI's settings file `~/.gemini/settings.json`. */
function settingsFile({ agent, contextWindow, settings }: CheckedContext<Settings>): object {
  const { contextTokens, replyTokens } = tokenLimits(contextWindow, settings.max_tokens);
  const { mcp_servers: servers, model_name: name, system_prompt: prompt } = agent;
  return {
    general: {
      enableAutoUpdate: false,
      enableAutoUpdateNotification: false,
      sessionRetention: { enabled: false },
      maxAttempts: MAX_ATTEMPTS,
    },
    privacy: { usageStatisticsEnabled: false },
    telemetry: { enabled: false },
    security: { auth: { selectedType: 'gemini-api-key' } },
    model: {
      compressionThreshold: compactionTokens(contextTokens, replyTokens) / ASSUMED_WINDOW_TOKENS,
      // Loop detection and the next-speaker check are off, because they make additional model calls that may end the agent's run.
      disableLoopDetection: true,
      skipNextSpeakerCheck: true,
    },
    modelConfigs: {
      customOverrides: [
        ...MODEL_CONFIGS.map((model) => ({ match: { model }, modelConfig: { model: escapeDollars(name) } })),
        {
          match: { model: escapeDollars(name) },
          modelConfig: { generateContentConfig: { maxOutputTokens: replyTokens } },
        },
      ],
    },
    tools: {
      sandbox: false,
      disableLLMCorrection: true,
      exclude: HOSTED_TOOLS,
      truncateToolOutputThreshold: Math.min(TOOL_OUTPUT_CHARS, replyTokens * CHARS_PER_TOKEN),
    },
    // In its default import format `tree`, Gemini CLI replaces a text after an @ in GEMINI.md by the file of that name, or by an error. The
    // format `flat` keeps the text.
    ...(prompt?.includes('@') ? { context: { importFormat: 'flat' } } : {}),
    mcpServers: Object.fromEntries(servers.map((server) => [server.name, escapedServer(agent, server)])),
  };
}

/**
 * Returns the number of prompt tokens at which Gemini CLI compacts its history. The number is at least half of the context window, which is
 * Gemini CLI's default. It is higher when the reply limit is small.
 */
function compactionTokens(contextTokens: number, replyTokens: number): number {
  // Three times the reply limit is kept free: for the reply, for the tool output that follows it, and for the next reply.
  return Math.max(Math.floor(contextTokens / 2), contextTokens - 3 * replyTokens);
}

/**
 * Converts an MCP server to Gemini CLI's form and escapes dollar signs. The server's environment and headers are escaped twice, because
 * Gemini CLI replaces variables in them a second time when it starts the server.
 */
function escapedServer(agent: AgentSpec, server: McpServer): object {
  const config = geminiMcpServer(agent, server);
  return server.transport === 'stdio'
    ? { ...escapeDollars(config), env: escapeDollarsTwice(server.env) }
    : { ...escapeDollars(config), headers: escapeDollarsTwice(server.headers) };
}

/** Converts an MCP server to the form that both Gemini CLI and its fork Qwen Code read. */
export function geminiMcpServer(agent: AgentSpec, server: McpServer): object {
  const more = { trust: true, timeout: toolCallMs(agent, server) };
  if (server.transport === 'stdio') {
    return { command: server.command, args: server.args, env: server.env, ...more };
  }
  const { headers, url } = server;
  return { [server.transport === 'http' ? 'httpUrl' : 'url']: url, headers, ...more };
}

/**
 * Decides from the result line and the exit code whether the agent completed its run. The exit code is not enough: Gemini CLI exits with 0
 * after replies that it cannot use.
 */
function judge(report: HarnessReport): HarnessVerdict {
  const result = lastJsonLine(report.stdout, RESULT_MARKER, resultSchema);
  if (result?.error !== undefined) return { ok: false, message: result.error.message };
  const failed = exitFailure('gemini', report);
  if (failed !== null) return failed;
  if (result === null) return { ok: false, message: 'gemini ended without a result' };
  if (report.stderr.includes(SERVERS_MARKER))
    return { ok: false, message: 'MCP servers did not start, or have no tools' };
  if (result.status === 'success') return { ok: true };
  const message = lastJsonLine(report.stdout, ERROR_MARKER, errorSchema)?.message ?? `the result is ${result.status}`;
  return POLICY_ENDINGS.some((ending) => message.startsWith(ending)) ? { ok: true } : { ok: false, message };
}

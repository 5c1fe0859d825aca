import { z } from 'zod';
import type { SandboxFile } from '../core/sandbox.ts';
import type { AgentSpec, McpServer } from '../schema/index.ts';
import { DOLLAR_ENV, escapeDollars, escapeDollarsTwice } from './config-text.ts';
import { type CheckedContext, defineHarness, refuseAgent } from './define.ts';
import { compileCacheDir, type HarnessReport, type HarnessVerdict, type Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { promptOf, skillFiles, tokenLimits, withLogLink } from './launch.ts';
import { exitFailure, lastJsonLine } from './report.ts';

/**
 * Text that occurs only in the line with the result, the last line of the output. It cannot occur inside a JSON string, where quotes are
 * escaped.
 */
const RESULT_MARKER = '{"type":"result"';
/** Text that occurs only in lines that report an error. The last of these lines states the cause when the result line does not. */
const ERROR_MARKER = '{"type":"error"';

/** Text that Gemini CLI writes to stderr when MCP servers did not start. It does not name the servers. */
const SERVERS_MARKER = 'MCP issues detected.';

/** Matches the names that a header may contain. Gemini CLI sends the model's name in a header. */
const HEADER_TEXT = /^[\x20-\x7e\x80-\xff]*$/;

/** Model names that Gemini CLI resolves to a model of Google's, whatever its settings contain. */
const RESERVED_NAMES = ['auto', 'auto-gemini-2.5', 'auto-gemini-3', 'flash', 'flash-lite', 'none', 'pro'];

/**
 * Errors that the policy caused with a truncated or an empty reply. A run that ends with one counts as ended by the agent and is graded.
 */
const POLICY_ENDINGS = [
  'Model response was truncated because it exceeded the token limit.',
  'The model returned reasoning thoughts but no final response text.',
  'The model returned an empty response with no text or thoughts.',
];

/**
 * Context window in tokens that Gemini CLI assumes for every model that it does not know. Its compaction threshold is a fraction of this
 * window.
 */
const ASSUMED_WINDOW_TOKENS = 1_048_576;

/** Maximum number of characters of a tool's output that the model gets, which is Gemini CLI's default. */
const TOOL_OUTPUT_CHARS = 40_000;
/** Characters per token of dense text such as code and logs. With it a tool's output is limited to about the length of a reply. */
const CHARS_PER_TOKEN = 3;

/**
 * Names of those model configurations of Gemini CLI that do not inherit from `base`, and `base` itself. All others inherit from `base`.
 */
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

/** Attempts of one model call, 5 to 10 s apart, in addition to the proxy's retries. Gemini CLI's default of ten takes minutes. */
const MAX_ATTEMPTS = 3;

/** Names of the tools that run on Google's servers. They are disabled. */
const HOSTED_TOOLS = ['google_web_search', 'web_fetch'];

const settingsSchema = z.strictObject({
  /** Maximum number of tokens of a reply, sent with each request of an agent. When left out, it is a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
});
type Settings = z.output<typeof settingsSchema>;

const resultSchema = z.looseObject({
  type: z.literal('result'),
  status: z.string(),
  error: z.looseObject({ type: z.string(), message: z.string() }).optional(),
});
const errorSchema = z.looseObject({ type: z.literal('error'), message: z.string() });

/** Adapter for Gemini CLI in headless mode, checked against 0.61.0. Its sub-agents and auxiliary model calls use the policy, too. */
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
    // The file contains user settings, which settings of the work tree override. System settings would not be overridden, but Gemini CLI
    // reads them only if root owns the file.
    { path: `${geminiDir}/settings.json`, content: JSON.stringify(settingsFile(context)), mode: 0o600 },
    ...skillFiles(`${geminiDir}/skills`, context.skills),
  ];
  // Gemini CLI appends this file to its system prompt, before the GEMINI.md files of the work tree.
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
      // By default Gemini CLI restarts itself to get a larger heap.
      GEMINI_CLI_NO_RELAUNCH: 'true',
      NODE_COMPILE_CACHE: compileCacheDir(installDir),
    },
    command: withLogLink(`${paths.logs}/gemini_cli`, `${geminiDir}/tmp`, [
      ...commandOf(HARNESS_INSTALLS.gemini_cli, installDir),
      // The option and the name form one argument, because the name may start like an option.
      `--model=${agent.model_name}`,
      ...['--yolo', '--output-format', 'stream-json'],
    ]),
    stdin: promptOf(instruction),
  };
}

/** Content of `~/.gemini/settings.json`. */
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
      // Both checks are disabled, because they take additional model calls whose answers may end the agent.
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
    // In the default import format `tree`, Gemini CLI replaces any text after an @ in GEMINI.md by the file of that name, or by an
    // error.
    ...(prompt?.includes('@') ? { context: { importFormat: 'flat' } } : {}),
    mcpServers: Object.fromEntries(servers.map((server) => [server.name, escapedServer(server)])),
  };
}

/**
 * Returns the number of prompt tokens at which Gemini CLI compacts: half of the window, which is its default, or more when replies are
 * short.
 */
function compactionTokens(contextTokens: number, replyTokens: number): number {
  // Three times the reply limit is kept free: for the reply, for the tool output that follows it, and for the next reply.
  return Math.max(Math.floor(contextTokens / 2), contextTokens - 3 * replyTokens);
}

/**
 * Converts an MCP server, escaping dollar signs. The environment and the headers are escaped twice, because Gemini CLI replaces
 * variables in them a second time when it starts the server.
 */
function escapedServer(server: McpServer): object {
  const config = geminiMcpServer(server);
  return server.transport === 'stdio'
    ? { ...escapeDollars(config), env: escapeDollarsTwice(server.env) }
    : { ...escapeDollars(config), headers: escapeDollarsTwice(server.headers) };
}

/** Converts an MCP server to the form that Gemini CLI and its fork Qwen Code use. */
export function geminiMcpServer(server: McpServer): object {
  const trust = true;
  if (server.transport === 'stdio') {
    return { command: server.command, args: server.args, env: server.env, trust };
  }
  const { headers, url } = server;
  return { [server.transport === 'http' ? 'httpUrl' : 'url']: url, headers, trust };
}

/**
 * Decides whether the agent ended by itself. Gemini CLI exits with 0 after replies that it cannot use, so its result line is read as
 * well.
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

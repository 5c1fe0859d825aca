import type { DialectName, McpServer } from '@floe-rl/core/schema';
import type { SandboxFile } from '@floe-rl/sandbox';
import { z } from 'zod';
import { type CheckedContext, defineHarness, toolCallMs } from './define.ts';
import type { HarnessReport, HarnessVerdict, Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { skillFiles, tokenLimits, withLogLink } from './launch.ts';
import { exitFailure, lastJsonLine } from './report.ts';

/** Name under which opencode's configuration lists floe's proxy as a model provider. */
const PROVIDER = 'floe';

/**
 * The npm package that opencode calls a model with, for each dialect. opencode ships these packages. Each package appends its API's path to a
 * base URL that ends in `/v1`.
 */
const PACKAGES: Readonly<Partial<Record<DialectName, string>>> = {
  openai_chat: '@ai-sdk/openai-compatible',
  openai_responses: '@ai-sdk/openai',
  anthropic: '@ai-sdk/anthropic',
};

/**
 * Text that identifies the lines that report the end of a model call. Other lines cannot contain it inside a JSON string, because quotes are
 * escaped there.
 */
const STEP_MARKER = '{"type":"step_finish"';
/** Text that identifies the lines that report an error. */
const ERROR_MARKER = '{"type":"error"';

/** Matches the warning that opencode writes to stderr about an MCP server that did not start. */
const MISSING_SERVER = /message="server unavailable" key=([A-Za-z0-9_-]+) type=\w+ status=failed/g;

const settingsSchema = z.strictObject({
  /** Maximum number of tokens of a reply, sent with each model request. Default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
  /** Whether the policy accepts images. */
  vision: z.boolean().default(false),
});
type Settings = z.output<typeof settingsSchema>;

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

/** Adapter for opencode's `run` command, checked against version 1.18.33. Its sub-agents and its compaction also call the policy. */
export const opencodeHarness = defineHarness<Settings>({
  name: 'opencode',
  dialects: ['openai_chat', 'anthropic', 'openai_responses'],
  features: ['mcp_servers', 'skills', 'system_prompt'],
  install: HARNESS_INSTALLS.opencode,
  settings: settingsSchema,
  launch,
  judge,
});

function launch(context: CheckedContext<Settings>): Launch {
  const { agent, contextWindow, instruction, installDir, paths, settings } = context;
  const configDir = `${paths.home}/.config/opencode`;
  const dataDir = `${paths.home}/.local/share/opencode`;
  const logDir = `${paths.logs}/opencode`;
  const configFile = `${dataDir}/floe.json`;
  const promptFile = agent.system_prompt === undefined ? null : `${dataDir}/floe-prompt.md`;
  const files: SandboxFile[] = [
    { path: configFile, content: configJson(configOf(context, promptFile)), mode: 0o600 },
    ...skillFiles(`${configDir}/skills`, context.skills),
  ];
  if (promptFile !== null) files.push({ path: promptFile, content: agent.system_prompt ?? '' });
  return {
    files,
    env: {
      ...OFFLINE_ENV,
      OPENCODE_CONFIG: configFile,
      OPENCODE_CONFIG_CONTENT: configJson(overridesOf(agent.model_name)),
      OPENCODE_DB: `${logDir}/opencode.db`,
      // Without this variable, opencode requests at most 32,000 tokens of a reply, even if the model is configured with a higher limit.
      OPENCODE_EXPERIMENTAL_OUTPUT_TOKEN_MAX: String(tokenLimits(contextWindow, settings.max_tokens).replyTokens),
    },
    command: withLogLink(logDir, `${dataDir}/log`, [
      ...commandOf(HARNESS_INSTALLS.opencode, installDir),
      ...['run', '--format', 'json', '--print-logs', '--log-level', 'WARN', '--model', modelId(agent.model_name)],
    ]),
    stdin: instruction,
  };
}

/** Environment variables that turn off all downloads of opencode, because the sandbox has no network. */
const OFFLINE_ENV = {
  OPENCODE_DISABLE_AUTOUPDATE: '1',
  OPENCODE_DISABLE_MODELS_FETCH: '1',
  OPENCODE_DISABLE_LSP_DOWNLOAD: '1',
  OPENCODE_DISABLE_DEFAULT_PLUGINS: '1',
};

/** Returns the id that opencode uses for a model of the provider in {@link PROVIDER}. */
function modelId(name: string): string {
  return `${PROVIDER}/${name}`;
}

/**
 * Returns the content of opencode's configuration file. `promptFile` is the path of the file with the task's addition to the system prompt;
 * `null` when the task has no addition.
 */
function configOf(context: CheckedContext<Settings>, promptFile: string | null): unknown {
  const { agent, apiKey, baseUrl, contextWindow, dialect, settings } = context;
  const { contextTokens, replyTokens } = tokenLimits(contextWindow, settings.max_tokens);
  const model = {
    name: agent.model_name,
    limit: { context: contextTokens, output: replyTokens },
    tool_call: true,
    reasoning: true,
    attachment: settings.vision,
    modalities: { input: settings.vision ? ['text', 'image'] : ['text'], output: ['text'] },
  };
  return {
    // The field `$schema` is included, because opencode rewrites a configuration file that lacks it.
    $schema: 'https://opencode.ai/config.json',
    provider: {
      [PROVIDER]: {
        npm: PACKAGES[dialect],
        name: PROVIDER,
        // All timeouts are off, because the session's time budget ends a run and a retry after a timeout would sample another reply.
        options: { baseURL: `${baseUrl}/v1`, apiKey, timeout: false, headerTimeout: false, chunkTimeout: false },
        models: { [agent.model_name]: model },
      },
    },
    mcp: Object.fromEntries(
      agent.mcp_servers.map((server) => [server.name, mcpServerConfig(server, toolCallMs(agent, server))]),
    ),
    instructions: promptFile === null ? [] : [promptFile],
  };
}

/**
 * Returns the settings that a configuration file in the task's repository must not change. opencode gives these settings precedence over
 * all other configuration.
 */
function overridesOf(modelName: string): unknown {
  const model = modelId(modelName);
  return {
    model,
    small_model: model,
    enabled_providers: [PROVIDER],
    autoupdate: false,
    share: 'disabled',
    permission: 'allow',
    // Snapshots are off: opencode would commit the whole repository at every step for an undo command, which an unattended run does not
    // use.
    snapshot: false,
    // Titles are off, because opencode would make a model call to name the session, which is not part of the agent's work.
    agent: { title: { disable: true } },
  };
}

function mcpServerConfig(server: McpServer, timeout: number | undefined): unknown {
  const more = { enabled: true, timeout };
  if (server.transport === 'stdio') {
    return { type: 'local', command: [server.command, ...server.args], environment: server.env, ...more };
  }
  return { type: 'remote', url: server.url, headers: server.headers, oauth: false, ...more };
}

/**
 * Encodes JSON so that it does not contain the placeholders `{env:…}` and `{file:…}`, which opencode replaces anywhere in a configuration
 * file.
 */
function configJson(value: unknown): string {
  return JSON.stringify(value).replaceAll(/\{(?=env:|file:)/g, '\\u007b');
}

/**
 * Decides whether the agent completed its run: it did when the last end of a model call is later than the last error. The exit code is not
 * enough: opencode exits with 1 after any error, even when it recovered, for example from a context overflow through compaction.
 */
function judge(report: HarnessReport): HarnessVerdict {
  const step = lastJsonLine(report.stdout, STEP_MARKER, stepSchema);
  const error = lastJsonLine(report.stdout, ERROR_MARKER, errorSchema);
  if (error !== null && (step === null || error.timestamp >= step.timestamp)) {
    return { ok: false, message: error.error.data?.message ?? error.error.name };
  }
  const failed = exitFailure('opencode', report);
  if (failed !== null && (error === null || report.exitCode !== 1)) return failed;
  if (step === null) return { ok: false, message: 'opencode ended without a model call' };
  // When the last model call requested tools, the run is incomplete, because the tools' results were never sent back to the model.
  if (step.part.reason === 'tool-calls') return { ok: false, message: 'opencode ended before its turn was complete' };
  return missingServers(report.stderr) ?? { ok: true };
}

/**
 * Returns a failure that names the MCP servers that did not start; `null` when all started. opencode continues without such a server, but
 * the run lacks tools that the task requires, so it counts as failed.
 */
function missingServers(stderr: string): HarnessVerdict | null {
  const names = [...stderr.matchAll(MISSING_SERVER)].map((match) => match[1]);
  return names.length === 0 ? null : { ok: false, message: `MCP servers did not start: ${names.join(', ')}` };
}

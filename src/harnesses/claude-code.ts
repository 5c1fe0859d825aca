import { z } from 'zod';
import type { SandboxFile } from '../core/sandbox.ts';
import type { AgentSpec, McpServer } from '../schema/index.ts';
import { LITERAL_ENV, literal } from './config-text.ts';
import { type CheckedContext, defineHarness, refuseAgent } from './define.ts';
import type { HarnessReport, HarnessVerdict, Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { lastLine } from './json-lines.ts';
import { windowOf } from './launch.ts';
import { withLogsIn } from './log-link.ts';
import { failedExit } from './report.ts';
import { skillFiles } from './skill-files.ts';

/** In the line that ends the output, and not in the text of others: quotes inside of JSON strings are escaped. */
const RESULT_MARK = '"type":"result"';

/** Enough of the last answer, which is the error message after a failure, to see what went wrong. */
const MESSAGE_CHARS = 500;

/** Longer than any session: whoever waits for the policy decides when to give up, and each retry would be a new sample. */
const API_TIMEOUT_MS = 24 * 60 * 60 * 1000;

/** Of one request, as for an engine or a proxy that is away for some seconds; its own ten take minutes. */
const REQUEST_RETRIES = 4;

/** A tool's name; commas, spaces and a leading dash mean something else on the command line. */
const toolName = z.string().regex(/^[A-Za-z0-9_*][A-Za-z0-9_*-]*$/, 'must be the name of a tool');

const settingsSchema = z.strictObject({
  /** The small form: three tools and a prompt of a few lines. */
  simple: z.boolean().default(false),
  /** Bound that is sent with each request; default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
  /** The built-in tools that there are; default: those of the program. */
  tools: z.array(toolName).optional(),
  /** Tools that there are not, those of MCP servers included. */
  disallowed_tools: z.array(toolName).default([]),
});
type Settings = z.output<typeof settingsSchema>;

/** The last line of the output. */
const resultSchema = z.looseObject({
  type: z.literal('result'),
  subtype: z.string(),
  is_error: z.boolean(),
  result: z.string().optional(),
  terminal_reason: z.string().optional(),
  errors: z.array(z.string()).optional(),
});

/** In the line that begins the work on each prompt. */
const INIT_MARK = '"subtype":"init"';
const initSchema = z.looseObject({
  type: z.literal('system'),
  mcp_servers: z.array(z.looseObject({ name: z.string(), status: z.string() })),
});

/** Claude Code in print mode. Sub-agents and compaction are its own; each of its models is the policy. */
export const claudeCodeHarness = defineHarness<Settings>({
  name: 'claude_code',
  dialects: ['anthropic'],
  features: ['mcp_servers', 'skills', 'system_prompt'],
  install: HARNESS_INSTALLS.claude_code,
  settings: settingsSchema,
  check(agent: AgentSpec, settings: Settings) {
    if (!settings.simple) return;
    const message = 'the simple form of claude_code has no tool that reads skills';
    if (agent.skills.length > 0) refuseAgent('agent.skills', message);
    if (agent.skills_path !== undefined) refuseAgent('agent.skills_path', message);
  },
  launch,
  judge,
});

function launch(context: CheckedContext<Settings>): Launch {
  const { agent, instruction, installDir, paths, settings } = context;
  const configDir = `${paths.home}/.claude`;
  const mcpFile = `${paths.home}/.floe/claude-code-mcp.json`;
  const promptFile = `${paths.home}/.floe/claude-code-prompt.md`;
  const files: SandboxFile[] = [
    { path: mcpFile, content: JSON.stringify(literal(mcpConfig(agent.mcp_servers))), mode: 0o600 },
    { path: `${configDir}/settings.json`, content: JSON.stringify(SETTINGS_FILE) },
    ...skillFiles(`${configDir}/skills`, context.skills),
  ];
  // The values of these options are lists, so each must be followed by another option.
  const options = ['--mcp-config', mcpFile, '--strict-mcp-config'];
  if (settings.tools !== undefined) options.push('--tools', settings.tools.join(','));
  if (settings.disallowed_tools.length > 0) options.push('--disallowed-tools', settings.disallowed_tools.join(','));
  if (agent.system_prompt !== undefined) {
    files.push({ path: promptFile, content: agent.system_prompt });
    options.push('--append-system-prompt-file', promptFile);
  }
  return {
    files,
    env: {
      ...QUIET,
      ...LITERAL_ENV,
      ...modelEnv(context),
      CLAUDE_CONFIG_DIR: configDir,
      ...(settings.simple ? SIMPLE : {}),
    },
    command: withLogsIn(`${paths.logs}/claude_code`, `${configDir}/projects`, [
      ...commandOf(HARNESS_INSTALLS.claude_code, installDir),
      ...options,
      ...['--dangerously-skip-permissions', '--output-format', 'stream-json', '--verbose', '--print'],
    ]),
    // At the very start, a slash makes it a command of the program's own, which never reaches the model.
    stdin: instruction.startsWith('/') ? `\n${instruction}` : instruction,
  };
}

/** The policy is asked to sign commits with the name of another model otherwise. */
const SETTINGS_FILE = { attribution: { commit: '', pr: '' } };

const SIMPLE = { CLAUDE_CODE_SIMPLE: '1' };

/** No calls but those for the task, to nobody but the policy, and the same prompt for every session of a group. */
const QUIET = {
  // It refuses to skip permissions as root otherwise, and floe's sandbox is one.
  IS_SANDBOX: '1',
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
  DISABLE_TELEMETRY: '1',
  DISABLE_AUTOUPDATER: '1',
  DISABLE_ERROR_REPORTING: '1',
  // A text in the system prompt that changes with the first message.
  CLAUDE_CODE_ATTRIBUTION_HEADER: '0',
  // Among them are tools whose definitions the server would have to find.
  CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS: '1',
  // Nothing outlives the session that could be remembered, and writing it takes calls of the model.
  CLAUDE_CODE_DISABLE_AUTO_MEMORY: '1',
  // A second call for the same turn is a second sample.
  CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK: '1',
  CLAUDE_CODE_NO_MODEL_FALLBACK: '1',
  API_TIMEOUT_MS: String(API_TIMEOUT_MS),
  CLAUDE_CODE_MAX_RETRIES: String(REQUEST_RETRIES),
  // Otherwise the list of skills gets a hundredth of the window, and a task's own lose their descriptions first.
  SLASH_COMMAND_TOOL_CHAR_BUDGET: '100000',
};

function modelEnv({ agent, apiKey, baseUrl, contextWindow, settings }: CheckedContext<Settings>) {
  const { contextTokens, replyTokens } = windowOf(contextWindow, settings.max_tokens);
  const name = agent.model_name;
  return {
    ANTHROPIC_BASE_URL: baseUrl,
    ANTHROPIC_API_KEY: apiKey,
    // Every name that it has for a model is the policy's: the proxy refuses others.
    ANTHROPIC_MODEL: name,
    ANTHROPIC_SMALL_FAST_MODEL: name,
    ANTHROPIC_DEFAULT_FABLE_MODEL: name,
    ANTHROPIC_DEFAULT_OPUS_MODEL: name,
    ANTHROPIC_DEFAULT_SONNET_MODEL: name,
    ANTHROPIC_DEFAULT_HAIKU_MODEL: name,
    CLAUDE_CODE_SUBAGENT_MODEL: name,
    CLAUDE_CODE_WORKFLOW_SUBAGENT_MODEL: name,
    // It takes an unknown model's window for a million tokens.
    CLAUDE_CODE_MAX_CONTEXT_TOKENS: String(contextTokens),
    CLAUDE_CODE_AUTO_COMPACT_WINDOW: String(contextTokens),
    CLAUDE_CODE_MAX_OUTPUT_TOKENS: String(replyTokens),
  };
}

function mcpConfig(servers: readonly McpServer[]): unknown {
  const entries = servers.map((server) => {
    const { name, transport, ...rest } = server;
    return [name, { type: transport, ...rest }] as const;
  });
  return { mcpServers: Object.fromEntries(entries) };
}

/** It exits with 0 where it could not do a thing and with 1 after API errors, so its own result decides. */
function judge(report: HarnessReport): HarnessVerdict {
  const result = lastLine(report.stdout, RESULT_MARK, resultSchema);
  if (result === null) {
    return failedExit('claude', report) ?? { ok: false, message: 'claude ended without a result' };
  }
  const { subtype, is_error: isError, terminal_reason: reason } = result;
  if (!isError && subtype === 'success') {
    return failedExit('claude', report) ?? missingServers(report.stdout) ?? { ok: true };
  }
  const said = result.errors?.join('; ') ?? result.result ?? '';
  const how = [subtype, reason].filter((part) => part !== undefined && part !== 'success').join(', ');
  return { ok: false, message: `the result is an error (${how}): ${said.slice(0, MESSAGE_CHARS)}` };
}

/** It works on without a tool server that does not start, so that the agent was not the one that the task asked for. */
function missingServers(stdout: string): HarnessVerdict | null {
  const servers = lastLine(stdout, INIT_MARK, initSchema)?.mcp_servers ?? [];
  const missing = servers.filter(({ status }) => status === 'failed');
  if (missing.length === 0) return null;
  return { ok: false, message: `MCP servers did not start: ${missing.map(({ name }) => name).join(', ')}` };
}

import type { AgentSpec, McpServer } from '@floe-rl/core/schema';
import type { SandboxFile } from '@floe-rl/sandbox';
import { z } from 'zod';
import { DOLLAR_ENV, escapeDollars } from './config-text.ts';
import { type CheckedContext, defineHarness, refuseAgent } from './define.ts';
import type { HarnessReport, HarnessVerdict, Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { MODEL_TIMEOUT_MS, promptOf, skillFiles, tokenLimits, withLogLink } from './launch.ts';
import { exitFailure, lastJsonLine } from './report.ts';

/**
 * Text that identifies the result line, the last line of Claude Code's JSON output. Other lines cannot contain it inside a JSON string,
 * because quotes are escaped there.
 */
const RESULT_MARKER = '"type":"result"';

/**
 * Maximum number of characters of Claude Code's last answer that a failure message quotes. After a failure, the last answer is the error
 * message.
 */
const MESSAGE_CHARS = 500;

/**
 * Number of times that Claude Code retries a failed request. Four retries suffice when an engine or the proxy is unreachable for a few
 * seconds. Claude Code's default of ten takes minutes.
 */
const REQUEST_RETRIES = 4;

/**
 * Schema of a tool's name. Commas, spaces and a leading dash are refused, because they have another meaning on Claude Code's command line.
 */
const toolName = z.string().regex(/^[A-Za-z0-9_*][A-Za-z0-9_*-]*$/, 'must be the name of a tool');

const settingsSchema = z.strictObject({
  /** Whether Claude Code starts in its simple mode, with three tools and a system prompt of a few lines. */
  simple: z.boolean().default(false),
  /** Maximum number of tokens of a reply, sent with each model request. Default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
  /** Names of the built-in tools that Claude Code offers to the model. By default, Claude Code decides which tools it offers. */
  tools: z.array(toolName).optional(),
  /** Names of the tools that Claude Code must not offer to the model, including tools of MCP servers. */
  disallowed_tools: z.array(toolName).default([]),
});
type Settings = z.output<typeof settingsSchema>;

/** Schema of the last line of Claude Code's output, which states the result of the run. */
const resultSchema = z.looseObject({
  type: z.literal('result'),
  subtype: z.string(),
  is_error: z.boolean(),
  result: z.string().optional(),
  terminal_reason: z.string().optional(),
  errors: z.array(z.string()).optional(),
});

/** Text that identifies the line that Claude Code prints when it starts to work on a prompt. */
const INIT_MARKER = '"subtype":"init"';
const initSchema = z.looseObject({
  type: z.literal('system'),
  mcp_servers: z.array(z.looseObject({ name: z.string(), status: z.string() })),
});

/**
 * Adapter for Claude Code in print mode, checked against version 2.1.329. Calls of its sub-agents and of its compaction also go to the
 * policy, whatever model name they contain.
 */
export const claudeCodeHarness = defineHarness<Settings>({
  name: 'claude_code',
  dialects: ['anthropic'],
  features: ['mcp_servers', 'skills', 'system_prompt'],
  install: HARNESS_INSTALLS.claude_code,
  settings: settingsSchema,
  check(agent: AgentSpec, settings: Settings) {
    if (!settings.simple) return;
    const message = 'claude_code with the setting simple has no tool that reads skills';
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
    { path: mcpFile, content: JSON.stringify(escapeDollars(mcpConfig(agent.mcp_servers))), mode: 0o600 },
    { path: `${configDir}/settings.json`, content: JSON.stringify(SETTINGS_FILE) },
    ...skillFiles(`${configDir}/skills`, context.skills),
  ];
  // The options `--mcp-config`, `--tools` and `--disallowed-tools` take a list of values, which ends only at the next option. They
  // therefore precede the options without a list.
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
      ...QUIET_ENV,
      ...DOLLAR_ENV,
      ...modelEnv(context),
      CLAUDE_CONFIG_DIR: configDir,
      ...(settings.simple ? SIMPLE_ENV : {}),
    },
    command: withLogLink(`${paths.logs}/claude_code`, `${configDir}/projects`, [
      ...commandOf(HARNESS_INSTALLS.claude_code, installDir),
      ...options,
      ...['--dangerously-skip-permissions', '--output-format', 'stream-json', '--verbose', '--print'],
    ]),
    stdin: promptOf(instruction),
  };
}

/** Content of Claude Code's `settings.json`. The empty texts keep Claude Code's prompt from asking the model to sign commits as Claude. */
const SETTINGS_FILE = { attribution: { commit: '', pr: '' } };

const SIMPLE_ENV = { CLAUDE_CODE_SIMPLE: '1' };

/**
 * Environment variables that suppress model calls which are not part of the task, and that make the prompt equal for all sessions of a
 * group.
 */
const QUIET_ENV = {
  // As root, Claude Code accepts --dangerously-skip-permissions only when this variable states that it runs in a sandbox.
  IS_SANDBOX: '1',
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
  DISABLE_TELEMETRY: '1',
  DISABLE_AUTOUPDATER: '1',
  DISABLE_ERROR_REPORTING: '1',
  // Without this variable, the system prompt contains a text that varies with the first message of the conversation.
  CLAUDE_CODE_ATTRIBUTION_HEADER: '0',
  // Disables the experimental betas, because they include tools that only the vendor's server defines.
  CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS: '1',
  // Disables memories, because they are lost with the session and writing them takes model calls.
  CLAUDE_CODE_DISABLE_AUTO_MEMORY: '1',
  // Disables the fallback that repeats a call without streaming when the stream failed, because the repeated call would sample a second
  // reply.
  CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK: '1',
  CLAUDE_CODE_NO_MODEL_FALLBACK: '1',
  API_TIMEOUT_MS: String(MODEL_TIMEOUT_MS),
  CLAUDE_CODE_MAX_RETRIES: String(REQUEST_RETRIES),
  // By default, Claude Code limits its list of skills to a hundredth of the context window, and leaves out descriptions of the task's
  // skills to stay below that. This larger limit keeps the descriptions.
  SLASH_COMMAND_TOOL_CHAR_BUDGET: '100000',
};

function modelEnv({ agent, apiKey, baseUrl, contextWindow, settings }: CheckedContext<Settings>) {
  const { contextTokens, replyTokens } = tokenLimits(contextWindow, settings.max_tokens);
  const name = agent.model_name;
  return {
    ANTHROPIC_BASE_URL: baseUrl,
    ANTHROPIC_API_KEY: apiKey,
    // All model names are set to the policy's name, because the proxy refuses any other model name.
    ANTHROPIC_MODEL: name,
    ANTHROPIC_SMALL_FAST_MODEL: name,
    ANTHROPIC_DEFAULT_FABLE_MODEL: name,
    ANTHROPIC_DEFAULT_OPUS_MODEL: name,
    ANTHROPIC_DEFAULT_SONNET_MODEL: name,
    ANTHROPIC_DEFAULT_HAIKU_MODEL: name,
    CLAUDE_CODE_SUBAGENT_MODEL: name,
    CLAUDE_CODE_WORKFLOW_SUBAGENT_MODEL: name,
    // The size of the context window is set explicitly, because Claude Code assumes a million tokens for an unknown model.
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

/**
 * Decides from the result line whether the agent completed its run. The exit code is not enough: Claude Code exits with 0 even when it
 * could do nothing, and with 1 after API errors.
 */
function judge(report: HarnessReport): HarnessVerdict {
  const result = lastJsonLine(report.stdout, RESULT_MARKER, resultSchema);
  if (result === null) {
    return exitFailure('claude', report) ?? { ok: false, message: 'claude ended without a result' };
  }
  const { subtype, is_error: isError, terminal_reason: reason } = result;
  if (!isError && subtype === 'success') {
    return exitFailure('claude', report) ?? missingServers(report.stdout) ?? { ok: true };
  }
  const text = result.errors?.join('; ') ?? result.result ?? '';
  const kind = [subtype, reason].filter((part) => part !== undefined && part !== 'success').join(', ');
  return { ok: false, message: `the result is an error (${kind}): ${text.slice(0, MESSAGE_CHARS)}` };
}

/**
 * Returns a failure that names the MCP servers that did not start; `null` when all started. Claude Code continues without such a server,
 * but the run lacks tools that the task requires, so it counts as failed.
 */
function missingServers(stdout: string): HarnessVerdict | null {
  const servers = lastJsonLine(stdout, INIT_MARKER, initSchema)?.mcp_servers ?? [];
  const missing = servers.filter(({ status }) => status === 'failed');
  if (missing.length === 0) return null;
  return { ok: false, message: `MCP servers did not start: ${missing.map(({ name }) => name).join(', ')}` };
}

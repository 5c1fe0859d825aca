import type { AgentSpec, McpServer } from '@floe-rl/core/schema';
import type { SandboxFile } from '@floe-rl/sandbox';
import { z } from 'zod';
import { type TomlTable, toToml } from './config-text.ts';
import { type CheckedContext, defineHarness, refuseAgent, toolCallMs } from './define.ts';
import type { HarnessReport, HarnessVerdict, Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { MODEL_TIMEOUT_MS, skillFiles, tokenLimits, withLogLink } from './launch.ts';
import { exitFailure, lastJsonLine } from './report.ts';

/** Name under which Codex's configuration file lists floe's proxy as a model provider. */
const PROVIDER = 'floe';

/** Name of the environment variable that passes the API key to Codex. The configuration file contains only this name and not the key. */
const KEY_VARIABLE = 'FLOE_API_KEY';

/**
 * Text that identifies the lines that report the state of a turn. Other lines cannot contain it inside a JSON string, because quotes are
 * escaped there.
 */
const TURN_MARKER = '{"type":"turn.';

/**
 * Number of times that Codex retries a failed request. Four retries suffice when an engine or the proxy is unreachable for a few seconds.
 */
const REQUEST_RETRIES = 4;
/**
 * Number of times that Codex repeats a model call after its stream broke off. The number is low, because every repeated call that is
 * answered samples another reply. Codex also retries each repeated call up to {@link REQUEST_RETRIES} times when the request itself fails.
 */
const STREAM_RETRIES = 2;

/**
 * Codex's message for a reply that reached its length limit. The policy caused this end, so the run counts as completed by the agent and is
 * graded.
 */
const TRUNCATED_REPLY = 'Incomplete response returned, reason: max_output_tokens';

const settingsSchema = z.strictObject({
  /**
   * Number of tokens of the context window that stay free for a reply: Codex compacts its history before the prompt uses them. Default: a
   * quarter of the context window.
   */
  max_tokens: z.int().min(1).optional(),
  /** Whether the main agent may start sub-agents. */
  sub_agents: z.boolean().default(true),
});
type Settings = z.output<typeof settingsSchema>;

const turnSchema = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('turn.started') }),
  z.looseObject({ type: z.literal('turn.completed') }),
  z.looseObject({ type: z.literal('turn.failed'), error: z.looseObject({ message: z.string() }) }),
]);

/** Adapter for Codex's `exec` command, checked against version 0.169.0. Codex calls its model through the Responses API. */
export const codexHarness = defineHarness<Settings>({
  name: 'codex',
  dialects: ['openai_responses'],
  features: ['mcp_servers', 'skills', 'system_prompt'],
  install: HARNESS_INSTALLS.codex,
  settings: settingsSchema,
  check(agent: AgentSpec) {
    for (const [index, { transport }] of agent.mcp_servers.entries()) {
      if (transport === 'sse')
        refuseAgent(`agent.mcp_servers.${index}.transport`, 'codex supports only stdio and http');
    }
  },
  launch,
  judge,
});

function launch(context: CheckedContext<Settings>): Launch {
  const { apiKey, instruction, installDir, paths, skills } = context;
  const codexHome = `${paths.home}/.codex`;
  const files: SandboxFile[] = [
    { path: `${codexHome}/config.toml`, content: toToml(configOf(context)), mode: 0o600 },
    ...skillFiles(`${codexHome}/skills`, skills),
  ];
  return {
    files,
    env: { CODEX_HOME: codexHome, [KEY_VARIABLE]: apiKey },
    command: withLogLink(`${paths.logs}/codex`, `${codexHome}/sessions`, [
      ...commandOf(HARNESS_INSTALLS.codex, installDir),
      ...['exec', '--json', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', '-'],
    ]),
    stdin: instruction,
  };
}

function configOf({ agent, baseUrl, contextWindow, settings }: CheckedContext<Settings>): TomlTable {
  const { contextTokens, replyTokens } = tokenLimits(contextWindow, settings.max_tokens);
  return {
    model: agent.model_name,
    model_provider: PROVIDER,
    model_context_window: contextTokens,
    model_auto_compact_token_limit: Math.max(1, contextTokens - replyTokens),
    approval_policy: 'never',
    sandbox_mode: 'danger-full-access',
    check_for_update_on_startup: false,
    developer_instructions: agent.system_prompt,
    web_search: 'disabled',
    analytics: { enabled: false },
    feedback: { enabled: false },
    features: {
      apps: false,
      plugins: false,
      remote_plugin: false,
      // This feature is off, because with it Codex retries without limit when the proxy has stopped.
      unbounded_connection_retries: false,
    },
    agents: settings.sub_agents ? undefined : { enabled: false },
    model_providers: {
      [PROVIDER]: {
        name: PROVIDER,
        base_url: `${baseUrl}/v1`,
        env_key: KEY_VARIABLE,
        wire_api: 'responses',
        request_max_retries: REQUEST_RETRIES,
        stream_max_retries: STREAM_RETRIES,
        stream_idle_timeout_ms: MODEL_TIMEOUT_MS,
      },
    },
    mcp_servers: Object.fromEntries(
      agent.mcp_servers.map((server) => [server.name, mcpServer(server, toolCallMs(agent, server))]),
    ),
  };
}

function mcpServer(server: McpServer, callMs: number | undefined): TomlTable {
  // An MCP server is marked as required, because Codex otherwise continues without a server that does not start.
  const required = true;
  const more = { required, tool_timeout_sec: callMs === undefined ? undefined : callMs / 1000 };
  return server.transport === 'stdio'
    ? { command: server.command, args: server.args, env: server.env, ...more }
    : { url: server.url, http_headers: server.headers, ...more };
}

/**
 * Decides from Codex's last line about a turn whether the agent completed its run. The exit code is not enough: Codex exits with 0 even
 * after a turn without an answer.
 */
function judge(report: HarnessReport): HarnessVerdict {
  const last = lastJsonLine(report.stdout, TURN_MARKER, turnSchema);
  if (last?.type === 'turn.failed') {
    if (last.error.message === TRUNCATED_REPLY) return { ok: true };
    return { ok: false, message: `the turn failed: ${last.error.message}` };
  }
  const failed = exitFailure('codex', report);
  if (failed !== null) return failed;
  return last?.type === 'turn.completed'
    ? { ok: true }
    : { ok: false, message: 'codex ended before its turn was complete' };
}

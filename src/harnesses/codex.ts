import { z } from 'zod';
import type { SandboxFile } from '../core/sandbox.ts';
import type { AgentSpec, McpServer } from '../schema/index.ts';
import { type CheckedContext, defineHarness, refuseAgent } from './define.ts';
import type { HarnessReport, HarnessVerdict, Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { lastLine } from './json-lines.ts';
import { windowOf } from './launch.ts';
import { withLogsIn } from './log-link.ts';
import { failedExit } from './report.ts';
import { skillFiles } from './skill-files.ts';
import { type TomlTable, toToml } from './toml.ts';

/** The name of floe's provider in codex's configuration. */
const PROVIDER = 'floe';

/** Holds the key, so that the configuration does not. */
const KEY_VARIABLE = 'FLOE_API_KEY';

/** In the lines that tell how a turn went; in other lines its quotes are escaped. */
const TURN_MARK = '{"type":"turn.';

/** Longer than any session: whoever waits for the policy decides when to give up, and each retry would be a new sample. */
const IDLE_TIMEOUT_MS = 24 * 60 * 60 * 1000;

/** Of one request, for an engine or a proxy that is away for some seconds. */
const REQUEST_RETRIES = 4;
/** Of a turn, each with the retries of its request: every one that gets an answer is another sample. */
const STREAM_RETRIES = 2;

/** How codex calls a reply that the engine cut. The policy used its room up: the agent has ended, and can be graded. */
const CUT_REPLY = 'Incomplete response returned, reason: max_output_tokens';

const settingsSchema = z.strictObject({
  /** Room kept free of the window when codex compacts; default: a quarter of the window. */
  max_tokens: z.int().min(1).optional(),
  /** Whether the main agent may start others. */
  sub_agents: z.boolean().default(true),
});
type Settings = z.output<typeof settingsSchema>;

const turnSchema = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('turn.started') }),
  z.looseObject({ type: z.literal('turn.completed') }),
  z.looseObject({ type: z.literal('turn.failed'), error: z.looseObject({ message: z.string() }) }),
]);

/** Codex's `exec`, over Responses. */
export const codexHarness = defineHarness<Settings>({
  name: 'codex',
  dialects: ['openai_responses'],
  features: ['mcp_servers', 'skills', 'system_prompt'],
  install: HARNESS_INSTALLS.codex,
  settings: settingsSchema,
  check(agent: AgentSpec) {
    for (const [index, { transport }] of agent.mcp_servers.entries()) {
      if (transport === 'sse') refuseAgent(`agent.mcp_servers.${index}.transport`, 'codex speaks stdio and http');
    }
  },
  launch,
  judge,
});

function launch(context: CheckedContext<Settings>): Launch {
  const { apiKey, instruction, installDir, paths, skills } = context;
  const codexHome = `${paths.home}/.codex`;
  const files: SandboxFile[] = [
    { path: `${codexHome}/config.toml`, content: toToml(config(context)), mode: 0o600 },
    ...skillFiles(`${codexHome}/skills`, skills),
  ];
  return {
    files,
    env: { CODEX_HOME: codexHome, [KEY_VARIABLE]: apiKey },
    command: withLogsIn(`${paths.logs}/codex`, `${codexHome}/sessions`, [
      ...commandOf(HARNESS_INSTALLS.codex, installDir),
      ...['exec', '--json', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', '-'],
    ]),
    stdin: instruction,
  };
}

function config({ agent, baseUrl, contextWindow, settings }: CheckedContext<Settings>): TomlTable {
  const { contextTokens, replyTokens } = windowOf(contextWindow, settings.max_tokens);
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
      // It would try for ever to reach a proxy that is gone.
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
        stream_idle_timeout_ms: IDLE_TIMEOUT_MS,
      },
    },
    mcp_servers: Object.fromEntries(agent.mcp_servers.map((server) => [server.name, mcpServer(server)])),
  };
}

function mcpServer(server: McpServer): TomlTable {
  // Codex works on without a server that does not start, unless it is told that it must not.
  const required = true;
  return server.transport === 'stdio'
    ? { command: server.command, args: server.args, env: server.env, required }
    : { url: server.url, http_headers: server.headers, required };
}

/** Codex exits with 0 after a turn without an answer; its last word on the turn decides. */
function judge(report: HarnessReport): HarnessVerdict {
  const last = lastLine(report.stdout, TURN_MARK, turnSchema);
  if (last?.type === 'turn.failed') {
    if (last.error.message === CUT_REPLY) return { ok: true };
    return { ok: false, message: `the turn failed: ${last.error.message}` };
  }
  const failed = failedExit('codex', report);
  if (failed !== null) return failed;
  return last?.type === 'turn.completed' ? { ok: true } : { ok: false, message: 'codex ended within its turn' };
}

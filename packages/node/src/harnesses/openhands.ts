import type { McpServer } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type CheckedContext, defineHarness, imageProgramSchema } from './define.ts';
import type { HarnessReport, HarnessVerdict, Launch } from './harness.ts';
import { exitFailure, lastJsonLine } from './report.ts';

/**
 * Text that marks the output lines in which OpenHands prints an event. Other lines cannot contain it inside a JSON string, because quotes
 * are escaped there.
 */
const EVENT_MARKER = '"kind": "';

/** Exit code of a shell or the sandbox for a program that does not exist. */
const NOT_FOUND_CODE = 127;

/** Error code of OpenHands for its limit of 500 iterations. A run that reaches this limit counts as completed by the agent. */
const ITERATION_LIMIT_CODE = 'MaxIterationsReached';

/** Maximum number of characters of an OpenHands error that a failure message quotes. */
const DETAIL_CHARS = 500;

const settingsSchema = z.strictObject({
  /** Absolute path of the program `openhands` in the task's image. By default the program is found through the image's `PATH`. */
  program: imageProgramSchema.optional(),
});
type Settings = z.output<typeof settingsSchema>;

/** Schema of the events that show how a conversation ended: by an action or message of the agent, or by an error. */
const eventSchema = z.discriminatedUnion('kind', [
  z.looseObject({ kind: z.literal('ConversationErrorEvent'), code: z.string(), detail: z.string() }),
  z.looseObject({ kind: z.literal('MessageEvent'), source: z.literal('agent') }),
  z.looseObject({ kind: z.literal('ActionEvent') }),
  z.looseObject({ kind: z.literal('ObservationEvent') }),
  z.looseObject({ kind: z.literal('AgentErrorEvent') }),
]);

/**
 * Adapter for the `openhands` command in headless mode, checked against OpenHands-CLI 1.16. The task's image must contain OpenHands,
 * because floe does not install it. OpenHands calls its model through LiteLLM.
 */
export const openhandsHarness = defineHarness<Settings>({
  name: 'openhands',
  dialects: ['openai_chat'],
  features: ['mcp_servers'],
  install: null,
  settings: settingsSchema,
  launch,
  judge,
});

function launch({ agent, apiKey, baseUrl, instruction, paths, settings }: CheckedContext<Settings>): Launch {
  const ownDir = `${paths.home}/.openhands`;
  const instructionFile = `${ownDir}/instruction.txt`;
  return {
    files: [
      { path: instructionFile, content: instruction },
      { path: `${ownDir}/mcp.json`, content: JSON.stringify(mcpConfig(agent.mcp_servers)), mode: 0o600 },
    ],
    env: {
      LLM_MODEL: `openai/${agent.model_name}`,
      LLM_API_KEY: apiKey,
      LLM_BASE_URL: `${baseUrl}/v1`,
      OPENHANDS_PERSISTENCE_DIR: ownDir,
      OPENHANDS_CONVERSATIONS_DIR: `${paths.logs}/openhands`,
      OPENHANDS_WORK_DIR: paths.workdir,
      OPENHANDS_SUPPRESS_BANNER: '1',
      // Keeps LiteLLM from downloading a list of model prices, which it does by default.
      LITELLM_LOCAL_MODEL_COST_MAP: 'True',
      // OpenHands prints its events in the encoding of its locale. The encoding is set to UTF-8, because floe reads UTF-8.
      PYTHONIOENCODING: 'utf-8',
    },
    command: [
      settings.program ?? 'openhands',
      ...['--headless', '--json', '--override-with-envs', '--file', instructionFile],
    ],
  };
}

function mcpConfig(servers: readonly McpServer[]): unknown {
  const entries = servers.map((server) => {
    const { name, ...rest } = server;
    return [name, rest] as const;
  });
  return { mcpServers: Object.fromEntries(entries) };
}

/**
 * Decides from the last event whether the agent completed its run. The exit code is not enough: OpenHands exits with 0 even after an error
 * that ended the conversation.
 */
function judge(report: HarnessReport): HarnessVerdict {
  if (report.exitCode === NOT_FOUND_CODE) {
    const message =
      'openhands is not in the sandbox: set runtime.image to an image that has it, and agent.settings.program to its path';
    return { ok: false, message };
  }
  const failed = exitFailure('openhands', report);
  if (failed !== null) return failed;
  const last = lastJsonLine(report.stdout, EVENT_MARKER, eventSchema);
  if (last === null) return { ok: false, message: 'openhands ended without an event of the agent' };
  if (last.kind !== 'ConversationErrorEvent' || last.code === ITERATION_LIMIT_CODE) return { ok: true };
  return { ok: false, message: `${last.code}: ${last.detail.slice(0, DETAIL_CHARS)}` };
}

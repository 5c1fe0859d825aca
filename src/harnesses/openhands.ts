import { z } from 'zod';
import type { McpServer } from '../schema/index.ts';
import { type CheckedContext, defineHarness } from './define.ts';
import type { HarnessReport, HarnessVerdict, Launch } from './harness.ts';
import { imageProgram } from './image-program.ts';
import { lastLine } from './json-lines.ts';
import { failedExit } from './report.ts';

/** In the lines of events; inside of a line's strings its quotes are escaped. */
const EVENT_MARK = '"kind": "';

/** What a shell and the sandbox say of a program that is not there. */
const NOT_FOUND = 127;

/** Of the program's own, 500: a way in which the agent ends. */
const ITERATION_LIMIT = 'MaxIterationsReached';

/** Enough of an error to see what went wrong. */
const DETAIL_CHARS = 500;

const settingsSchema = z.strictObject({
  /** Where the image has `openhands`; default: on its PATH. */
  program: imageProgram.optional(),
});
type Settings = z.output<typeof settingsSchema>;

/** The events that tell how a conversation went: what the agent did last, or why it could not go on. */
const eventSchema = z.discriminatedUnion('kind', [
  z.looseObject({ kind: z.literal('ConversationErrorEvent'), code: z.string(), detail: z.string() }),
  z.looseObject({ kind: z.literal('MessageEvent'), source: z.literal('agent') }),
  z.looseObject({ kind: z.literal('ActionEvent') }),
  z.looseObject({ kind: z.literal('ObservationEvent') }),
  z.looseObject({ kind: z.literal('AgentErrorEvent') }),
]);

/** The `openhands` command, headless, which the task's image brings. It calls its model through LiteLLM. */
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
      // Otherwise LiteLLM asks the network for what models cost.
      LITELLM_LOCAL_MODEL_COST_MAP: 'True',
      // The lines of its output are in no other encoding than this.
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

/** It exits with 0 after errors that ended the conversation, so its last word decides. */
function judge(report: HarnessReport): HarnessVerdict {
  if (report.exitCode === NOT_FOUND) {
    const message =
      'openhands is not in the sandbox: name an image that has it in runtime.image, and where in agent.settings.program';
    return { ok: false, message };
  }
  const failed = failedExit('openhands', report);
  if (failed !== null) return failed;
  const last = lastLine(report.stdout, EVENT_MARK, eventSchema);
  if (last === null) return { ok: false, message: 'openhands ended without a word of the agent' };
  if (last.kind !== 'ConversationErrorEvent' || last.code === ITERATION_LIMIT) return { ok: true };
  return { ok: false, message: `${last.code}: ${last.detail.slice(0, DETAIL_CHARS)}` };
}

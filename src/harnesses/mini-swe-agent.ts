import { z } from 'zod';
import type { DialectName } from '../schema/index.ts';
import { type CheckedContext, defineHarness } from './define.ts';
import type { HarnessReport, HarnessVerdict, Launch } from './harness.ts';
import { imageProgram } from './image-program.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { windowOf } from './launch.ts';
import { failedExit } from './report.ts';
import { toYaml } from './yaml.ts';

/** Written when the agent's loop has ended, however it did. */
const SAVED_MARK = 'Saved trajectory to';

/** Longer than any session: whoever waits for the policy decides when to give up, and each retry would be a new sample. */
const REQUEST_TIMEOUT_SECONDS = 24 * 60 * 60;

/** For an engine or a proxy that is away for some seconds: 20 s in all. By default it goes on for minutes. */
const MODEL_TRIES = '5';

/** What LiteLLM calls a dialect, and which of the program's models speaks it. */
const PROVIDERS: Readonly<
  Record<DialectName, { readonly prefix: string; readonly model: string; readonly bound: string }>
> = {
  openai_chat: { prefix: 'openai', model: 'litellm', bound: 'max_tokens' },
  anthropic: { prefix: 'anthropic', model: 'litellm', bound: 'max_tokens' },
  openai_responses: { prefix: 'openai', model: 'litellm_response', bound: 'max_output_tokens' },
  gemini: { prefix: 'gemini', model: 'litellm', bound: 'max_tokens' },
};

const settingsSchema = z.strictObject({
  /** Bound that is sent with each request; default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
  /** Calls of the model after which it ends; default: none. */
  step_limit: z.int().min(1).optional(),
  /** Replies in a row without a proper call that end it, 0 for none; default: the program's own 3. */
  format_error_limit: z.int().min(0).optional(),
  /** After which a command is killed; default: the program's own 30. */
  command_timeout_seconds: z.int().min(1).optional(),
  /** `mini` in the task's image, which is then run instead of the node's. */
  program: imageProgram.optional(),
});
type Settings = z.output<typeof settingsSchema>;

/** mini-SWE-agent's `mini`, with its own prompts: one tool, the shell. */
export const miniSweAgentHarness = defineHarness<Settings>({
  name: 'mini_swe_agent',
  dialects: ['openai_chat', 'anthropic', 'openai_responses', 'gemini'],
  features: [],
  install: HARNESS_INSTALLS.mini_swe_agent,
  settings: settingsSchema,
  inImage: (settings) => settings.program !== undefined,
  launch,
  judge,
});

function launch(context: CheckedContext<Settings>): Launch {
  const { apiKey, baseUrl, installDir, paths } = context;
  const ownDir = `${paths.home}/.floe/mini_swe_agent`;
  const configFile = `${ownDir}/floe.yaml`;
  const program = context.settings.program === undefined ? installedProgram(installDir) : [context.settings.program];
  return {
    files: [{ path: configFile, content: toYaml(config(context)), mode: 0o600 }],
    env: {
      ...QUIET,
      MSWEA_GLOBAL_CONFIG_DIR: ownDir,
      // In its configuration they would go into the trajectory that it writes.
      OPENAI_BASE_URL: `${baseUrl}/v1`,
      OPENAI_API_KEY: apiKey,
      ANTHROPIC_API_BASE: baseUrl,
      ANTHROPIC_API_KEY: apiKey,
      GEMINI_API_BASE: `${baseUrl}/v1beta`,
      GEMINI_API_KEY: apiKey,
    },
    command: [
      // It looks for a configuration that it is given by name in the directory where it starts, then among its own.
      ...['/bin/sh', '-c', 'cd "$1" && shift && exec "$@"', 'floe-mini', ownDir],
      ...program,
      ...['--config', 'mini.yaml', '--config', configFile],
      ...['--yolo', '--exit-immediately', '--output', `${paths.logs}/mini_swe_agent/trajectory.json`],
    ],
  };
}

/** The variables for Python that a task sets are for the task's own. */
function installedProgram(installDir: string): readonly string[] {
  const [python = '', ...script] = commandOf(HARNESS_INSTALLS.mini_swe_agent, installDir);
  return [python, '-E', '-u', ...script];
}

const QUIET = {
  MSWEA_CONFIGURED: 'true',
  MSWEA_SILENT_STARTUP: '1',
  MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT: MODEL_TRIES,
  // Otherwise it asks the network for what models cost.
  LITELLM_LOCAL_MODEL_COST_MAP: 'True',
  // Otherwise errors come in frames of 80 columns.
  TYPER_STANDARD_TRACEBACK: '1',
};

/** Laid over the program's own `mini.yaml`. */
function config({ agent, contextWindow, dialect, instruction, paths, settings }: CheckedContext<Settings>): unknown {
  const { prefix, model, bound } = PROVIDERS[dialect];
  const { replyTokens } = windowOf(contextWindow, settings.max_tokens);
  return {
    run: { task: instruction },
    agent: {
      step_limit: settings.step_limit,
      max_consecutive_format_errors: settings.format_error_limit,
      cost_limit: 0,
    },
    environment: { cwd: paths.workdir, timeout: settings.command_timeout_seconds },
    model: {
      model_class: model,
      model_name: `${prefix}/${agent.model_name}`,
      cost_tracking: 'ignore_errors',
      model_kwargs: { [bound]: replyTokens, timeout: REQUEST_TIMEOUT_SECONDS },
    },
  };
}

/**
 * It exits with 1 after an error that it does not go on from. Handing in, running into a limit of its own and too many
 * replies without a proper call are ways in which the agent ends.
 */
function judge(report: HarnessReport): HarnessVerdict {
  const failed = failedExit('mini', report);
  if (failed !== null) return failed;
  return report.stdout.includes(SAVED_MARK) ? { ok: true } : { ok: false, message: 'mini ended without a trajectory' };
}

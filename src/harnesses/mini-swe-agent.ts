import { z } from 'zod';
import type { DialectName } from '../schema/index.ts';
import { toYaml } from './config-text.ts';
import { type CheckedContext, defineHarness, imageProgramSchema } from './define.ts';
import type { HarnessReport, HarnessVerdict, Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { MODEL_TIMEOUT_MS, tokenLimits } from './launch.ts';
import { exitFailure } from './report.ts';

/** Text that mini prints when the agent's loop has ended, whatever the reason. */
const SAVED_MARKER = 'Saved trajectory to';

/** Attempts of one request. They take 20 s in total, enough for a few seconds without an engine or proxy; mini's default takes minutes. */
const REQUEST_ATTEMPTS = '5';

/** For each dialect: LiteLLM's prefix of model names, mini's model class, and the parameter that limits a reply. */
const PROVIDERS: Readonly<
  Record<DialectName, { readonly prefix: string; readonly model: string; readonly limit: string }>
> = {
  openai_chat: { prefix: 'openai', model: 'litellm', limit: 'max_tokens' },
  anthropic: { prefix: 'anthropic', model: 'litellm', limit: 'max_tokens' },
  openai_responses: { prefix: 'openai', model: 'litellm_response', limit: 'max_output_tokens' },
  gemini: { prefix: 'gemini', model: 'litellm', limit: 'max_tokens' },
};

const settingsSchema = z.strictObject({
  /** Maximum number of tokens of a reply, sent with each request. When left out, it is a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
  /** Number of model calls after which mini ends the run. When left out, there is no limit. */
  step_limit: z.int().min(1).optional(),
  /** Consecutive replies without a valid call after which mini ends the run; 0 sets no limit. When left out, mini's limit of 3 applies. */
  format_error_limit: z.int().min(0).optional(),
  /** Seconds after which a command is killed. When left out, mini's limit of 30 applies. */
  command_timeout_seconds: z.int().min(1).optional(),
  /** Path of `mini` in the task's image, which is then run instead of the installed one. */
  program: imageProgramSchema.optional(),
});
type Settings = z.output<typeof settingsSchema>;

/** Adapter for mini-SWE-agent's `mini`, checked against 2.4.6, with the prompts that it ships. Its only tool is a shell. */
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
  const configDir = `${paths.home}/.floe/mini_swe_agent`;
  const configFile = `${configDir}/floe.yaml`;
  const program = context.settings.program === undefined ? installedProgram(installDir) : [context.settings.program];
  return {
    files: [{ path: configFile, content: toYaml(configOf(context)), mode: 0o600 }],
    env: {
      ...QUIET_ENV,
      MSWEA_GLOBAL_CONFIG_DIR: configDir,
      // Keys are passed as environment variables, because mini copies its configuration into the trajectory file that it writes.
      OPENAI_BASE_URL: `${baseUrl}/v1`,
      OPENAI_API_KEY: apiKey,
      ANTHROPIC_API_BASE: baseUrl,
      ANTHROPIC_API_KEY: apiKey,
      GEMINI_API_BASE: `${baseUrl}/v1beta`,
      GEMINI_API_KEY: apiKey,
    },
    command: [
      // mini searches for `mini.yaml` in its working directory before its shipped files, so it is started in a directory without such a
      // file.
      ...['/bin/sh', '-c', 'cd "$1" && shift && exec "$@"', 'floe-mini', configDir],
      ...program,
      ...['--config', 'mini.yaml', '--config', configFile],
      ...['--yolo', '--exit-immediately', '--output', `${paths.logs}/mini_swe_agent/trajectory.json`],
    ],
  };
}

/**
 * Returns the command of the installed program. It is run with `-E`, because the `PYTHON*` variables that a task sets are for the task's
 * own programs.
 */
function installedProgram(installDir: string): readonly string[] {
  const [python = '', ...script] = commandOf(HARNESS_INSTALLS.mini_swe_agent, installDir);
  return [python, '-E', '-u', ...script];
}

const QUIET_ENV = {
  MSWEA_CONFIGURED: 'true',
  MSWEA_SILENT_STARTUP: '1',
  MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT: REQUEST_ATTEMPTS,
  // By default LiteLLM downloads a list of model prices.
  LITELLM_LOCAL_MODEL_COST_MAP: 'True',
  // By default Typer prints errors in a box that is 80 columns wide.
  TYPER_STANDARD_TRACEBACK: '1',
};

/** Makes the configuration that is merged over mini's `mini.yaml`. */
function configOf({ agent, contextWindow, dialect, instruction, paths, settings }: CheckedContext<Settings>): unknown {
  const { prefix, model, limit } = PROVIDERS[dialect];
  const { replyTokens } = tokenLimits(contextWindow, settings.max_tokens);
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
      model_kwargs: { [limit]: replyTokens, timeout: MODEL_TIMEOUT_MS / 1000 },
    },
  };
}

/**
 * Decides whether the agent ended by itself. mini exits with 1 after an error that ends the run. A submission, a reached limit and too
 * many replies without a valid call are regular ends of the agent.
 */
function judge(report: HarnessReport): HarnessVerdict {
  const failed = exitFailure('mini', report);
  if (failed !== null) return failed;
  return report.stdout.includes(SAVED_MARKER)
    ? { ok: true }
    : { ok: false, message: 'mini ended without a trajectory' };
}

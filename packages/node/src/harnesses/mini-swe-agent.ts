import type { DialectName } from '@floe-rl/core/schema';
import { z } from 'zod';
import { toYaml } from './config-text.ts';
import { type CheckedContext, defineHarness, imageProgramSchema } from './define.ts';
import type { HarnessReport, HarnessVerdict, Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { MODEL_TIMEOUT_MS, tokenLimits } from './launch.ts';
import { exitFailure } from './report.ts';

/** Text that mini-SWE-agent prints whenever the agent's loop has ended, whatever the reason. */
const SAVED_MARKER = 'Saved trajectory to';

/**
 * Maximum number of attempts of one model request. Five attempts take about 20 s, enough when an engine or the proxy is unreachable for a
 * few seconds. The default of mini-SWE-agent takes minutes.
 */
const REQUEST_ATTEMPTS = '5';

/** Settings for each dialect: LiteLLM's prefix of model names, mini-SWE-agent's model class, and the parameter that limits a reply. */
const PROVIDERS: Readonly<
  Record<DialectName, { readonly prefix: string; readonly model: string; readonly limit: string }>
> = {
  openai_chat: { prefix: 'openai', model: 'litellm', limit: 'max_tokens' },
  anthropic: { prefix: 'anthropic', model: 'litellm', limit: 'max_tokens' },
  openai_responses: { prefix: 'openai', model: 'litellm_response', limit: 'max_output_tokens' },
  gemini: { prefix: 'gemini', model: 'litellm', limit: 'max_tokens' },
};

const settingsSchema = z.strictObject({
  /** Maximum number of tokens of a reply, sent with each model request. Default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
  /** Number of model calls after which mini-SWE-agent ends the run. By default there is no limit. */
  step_limit: z.int().min(1).optional(),
  /**
   * Number of consecutive replies without a valid tool call after which mini-SWE-agent ends the run; 0 means no limit. By default
   * mini-SWE-agent's limit of 3 applies.
   */
  format_error_limit: z.int().min(0).optional(),
  /** Number of seconds after which a shell command of the agent is killed. By default mini-SWE-agent's limit of 30 applies. */
  command_timeout_seconds: z.int().min(1).optional(),
  /** Absolute path of the program `mini` in the task's image, which is then run instead of the installed one. */
  program: imageProgramSchema.optional(),
});
type Settings = z.output<typeof settingsSchema>;

/**
 * Adapter for the program `mini` of mini-SWE-agent, checked against version 2.4.6. It uses the prompts that mini-SWE-agent ships. The
 * agent's only tool is a shell.
 */
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
      // The API keys are passed as environment variables, because mini-SWE-agent copies its configuration into the trajectory file that it
      // writes.
      OPENAI_BASE_URL: `${baseUrl}/v1`,
      OPENAI_API_KEY: apiKey,
      ANTHROPIC_API_BASE: baseUrl,
      ANTHROPIC_API_KEY: apiKey,
      GEMINI_API_BASE: `${baseUrl}/v1beta`,
      GEMINI_API_KEY: apiKey,
    },
    command: [
      // mini-SWE-agent searches for `mini.yaml` in its working directory before its own files. It is therefore started in a directory
      // without a file of this name.
      ...['/bin/sh', '-c', 'cd "$1" && shift && exec "$@"', 'floe-mini', configDir],
      ...program,
      ...['--config', 'mini.yaml', '--config', configFile],
      ...['--yolo', '--exit-immediately', '--output', `${paths.logs}/mini_swe_agent/trajectory.json`],
    ],
  };
}

/**
 * Returns the command of the installed program. Python runs with `-E`, so that it ignores the `PYTHON*` variables of the task, which are
 * meant for the task's own programs.
 */
function installedProgram(installDir: string): readonly string[] {
  const [python = '', ...script] = commandOf(HARNESS_INSTALLS.mini_swe_agent, installDir);
  return [python, '-E', '-u', ...script];
}

const QUIET_ENV = {
  MSWEA_CONFIGURED: 'true',
  MSWEA_SILENT_STARTUP: '1',
  MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT: REQUEST_ATTEMPTS,
  // Keeps LiteLLM from downloading a list of model prices, which it does by default.
  LITELLM_LOCAL_MODEL_COST_MAP: 'True',
  // Makes Typer print errors as plain tracebacks instead of its default boxes of 80 columns.
  TYPER_STANDARD_TRACEBACK: '1',
};

/** Returns the configuration that is merged over the `mini.yaml` that mini-SWE-agent ships. */
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
 * Decides whether the agent completed its run. mini-SWE-agent exits with 1 after an error that ends the run. A submission, a reached limit
 * and too many replies without a valid tool call count as a completed run.
 */
function judge(report: HarnessReport): HarnessVerdict {
  const failed = exitFailure('mini', report);
  if (failed !== null) return failed;
  return report.stdout.includes(SAVED_MARKER)
    ? { ok: true }
    : { ok: false, message: 'mini ended without a trajectory' };
}

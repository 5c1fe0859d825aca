import type { DialectName } from '@floe-rl/core/schema';
import type { SandboxFile } from '@floe-rl/sandbox';
import { z } from 'zod';
import { type CheckedContext, defineHarness } from './define.ts';
import { compileCacheDir, type HarnessReport, type HarnessVerdict, type Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { skillFiles, tokenLimits } from './launch.ts';
import { exitFailure, lastJsonLine } from './report.ts';

/** Text that identifies the lines that report the end of a message of the model or of a tool. */
const MESSAGE_END_MARKER = '"message_end"';

/**
 * Start of the JSON field that contains a message's stop reason. The text cannot occur inside a JSON string, because quotes are escaped
 * there.
 */
const STOP_REASON_FIELD = '"stopReason":"';

/** Name under which pi's configuration lists floe's proxy as a model provider. */
const PROVIDER = 'floe';

const settingsSchema = z.strictObject({
  /** Thinking level that pi requests from the model. By default pi chooses the level. */
  thinking: z.enum(['off', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']).optional(),
  /** Maximum number of tokens of a reply, sent with each model request. Default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
  /** Whether the policy accepts images. */
  vision: z.boolean().default(false),
});
type Settings = z.output<typeof settingsSchema>;

/** Schema of the line in pi's JSON output that reports the end of a message. */
const messageEndSchema = z.looseObject({
  type: z.literal('message_end'),
  message: z.looseObject({
    role: z.literal('assistant'),
    stopReason: z.string(),
    errorMessage: z.string().optional(),
  }),
});

/** Settings for each dialect: pi's name of the API, and the path that must be part of the base URL. */
const APIS: Readonly<Record<DialectName, { readonly api: string; readonly path: string }>> = {
  openai_chat: { api: 'openai-completions', path: '/v1' },
  openai_responses: { api: 'openai-responses', path: '/v1' },
  anthropic: { api: 'anthropic-messages', path: '' },
  gemini: { api: 'google-generative-ai', path: '/v1beta' },
};

/**
 * Adapter for pi, the coding agent of the npm package `@earendil-works/pi-coding-agent`, checked against version 0.87.1. pi has four tools
 * and no sub-agents, and makes no auxiliary model calls.
 */
export const piHarness = defineHarness<Settings>({
  name: 'pi',
  dialects: ['openai_chat', 'anthropic', 'openai_responses', 'gemini'],
  features: ['skills', 'system_prompt'],
  install: HARNESS_INSTALLS.pi,
  settings: settingsSchema,
  launch,
  judge,
});

function launch(context: CheckedContext<Settings>): Launch {
  const { agent, instruction, installDir, paths, settings } = context;
  const agentDir = `${paths.home}/.pi/agent`;
  const model = ['--provider', PROVIDER, '--model', agent.model_name];
  const thinking = settings.thinking === undefined ? [] : ['--thinking', settings.thinking];
  const files: SandboxFile[] = [
    { path: `${agentDir}/models.json`, content: JSON.stringify(modelsFile(context), null, 2), mode: 0o600 },
    ...skillFiles(`${agentDir}/skills`, context.skills),
  ];
  const system: string[] = [];
  if (agent.system_prompt !== undefined) {
    const path = `${agentDir}/floe-prompt.md`;
    files.push({ path, content: agent.system_prompt });
    // pi reads the prompt from a file when the option's value is the path of a file. Otherwise it uses the value itself as the prompt.
    system.push('--append-system-prompt', path);
  }
  return {
    files,
    env: {
      PI_CODING_AGENT_DIR: agentDir,
      PI_OFFLINE: '1',
      PI_SKIP_VERSION_CHECK: '1',
      PI_TELEMETRY: '0',
      NODE_COMPILE_CACHE: compileCacheDir(installDir),
    },
    command: [
      ...commandOf(HARNESS_INSTALLS.pi, installDir),
      ...['-p', '--mode', 'json', '--session-dir', `${paths.logs}/pi`],
      ...model,
      ...thinking,
      ...system,
    ],
    stdin: instruction,
  };
}

function modelsFile({ agent, apiKey, baseUrl, contextWindow, dialect, settings }: CheckedContext<Settings>): unknown {
  const { contextTokens, replyTokens } = tokenLimits(contextWindow, settings.max_tokens);
  const { api, path } = APIS[dialect];
  const model = {
    id: agent.model_name,
    contextWindow: contextTokens,
    maxTokens: replyTokens,
    reasoning: true,
    input: settings.vision ? ['text', 'image'] : ['text'],
    cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
  };
  return { providers: { [PROVIDER]: { baseUrl: `${baseUrl}${path}`, api, apiKey, models: [model] } } };
}

/**
 * Decides from the stop reason of pi's last message whether the agent completed its run. The exit code is not enough: pi exits with 0 even
 * after an API error.
 */
function judge(report: HarnessReport): HarnessVerdict {
  const failed = exitFailure('pi', report);
  if (failed !== null) return failed;
  const last = lastJsonLine(report.stdout, MESSAGE_END_MARKER, messageEndSchema);
  if (last === null) return { ok: false, message: 'pi ended without a message of the model' };
  const { stopReason, errorMessage } = last.message.stopReason === 'toolUse' ? lastStop(report.stdout) : last.message;
  if (stopReason === 'toolUse') return { ok: false, message: 'pi ended before its turn was complete' };
  if (stopReason !== 'error' && stopReason !== 'aborted') return { ok: true };
  return { ok: false, message: errorMessage ?? `the last message stopped with ${stopReason}` };
}

/**
 * Returns the stop reason of the last message. pi's output ends with a line that contains all messages. When this line is long, only its end
 * is kept. The end cannot be parsed as JSON, but it contains the last stop reason.
 */
function lastStop(stdout: string): { readonly stopReason: string; readonly errorMessage?: undefined } {
  const from = stdout.lastIndexOf(STOP_REASON_FIELD) + STOP_REASON_FIELD.length;
  return { stopReason: stdout.slice(from, stdout.indexOf('"', from)) };
}

import { z } from 'zod';
import type { SandboxFile } from '../core/sandbox.ts';
import type { DialectName } from '../schema/index.ts';
import { type CheckedContext, defineHarness } from './define.ts';
import { compileCacheDir, type HarnessReport, type HarnessVerdict, type Launch } from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './install/catalog.ts';
import { lastLine } from './json-lines.ts';
import { windowOf } from './launch.ts';
import { failedExit } from './report.ts';
import { skillFiles } from './skill-files.ts';

/** In every line that ends a message, of the model or of a tool. */
const TURN_MARK = '"message_end"';

/** How a message's own word on its end begins; in what others wrote its quotes are escaped. */
const STOP_MARK = '"stopReason":"';

/** The name of floe's provider in pi's configuration. */
const PROVIDER = 'floe';

const settingsSchema = z.strictObject({
  /** pi's thinking level; without it pi takes its own default. */
  thinking: z.enum(['off', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']).optional(),
  /** Bound that pi sends with each request; default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
  /** Whether the policy takes images. */
  vision: z.boolean().default(false),
});
type Settings = z.output<typeof settingsSchema>;

/** The last word on a turn in pi's JSON lines. */
const turnSchema = z.looseObject({
  type: z.literal('message_end'),
  message: z.looseObject({
    role: z.literal('assistant'),
    stopReason: z.string(),
    errorMessage: z.string().optional(),
  }),
});

/** What pi calls a dialect, and what it adds to the base URL itself. */
const APIS: Readonly<Record<DialectName, { readonly api: string; readonly path: string }>> = {
  openai_chat: { api: 'openai-completions', path: '/v1' },
  openai_responses: { api: 'openai-responses', path: '/v1' },
  anthropic: { api: 'anthropic-messages', path: '' },
  gemini: { api: 'google-generative-ai', path: '/v1beta' },
};

/** pi, the coding agent of `@earendil-works/pi-coding-agent`: four tools, no sub-agents, no side calls. */
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
    // pi reads what is a path of a file, and takes everything else for the prompt itself.
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
  const { contextTokens, replyTokens } = windowOf(contextWindow, settings.max_tokens);
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

/** pi exits with 0 after an API error too, so what counts is how its last turn stopped. */
function judge(report: HarnessReport): HarnessVerdict {
  const failed = failedExit('pi', report);
  if (failed !== null) return failed;
  const last = lastLine(report.stdout, TURN_MARK, turnSchema);
  if (last === null) return { ok: false, message: 'pi ended without a turn of the model' };
  const { stopReason, errorMessage } = last.message.stopReason === 'toolUse' ? lastStop(report.stdout) : last.message;
  if (stopReason === 'toolUse') return { ok: false, message: 'pi ended within its turn' };
  if (stopReason !== 'error' && stopReason !== 'aborted') return { ok: true };
  return { ok: false, message: errorMessage ?? `the last turn stopped with ${stopReason}` };
}

/**
 * How the last of all messages stopped. The output ends in one line with all of them, which in a long session takes all
 * that is kept of the end: it lacks its beginning then, but not this.
 */
function lastStop(stdout: string): { readonly stopReason: string; readonly errorMessage?: undefined } {
  const from = stdout.lastIndexOf(STOP_MARK) + STOP_MARK.length;
  return { stopReason: stdout.slice(from, stdout.indexOf('"', from)) };
}

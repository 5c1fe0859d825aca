import { z } from 'zod';
import { FloeError } from '../core/errors.ts';
import { parseAs } from '../core/parse.ts';
import type { AgentSpec } from '../schema/index.ts';
import {
  compileCacheDir,
  type HarnessAdapter,
  type HarnessReport,
  type HarnessVerdict,
  type Launch,
  type LaunchContext,
} from './harness.ts';
import { commandOf, HARNESS_INSTALLS } from './installs.ts';

/** Assumed where the engine does not tell its window; pi compacts by it. */
const DEFAULT_CONTEXT_TOKENS = 131_072;
/** Of the window, what one reply may take unless the task says otherwise. */
const REPLY_SHARE = 1 / 4;
/** Engines refuse a bound of less than one token, and a tool call needs some room. */
const MIN_REPLY_TOKENS = 256;
const STDERR_CHARS = 500;

/** In every line that ends a message, of the model or of a tool. */
const TURN_MARK = '"message_end"';
/** Behind the model's last message come the results of one turn's tool calls; more lines than this are not pi's. */
const MAX_PARSED_LINES = 1_000;

/** The name of floe's provider in pi's configuration. */
const PROVIDER = 'floe';

const settingsSchema = z.strictObject({
  /** The wire format that pi speaks to the policy. */
  dialect: z.enum(['openai_chat', 'anthropic']).default('openai_chat'),
  /** pi's thinking level; without it pi takes its own default. */
  thinking: z.enum(['off', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']).optional(),
  /** Bound that pi sends with each request; default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
});

/** The last word on a turn in pi's JSON lines. */
const turnSchema = z.looseObject({
  type: z.literal('message_end'),
  message: z.looseObject({
    role: z.literal('assistant'),
    stopReason: z.string(),
    errorMessage: z.string().optional(),
  }),
});

/** pi, the coding agent of `@earendil-works/pi-coding-agent`: four tools, no sub-agents, no side calls. */
export const piHarness: HarnessAdapter = {
  name: 'pi',
  dialects: ['openai_chat', 'anthropic'],
  install: HARNESS_INSTALLS.pi,
  checkAgent,
  launch,
  judge,
};

function checkAgent(agent: AgentSpec): void {
  parseAs(settingsSchema, agent.settings, 'agent.settings', 'agent.settings');
  if (agent.custom_shell !== undefined) {
    const issues = [{ path: 'agent.custom_shell', message: 'only the shell harness takes a command' }];
    throw new FloeError('schema_violation', 'agent.custom_shell: only the shell harness takes a command', { issues });
  }
}

function launch(context: LaunchContext): Launch {
  const { agent, instruction, installDir, paths } = context;
  const settings = parseAs(settingsSchema, agent.settings, 'agent.settings');
  if (installDir === null) {
    throw new FloeError('harness_missing', 'pi is not installed; run `floe harness install pi`', { harness: 'pi' });
  }
  const program = commandOf(HARNESS_INSTALLS.pi, installDir);
  const model = ['--provider', PROVIDER, '--model', agent.model_name];
  const thinking = settings.thinking === undefined ? [] : ['--thinking', settings.thinking];
  return {
    files: [
      {
        path: `${paths.home}/.pi/agent/models.json`,
        content: JSON.stringify(modelsFile(context, settings), null, 2),
        mode: 0o600,
      },
    ],
    env: {
      PI_OFFLINE: '1',
      PI_SKIP_VERSION_CHECK: '1',
      PI_TELEMETRY: '0',
      NODE_COMPILE_CACHE: compileCacheDir(installDir),
    },
    command: [...program, '-p', '--mode', 'json', '--session-dir', `${paths.logs}/pi`, ...model, ...thinking],
    stdin: instruction,
  };
}

function modelsFile(context: LaunchContext, settings: z.infer<typeof settingsSchema>): unknown {
  const { agent, baseUrl, apiKey } = context;
  const contextWindow = context.contextWindow ?? DEFAULT_CONTEXT_TOKENS;
  const maxTokens = settings.max_tokens ?? Math.max(MIN_REPLY_TOKENS, Math.floor(contextWindow * REPLY_SHARE));
  const wire =
    settings.dialect === 'anthropic'
      ? { baseUrl, api: 'anthropic-messages' }
      : { baseUrl: `${baseUrl}/v1`, api: 'openai-completions' };
  const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 };
  const model = { id: agent.model_name, contextWindow, maxTokens, reasoning: true, input: ['text'], cost };
  return { providers: { [PROVIDER]: { ...wire, apiKey, models: [model] } } };
}

/** pi exits with 0 after an API error too, so what counts is how its last turn stopped. */
function judge({ exitCode, stdout, stderr }: HarnessReport): HarnessVerdict {
  if (exitCode !== 0) {
    const how = exitCode === null ? 'pi was ended by a signal' : `pi exited with ${exitCode}`;
    const tail = stderr.trim().slice(-STDERR_CHARS);
    return { ok: false, message: tail === '' ? how : `${how}: ${tail}` };
  }
  const last = lastTurn(stdout);
  if (last === null) return { ok: false, message: 'pi ended without a turn of the model' };
  const { stopReason, errorMessage } = last.message;
  if (stopReason !== 'error' && stopReason !== 'aborted') return { ok: true };
  return { ok: false, message: errorMessage ?? `the last turn stopped with ${stopReason}` };
}

/**
 * The middle of a long output may be missing, so lines are read from the end and those that make no sense skipped. Only
 * lines with the mark are parsed, and not for ever: what runs in the sandbox can write there, too.
 */
function lastTurn(stdout: string): z.infer<typeof turnSchema> | null {
  let from = stdout.length;
  for (let tries = 0; tries < MAX_PARSED_LINES && from > 0; tries++) {
    const mark = stdout.lastIndexOf(TURN_MARK, from - 1);
    if (mark < 0) return null;
    const start = stdout.lastIndexOf('\n', mark) + 1;
    const end = stdout.indexOf('\n', mark);
    const parsed = turnSchema.safeParse(jsonOrNull(stdout.slice(start, end < 0 ? stdout.length : end)));
    if (parsed.success) return parsed.data;
    from = start;
  }
  return null;
}

function jsonOrNull(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return null;
  }
}

import { FloeError, parseAs } from '@floe-rl/core';
import { assistantMessageSchema, chatMessageSchema, chatToolSchema, toolChoiceSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { Episode } from '../../loop/episode.ts';
import { completeChat } from '../../loop/runner.ts';
import type { Box } from '../../tools/tool.ts';
import type { ServeRequest } from './python-process.ts';

/** Maximum number of characters of a file that is read. */
const MAX_FILE_CHARS = 8 * 1024 * 1024;

const askSchema = z.object({
  messages: z.array(chatMessageSchema),
  tools: z.array(chatToolSchema),
  tool_choice: toolChoiceSchema.nullable(),
  max_tokens: z.int().min(1).nullable(),
});
const runSchema = z.object({ command: z.string(), timeout: z.number().gt(0).max(86_400) });
const readSchema = z.object({ path: z.string() });
const writeSchema = z.object({ path: z.string(), text: z.string() });
const resetSchema = z.object({ seed: z.int() });
const stepSchema = z.object({ message: assistantMessageSchema });
const measureSchema = z.object({ metric: z.string(), value: z.number() });

/** Returns what Python code must know of its episode. */
export function orderOf(episode: Episode): object {
  const { seed, instruction, systemPrompt, metadata, services, limits, box, environment, endpoint } = episode;
  return {
    seed,
    instruction,
    system_prompt: systemPrompt,
    metadata,
    services,
    max_turns: limits.turns,
    workdir: box?.workdir ?? null,
    has_environment: environment !== null,
    base_url: endpoint?.baseUrl ?? '',
    api_key: endpoint?.apiKey ?? '',
  };
}

/** Returns the function that does for an episode what its Python code asks for. */
export function episodeRequests(episode: Episode): ServeRequest {
  let shell: ReturnType<Box['shell']> | null = null;
  const methods: Readonly<Record<string, (params: unknown, signal: AbortSignal) => Promise<unknown>>> = {
    async llm_request(params) {
      const { messages, tools, tool_choice, max_tokens } = parsed(askSchema, params, 'llm_request');
      return completeChat(episode.conversation, messages, {
        tools,
        ...(tool_choice === null ? {} : { toolChoice: tool_choice }),
        ...(max_tokens === null ? {} : { maxTokens: max_tokens }),
      });
    },
    async run(params, signal) {
      const { command, timeout } = parsed(runSchema, params, 'run');
      shell ??= boxOf(episode).shell();
      const { stdout, stderr, exitCode, timedOut } = await shell.run(command, { timeoutMs: timeout * 1_000 }, signal);
      return { stdout, stderr, exit_code: exitCode, timed_out: timedOut };
    },
    async read_file(params, signal) {
      return readWhole(boxOf(episode), parsed(readSchema, params, 'read_file').path, signal);
    },
    async write_file(params, signal) {
      const { path, text } = parsed(writeSchema, params, 'write_file');
      await boxOf(episode).writeFile(path, text, signal);
    },
    async reset(params) {
      const observed = await environmentOf(episode).reset(parsed(resetSchema, params, 'reset').seed);
      return observed === null ? null : { ...observed, messages: [...observed.messages] };
    },
    async step(params) {
      const { answers = [], ...step } = await environmentOf(episode).step(parsed(stepSchema, params, 'step').message);
      for (const [name, value] of Object.entries(step.metrics ?? {})) episode.measure(`env.${name}`, value);
      return { ...step, messages: [...answers, ...step.messages] };
    },
    async measure(params) {
      const { metric, value } = parsed(measureSchema, params, 'measure');
      episode.measure(metric, value);
    },
  };
  return async (method, params, signal) => {
    const run = Object.hasOwn(methods, method) ? methods[method] : undefined;
    if (run === undefined) throw new Error(`there is no ${method}`);
    return run(params, signal);
  };
}

/** Checks what Python code asks for. What does not fit is a defect of that code, so the error is no FloeError. */
function parsed<Schema extends z.ZodType>(schema: Schema, params: unknown, method: string): z.output<Schema> {
  try {
    return parseAs(schema, params, method);
  } catch (error) {
    throw new Error((error as Error).message, { cause: error });
  }
}

function boxOf({ box }: Episode): Box {
  if (box === null) throw new FloeError('unsupported', 'the session has no sandbox');
  return box;
}

function environmentOf({ environment }: Episode): NonNullable<Episode['environment']> {
  if (environment === null) throw new Error('the task has no environment');
  return environment;
}

async function readWhole(box: Box, path: string, signal: AbortSignal): Promise<string> {
  let text = '';
  for (let firstLine: number | null = 1; firstLine !== null; ) {
    const part = await box.readFile(path, { firstLine }, signal);
    text += part.text;
    if (part.isCut || text.length > MAX_FILE_CHARS) throw new Error(`${path} is too long to be read as a whole`);
    firstLine = part.nextLine;
  }
  return text;
}

import { abortAfter, type Clock, FloeError, messageOf, parseAs, raceAbort, systemClock } from '@floe-rl/core';
import { type ChatMessage, type Content, contentSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { cutContent } from '../cut-content.ts';
import { imageProblem } from '../image-url.ts';
import { type AnyTool, type EpisodeEnding, type ToolContexts, ToolError, type ToolResult } from '../tools/tool.ts';
import { type BrokenCall, type CheckedCall, isBroken } from './calls.ts';
import type { Episode } from './episode.ts';

/** Time limit of a call in milliseconds, for tools that set none. */
const DEFAULT_TIMEOUT_MS = 120_000;

/** Maximum length of the URLs of all images of a result, in characters. A model call takes no larger ones. */
const MAX_IMAGE_CHARS = 32 * 1024 * 1024;

const endingSchema = z.looseObject({
  reason: z.string(),
  answer: z.string().optional(),
  isTruncated: z.boolean().optional(),
});

/** A call with what it gave. */
export type CallOutcome = {
  readonly call: CheckedCall | BrokenCall;
  /** What the agent sees; `null` when the tool has rewritten the conversation. */
  readonly content: Content | null;
  readonly isError: boolean;
  /** Reward of the call; `null` when it has none. */
  readonly reward: number | null;
  /** Set when the call ended the episode. */
  readonly end: EpisodeEnding | null;
};

export type CallEpisode = Pick<Episode, 'box' | 'services' | 'conversation' | 'signal' | 'count' | 'measure'>;

/**
 * Runs the calls of one reply. Calls without effect run in parallel, then calls on the environment one after the other, and then the call that
 * changes the agent's own state. Once a call has ended the episode, the remaining calls on the environment are not run. The outcomes are in
 * the order of the calls. Rejects with `plugin_failed` for a tool with a defect, or with the reason of the episode's signal.
 */
export async function runCalls(
  calls: readonly (CheckedCall | BrokenCall)[],
  episode: CallEpisode,
  clock: Clock = systemClock,
): Promise<readonly CallOutcome[]> {
  const outcomes = new Map<CheckedCall | BrokenCall, CallOutcome>();
  for (const call of calls) if (isBroken(call)) outcomes.set(call, observed(call, call.message));
  const sound = calls.filter((call): call is CheckedCall => !isBroken(call));
  const withEffect = (effect: AnyTool['effect']): CheckedCall[] => sound.filter(({ tool }) => tool.effect === effect);
  const run = async (call: CheckedCall): Promise<void> => {
    outcomes.set(call, await runCall(call, episode, clock));
  };
  const hasEnded = (): boolean => [...outcomes.values()].some(({ end }) => end !== null);

  const parallel = Promise.all(withEffect('none').map(run));
  const ordered = (async () => {
    for (const call of withEffect('environment')) {
      if (hasEnded()) outcomes.set(call, observed(call, 'Error: the episode has ended; this call was not run.'));
      else await run(call);
    }
  })();
  await Promise.all([parallel, ordered]);

  for (const [index, call] of withEffect('agent').entries()) {
    if (hasEnded()) outcomes.set(call, observed(call, 'Error: the episode has ended; this call was not run.'));
    else if (index > 0) outcomes.set(call, observed(call, `Error: call ${call.tool.name} in a reply of its own.`));
    else await run(call);
  }
  return calls.flatMap((call) => outcomes.get(call) ?? []);
}

/** Returns the messages that answer the calls of a reply. */
export function answersOf(outcomes: readonly CallOutcome[]): ChatMessage[] {
  return outcomes.flatMap(({ call, content }) =>
    content === null ? [] : [{ role: 'tool' as const, tool_call_id: call.call.id, content }],
  );
}

function observed(call: CheckedCall | BrokenCall, message: string): CallOutcome {
  return { call, content: message, isError: true, reward: null, end: null };
}

async function runCall(call: CheckedCall, episode: CallEpisode, clock: Clock): Promise<CallOutcome> {
  const { tool, args } = call;
  const limitMs = tool.timeoutMs ?? DEFAULT_TIMEOUT_MS;
  const late = (): ToolError => new ToolError('failed', `${tool.name} did not end within ${limitMs / 1000} s`);
  const limited = abortAfter(clock, limitMs, late, episode.signal);
  episode.count(`calls.${tool.name}`);
  try {
    // A tool that throws before its first promise must not end the loop in another way.
    const running = (async () => start(tool, args, contextsOf(episode), limited.signal))();
    const outcome = outcomeOf(call, await raceAbort(running, limited.signal));
    if (outcome.isError) episode.count(`failed.${tool.name}`);
    return outcome;
  } catch (error) {
    episode.signal.throwIfAborted();
    if (error instanceof ToolError) episode.count(`failed.${tool.name}`);
    if (error instanceof ToolError) return observed(call, `Error: ${error.message}`);
    throw pluginFailed(tool, error);
  } finally {
    limited.release();
  }
}

/** Calls `run` with the context of the tool's effect. Its arguments have been checked by its own schema. */
function start(
  tool: AnyTool,
  args: unknown,
  contexts: ToolContexts,
  signal: AbortSignal,
): Promise<ToolResult | string> {
  switch (tool.effect) {
    case 'none':
      return tool.run(args, contexts.none, signal);
    case 'environment':
      return tool.run(args, contexts.environment, signal);
    case 'agent':
      return tool.run(args, contexts.agent, signal);
  }
}

function contextsOf({ services, count, measure, box, conversation }: CallEpisode): ToolContexts {
  const none = { services, count, measure };
  return { none, environment: { ...none, box }, agent: { ...none, box, conversation } };
}

/** Checks what a tool returned, which may be anything. */
function outcomeOf(call: CheckedCall, returned: ToolResult | string): CallOutcome {
  const { tool } = call;
  const result: ToolResult = typeof returned === 'string' ? { content: returned } : returned;
  if (typeof result !== 'object' || result === null) throw new TypeError('it returned neither a text nor a result');
  const content = result.content === null ? null : parseAs(contentSchema, result.content, 'what it returned');
  refuseLargeImages(content);
  const problem = imageProblem(content);
  if (problem !== null) throw new TypeError(`what it returned: ${problem}`);
  const reward = result.reward ?? null;
  if (reward !== null && !Number.isFinite(reward)) throw new TypeError(`its reward is ${reward}`);
  return {
    call,
    content: content === null ? null : cutContent(content, tool.maxChars),
    isError: result.isError === true,
    reward,
    end: endingOf(result.end),
  };
}

function refuseLargeImages(content: Content | null): void {
  if (content === null || typeof content === 'string') return;
  const chars = content.reduce((sum, part) => sum + (part.type === 'image_url' ? part.image_url.url.length : 0), 0);
  if (chars <= MAX_IMAGE_CHARS) return;
  throw new RangeError(`its images have ${chars} characters; at most ${MAX_IMAGE_CHARS} are shown to an agent`);
}

function endingOf(end: unknown): EpisodeEnding | null {
  if (end === undefined || end === null) return null;
  const { reason, answer, isTruncated } = parseAs(endingSchema, end, 'its end', 'end');
  return { reason, ...(answer === undefined ? {} : { answer }), ...(isTruncated === undefined ? {} : { isTruncated }) };
}

function pluginFailed(tool: AnyTool, thrown: unknown): FloeError {
  if (FloeError.is(thrown) && thrown.code !== 'schema_violation') return thrown;
  return new FloeError('plugin_failed', `tool ${tool.name}: ${messageOf(thrown)}`, { plugin: tool.name }, thrown);
}

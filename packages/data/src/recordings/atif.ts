import { readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { FloeError, isRecord, parseAs, parseJson } from '@floe-rl/core';
import { type ChatMessage, type ChatTool, chatToolSchema, type Outcome, outcomeSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type AtifDocument, type AtifStep, atifDocumentSchema } from '../atif/document.ts';
import { chatMessageOf, observationsOf } from '../atif/steps.ts';
import { type Conversation, type RecordedCall, UNKNOWN_CAPTURE } from './calls.ts';
import { foreignRecording, timeOf } from './foreign.ts';
import type { Recording, RecordingReader, RecordingSource } from './recording.ts';

/** The fields that Harbor stores about a trial in `result.json` of its folder, next to the trajectory. */
const trialSchema = z.object({
  task_name: z.string(),
  trial_name: z.string(),
  verifier_result: z.object({ rewards: z.record(z.string(), z.number()).nullish() }).nullish(),
  exception_info: z.object({ exception_type: z.string(), exception_message: z.string() }).nullish(),
  finished_at: z.string().nullish(),
});
type Trial = z.output<typeof trialSchema>;

/** Reads trajectories in ATIF, Harbor's format, with the reward from the folder of their trial. */
export const ATIF_READER: RecordingReader = {
  format: 'atif',
  read: (value, source) => {
    if (!isRecord(value) || !String(value.schema_version ?? '').startsWith('ATIF-')) return null;
    return [recordingOf(parseAs(atifDocumentSchema, value, source.where), source)];
  },
};

function recordingOf(document: AtifDocument, source: RecordingSource): Recording {
  const { agent, extra } = document;
  const trial = trialOf(source.file);
  const name = basename(source.file, '.json');
  // The segments of one run have the same session id, but each is in a file of its own.
  const segment = name === 'trajectory' ? '' : `.${name}`;
  const session = document.trajectory_id ?? (document.session_id == null ? source.file : document.session_id + segment);
  const last = document.steps.at(-1);
  const endedMs = timeOf(trial?.finished_at) ?? timeOf(last?.timestamp) ?? source.modifiedMs;
  const rewards = trial?.verifier_result?.rewards ?? {};
  const stated = typeof extra?.reward === 'number' ? extra.reward : null;
  const conversations = conversationsOf(document, source, endedMs, 'main', new Set());
  const times = document.steps.flatMap(({ timestamp }) => timeOf(timestamp) ?? []);
  const runMs = times.length < 2 ? null : Math.max(...times) - Math.min(...times);
  const exception = trial?.exception_info ?? null;
  return foreignRecording({
    source,
    format: 'atif',
    lacks: lacksOf(conversations, rewards.reward ?? stated),
    harness: agent.name,
    session,
    task: typeof extra?.task_id === 'string' ? extra.task_id : (trial?.task_name ?? session),
    sampleIndex: typeof extra?.sample_index === 'number' ? extra.sample_index : 0,
    outcome: outcomeOf(extra?.outcome, exception),
    reward: rewards.reward ?? Object.values(rewards)[0] ?? stated,
    components: rewards,
    details: {},
    error: exception === null ? null : `${exception.exception_type}: ${exception.exception_message}`,
    timing: { running_ms: runMs, total_ms: runMs ?? 0 },
    metadata: {
      agent_version: agent.version ?? null,
      ...(trial === null ? {} : { data_source: trial.task_name, trial: trial.trial_name }),
    },
    trajectory: null,
    conversations,
    endedMs,
  });
}

function outcomeOf(stated: unknown, exception: Trial['exception_info'] | null): Outcome {
  const known = outcomeSchema.safeParse(stated);
  if (known.success) return known.data;
  if (exception == null) return 'completed';
  return exception.exception_type.includes('Timeout') ? 'agent_timeout' : 'agent_error';
}

/** Reads `result.json` of the trial to which `agent/trajectory.json` belongs; `null` when there is none. */
function trialOf(file: string): Trial | null {
  if (basename(dirname(file)) !== 'agent') return null;
  try {
    const trial = trialSchema.safeParse(parseJson(readFileSync(join(dirname(file), '..', 'result.json'))));
    return trial.success ? trial.data : null;
  } catch {
    return null;
  }
}

function lacksOf(conversations: readonly Conversation[], reward: number | null): string[] {
  const calls = conversations.flatMap((conversation) => conversation.calls);
  return [
    ...(reward === null ? ['a reward'] : []),
    ...(calls.every(({ tokens }) => tokens === null) ? ['token ids'] : []),
    ...(calls.every(({ tokens }) => tokens === null || tokens.response_logprobs.length === 0)
      ? ['log-probabilities']
      : []),
    ...(calls.every(({ usage }) => usage === null) ? ['numbers of tokens'] : []),
    'what is trained',
    'policy versions',
    'durations of the calls',
  ];
}

/** Returns the conversation of a document and the conversations of its sub-agents. */
function conversationsOf(
  document: AtifDocument,
  source: RecordingSource,
  atMs: number,
  thread: string,
  ids: Set<string>,
): Conversation[] {
  const { agent, subagent_trajectories: embedded } = document;
  const main: Conversation = {
    thread,
    callKind: thread === 'main' ? 'main' : 'subagent',
    tools: (agent.tool_definitions ?? []).flatMap(toolOf),
    capture: UNKNOWN_CAPTURE,
    calls: callsOf(document, thread, atMs),
  };
  const others = (embedded ?? []).flatMap((value, index) => {
    const inner = parseAs(atifDocumentSchema, value, source.where, `subagent_trajectories.${index}`);
    const name = inner.trajectory_id ?? `${thread}.${index}`;
    if (ids.has(name))
      throw new FloeError('schema_violation', `${source.where}: two sub-agents have the id ${name}`, {});
    ids.add(name);
    return conversationsOf(inner, source, atMs, name, ids);
  });
  return [main, ...others];
}

function toolOf(value: unknown): ChatTool[] {
  const tool = chatToolSchema.safeParse(value);
  return tool.success ? [tool.data] : [];
}

function callsOf({ steps, agent }: AtifDocument, thread: string, atMs: number): RecordedCall[] {
  const calls: RecordedCall[] = [];
  let messages: ChatMessage[] = [];
  let ids: readonly number[] = [];
  steps.forEach((step, index) => {
    const message = chatMessageOf(step);
    if (message.role === 'assistant' && step.is_copied_context !== true && step.llm_call_count !== 0) {
      const tokens = tokensOf(step, ids);
      ids = tokens === null ? [] : [...ids, ...tokens.between, ...tokens.response_ids];
      calls.push({
        id: `${thread}.${index}`,
        messages,
        message,
        tokens,
        model: step.model_name ?? agent.model_name ?? 'unknown',
        usage: usageOf(step),
        atMs: timeOf(step.timestamp) ?? atMs,
        durationMs: 0,
        finishReason: (message.tool_calls ?? []).length > 0 ? 'tool_calls' : 'stop',
        link: calls.length === 0 ? 'root' : 'exact',
        drift: null,
      });
      messages = [];
    } else messages.push(message);
    messages.push(...observationsOf(step));
  });
  return calls;
}

function usageOf({ metrics }: AtifStep): RecordedCall['usage'] {
  if (metrics?.prompt_tokens == null || metrics.completion_tokens == null) return null;
  return {
    prompt_tokens: metrics.prompt_tokens,
    completion_tokens: metrics.completion_tokens,
    cached_tokens: metrics.cached_tokens ?? null,
  };
}

/** Returns the tokens of a step. The prompt's ids are kept when they continue the ids of the previous call. */
function tokensOf({ metrics }: AtifStep, before: readonly number[]): RecordedCall['tokens'] {
  const ids = metrics?.completion_token_ids;
  if (ids == null) return null;
  const prompt = metrics?.prompt_token_ids ?? [];
  const continues = prompt.length >= before.length && before.every((id, index) => prompt[index] === id);
  return {
    between: continues ? prompt.slice(before.length) : [],
    response_ids: ids,
    response_logprobs: metrics?.logprobs?.length === ids.length ? metrics.logprobs : [],
    version_spans: [],
  };
}

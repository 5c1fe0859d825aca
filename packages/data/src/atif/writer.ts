import type { SessionResult, Trace } from '@floe-rl/core/schema';
import { maskRuns } from '../trainers/sequence.ts';
import { ATIF_VERSION, type AtifDocument, type AtifResult, type AtifStep } from './document.ts';
import { resultOf, stepOf } from './steps.ts';

/** The fields of an ended session that are written to its files. */
type WrittenSession = Pick<
  SessionResult,
  'session_id' | 'task_id' | 'sample_index' | 'outcome' | 'reward' | 'reward_components'
> & {
  readonly origin: { readonly agent: string | null; readonly harness: string } | null;
  readonly trajectory: {
    readonly traces: readonly Trace[];
    readonly images?: Readonly<Record<string, string>> | undefined;
  } | null;
};

/** A file of a session in ATIF. */
export type AtifFile = { readonly name: string; readonly trajectory: AtifDocument };

/**
 * Returns the files of a session: one for each trace of the main agent. Each file names the next as its continuation. Other traces, such as
 * the traces of sub-agents, are embedded in the first file. A session without traces of the main agent has no file.
 */
export function atifFiles(row: WrittenSession): AtifFile[] {
  const traces = row.trajectory?.traces ?? [];
  const segments = traces.filter(isMain);
  const others = traces.filter((trace) => !isMain(trace));
  return segments.map((trace, index) => {
    const embedded = index === 0 && others.length > 0 ? { subagent_trajectories: others.map(documentOf(row)) } : {};
    const next = index + 1 < segments.length ? { continued_trajectory_ref: fileName(row, index + 1) } : {};
    return { name: fileName(row, index), trajectory: { ...documentOf(row)(trace), ...next, ...embedded } };
  });
}

function isMain({ metadata }: Trace): boolean {
  return (metadata.call_kind ?? 'main') === 'main' && metadata.auxiliary !== true;
}

function fileName({ session_id }: WrittenSession, segment: number): string {
  return segment === 0 ? `${session_id}.json` : `${session_id}.${segment + 1}.json`;
}

function documentOf(row: WrittenSession): (trace: Trace) => AtifDocument {
  const { origin, outcome, reward, reward_components, task_id, sample_index } = row;
  const images = Object.fromEntries(
    Object.entries(row.trajectory?.images ?? {}).map(([reference, place]) => [reference, placeFrom(place)]),
  );
  return (trace) => {
    const steps = stepsOf(trace, images);
    const { model } = trace.metadata;
    return {
      schema_version: ATIF_VERSION,
      session_id: row.session_id,
      trajectory_id: trace.trace_id,
      agent: {
        name: origin?.agent ?? origin?.harness ?? 'unknown',
        version: 'unknown',
        ...(typeof model === 'string' ? { model_name: model } : {}),
        ...(trace.tools.length === 0 ? {} : { tool_definitions: trace.tools }),
      },
      steps: steps.map((step, index) => ({ step_id: index + 1, ...step })),
      final_metrics: {
        total_completion_tokens: trace.loss_mask.reduce((sum, bit) => sum + bit, 0),
        total_steps: steps.length,
      },
      extra: { task_id, sample_index, outcome, reward, reward_components, call_kind: trace.metadata.call_kind ?? null },
    };
  };
}

/**
 * Returns the messages of a trace as steps. Results of tools belong to the step that called them. Replies have their tokens only when the
 * trace trains all replies, because each run of trained tokens is then one reply.
 */
function stepsOf(trace: Trace, images: Readonly<Record<string, string>>): AtifStep[] {
  const messages = [...trace.prompt_messages, ...trace.response_messages];
  const runs = maskRuns(Uint8Array.from(trace.loss_mask)).filter((run) => run.trained);
  const replies = trace.response_messages.filter(({ role }) => role === 'assistant').length;
  const steps: AtifStep[] = [];
  let reply = 0;
  for (const [index, message] of messages.entries()) {
    const results = message.role === 'tool' ? resultsAt(steps, message.tool_call_id) : null;
    if (message.role === 'tool' && results !== null) {
      results.push(resultOf(message.tool_call_id, message.content, images));
      continue;
    }
    const isReply = message.role === 'assistant' && index >= trace.prompt_messages.length;
    const run = isReply && runs.length === replies ? runs[reply++] : undefined;
    const metrics = run === undefined ? {} : { metrics: metricsOf(trace, run.start, run.end) };
    steps.push({ ...stepOf(message, images), ...metrics });
  }
  return steps;
}

/** Returns the list of results of the last step, if this step made the call `callId`; `null` otherwise. */
function resultsAt(steps: AtifStep[], callId: string): AtifResult[] | null {
  const last = steps.at(-1);
  if (last?.tool_calls?.some((call) => call.tool_call_id === callId) !== true) return null;
  const results = last.observation?.results ?? [];
  steps[steps.length - 1] = { ...last, observation: { results } };
  return results;
}

function metricsOf(
  { prompt_ids, response_ids, response_logprobs }: Trace,
  start: number,
  end: number,
): AtifStep['metrics'] {
  return {
    prompt_tokens: prompt_ids.length + start,
    completion_tokens: end - start,
    completion_token_ids: response_ids.slice(start, end),
    logprobs: response_logprobs.slice(start, end),
  };
}

/** Returns the place of an image as seen from a file in `data/SPLIT/`. */
function placeFrom(place: string): string {
  return place.startsWith('images/') ? `../../${place}` : place;
}

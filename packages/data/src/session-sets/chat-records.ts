import { type ChatMessage, contentText, type Trace } from '@floe-rl/core/schema';
import { mainTraces, messagesText, preferencePairs, usedImages } from '../generation/records.ts';
import { maskRuns } from '../trainers/sequence.ts';
import type { SetRow } from './set-row.ts';

/** A session of a group, and whether it fulfils the conditions for acceptance. */
export type JudgedRow = { readonly row: SetRow; readonly accepted: boolean };

/** Makes the records of one group of sessions in a format. */
export type RecordMaker = (group: readonly JudgedRow[]) => object[];

/**
 * Returns the fields that identify the session in every record. Objects whose fields tasks choose are written as JSON texts, here and
 * elsewhere, because `datasets` guesses the type of a column. For rows with different fields it would read all numbers of the file inexactly.
 */
function head(row: SetRow): object {
  const { task_id, sample_index, origin, session_id, outcome, reward, reward_components } = row;
  const source = origin?.source ?? null;
  return {
    task_id,
    sample_index,
    source,
    session_id,
    outcome,
    reward,
    reward_components: JSON.stringify(reward_components),
  };
}

function acceptedRows(group: readonly JudgedRow[]): SetRow[] {
  return group.flatMap(({ row, accepted }) => (accepted ? [row] : []));
}

/** Makes a record for supervised fine-tuning of each trace of the main agent in the accepted sessions. */
export function sftRecords(group: readonly JudgedRow[]): object[] {
  return acceptedRows(group).flatMap((row) => {
    const traces = mainTraces(row);
    return traces.map((trace, index) => ({
      ...head(row),
      trace_index: index,
      trace_count: traces.length,
      messages: weightedMessages(trace),
      prompt_message_count: trace.prompt_messages.length,
      tools: JSON.stringify(trace.tools),
      prompt_ids: trace.prompt_ids,
      response_ids: trace.response_ids,
      loss_mask: trace.loss_mask,
      images: imagesOf(trace, row),
    }));
  });
}

/**
 * Returns the messages of a trace. Each message of the assistant has a weight for the loss: 1 for a reply that the trace trains, and otherwise
 * 0. When the trace trains only some of its replies, the messages do not show which, so all have 0. The field `loss_mask` then states it for
 * each token.
 */
function weightedMessages(trace: Trace): object[] {
  const replies = trace.response_messages.filter(({ role }) => role === 'assistant').length;
  const trained = maskRuns(Uint8Array.from(trace.loss_mask)).filter((run) => run.trained).length;
  const weigh = (message: ChatMessage, weight: number): object =>
    message.role === 'assistant' ? { ...message, weight } : message;
  return [
    ...trace.prompt_messages.map((message) => weigh(message, 0)),
    ...trace.response_messages.map((message) => weigh(message, trained === replies ? 1 : 0)),
  ];
}

/** Makes a ShareGPT conversation of each trace of the main agent in the accepted sessions, with tool calls in the form of Hermes. */
export function shareGptRecords(group: readonly JudgedRow[]): object[] {
  return acceptedRows(group).flatMap((row) =>
    mainTraces(row).map((trace) => ({
      ...head(row),
      conversations: [...trace.prompt_messages, ...trace.response_messages].map(shareGptTurn),
      tools: JSON.stringify(trace.tools),
      images: imagesOf(trace, row),
    })),
  );
}

const SPEAKERS = { system: 'system', user: 'human', assistant: 'gpt', tool: 'tool' } as const;

function shareGptTurn(message: ChatMessage): object {
  return { from: SPEAKERS[message.role], value: shareGptText(message) };
}

function shareGptText(message: ChatMessage): string {
  const { content } = message;
  const text = contentText(content, { image: '<image>' });
  if (message.role === 'tool') return `<tool_response>\n${text}\n</tool_response>`;
  if (message.role !== 'assistant') return text;
  const thinking = message.reasoning_content ? [`<think>\n${message.reasoning_content}\n</think>`] : [];
  // The arguments are the text that the policy sampled, and may not be valid JSON.
  const calls = (message.tool_calls ?? []).map(
    ({ function: { name, arguments: text } }) =>
      `<tool_call>\n{"name": ${JSON.stringify(name)}, "arguments": ${text}}\n</tool_call>`,
  );
  return [...thinking, ...(text === '' ? [] : [text]), ...calls].join('\n');
}

/**
 * Makes the preference pairs of a group, in the fields that TRL and others read. A pair has an accepted session and a session whose reward is
 * lower by at least `minMargin`.
 */
export function preferenceRecords(group: readonly JudgedRow[], minMargin: number): object[] {
  const samples = group.map(({ row, accepted }) => ({ sample: row.sample_index, result: row, accepted }));
  return preferencePairs(
    samples.filter(({ accepted }) => accepted),
    samples,
  )
    .filter(({ margin }) => margin >= minMargin)
    .map(({ chosen, rejected, chosenTrace, rejectedTrace, margin, samePrompt }) => ({
      task_id: chosen.result.task_id,
      source: chosen.result.origin?.source ?? null,
      margin,
      same_prompt: samePrompt,
      prompt: chosenTrace.prompt_messages,
      chosen: chosenTrace.response_messages,
      rejected: rejectedTrace.response_messages,
      // The prompt of the rejected session, if it differs from the prompt of the chosen session.
      ...(samePrompt ? {} : { rejected_prompt: rejectedTrace.prompt_messages }),
      chosen_session_id: chosen.result.session_id,
      rejected_session_id: rejected.result.session_id,
      chosen_reward: chosen.result.reward,
      rejected_reward: rejected.result.reward,
      tools: JSON.stringify(chosenTrace.tools),
      images: [...imagesOf(chosenTrace, chosen.result), ...imagesOf(rejectedTrace, rejected.result)],
    }));
}

/** Makes a record of each session with a reward, for training a verifier that predicts the reward from prompt and response. */
export function verifierRecords(group: readonly JudgedRow[]): object[] {
  return group.flatMap(({ row, accepted }) => {
    const [first, ...further] = mainTraces(row);
    if (first === undefined || row.reward === null) return [];
    const later = further.map((trace) => [...trace.prompt_messages, ...trace.response_messages]);
    return [
      {
        ...head(row),
        prompt: messagesText(first.prompt_messages),
        response: [first.response_messages, ...later].map(messagesText).join('\n\n'),
        label: accepted ? 1 : 0,
      },
    ];
  });
}

type ImageFile = { readonly reference: string; readonly path: string };

/** Returns the images in the messages of a trace. A message has only the reference, and the set has the file. */
function imagesOf(trace: Trace, row: SetRow): ImageFile[] {
  const messages = [...trace.prompt_messages, ...trace.response_messages];
  return Object.entries(usedImages(messages, row.trajectory?.images ?? {})).map(([reference, path]) => ({
    reference,
    path,
  }));
}

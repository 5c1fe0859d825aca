import { isDeepStrictEqual } from 'node:util';
import { type ChatMessage, contentText, type SessionResult, type Trace } from '@floe-rl/core/schema';

/** The first fields of every record of a row: its number from 0, and the fields that the user selected. */
export type RowFields = { readonly row: number; readonly [field: string]: unknown };

/** A result with the row and number of its sample. */
export type RowSample = { readonly fields: RowFields; readonly sample: number; readonly result: SessionResult };

/**
 * Returns the traces of the main agent that have a trained token, in order. Traces of subagents and auxiliary calls, such as titles, are left
 * out. They begin with other prompts and do not answer the task.
 */
export function mainTraces({ trajectory }: SessionResult): Trace[] {
  return (trajectory?.traces ?? []).filter(
    ({ metadata, loss_mask: mask }) =>
      (metadata.call_kind ?? 'main') === 'main' && metadata.auxiliary !== true && mask.includes(1),
  );
}

/** Makes the records for supervised fine-tuning of one accepted sample: one for each trace of the main agent. */
export function sftRecords({ fields, sample, result }: RowSample): object[] {
  const traces = mainTraces(result);
  return traces.map((trace, index) => ({
    ...fields,
    sample,
    ...facts(result),
    trace_index: index,
    trace_count: traces.length,
    ...conversation(trace, result),
  }));
}

/** A sample that may be part of a pair. */
type PairableSample = Pick<RowSample, 'sample' | 'result'>;

/** Two samples of one row with different rewards, each with its only trace of the main agent. */
export type PreferencePair<T extends PairableSample> = {
  readonly chosen: T;
  readonly rejected: T;
  readonly chosenTrace: Trace;
  readonly rejectedTrace: Trace;
  /** The reward of `chosen` minus the reward of `rejected`. */
  readonly margin: number;
  /** Whether both answer the same prompt. */
  readonly samePrompt: boolean;
};

/**
 * Pairs the samples of one row. `chosen` are its accepted samples, and `rejected` are all samples with a reward. The best chosen sample is
 * paired with the worst rejected sample, the second best with the second worst, and so on, as long as the rewards differ. No sample is in two
 * pairs.
 *
 * Only samples with exactly one trace of the main agent are paired, because the traces of a divided session have different prompts.
 */
export function preferencePairs<T extends PairableSample>(
  chosen: readonly T[],
  rejected: readonly T[],
): PreferencePair<T>[] {
  const isPairable = ({ result }: T): boolean => result.reward !== null && mainTraces(result).length === 1;
  const best = chosen.filter(isPairable).sort((a, b) => rewardOf(b) - rewardOf(a) || a.sample - b.sample);
  const worst = rejected.filter(isPairable).sort((a, b) => rewardOf(a) - rewardOf(b) || a.sample - b.sample);
  const pairs: PreferencePair<T>[] = [];
  const used = new Set<number>();
  for (const [index, good] of best.entries()) {
    const bad = worst[index];
    if (bad === undefined || rewardOf(bad) >= rewardOf(good) || used.has(bad.sample) || used.has(good.sample)) break;
    used.add(good.sample).add(bad.sample);
    const [chosenTrace] = mainTraces(good.result);
    const [rejectedTrace] = mainTraces(bad.result);
    if (chosenTrace === undefined || rejectedTrace === undefined) break;
    pairs.push({
      chosen: good,
      rejected: bad,
      chosenTrace,
      rejectedTrace,
      margin: rewardOf(good) - rewardOf(bad),
      samePrompt: isDeepStrictEqual(chosenTrace.prompt_messages, rejectedTrace.prompt_messages),
    });
  }
  return pairs;
}

/** Makes the preference records of the samples of one row; see {@link preferencePairs}. */
export function preferenceRecords(chosen: readonly RowSample[], rejected: readonly RowSample[]): object[] {
  return preferencePairs(chosen, rejected).map((pair) => ({
    ...pair.chosen.fields,
    same_prompt: pair.samePrompt,
    chosen: sideOf(pair.chosen, pair.chosenTrace),
    rejected: sideOf(pair.rejected, pair.rejectedTrace),
  }));
}

function sideOf({ sample, result }: RowSample, trace: Trace): object {
  return { sample, ...facts(result), ...conversation(trace, result) };
}

/** Makes the record of one sample with a reward, for training a verifier that predicts the reward; `null` for a sample without a main trace. */
export function verifierRecord({ fields, sample, result }: RowSample, accepted: boolean): object | null {
  const traces = mainTraces(result);
  if (traces.length === 0 || result.reward === null) return null;
  return { ...fields, sample, ...facts(result), label: accepted ? 1 : 0, text: traces.map(traceText).join('\n\n') };
}

function facts({ session_id, outcome, reward, reward_components }: SessionResult): object {
  return { session_id, outcome, reward, reward_components };
}

function conversation(trace: Trace, { trajectory }: SessionResult): object {
  const messages = [...trace.prompt_messages, ...trace.response_messages];
  const images = usedImages(messages, trajectory?.images ?? {});
  return {
    messages,
    prompt_message_count: trace.prompt_messages.length,
    tools: trace.tools,
    prompt_ids: trace.prompt_ids,
    response_ids: trace.response_ids,
    loss_mask: trace.loss_mask,
    ...(Object.keys(images).length === 0 ? {} : { images }),
  };
}

/** Returns the images that the messages refer to, by URL. */
export function usedImages(
  messages: readonly ChatMessage[],
  images: Readonly<Record<string, string>>,
): Readonly<Record<string, string>> {
  const urls = messages.flatMap(({ content }) =>
    Array.isArray(content) ? content.flatMap((part) => (part.type === 'image_url' ? [part.image_url.url] : [])) : [],
  );
  return Object.fromEntries(urls.flatMap((url) => (images[url] === undefined ? [] : [[url, images[url]]])));
}

function rewardOf({ result }: PairableSample): number {
  return result.reward ?? Number.NaN;
}

/** Writes the messages of a trace as text, each after a line with its role. */
function traceText(trace: Trace): string {
  return messagesText([...trace.prompt_messages, ...trace.response_messages]);
}

/** Writes messages as text, each after a line with its role. */
export function messagesText(messages: readonly ChatMessage[]): string {
  return messages.map((message) => `[${message.role}]\n${bodyOf(message)}`).join('\n\n');
}

function bodyOf(message: ChatMessage): string {
  const { content } = message;
  const text = contentText(content, { image: '[image]' });
  if (message.role !== 'assistant') return text;
  const calls = (message.tool_calls ?? []).map((call) => `[call ${call.function.name}] ${call.function.arguments}`);
  const thinking = message.reasoning_content ? [`[thinking]\n${message.reasoning_content}\n[/thinking]`] : [];
  return [...thinking, ...(text === '' ? [] : [text]), ...calls].join('\n');
}

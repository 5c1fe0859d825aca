import { LRUCache } from 'lru-cache';
import type { PromptIds } from '../../engines/engine.ts';

/** Ratio of the size of a new buffer to the prompt that it holds, so that the next turns can be appended without copying. */
const GROWTH = 1.5;

/**
 * Maximum number of agent threads of a session (the main agent and its sub-agents) whose buffers are kept. Harnesses choose the number of
 * threads freely. When there are more, the least recently used buffers are dropped.
 */
const MAX_THREADS = 8;

const COMMA = 0x2c;
const ZERO = 0x30;
/** Maximum number of characters that one token id takes in a JSON array: ten digits, as in `2147483647`, and a comma. */
const MAX_ID_CHARS = 11;
/**
 * Number of characters reserved per token id in a new buffer. Vocabularies have up to a few hundred thousand ids, so six digits and a comma
 * usually suffice.
 */
const USUAL_ID_CHARS = 8;

type Buffers = { owner: string; ids: Int32Array; length: number; json: Buffer; jsonLength: number };

/** The completion whose prompt a new prompt begins with. */
export type PromptBase = { readonly completionId: string; readonly promptIds: Int32Array };

/**
 * Holds the latest prompt that floe built in each agent thread, as token ids and as JSON text. A prompt that continues the latest one is
 * appended in the same memory: earlier views stay valid, and only new ids are written. `RequestMemory` does the same for prompts that
 * engines report, which need no JSON text.
 */
export class PromptBuffers {
  private readonly kept = new LRUCache<string, Buffers>({ max: MAX_THREADS });

  /**
   * Returns the prompt of completion `owner`: the prompt of `base` followed by `added`. When `base` is `null`, the prompt is `added`
   * alone.
   */
  extend(thread: string, owner: string, base: PromptBase | null, added: readonly Int32Array[]): PromptIds {
    const known = this.kept.get(thread);
    const continues = known !== undefined && base !== null && known.owner === base.completionId;
    const buffers = continues ? known : newBuffers(base?.promptIds ?? new Int32Array(0), lengthOf(added));
    buffers.owner = owner;
    for (const ids of added) append(buffers, ids);
    this.kept.set(thread, buffers);
    const { ids, length, json, jsonLength } = buffers;
    return { ids: ids.subarray(0, length), json: json.subarray(0, jsonLength) };
  }
}

function newBuffers(start: Int32Array, more: number): Buffers {
  const capacity = Math.ceil((start.length + more) * GROWTH);
  const json = Buffer.allocUnsafeSlow(capacity * USUAL_ID_CHARS);
  const buffers = { owner: '', ids: new Int32Array(capacity), length: 0, json, jsonLength: 0 };
  append(buffers, start);
  return buffers;
}

function append(buffers: Buffers, added: Int32Array): void {
  const { length } = buffers;
  if (length + added.length > buffers.ids.length) {
    const larger = new Int32Array(Math.ceil((length + added.length) * GROWTH));
    larger.set(buffers.ids.subarray(0, length));
    buffers.ids = larger;
  }
  buffers.ids.set(added, length);
  buffers.length += added.length;
  const most = buffers.jsonLength + added.length * MAX_ID_CHARS;
  if (most > buffers.json.length) {
    const larger = Buffer.allocUnsafeSlow(Math.ceil(most * GROWTH));
    buffers.json.copy(larger, 0, 0, buffers.jsonLength);
    buffers.json = larger;
  }
  let at = buffers.jsonLength;
  for (const id of added) {
    if (at > 0) buffers.json[at++] = COMMA;
    at = writeId(buffers.json, at, id);
  }
  buffers.jsonLength = at;
}

/** Writes a token id in decimal digits and returns the position after the last digit. */
function writeId(bytes: Buffer, at: number, id: number): number {
  let end = at + 1;
  for (let rest = Math.floor(id / 10); rest > 0; rest = Math.floor(rest / 10)) end++;
  let rest = id;
  for (let position = end - 1; position >= at; position--) {
    bytes[position] = ZERO + (rest % 10);
    rest = Math.floor(rest / 10);
  }
  return end;
}

function lengthOf(pieces: readonly Int32Array[]): number {
  return pieces.reduce((sum, { length }) => sum + length, 0);
}

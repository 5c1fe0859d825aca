import type { PromptIds } from '../../engines/engine.ts';

/** A buffer is made this much larger than the prompt, so that the next turns fit behind it. */
const GROWTH = 1.5;

/** Agents name their threads themselves, as many as they like: of more than a few at work, prompts are written anew. */
const MAX_KEPT = 8;

const COMMA = 0x2c;
const ZERO = 0x30;
/** `2147483647,` */
const MAX_ID_CHARS = 11;
/** Vocabularies have up to a few hundred thousand ids. With {@link GROWTH} enough for the longest there are. */
const USUAL_ID_CHARS = 8;

type Buffers = { owner: string; ids: Int32Array; length: number; json: Buffer; jsonLength: number };

/** Where a prompt goes on from: the completion whose prompt is extended. */
export type PromptBase = { readonly completionId: string; readonly promptIds: Int32Array };

/**
 * The latest prompt of each agent thread, as ids and as JSON text. One that goes on from it is written behind it, in the same
 * memory: what was given out stays as it is, and what is written is what is new.
 */
export class PromptBuffers {
  /** Latest used last. */
  private readonly kept = new Map<string, Buffers>();

  /** The prompt of completion `owner`: that of `base`, and `added` behind it. */
  extend(thread: string, owner: string, base: PromptBase | null, added: readonly Int32Array[]): PromptIds {
    const known = this.kept.get(thread);
    const goesOn = known !== undefined && base !== null && known.owner === base.completionId;
    const buffers = goesOn ? known : newBuffers(base?.promptIds ?? new Int32Array(0), lengthOf(added));
    buffers.owner = owner;
    for (const ids of added) append(buffers, ids);
    this.keep(thread, buffers);
    const { ids, length, json, jsonLength } = buffers;
    return { ids: ids.subarray(0, length), json: json.subarray(0, jsonLength) };
  }

  private keep(thread: string, buffers: Buffers): void {
    this.kept.delete(thread);
    this.kept.set(thread, buffers);
    const [oldest] = this.kept.keys();
    if (this.kept.size > MAX_KEPT && oldest !== undefined) this.kept.delete(oldest);
  }
}

function newBuffers(start: Int32Array, more: number): Buffers {
  const room = Math.ceil((start.length + more) * GROWTH);
  const json = Buffer.allocUnsafeSlow(room * USUAL_ID_CHARS);
  const buffers = { owner: '', ids: new Int32Array(room), length: 0, json, jsonLength: 0 };
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

/** In decimal; returns the position behind it. */
function writeId(bytes: Buffer, at: number, id: number): number {
  let end = at + 1;
  for (let rest = Math.floor(id / 10); rest > 0; rest = Math.floor(rest / 10)) end++;
  let rest = id;
  for (let place = end - 1; place >= at; place--) {
    bytes[place] = ZERO + (rest % 10);
    rest = Math.floor(rest / 10);
  }
  return end;
}

function lengthOf(pieces: readonly Int32Array[]): number {
  return pieces.reduce((sum, { length }) => sum + length, 0);
}

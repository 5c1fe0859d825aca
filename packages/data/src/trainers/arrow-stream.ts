import { FloeError } from '@floe-rl/core';
import type { DataType, Schema } from 'apache-arrow';
import { BufferRegion, FieldNode, Message, RecordBatch } from 'apache-arrow/ipc/metadata/message';

/** One buffer of a column, which is written when its place in the output is known. */
export type BodyBuffer = {
  readonly byteLength: number;
  /** Writes all `byteLength` bytes to the start of `target`. The previous content of `target` is undefined. */
  readonly write: (target: Buffer) => void;
};

/** A column in Arrow's memory layout. */
export type ArrowColumn = {
  readonly type: DataType;
  readonly length: number;
  readonly nullCount: number;
  /**
   * The buffers in the order of the layout. The first is the bitmap of the values that are not null. A column of the type null has no buffers.
   */
  readonly buffers: readonly BodyBuffer[];
  readonly children: readonly ArrowColumn[];
};

/** The bitmap of a column without nulls. */
export const NO_NULLS: BodyBuffer = { byteLength: 0, write: () => undefined };

/** Arrow aligns messages and buffers to this number of bytes. */
const ALIGNMENT = 8;
/** Marker at the start of each message. With a length of 0 it marks the end of the stream. */
const CONTINUATION = -1;
const PREFIX_BYTES = 8;

/**
 * Encodes columns as one record batch in Arrow's IPC stream format. `apache-arrow` makes the messages. Its writer is not used for the body,
 * because it needs the joined lists of each column and then copies them a second time. Here every list is copied once, to its place in the
 * result.
 */
export function encodeStream(schema: Schema, columns: readonly ArrowColumn[], rowCount: number): Buffer {
  const nodes: FieldNode[] = [];
  const buffers: BodyBuffer[] = [];
  for (const column of columns) collect(column, nodes, buffers);
  const regions: BufferRegion[] = [];
  let bodyBytes = 0;
  for (const { byteLength } of buffers) {
    regions.push(new BufferRegion(bodyBytes, byteLength));
    bodyBytes += aligned(byteLength);
  }
  const heads = [
    Message.encode(Message.from(schema)),
    Message.encode(Message.from(new RecordBatch(rowCount, nodes, regions, null), bodyBytes)),
  ];
  const headBytes = heads.reduce((sum, head) => sum + PREFIX_BYTES + aligned(head.byteLength), 0);
  // All bytes are written below, so the memory need not be filled with zeros.
  const out = Buffer.allocUnsafeSlow(headBytes + bodyBytes + PREFIX_BYTES);
  let at = 0;
  for (const head of heads) {
    at = out.writeInt32LE(CONTINUATION, at);
    at = out.writeInt32LE(aligned(head.byteLength), at);
    out.set(head, at);
    at = pad(out, at + head.byteLength);
  }
  for (const { byteLength, write } of buffers) {
    write(out.subarray(at, at + byteLength));
    at = pad(out, at + byteLength);
  }
  at = out.writeInt32LE(CONTINUATION, at);
  out.writeInt32LE(0, at);
  return out;
}

/** Adds the node and buffers of a column, and then the nodes and buffers of its children. */
function collect({ length, nullCount, buffers, children }: ArrowColumn, nodes: FieldNode[], all: BodyBuffer[]): void {
  nodes.push(new FieldNode(length, nullCount));
  all.push(...buffers);
  for (const child of children) collect(child, nodes, all);
}

function aligned(byteLength: number): number {
  return Math.ceil(byteLength / ALIGNMENT) * ALIGNMENT;
}

/** Writes zeros from `at` to the next aligned position, which is returned. Every part begins at an aligned position. */
function pad(out: Buffer, at: number): number {
  const end = aligned(at);
  out.fill(0, at, end);
  return end;
}

/** Makes a buffer of typed arrays, one after the other. */
export function bytes(parts: readonly ArrayBufferView[]): BodyBuffer {
  return {
    byteLength: parts.reduce((sum, part) => sum + part.byteLength, 0),
    write: (target) => {
      let at = 0;
      for (const { buffer, byteOffset, byteLength } of parts) {
        target.set(new Uint8Array(buffer, byteOffset, byteLength), at);
        at += byteLength;
      }
    },
  };
}

/** Makes a buffer with one bit for each flag, which is 0 or 1: the first flag is the least significant bit of the first byte. */
export function bits(parts: readonly Uint8Array[]): BodyBuffer {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  return {
    byteLength: Math.ceil(length / 8),
    write: (target) => {
      const [only] = parts;
      pack(parts.length === 1 && only !== undefined ? only : Buffer.concat(parts, length), target);
    },
  };
}

function pack(flags: Uint8Array, target: Buffer): void {
  const flag = (at: number): number => flags[at] as number;
  const whole = flags.length - (flags.length % 8);
  let i = 0;
  for (; i < whole; i += 8) {
    const low = flag(i) | (flag(i + 1) << 1) | (flag(i + 2) << 2) | (flag(i + 3) << 3);
    const high = flag(i + 4) | (flag(i + 5) << 1) | (flag(i + 6) << 2) | (flag(i + 7) << 3);
    target[i >> 3] = low | (high << 4);
  }
  if (i === flags.length) return;
  let last = 0;
  for (let bit = 0; i + bit < flags.length; bit++) last |= flag(i + bit) << bit;
  target[i >> 3] = last;
}

/** Arrow's offsets are int32. */
const MAX_OFFSET = 2 ** 31 - 1;

/** Makes the buffer of the positions at which each list begins in the joined values, and the total length. Throws `unsupported` beyond int32. */
export function offsetsOf(lists: readonly ({ readonly length: number } | null)[]): BodyBuffer {
  const offsets = new Int32Array(lists.length + 1);
  let end = 0;
  lists.forEach((list, index) => {
    end += list?.length ?? 0;
    if (end > MAX_OFFSET) {
      throw new FloeError('unsupported', `a column has more than ${MAX_OFFSET} values; export fewer tasks at a time`, {
        limit: MAX_OFFSET,
      });
    }
    offsets[index + 1] = end;
  });
  return bytes([offsets]);
}

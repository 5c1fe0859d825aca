import { crc32 } from 'node:zlib';

/**
 * Framing for an append-only journal: marker, payload length, CRC32 of length and payload, payload. Numbers are
 * little-endian. The marker lets a reader find the next frame behind a damaged one; 0xff never occurs in UTF-8.
 */
const MARKER = Buffer.from([0xf1, 0x0e, 0xff, 0xc0]);
const LENGTH_AT = 4;
const CRC_AT = 8;
const HEADER_BYTES = 12;

export type FrameReading = {
  /** Payloads in order, as views of the input. */
  readonly frames: readonly Buffer[];
  /** Behind the last whole frame: where a journal that goes on must be cut. */
  readonly endBytes: number;
  /** Bytes after that; what a crash in the middle of an append leaves. */
  readonly tornBytes: number;
  /** Byte ranges before `endBytes` that are no frame: damage, never the trace of a crash. */
  readonly corrupt: readonly { readonly start: number; readonly end: number }[];
};

export function encodeFrame(payload: Buffer): Buffer {
  const frame = Buffer.allocUnsafe(HEADER_BYTES + payload.length);
  MARKER.copy(frame);
  frame.writeUInt32LE(payload.length, LENGTH_AT);
  payload.copy(frame, HEADER_BYTES);
  frame.writeUInt32LE(checksum(frame, 0, payload.length), CRC_AT);
  return frame;
}

/**
 * Reads every whole frame. Never throws: what follows the last whole frame is a torn tail, and what lies between whole
 * frames is reported as corrupt. Whether a journal with damage is used is for the caller to decide.
 */
export function readFrames(journal: Buffer): FrameReading {
  const frames: Buffer[] = [];
  const corrupt: { start: number; end: number }[] = [];
  let end = 0;
  for (let at = 0; at >= 0; ) {
    const length = frameLength(journal, at);
    if (length === null) {
      at = journal.indexOf(MARKER, at + 1);
      continue;
    }
    if (at > end) corrupt.push({ start: end, end: at });
    end = at + HEADER_BYTES + length;
    frames.push(journal.subarray(at + HEADER_BYTES, end));
    at = end;
  }
  return { frames, endBytes: end, tornBytes: journal.length - end, corrupt };
}

/** The payload length of the whole and undamaged frame at `at`; null when there is none. */
function frameLength(journal: Buffer, at: number): number | null {
  if (at + HEADER_BYTES > journal.length || journal.compare(MARKER, 0, MARKER.length, at, at + MARKER.length) !== 0) {
    return null;
  }
  const length = journal.readUInt32LE(at + LENGTH_AT);
  if (at + HEADER_BYTES + length > journal.length) return null;
  return journal.readUInt32LE(at + CRC_AT) === checksum(journal, at, length) ? length : null;
}

function checksum(bytes: Buffer, at: number, length: number): number {
  const ofLength = crc32(bytes.subarray(at + LENGTH_AT, at + CRC_AT));
  return crc32(bytes.subarray(at + HEADER_BYTES, at + HEADER_BYTES + length), ofLength);
}

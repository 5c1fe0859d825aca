import { close, constants, fdatasync, open, write } from 'node:fs';
import { open as openHandle } from 'node:fs/promises';
import { dirname } from 'node:path';
import { crc32 } from 'node:zlib';
import { FloeError } from '@floe-rl/core';

/**
 * A file to which data is only appended. `append` resolves when the bytes are as durable as the function that opened the file promises.
 * After `append` has rejected, the file must not be used any more.
 */
export interface AppendFile {
  append(data: Buffer): Promise<void>;
  close(): Promise<void>;
}

/** Creates a file, which must not exist yet, and makes its directory entry durable. */
export type OpenAppendFile = (path: string) => Promise<AppendFile>;

/**
 * Opens a file whose `append` resolves when the bytes are on the disk. With O_DSYNC, a write returns once its data is on the disk. This takes
 * one task of the thread pool, and a write followed by fdatasync takes two.
 */
export const openAppendFile: OpenAppendFile = async (path) => {
  const fd = await create(path, constants.O_DSYNC);
  return { append: (data) => writeAll(fd, data), close: () => done((callback) => close(fd, callback)) };
};

/** A file whose appended bytes survive the end of the process. They survive a loss of power only after `sync` has resolved. */
export interface UnsyncedFile extends AppendFile {
  /** Makes all bytes durable that were appended before this call. */
  sync(): Promise<void>;
}

export type OpenUnsyncedFile = (path: string) => Promise<UnsyncedFile>;

/** Opens a file whose `append` resolves when the kernel has the bytes. */
export const openUnsyncedFile: OpenUnsyncedFile = async (path) => {
  const fd = await create(path, 0);
  return {
    append: (data) => writeAll(fd, data),
    sync: () => done((callback) => fdatasync(fd, callback)),
    close: () => done((callback) => close(fd, callback)),
  };
};

// The callback API is used because `node:fs/promises` costs several times as much, and every model call waits for a write.

async function create(path: string, flag: number): Promise<number> {
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_APPEND | flag;
  const fd = await new Promise<number>((resolve, reject) => {
    open(path, flags, 0o600, (error, opened) => (error ? reject(error) : resolve(opened)));
  });
  const directory = await openHandle(dirname(path), 'r');
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
  return fd;
}

function writeAll(fd: number, data: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    const writeFrom = (offset: number): void => {
      write(fd, data, offset, data.length - offset, null, (error, written) => {
        if (error) reject(error);
        else if (offset + written < data.length) writeFrom(offset + written);
        else resolve();
      });
    };
    writeFrom(0);
  });
}

function done(start: (callback: (error: Error | null) => void) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    start((error) => (error ? reject(error) : resolve()));
  });
}

/**
 * Marker at the start of each frame. A frame in an append-only file consists of the marker, the payload's length, the CRC32 of length and
 * payload, and the payload. Numbers are little-endian. A reader finds the next frame after a damaged one by the marker, which contains
 * 0xff, a byte that never occurs in UTF-8.
 */
const MARKER = Buffer.from([0xf1, 0x0e, 0xff, 0xc0]);
const LENGTH_AT = 4;
const CRC_AT = 8;
/** Size in bytes of the part of a frame that precedes its payload. */
export const FRAME_HEADER_BYTES = 12;

export type FrameReading = {
  /** The payloads of all whole frames in file order, as views of the input buffer. */
  readonly frames: readonly Buffer[];
  /** Position in bytes after the last whole frame. The file must be truncated to this size before more is appended. */
  readonly endBytes: number;
  /** Number of bytes after the last whole frame. A crash during an append leaves such bytes. */
  readonly tornBytes: number;
  /**
   * Byte ranges before the last whole frame that are not whole frames. They are a sign of disk damage, because a crash during an append
   * damages only the end of the file.
   */
  readonly corrupt: readonly { readonly start: number; readonly end: number }[];
};

export function encodeFrame(payload: Buffer): Buffer {
  const frame = Buffer.allocUnsafe(FRAME_HEADER_BYTES + payload.length);
  payload.copy(frame, FRAME_HEADER_BYTES);
  return framed(frame);
}

/** Makes `bytes` a frame by filling its first {@link FRAME_HEADER_BYTES}; the payload after them must be there already. Returns `bytes`. */
export function framed(bytes: Buffer): Buffer {
  const length = bytes.length - FRAME_HEADER_BYTES;
  MARKER.copy(bytes);
  bytes.writeUInt32LE(length, LENGTH_AT);
  bytes.writeUInt32LE(checksum(bytes, 0, length), CRC_AT);
  return bytes;
}

/** Returns the payload of one frame, as a view of `frame`. Throws `corrupt_record` when `frame` is not exactly one undamaged frame. */
export function decodeFrame(frame: Buffer): Buffer {
  if (frameLength(frame, 0) !== frame.length - FRAME_HEADER_BYTES) {
    throw new FloeError('corrupt_record', 'a stored frame is damaged or incomplete');
  }
  return frame.subarray(FRAME_HEADER_BYTES);
}

/**
 * Returns the position and length in `file` of the frame that holds `payload`, in bytes. `payload` must be a view that {@link readFrames}
 * returned for `file`.
 */
export function frameRange(file: Buffer, payload: Buffer): { readonly offset: number; readonly length: number } {
  return {
    offset: payload.byteOffset - file.byteOffset - FRAME_HEADER_BYTES,
    length: payload.length + FRAME_HEADER_BYTES,
  };
}

/**
 * Finds every whole frame of a file. Never throws: bytes after the last whole frame are reported as torn, and bytes between whole frames
 * as corrupt. The caller decides whether it uses a damaged file.
 */
export function readFrames(file: Buffer): FrameReading {
  const frames: Buffer[] = [];
  const corrupt: { start: number; end: number }[] = [];
  let end = 0;
  for (let at = 0; at >= 0; ) {
    const length = frameLength(file, at);
    if (length === null) {
      at = file.indexOf(MARKER, at + 1);
      continue;
    }
    if (at > end) corrupt.push({ start: end, end: at });
    end = at + FRAME_HEADER_BYTES + length;
    frames.push(file.subarray(at + FRAME_HEADER_BYTES, end));
    at = end;
  }
  return { frames, endBytes: end, tornBytes: file.length - end, corrupt };
}

/** Returns the payload length of the frame at position `at`; `null` when no whole, undamaged frame starts at this position. */
function frameLength(file: Buffer, at: number): number | null {
  if (at + FRAME_HEADER_BYTES > file.length || file.compare(MARKER, 0, MARKER.length, at, at + MARKER.length) !== 0) {
    return null;
  }
  const length = file.readUInt32LE(at + LENGTH_AT);
  if (at + FRAME_HEADER_BYTES + length > file.length) return null;
  return file.readUInt32LE(at + CRC_AT) === checksum(file, at, length) ? length : null;
}

function checksum(bytes: Buffer, at: number, length: number): number {
  const ofLength = crc32(bytes.subarray(at + LENGTH_AT, at + CRC_AT));
  return crc32(bytes.subarray(at + FRAME_HEADER_BYTES, at + FRAME_HEADER_BYTES + length), ofLength);
}

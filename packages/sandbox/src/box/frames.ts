import { GatheredBytes } from '@floe-rl/core';

/*
 * Frames between a gateway and the box server of a sandbox. A frame consists of the length of its header and the length of its body (4 bytes
 * each, big-endian), the header as JSON, and the body as raw bytes. The box server runs in sandboxes, so this file imports no package.
 */

const LENGTHS_BYTES = 8;
const EMPTY = Buffer.alloc(0);

export type Frame = { readonly header: unknown; readonly body: Buffer };

/** Maximum lengths in bytes of the header and the body of a frame. */
export type FrameLimits = { readonly headerBytes: number; readonly bodyBytes: number };

/** Returns the bytes of a frame. They are separate buffers, so that a long body is not copied. */
export function encodeFrame(header: object, body: Buffer = EMPTY): Buffer[] {
  const json = Buffer.from(JSON.stringify(header));
  const lengths = Buffer.alloc(LENGTHS_BYTES);
  lengths.writeUInt32BE(json.length, 0);
  lengths.writeUInt32BE(body.length, 4);
  return body.length === 0 ? [lengths, json] : [lengths, json, body];
}

/**
 * Reads frames from chunks of bytes, and calls `onFrame` for each. Its memory grows with the received bytes and not with the announced length
 * of a frame, however the bytes are split.
 */
export class FrameReader {
  private readonly limits: FrameLimits;
  private readonly onFrame: (frame: Frame) => void;
  /** Number of bytes of the next part of a frame: its lengths, or its header and body. */
  private wanted = LENGTHS_BYTES;
  private part = new GatheredBytes(LENGTHS_BYTES);
  /** Length of the header of the frame whose header and body are being read; `null` while lengths are being read. */
  private headerBytes: number | null = null;

  constructor(limits: FrameLimits, onFrame: (frame: Frame) => void) {
    this.limits = limits;
    this.onFrame = onFrame;
  }

  /** Whether a frame has begun and is not complete. */
  get isInFrame(): boolean {
    return this.headerBytes !== null || this.part.length > 0;
  }

  /** Reads the next bytes. Throws an `Error` when a frame is longer than allowed or a header is not JSON. */
  push(chunk: Buffer): void {
    for (let rest = chunk; ; ) {
      const missing = this.wanted - this.part.length;
      this.part.add(rest.subarray(0, missing));
      if (rest.length < missing) return;
      rest = rest.subarray(missing);
      this.read(this.part.take());
    }
  }

  private read(part: Buffer): void {
    if (this.headerBytes === null) {
      const [header, body] = [part.readUInt32BE(0), part.readUInt32BE(4)];
      if (header > this.limits.headerBytes || body > this.limits.bodyBytes) {
        throw new Error(`a frame with ${header} bytes of header and ${body} bytes of body is too long`);
      }
      this.headerBytes = header;
      this.expect(header + body);
      return;
    }
    const header: unknown = JSON.parse(part.toString('utf8', 0, this.headerBytes));
    const body = part.subarray(this.headerBytes);
    this.headerBytes = null;
    this.expect(LENGTHS_BYTES);
    this.onFrame({ header, body });
  }

  private expect(bytes: number): void {
    this.wanted = bytes;
    this.part = new GatheredBytes(bytes);
  }
}

import type { Readable } from 'node:stream';
import { CappedOutput } from '../spawn/capped-output.ts';

/** First byte of every marker: the ASCII control character "record separator", which is rare in output. */
const FIRST_BYTE = 0x1e;
/** Maximum number of kept bytes of the output of background processes while no code runs. */
const BETWEEN_BYTES = 64 * 1024;
const EMPTY = Buffer.alloc(0);

/** Returns the bytes that a process writes to an output to mark the end of the output of one run. */
export function markerOf(nonce: string): Buffer {
  return Buffer.from(`${String.fromCharCode(FIRST_BYTE)}${nonce}`);
}

/**
 * Output of a process that runs one piece of code after another. A marker in the stream ends the output of a run. Later output belongs to the
 * next run.
 */
export class MarkedOutput {
  private readonly stream: Readable;
  private readonly onMarker: () => void;
  private output = new CappedOutput(BETWEEN_BYTES);
  /** Output after the marker, while the output before it has not been taken; `null` otherwise. */
  private rest: CappedOutput | null = null;
  private marker: Buffer | null = null;
  /** Last bytes of the stream that may be the start of the marker. */
  private pending: Buffer = EMPTY;

  constructor(stream: Readable, onMarker: () => void) {
    this.stream = stream;
    this.onMarker = onMarker;
    stream.on('data', (chunk: Buffer) => this.push(chunk));
    stream.on('error', () => {});
  }

  /** Starts the output of a run that ends with `marker`. At most `maxBytes` of the output are kept. */
  expect(marker: Buffer, maxBytes: number): void {
    const next = new CappedOutput(maxBytes);
    next.push(this.output.bytes());
    this.output = next;
    this.marker = marker;
  }

  /** Returns the output of the run, and the number of bytes that were dropped. */
  take(): { readonly bytes: Buffer; readonly droppedBytes: number } {
    this.output.push(this.pending);
    const { output } = this;
    this.output = this.rest ?? new CappedOutput(BETWEEN_BYTES);
    this.rest = null;
    this.marker = null;
    this.pending = EMPTY;
    return { bytes: output.bytes(), droppedBytes: output.droppedBytes };
  }

  destroy(): void {
    this.stream.destroy();
  }

  private push(chunk: Buffer): void {
    if (this.marker === null) {
      (this.rest ?? this.output).push(chunk);
      return;
    }
    const data = this.pending.length === 0 ? chunk : Buffer.concat([this.pending, chunk]);
    this.pending = EMPTY;
    const at = data.indexOf(this.marker);
    if (at < 0) {
      const kept = startOfMarker(data, this.marker);
      this.output.push(data.subarray(0, kept));
      this.pending = data.subarray(kept);
      return;
    }
    this.output.push(data.subarray(0, at));
    this.rest = new CappedOutput(BETWEEN_BYTES);
    this.rest.push(data.subarray(at + this.marker.length));
    this.marker = null;
    this.onMarker();
  }
}

/** Returns the position from which `data` may end with the start of `marker`; the length of `data` when it does not. */
function startOfMarker(data: Buffer, marker: Buffer): number {
  const from = Math.max(0, data.length - marker.length + 1);
  for (let at = data.indexOf(FIRST_BYTE, from); at >= 0; at = data.indexOf(FIRST_BYTE, at + 1)) {
    if (data.subarray(at).equals(marker.subarray(0, data.length - at))) return at;
  }
  return data.length;
}

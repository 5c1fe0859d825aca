import { UINT_BYTES, writeAscii, writeUint } from './decimal.ts';
import { FLOAT32_BYTES, writeFloat32Bits } from './float32.ts';

/** Maximum number of bytes that writing one array element of type int32 may overwrite: the bytes of the digits, a sign and a comma. */
const INT32_BYTES = UINT_BYTES + 2;
const COMMA = 0x2c;
const OPEN = 0x5b;
const CLOSE = 0x5d;
const MINUS = 0x2d;
/** The characters `0,` as a little-endian two-byte word. Adding a digit to the word gives the characters of that digit and a comma. */
const DIGIT_AND_COMMA = 0x2c30;
/**
 * Number of array elements that are written between two checks of the free space in the buffer. Each check reserves the maximum size of all
 * these elements, so a larger value would reserve more bytes than are usually written.
 */
const BLOCK = 2048;
/** Number of bytes that are converted to base64 in one call. It is a multiple of three, so that only the last piece has padding. */
const BASE64_PIECE = 3 * 64 * 1024;
const TRUE = Buffer.from('true,');
const FALSE = Buffer.from('false,');
const LEAST_INT32 = -(2 ** 31);

/**
 * Writes JSON into one growing buffer. Columns of numbers are written digit by digit, without intermediate strings or boxed numbers. All
 * other parts are passed as JSON text, which the caller must keep well-formed. The writer is hand-written for speed, because columns of
 * numbers are most of a trajectory's bytes.
 */
export class JsonWriter {
  private bytes: Buffer;
  private view: DataView;
  private length = 0;

  constructor(expectedBytes: number) {
    this.bytes = Buffer.allocUnsafe(Math.max(expectedBytes, 1024));
    this.view = viewOf(this.bytes);
  }

  /** Writes JSON text unchanged. */
  raw(text: string): void {
    // A UTF-16 unit takes at most three bytes in UTF-8. The exact number of bytes is computed only when three bytes per unit would exceed
    // the unused bytes of the buffer.
    if (text.length * 3 > this.bytes.length - this.length) this.reserve(Buffer.byteLength(text));
    this.length += this.bytes.write(text, this.length, 'utf8');
  }

  value(value: unknown): void {
    this.raw(JSON.stringify(value));
  }

  /** Writes a JSON array from the JSON texts of its elements. */
  texts(texts: readonly string[]): void {
    this.raw('[');
    for (let i = 0; i < texts.length; i++) {
      if (i > 0) this.raw(',');
      this.raw(texts[i] as string);
    }
    this.raw(']');
  }

  /** Writes a JSON object whose values are strings. */
  strings(members: readonly (readonly [name: string, value: string])[]): void {
    this.raw('{');
    members.forEach(([name, value], index) => {
      this.raw(`${index > 0 ? ',' : ''}${JSON.stringify(name)}:`);
      this.value(value);
    });
    this.raw('}');
  }

  ints(values: Int32Array): void {
    this.open();
    for (let from = 0; from < values.length; from += BLOCK) {
      const to = Math.min(from + BLOCK, values.length);
      this.reserve(BLOCK * INT32_BYTES);
      const { view } = this;
      let at = this.length;
      for (let i = from; i < to; i++) {
        const value = values[i] as number;
        at = value < 0 ? writeNegative(view, at, value) : writeUint(view, at, value);
        view.setUint8(at++, COMMA);
      }
      this.length = at;
    }
    this.close();
  }

  /**
   * Writes a JSON array of numbers: each value as the shortest decimal from which its float32 can be restored; see {@link writeFloat32}.
   * All values must be finite.
   */
  floats(values: Float32Array): void {
    const bits = new Int32Array(values.buffer, values.byteOffset, values.length);
    this.open();
    for (let from = 0; from < values.length; from += BLOCK) {
      const to = Math.min(from + BLOCK, values.length);
      this.reserve(BLOCK * (FLOAT32_BYTES + 1));
      const { view } = this;
      let at = this.length;
      for (let i = from; i < to; i++) {
        at = writeFloat32Bits(view, at, bits[i] as number);
        view.setUint8(at++, COMMA);
      }
      this.length = at;
    }
    this.close();
  }

  /** Writes a JSON array of whole numbers from 0 to 9. */
  digits(values: Uint8Array): void {
    this.open();
    this.reserve(values.length * 2);
    const { view } = this;
    let at = this.length;
    for (let i = 0; i < values.length; i++) {
      view.setUint16(at, DIGIT_AND_COMMA + (values[i] as number), true);
      at += 2;
    }
    this.length = at;
    this.close();
  }

  /** Writes a JSON array of booleans: `false` for 0, else `true`. */
  booleans(values: Uint8Array): void {
    this.open();
    this.reserve(values.length * FALSE.length);
    for (let i = 0; i < values.length; i++) {
      const text = values[i] === 0 ? FALSE : TRUE;
      this.bytes.set(text, this.length);
      this.length += text.length;
    }
    this.close();
  }

  /**
   * Writes bytes as a base64 string. The bytes are converted in pieces, because one string for all of them would take additional memory of
   * the same size.
   */
  base64(data: Buffer): void {
    this.raw('"');
    for (let from = 0; from < data.length; from += BASE64_PIECE) {
      const text = data.toString('base64', from, Math.min(from + BASE64_PIECE, data.length));
      this.reserve(text.length);
      this.length += this.bytes.write(text, this.length, 'latin1');
    }
    this.raw('"');
  }

  /** Returns a view of the written bytes. The writer must not be used after this call. */
  finish(): Buffer {
    return this.bytes.subarray(0, this.length);
  }

  private open(): void {
    this.reserve(2);
    this.bytes[this.length++] = OPEN;
  }

  /** Ends an array. The closing bracket replaces the comma after the last element, if there is one. */
  private close(): void {
    if (this.bytes[this.length - 1] === COMMA) this.length--;
    this.reserve(1);
    this.bytes[this.length++] = CLOSE;
  }

  private reserve(more: number): void {
    const needed = this.length + more;
    if (needed <= this.bytes.length) return;
    const grown = Buffer.allocUnsafe(Math.max(needed, this.bytes.length * 2));
    this.bytes.copy(grown, 0, 0, this.length);
    this.bytes = grown;
    this.view = viewOf(grown);
  }
}

function viewOf(bytes: Buffer): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
}

function writeNegative(view: DataView, at: number, value: number): number {
  if (value === LEAST_INT32) return writeAscii(view, at, String(value));
  view.setUint8(at, MINUS);
  return writeUint(view, at + 1, -value);
}

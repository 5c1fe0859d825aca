import { MIB } from '../bytes.ts';
import { FloeError } from '../errors.ts';
import { parseJson } from '../parse.ts';
import { MAX_ARTIFACTS_MB } from '../schema/index.ts';

/**
 * Media type of an envelope: the wire form in which a node sends a session's result to the server. An envelope is one line of JSON,
 * followed by opaque parts. The server reads the line and stores the parts as blobs; it never parses a token array.
 *
 *   {"header": …, "parts": [{"name": "trajectory", "bytes": 1234}, …]}\n<bytes><bytes>…
 */
export const ENVELOPE_TYPE = 'application/x-floe-envelope';

/** Number of bytes of an envelope that are reserved for token arrays. A session of 200 turns and 128k tokens is about 10 MB of JSON. */
const TOKEN_DATA_BYTES = 64 * MIB;
/**
 * Largest envelope that a server accepts, in bytes: the largest archive of artifacts that a task may request plus
 * {@link TOKEN_DATA_BYTES}.
 */
export const RESULT_LIMIT_BYTES = MAX_ARTIFACTS_MB * MIB + TOKEN_DATA_BYTES;

export type Envelope = { readonly header: unknown; readonly parts: ReadonlyMap<string, Buffer> };

const NEWLINE = 0x0a;

export function encodeEnvelope(envelope: Envelope): Buffer {
  return Buffer.concat([headLine(envelope), ...envelope.parts.values()]);
}

/** Returns the length in bytes of the result of {@link encodeEnvelope} without copying the parts. */
export function envelopeLength(envelope: Envelope): number {
  return [...envelope.parts.values()].reduce((sum, part) => sum + part.length, headLine(envelope).length);
}

function headLine(envelope: Envelope): Buffer {
  const parts = [...envelope.parts].map(([name, data]) => ({ name, bytes: data.length }));
  return Buffer.from(`${JSON.stringify({ header: envelope.header, parts })}\n`);
}

/**
 * Decodes an envelope. The parts are views of `body`, not copies. Throws `malformed_json` when the header line is invalid or the sizes of
 * line and parts do not add up to exactly the size of `body`.
 */
export function decodeEnvelope(body: Buffer): Envelope {
  const end = body.indexOf(NEWLINE);
  if (end < 0) throw new FloeError('malformed_json', 'envelope: no header line');
  const head = parseJson(body.subarray(0, end)) as { header?: unknown; parts?: unknown };
  if (typeof head !== 'object' || head === null || !Array.isArray(head.parts)) {
    throw new FloeError('malformed_json', 'envelope: the header line has no parts');
  }
  const parts = new Map<string, Buffer>();
  let offset = end + 1;
  for (const part of head.parts as { name?: unknown; bytes?: unknown }[]) {
    if (typeof part?.name !== 'string' || !Number.isInteger(part.bytes) || (part.bytes as number) < 0) {
      throw new FloeError('malformed_json', 'envelope: a part has no name or size');
    }
    const bytes = part.bytes as number;
    if (parts.has(part.name)) throw new FloeError('malformed_json', `envelope: part ${part.name} occurs twice`);
    if (offset + bytes > body.length) throw new FloeError('malformed_json', `envelope: part ${part.name} is cut off`);
    parts.set(part.name, body.subarray(offset, offset + bytes));
    offset += bytes;
  }
  if (offset !== body.length) throw new FloeError('malformed_json', 'envelope: bytes after the last part');
  return { header: head.header, parts };
}

import { isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';
import { type FloeError, fieldError, parseAs } from '@floe-rl/core';
import { decodeEnvelope, MAX_SEARCH_CHARS, OUTCOMES } from '@floe-rl/core/protocol';
import { type SessionSummary, sessionSummarySchema } from '@floe-rl/core/schema';
import type { BlobRef, ResultBlobs } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';

const PART_NAMES = ['trajectory', 'completions', 'artifacts'] as const;
/** Name of the part with the text of the messages for the full-text search. The text is indexed, not stored. */
const TEXT_PART = 'text';
/** Maximum number of bytes of a character in UTF-8. */
const MAX_CHAR_BYTES = 4;
const JSON_NULL = Buffer.from('null');
/** The first bytes of every gzip stream. */
const GZIP_MAGIC = Buffer.from([0x1f, 0x8b]);

/** The decoded body of a delivery. Its fields are consistent with each other, but have not been compared with the stored session. */
export type DecodedDelivery = {
  readonly nodeId: string;
  readonly summary: SessionSummary;
  /** The header of the delivery as the node sent it. The digest of the delivery is computed from it. */
  readonly header: unknown;
  readonly parts: ReadonlyMap<string, Buffer>;
  /** Text of the messages for the full-text search; empty when the node sent none. */
  readonly text: string;
};

/**
 * Decodes the body of a delivery and checks that its fields are consistent with each other. Throws `malformed_json` for a body that is no
 * envelope, and `schema_violation` for an invalid field.
 */
export function decodeDelivery(nodeId: string, body: Buffer): DecodedDelivery {
  const { header, parts } = decodeEnvelope(body);
  const summary = { ...parseAs(sessionSummarySchema, header, 'result header'), node_id: nodeId };
  checkStatus(summary);
  for (const [name, bytes] of parts) checkPart(name, bytes);
  checkArtifacts(summary, parts.get('artifacts'));
  return { nodeId, summary, header, parts, text: parts.get(TEXT_PART)?.toString() ?? '' };
}

/**
 * Stores the parts of a delivery as blobs. Resolves when they are durable. Throws `store_unavailable` when the blob store fails.
 */
export async function storeParts(context: RolloutContext, { parts }: DecodedDelivery): Promise<ResultBlobs> {
  const [trajectory = null, completions = null, artifacts = null] = await Promise.all(
    PART_NAMES.map((name) => putPart(context, parts.get(name))),
  );
  return { trajectory, completions, artifacts };
}

/**
 * Returns a digest that is equal for equal deliveries. It covers the header and the names of the blobs; the names are hashes of the parts,
 * so the parts need not be read for it.
 */
export function digestOf(header: unknown, blobs: ResultBlobs): string {
  const parts = [header, blobs.trajectory?.ref ?? null, blobs.completions?.ref ?? null, blobs.artifacts?.ref ?? null];
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex');
}

/** Creates the error for a field of a delivery that has an invalid value. */
export function violation(path: string, message: string): FloeError {
  return fieldError(path, message, { input: 'result' });
}

function checkStatus(summary: SessionSummary): void {
  const expected = OUTCOMES[summary.outcome].status;
  if (summary.status !== expected) throw violation('status', `must be ${expected} for outcome ${summary.outcome}`);
}

/** Checks that the summary describes the artifacts archive correctly, because trainers rely on the summary without opening the archive. */
function checkArtifacts(summary: SessionSummary, archive: Buffer | undefined): void {
  const bytes = archive?.length ?? 0;
  const reported = summary.artifacts?.bytes ?? 0;
  if (reported !== bytes) throw violation('artifacts.bytes', `is ${reported}, but the part has ${bytes}`);
  if (archive !== undefined && !archive.subarray(0, GZIP_MAGIC.length).equals(GZIP_MAGIC))
    throw violation('parts.artifacts', 'must be compressed with gzip');
}

/**
 * Checks the format of one part of a delivery. A trajectory must be JSON on one line, because it is later inserted into larger JSON without
 * being parsed. The formats of completions and artifacts are not checked.
 */
function checkPart(name: string, bytes: Buffer): void {
  if (name === TEXT_PART) {
    if (bytes.length > MAX_SEARCH_CHARS * MAX_CHAR_BYTES) throw violation(`parts.${name}`, 'is too long');
    return;
  }
  if (!PART_NAMES.some((known) => known === name)) throw violation(`parts.${name}`, 'is not a part of a result');
  if (name !== 'trajectory' || isJsonNull(bytes)) return;
  if (bytes[0] !== 0x7b || bytes[bytes.length - 1] !== 0x7d) throw violation(`parts.${name}`, 'must be a JSON object');
  if (bytes.includes(0x0a) || bytes.includes(0x0d)) throw violation(`parts.${name}`, 'must be JSON on one line');
  if (!isUtf8(bytes)) throw violation(`parts.${name}`, 'must be UTF-8');
}

function isJsonNull(bytes: Buffer): boolean {
  return bytes.length === 0 || bytes.equals(JSON_NULL);
}

async function putPart(context: RolloutContext, bytes: Buffer | undefined): Promise<BlobRef | null> {
  return bytes === undefined || isJsonNull(bytes) ? null : context.blobs.put(bytes);
}

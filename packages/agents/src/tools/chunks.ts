import { type FloeError, fieldError } from '@floe-rl/core';
import { requireBox } from './require-box.ts';
import { type Box, ToolError } from './tool.ts';

/** Maximum number of characters of a document. */
const MAX_DOCUMENT_CHARS = 64 * 1024 * 1024;
/** Share of a chunk, at its end, in which a good place to cut is searched. */
const CUT_SHARE = 0.2;

/** Where a document is: a file of the sandbox, or a field of the task's metadata. */
export type DocumentSource = { readonly file: string } | { readonly metadata: string };

type Session = { readonly box: Box | null; readonly metadata: Readonly<Record<string, unknown>> };

/** Reads a document. Rejects with `schema_violation` when there is none that can be read. */
export async function readDocument(
  source: DocumentSource,
  { box, metadata }: Session,
  signal: AbortSignal,
): Promise<string> {
  if ('file' in source) return readWhole(source.file, requireBox('memory', box), signal);
  const text = metadata[source.metadata];
  if (typeof text !== 'string') throw refusal(`metadata.${source.metadata}: must be a text, the document`);
  return text;
}

async function readWhole(file: string, box: Box, signal: AbortSignal): Promise<string> {
  const parts: string[] = [];
  let chars = 0;
  for (let firstLine: number | null = 1; firstLine !== null; ) {
    const { text, nextLine, isCut } = await readPart(file, firstLine, box, signal);
    if (isCut) throw refusal(`the document ${file} has a line that is too long to be read`);
    chars += text.length;
    if (chars > MAX_DOCUMENT_CHARS) {
      throw refusal(`the document ${file} is longer than ${MAX_DOCUMENT_CHARS} characters`);
    }
    parts.push(text);
    firstLine = nextLine;
  }
  return parts.join('');
}

function readPart(file: string, firstLine: number, box: Box, signal: AbortSignal): ReturnType<Box['readFile']> {
  return box.readFile(file, { firstLine }, signal).catch((error: unknown) => {
    if (error instanceof ToolError) throw refusal(`the document ${file} cannot be read: ${error.message}`);
    throw error;
  });
}

/** Cuts a text into parts of at most `chars` characters, at the end of a paragraph, line or word where one is near. No text is lost. */
export function chunksOf(text: string, chars: number): string[] {
  const chunks: string[] = [];
  for (let at = 0; at < text.length; ) {
    const end = at + chars >= text.length ? text.length : cutBefore(text, at, at + chars);
    chunks.push(text.slice(at, end));
    at = end;
  }
  return chunks;
}

/** Returns the best place for a cut in the last part of `[start, end)`. */
function cutBefore(text: string, start: number, end: number): number {
  const first = end - Math.floor((end - start) * CUT_SHARE);
  const tail = text.slice(first, end);
  for (const mark of ['\n\n', '\n', ' ']) {
    const found = tail.lastIndexOf(mark);
    if (found >= 0) return first + found + mark.length;
  }
  // A pair of surrogates is one character and stays whole.
  return /[\uD800-\uDBFF]/.test(text.charAt(end - 1)) && end - 1 > start ? end - 1 : end;
}

function refusal(message: string): FloeError {
  return fieldError('agent.settings.tools', message, { text: message });
}

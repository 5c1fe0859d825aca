// Writes down what harnesses send, one JSONL file for each cell: raw material for tests of dialects and call kinds.
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { slugOf } from './cell.mjs';

/** Carries each request as it reached the proxy: `{ sessionId, dialect, method, path, headers, body }`. */
const CHANNEL = 'floe:proxy:request';

/** Headers that open a session; keys are useless afterwards, but look like secrets. */
const SECRET_HEADERS = ['authorization', 'x-api-key', 'x-goog-api-key'];

export function captureRequests(dir) {
  const bySession = new Map();
  const see = (message) => {
    const { sessionId, dialect, method, path, headers, body } = message;
    const shown = Object.fromEntries(Object.entries(headers).filter(([name]) => !SECRET_HEADERS.includes(name)));
    const line = JSON.stringify({
      dialect,
      method,
      path: path.replace(/^\/s\/[^/]+/, ''),
      headers: shown,
      body: textOf(body),
    });
    bySession.set(sessionId, [...(bySession.get(sessionId) ?? []), line]);
  };
  subscribe(CHANNEL, see);
  return {
    async write(planned, sessionId) {
      const lines = bySession.get(sessionId) ?? [];
      bySession.delete(sessionId);
      if (lines.length === 0) return;
      await mkdir(dir, { recursive: true });
      await writeFile(join(dir, `${slugOf(planned)}.jsonl`), `${lines.join('\n')}\n`);
    },
    close: () => unsubscribe(CHANNEL, see),
  };
}

/** JSON where it is JSON, so that a line of the file can be read. */
function textOf(body) {
  if (!Buffer.isBuffer(body) && typeof body !== 'string') return body ?? null;
  const text = body.toString('utf8');
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

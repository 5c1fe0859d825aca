// Writes down what harnesses send, one JSONL file for each cell: raw material for tests of dialects and call kinds.
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { REQUEST_CHANNEL } from '../dist/proxy/http/request-channel.js';
import { slugOf } from './cell.mjs';

export function captureRequests(dir) {
  const bySession = new Map();
  const see = (message) => {
    const { sessionId, dialect, method, path, headers, body } = message;
    const line = JSON.stringify({ dialect, method, path, headers, body: contentOf(body) });
    bySession.set(sessionId, [...(bySession.get(sessionId) ?? []), line]);
  };
  subscribe(REQUEST_CHANNEL, see);
  return {
    async write(planned, sessionId) {
      const lines = bySession.get(sessionId) ?? [];
      bySession.delete(sessionId);
      if (lines.length === 0) return;
      await mkdir(dir, { recursive: true });
      await writeFile(join(dir, `${slugOf(planned)}.jsonl`), `${lines.join('\n')}\n`);
    },
    close: () => unsubscribe(REQUEST_CHANNEL, see),
  };
}

/** JSON where it is JSON, so that a line of the file can be read; null: there is none. */
function contentOf(body) {
  const text = body.toString('utf8');
  if (text === '') return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

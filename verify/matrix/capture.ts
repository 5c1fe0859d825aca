import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type ProxyRequestMessage, REQUEST_CHANNEL } from '../../src/proxy/http/request-channel.ts';
import { slugOf } from './cell.ts';
import type { RunnableCell } from './plan.ts';

/** Records what harnesses send, one JSONL file for each cell: raw material for tests of dialects and call kinds. */
export class RequestCapture {
  private readonly dir: string;
  private readonly linesOf = new Map<string, string[]>();
  private readonly listener = (message: unknown): void => {
    if (isRequest(message)) this.record(message);
  };

  constructor(dir: string) {
    this.dir = dir;
    subscribe(REQUEST_CHANNEL, this.listener);
  }

  /** Writes the requests of a session, if there were any, to the file of its cell. */
  async write(planned: RunnableCell, sessionId: string): Promise<void> {
    const lines = this.linesOf.get(sessionId) ?? [];
    this.linesOf.delete(sessionId);
    if (lines.length === 0) return;
    await mkdir(this.dir, { recursive: true });
    await writeFile(join(this.dir, `${slugOf(planned)}.jsonl`), `${lines.join('\n')}\n`);
  }

  close(): void {
    unsubscribe(REQUEST_CHANNEL, this.listener);
  }

  private record({ sessionId, dialect, method, path, headers, body }: ProxyRequestMessage): void {
    const line = JSON.stringify({ dialect, method, path, headers, body: contentOf(body) });
    const lines = this.linesOf.get(sessionId) ?? [];
    lines.push(line);
    this.linesOf.set(sessionId, lines);
  }
}

/** Only floe's proxy publishes on the channel, whose messages Node types as unknown. */
function isRequest(message: unknown): message is ProxyRequestMessage {
  return typeof message === 'object' && message !== null && 'sessionId' in message && 'body' in message;
}

/** The parsed body, so that a line of the file can be read; the text where it is not JSON, `null` where it is empty. */
function contentOf(body: Buffer): unknown {
  const text = body.toString('utf8');
  if (text === '') return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

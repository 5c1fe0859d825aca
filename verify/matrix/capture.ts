import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type ProxyRequestMessage, REQUEST_CHANNEL } from '#capture/proxy/http/request-channel';
import { slugOf } from './cell.ts';
import type { RunnableCell } from './plan.ts';

/**
 * Records the requests that harnesses send to floe's proxy, in one JSONL file per test case, harness and dialect. Tests of the dialects and
 * of the classification of calls use such files as input.
 */
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

  /** Writes the recorded requests of a session to the JSONL file of its test case. Writes no file when the session sent no request. */
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

/** Type guard for messages on the diagnostics channel. Node types them as `unknown`, but only floe's proxy publishes on this channel. */
function isRequest(message: unknown): message is ProxyRequestMessage {
  return typeof message === 'object' && message !== null && 'sessionId' in message && 'body' in message;
}

/** Returns a request body in readable form: the parsed JSON, the text when it is not JSON, or `null` when it is empty. */
function contentOf(body: Buffer): unknown {
  const text = body.toString('utf8');
  if (text === '') return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

import { request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import { type Clock, systemClock, VirtualClock } from '@floe-rl/core';
import { engineSpecSchema, samplingSchema, taskEngineSchema } from '@floe-rl/core/schema';
import type { EnginePools } from '../../src/engines/pool/engine-pools.ts';
import { createEnginePools } from '../../src/engines/pool/managed-engine-pools.ts';
import { createProxy, type ModelProxy } from '../../src/proxy/http/proxy.ts';
import type { CompletionJournal } from '../../src/proxy/journal/journal.ts';
import type { ProxySession } from '../../src/proxy/session/session.ts';
import type { ProxySessionSpec } from '../../src/proxy/session/session-spec.ts';
import { chooseBase, encodeCompletion } from '../../src/tokens/codec.ts';
import type { Completion } from '../../src/tokens/completion.ts';
import { type Handler, json, ScriptedServer, vllmReply } from '../engines/scripted-server.ts';

/**
 * A journal for tests. By default, each completion is durable immediately. With `hold`, the test decides when a completion becomes durable
 * or fails.
 */
export class HandJournal implements CompletionJournal {
  readonly written: Completion[] = [];
  held: { completion: Completion; commit: () => void; fail: (error: Error) => void }[] = [];
  hold = false;
  private arrivals: (() => void)[] = [];

  append(completion: Completion, earlier: readonly Completion[]): Promise<number> {
    const { length } = encodeCompletion(completion, chooseBase(completion, earlier));
    if (!this.hold) {
      this.written.push(completion);
      return Promise.resolve(length);
    }
    return new Promise((resolve, reject) => {
      const commit = (): void => {
        this.written.push(completion);
        resolve(length);
      };
      this.held.push({ completion, commit, fail: reject });
      for (const wake of this.arrivals.splice(0)) wake();
    });
  }

  /** Resolves when a completion has been appended that the test has not made durable yet. */
  waiting(): Promise<void> {
    if (this.held.length > 0) return Promise.resolve();
    return new Promise((resolve) => this.arrivals.push(resolve));
  }
}

/**
 * A clock that reports when a timer with a given delay is scheduled, such as the timer that the proxy starts when a client has
 * disconnected.
 */
export class WatchedClock extends VirtualClock {
  private watchers: { delayMs: number; resolve: () => void }[] = [];

  override schedule(delayMs: number, callback: () => void): () => void {
    const cancel = super.schedule(delayMs, callback);
    for (const watcher of this.watchers.filter((entry) => entry.delayMs === delayMs)) watcher.resolve();
    return cancel;
  }

  scheduled(delayMs: number): Promise<void> {
    return new Promise((resolve) => this.watchers.push({ delayMs, resolve }));
  }
}

export type Reply = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: string };

export type Sent = {
  readonly reply: Promise<Reply>;
  /** Resolves with the first bytes of the response body when they have arrived. */
  readonly firstBytes: Promise<string>;
  /** Resolves with the response headers when they have arrived. */
  readonly headers: Promise<IncomingHttpHeaders>;
  /** Returns the part of the response body that has arrived so far. */
  received(): string;
  abort(): void;
};

export type SendOptions = {
  readonly method?: string;
  readonly path: string;
  readonly body?: unknown;
  /** A request body that is sent unchanged, instead of `body`, which is serialized as JSON. */
  readonly raw?: Buffer | string;
  readonly headers?: Record<string, string | string[]>;
  readonly socketPath?: string;
};

export class Rig {
  readonly server: ScriptedServer;
  readonly journal = new HandJournal();
  proxy!: ModelProxy;
  engines!: EnginePools;
  private nextKey = 0;

  constructor(onChat: Handler = (received) => json(received.response, 200, vllmReply(received))) {
    this.server = new ScriptedServer(onChat);
  }

  /** Starts a proxy and its engine. `prepare` may change the engine before the proxy's adapter connects to it. */
  static async start(
    clock: Clock = systemClock,
    journal?: CompletionJournal,
    prepare: (server: ScriptedServer) => void = () => {},
  ): Promise<Rig> {
    const rig = new Rig();
    prepare(rig.server);
    await rig.server.listen();
    rig.engines = await createEnginePools([engineSpecSchema.parse({ base_url: rig.server.baseUrl })], { clock });
    // Removes the requests of the engine adapter that probed the scripted server at start, so that tests see only model calls.
    rig.server.received.splice(0);
    rig.proxy = createProxy({ engines: rig.engines, journal: journal ?? rig.journal, clock });
    await rig.proxy.listen({ host: '127.0.0.1', port: 0 });
    return rig;
  }

  async stop(): Promise<void> {
    await this.proxy.close();
    await this.engines.close();
    await this.server.close();
  }

  open(over: Partial<ProxySessionSpec> = {}): Promise<ProxySession> {
    return this.proxy.open({
      sessionId: 'ses_1',
      attempt: 0,
      sampleIndex: 0,
      key: this.key(),
      socketPath: null,
      modelName: 'policy',
      sampling: samplingSchema.parse({}),
      engine: taskEngineSchema.parse({}),
      ...over,
    });
  }

  key(): string {
    return `key-${++this.nextKey}-0123456789012345678901234567890`;
  }

  send(options: SendOptions): Sent {
    const { hostname, port } = new URL(this.proxy.origin);
    const { socketPath } = options;
    const given = options.raw ?? options.body;
    const plain = given === undefined || typeof given === 'string' || Buffer.isBuffer(given);
    const body = plain ? given : JSON.stringify(given);
    const sent = httpRequest({
      ...(socketPath === undefined ? { host: hostname, port } : { socketPath }),
      method: options.method ?? 'POST',
      path: options.path,
      headers: { 'content-type': 'application/json', ...options.headers },
      agent: false,
    });
    let gotHeaders: (headers: IncomingHttpHeaders) => void;
    let gotBytes: (text: string) => void;
    const headers = new Promise<IncomingHttpHeaders>((resolve) => {
      gotHeaders = resolve;
    });
    const firstBytes = new Promise<string>((resolve) => {
      gotBytes = resolve;
    });
    let text = '';
    const reply = new Promise<Reply>((resolve, reject) => {
      sent.on('error', reject);
      sent.on('response', (response) => {
        gotHeaders(response.headers);
        response.setEncoding('utf8');
        response.on('data', (chunk: string) => {
          text += chunk;
          gotBytes(chunk);
        });
        response.on('error', reject);
        response.on('end', () => resolve({ status: response.statusCode ?? 0, headers: response.headers, body: text }));
      });
    });
    reply.catch(() => {});
    sent.end(body);
    return { reply, firstBytes, headers, received: () => text, abort: () => sent.destroy() };
  }

  chat(key: string, body: object = {}, headers: Record<string, string> = {}): Sent {
    return this.send({ path: `/s/${key}/v1/chat/completions`, body: chatBody(body), headers });
  }
}

export function chatBody(over: object = {}): Record<string, unknown> {
  return { model: 'policy', messages: [{ role: 'user', content: 'hi' }], ...over };
}

/** Yields to the event loop until `done` returns true. */
export async function until(done: () => boolean): Promise<void> {
  while (!done()) await new Promise((resolve) => setImmediate(resolve));
}

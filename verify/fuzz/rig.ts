import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Pool } from 'undici';
import { z } from 'zod';
import { FuzzProcess } from './process.ts';

const CONNECTIONS = 8;

const openedSchema = z.object({ key: z.string() });
const lagSchema = z.object({ p99: z.number(), max: z.number(), computed: z.number() });
const heapSchema = z.object({ mb: z.number() });

/** Lag of the proxy's event loop in milliseconds. */
export type Lag = z.infer<typeof lagSchema>;

export type Reply = { readonly status: number; readonly text: string };

/** The stub engine and the proxy in separate processes, together with a client of the proxy. */
export class Rig {
  /** Number of requests that the client sends concurrently. */
  readonly connections = CONNECTIONS;
  private readonly engine: FuzzProcess;
  private readonly proxy: FuzzProcess;
  private readonly pool: Pool;
  private readonly directory: string;

  static async start(): Promise<Rig> {
    const directory = await mkdtemp(join(tmpdir(), 'floe-fuzz-'));
    const engine = await FuzzProcess.start('./engine-process.js');
    const proxy = await FuzzProcess.start('./proxy-process.js', `http://127.0.0.1:${engine.port}`, directory);
    return new Rig(engine, proxy, directory);
  }

  private constructor(engine: FuzzProcess, proxy: FuzzProcess, directory: string) {
    this.engine = engine;
    this.proxy = proxy;
    this.directory = directory;
    this.pool = new Pool(`http://127.0.0.1:${proxy.port}`, {
      connections: CONNECTIONS,
      headersTimeout: 0,
      bodyTimeout: 0,
    });
  }

  /** Opens a session of the proxy and returns its key. */
  async openSession(): Promise<string> {
    return openedSchema.parse(await this.proxy.request('open')).key;
  }

  async closeSession(key: string): Promise<void> {
    await this.proxy.request('close', key);
  }

  /** Returns the lag of the proxy's event loop since the previous invocation of this method. */
  async lag(): Promise<Lag> {
    return lagSchema.parse(await this.proxy.request('lag'));
  }

  /** Returns the size of the proxy's heap after a garbage collection, in MiB. */
  async heapMb(): Promise<number> {
    return heapSchema.parse(await this.proxy.request('heap')).mb;
  }

  async post(
    key: string,
    path: string,
    body: string | Buffer,
    headers: Record<string, string> = { 'content-type': 'application/json' },
  ): Promise<Reply> {
    const reply = await this.pool.request({ method: 'POST', path: `/s/${key}${path}`, headers, body });
    return { status: reply.statusCode, text: await reply.body.text() };
  }

  /** Opens a connection and writes the headers of a request that announce `bytes` bytes of body. */
  async beginRequest(key: string, path: string, bytes: number): Promise<Socket> {
    const socket = connect({ host: '127.0.0.1', port: this.proxy.port });
    // The client breaks this connection on purpose, so its errors are ignored.
    socket.on('error', () => {});
    await once(socket, 'connect');
    socket.write(
      `POST /s/${key}${path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${bytes}\r\n\r\n`,
    );
    return socket;
  }

  async close(): Promise<void> {
    await this.pool.destroy();
    this.engine.stop();
    this.proxy.stop();
    await rm(this.directory, { recursive: true });
  }
}

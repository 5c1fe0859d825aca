import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';

/** A connection of a client. A test sends messages on it. */
export type Connection = {
  readonly headers: IncomingMessage['headers'];
  send(message: unknown): void;
  sendText(text: string): void;
  sendBytes(bytes: Buffer): void;
  /** Ends the TCP connection without a close frame. */
  cut(): void;
  /** Whether the connection answers heartbeats. The default is true. */
  answersPings: boolean;
  pings: number;
  readonly received: unknown[];
};

export type SocketServerOptions = {
  /** JSON replies to `GET` requests, by path. */
  readonly pages?: Readonly<Record<string, unknown>>;
  onOpen?(connection: Connection): void;
  onMessage?(message: { readonly type: string; readonly data?: unknown }, connection: Connection): void;
};

export type SocketServer = {
  readonly url: string;
  readonly connections: Connection[];
  close(): Promise<void>;
};

/** Starts a WebSocket server that answers as a test prescribes. The client may send only short messages. */
export async function startSocketServer(options: SocketServerOptions): Promise<SocketServer> {
  const connections: Connection[] = [];
  const sockets = new Set<Duplex>();
  const server = createServer((request, reply) => {
    const page = options.pages?.[request.url ?? ''];
    reply.statusCode = page === undefined ? 404 : 200;
    reply.end(JSON.stringify(page ?? null));
  });
  server.on('upgrade', (request, socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    const key = createHash('sha1').update(`${request.headers['sec-websocket-key']}${GUID}`).digest('base64');
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${key}\r\n\r\n`,
    );
    const connection = connectionOf(request, socket);
    connections.push(connection);
    options.onOpen?.(connection);
    let rest = Buffer.alloc(0);
    socket.on('data', (chunk: Buffer) => {
      rest = Buffer.concat([rest, chunk]);
      for (let frame = readFrame(rest); frame !== null; frame = readFrame(rest)) {
        rest = rest.subarray(frame.size);
        if (frame.opcode === 8) socket.end(frameOf(8, frame.payload));
        if (frame.opcode === 9) {
          connection.pings++;
          if (connection.answersPings) socket.write(frameOf(10, frame.payload));
        }
        if (frame.opcode !== 1) continue;
        const message = JSON.parse(frame.payload.toString()) as { type: string; data?: unknown };
        connection.received.push(message);
        options.onMessage?.(message, connection);
      }
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    connections,
    async close() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

function connectionOf({ headers }: IncomingMessage, socket: Duplex): Connection {
  return {
    headers,
    send: (message) => void socket.write(frameOf(1, Buffer.from(JSON.stringify(message)))),
    sendText: (text) => void socket.write(frameOf(1, Buffer.from(text))),
    sendBytes: (bytes) => void socket.write(frameOf(2, bytes)),
    cut: () => void socket.destroy(),
    answersPings: true,
    pings: 0,
    received: [],
  };
}

function frameOf(opcode: number, payload: Buffer): Buffer {
  const head =
    payload.length < 126
      ? Buffer.from([0x80 | opcode, payload.length])
      : Buffer.alloc(10, Buffer.from([0x80 | opcode, 127]));
  if (payload.length >= 126) head.writeBigUInt64BE(BigInt(payload.length), 2);
  return Buffer.concat([head, payload]);
}

/** Reads a masked frame; `null` when it is not complete. */
function readFrame(bytes: Buffer): { readonly opcode: number; readonly payload: Buffer; readonly size: number } | null {
  if (bytes.length < 6) return null;
  const short = bytes.readUInt8(1) & 0x7f;
  const start = short === 126 ? 4 : 2;
  if (bytes.length < start + 4) return null;
  const length = short === 126 ? bytes.readUInt16BE(2) : short;
  const size = start + 4 + length;
  if (bytes.length < size) return null;
  const mask = bytes.subarray(start, start + 4);
  const payload = Buffer.from(bytes.subarray(start + 4, size).map((byte, i) => byte ^ (mask[i % 4] ?? 0)));
  return { opcode: bytes.readUInt8(0) & 0x0f, payload, size };
}

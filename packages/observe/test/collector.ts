import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';

type Attribute = { key: string; value: Record<string, unknown> };
export type CollectedSpan = {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  kind: number;
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  attributes: Attribute[];
  status?: { code: number; message: string };
};
export type Export = {
  headers: IncomingHttpHeaders;
  path: string;
  body: {
    resourceSpans: { resource: { attributes: Attribute[] }; scopeSpans: { spans: CollectedSpan[] }[] }[];
  };
};

/** The HTTP endpoint of a fake OpenTelemetry collector. It replies with the given statuses in turn, then always with 200. */
export class Collector {
  readonly exports: Export[] = [];
  readonly url: string;
  private readonly server: Server;
  private notify: () => void = () => {};

  private constructor(server: Server) {
    this.server = server;
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  static async start(statuses: number[] = []): Promise<Collector> {
    const server = createServer(async (request, response) => {
      const chunks: Buffer[] = [];
      for await (const chunk of request) chunks.push(chunk as Buffer);
      const body = JSON.parse(Buffer.concat(chunks).toString());
      collector.exports.push({ headers: request.headers, path: request.url ?? '', body });
      response.writeHead(statuses.shift() ?? 200, { 'content-type': 'application/json' }).end('{}');
      collector.notify();
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const collector = new Collector(server);
    return collector;
  }

  get spans(): CollectedSpan[] {
    return this.exports.flatMap(({ body }) =>
      body.resourceSpans.flatMap(({ scopeSpans }) => scopeSpans.flatMap(({ spans }) => spans)),
    );
  }

  /** Waits until `isComplete` accepts the received spans, and resolves with them. */
  async until(isComplete: (spans: CollectedSpan[]) => boolean): Promise<CollectedSpan[]> {
    while (!isComplete(this.spans)) {
      await new Promise<void>((resolve) => {
        this.notify = resolve;
      });
    }
    return this.spans;
  }

  async stop(): Promise<void> {
    this.server.close();
    this.server.closeAllConnections();
    await once(this.server, 'close');
  }
}

/** Returns the attributes of a span as one object. Integers, which OTLP sends as strings, become numbers. */
export function attributesOf({ attributes }: { attributes: Attribute[] }): Record<string, unknown> {
  return Object.fromEntries(
    attributes.map(({ key, value }) => [key, 'intValue' in value ? Number(value.intValue) : Object.values(value)[0]]),
  );
}

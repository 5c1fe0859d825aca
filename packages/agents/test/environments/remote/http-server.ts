import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export type Asked = {
  readonly path: string;
  readonly body: Record<string, unknown>;
  readonly headers: IncomingMessage['headers'];
};

export type HttpServer = { readonly url: string; readonly asked: Asked[]; close(): Promise<void> };

/**
 * Starts a server that sends what `answer` returns: an object as JSON, and a text as it is. When `answer` returns `undefined`, the test
 * answers later through `reply`.
 */
export async function startHttpServer(
  answer: (asked: Asked, reply: ServerResponse) => object | string | undefined,
): Promise<HttpServer> {
  const asked: Asked[] = [];
  const server = createServer(async (request, reply) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const text = Buffer.concat(chunks).toString();
    const body = (text === '' ? {} : JSON.parse(text)) as Record<string, unknown>;
    const one = { path: request.url ?? '', body, headers: request.headers };
    asked.push(one);
    const answered = answer(one, reply);
    if (answered !== undefined) reply.end(typeof answered === 'string' ? answered : JSON.stringify(answered));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked,
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';

export type Answer = {
  readonly status?: number;
  readonly type?: string;
  readonly location?: string;
  readonly body: string;
};
export type Asked = { readonly url: string; readonly body: string; readonly authorization: string | undefined };

/** A small HTTP server for tests. */
export type TestServer = { readonly url: string; readonly asked: Asked[]; close(): Promise<void> };

/** Starts a server on this machine that answers with what `answer` returns. */
export async function startServer(answer: (asked: Asked) => Answer): Promise<TestServer> {
  const asked: Asked[] = [];
  const server: Server = createServer(async (request, reply) => {
    const one = { url: request.url ?? '', body: await bodyOf(request), authorization: request.headers.authorization };
    asked.push(one);
    const { status = 200, type = 'application/json', location, body } = answer(one);
    reply.writeHead(status, { 'content-type': type, ...(location === undefined ? {} : { location }) });
    reply.end(body);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    asked,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks).toString('utf8');
}

/** Topics of texts, in the order of the dimensions of {@link fakeEmbeddings}. */
const TOPICS: readonly RegExp[] = [/cat|kitten|feline/i, /ship|boat|vessel/i, /bread|baker|loaf/i];

/**
 * A stand-in for a service of embeddings: a vector counts which of three topics a text mentions. Like a real model, it matches synonyms that
 * have no letter in common, which is all that the tests need.
 */
export function fakeEmbeddings({ body }: Asked): Answer {
  const { input } = JSON.parse(body) as { input: string[] };
  const data = input.map((text, index) => ({
    index,
    embedding: TOPICS.map((topic) => (topic.test(text) ? 1 : 0.01)),
  }));
  // Clients must not assume that the vectors are ordered by `index`, so the reply has them in reverse.
  return { body: JSON.stringify({ object: 'list', data: data.reverse() }) };
}

import { afterEach, describe, expect, it } from 'vitest';
import { Embeddings } from '../../src/search/embeddings.ts';
import { openSearch } from '../../src/search/open.ts';
import { requireSource, searchServices } from '../../src/search/services.ts';
import { openWebPage } from '../../src/search/web-page.ts';
import { built, rowsFile, signal } from './index.ts';
import { type Answer, type Asked, fakeEmbeddings, startServer, type TestServer } from './service.ts';

let server: TestServer | null = null;
afterEach(async () => {
  await server?.close();
  server = null;
});

async function serving(answer: (asked: Asked) => Answer): Promise<TestServer> {
  server = await startServer(answer);
  return server;
}

const LONG = '<p>The heron waits for fish in the shallow water of the lake, and it does not move. </p>'.repeat(10);

describe('the services of a node', () => {
  it('choose an index by a path and a service by a URL', () => {
    expect(searchServices({ search: '/x/index.db' })).toEqual({
      source: { kind: 'index', path: '/x/index.db', embeddings: null },
      pageHosts: [],
    });
    expect(
      searchServices({ search: 'https://s.example/search', search_key: 'k', page_hosts: 'a.example, *.b.example' }),
    ).toEqual({
      source: { kind: 'http', url: 'https://s.example/search', key: 'k' },
      pageHosts: ['a.example', '*.b.example'],
    });
    expect(searchServices({ page_hosts: '*', other: 'x' })).toEqual({ source: null, pageHosts: null });
  });

  it('name the setting that is wrong or missing', () => {
    expect(() => searchServices({ search_embeddings: 'file:x' })).toThrow(/plugins\.services\.search_embeddings/);
    expect(() => searchServices({ page_hosts: 'http://a.example/' })).toThrow(/plugins\.services\.page_hosts/);
    expect(() => requireSource(searchServices({}), 'search')).toThrow(
      /plugins\.services\.search of the node.*floe index/,
    );
  });
});

describe('a search service', () => {
  const answer = {
    results: [{ title: 'One', url: 'https://a.example/', content: 'text', score: 0.9 }, { url: 'https://b.example/' }],
  };

  it('gets query and number in the form of Tavily', async () => {
    const { url, asked } = await serving(() => ({ body: JSON.stringify(answer) }));
    const search = openSearch({ kind: 'http', url, key: 'secret' });
    expect(await search.search('herons', 2, signal)).toEqual([
      { id: 'https://a.example/', title: 'One', url: 'https://a.example/', snippet: 'text', score: 0.9 },
      { id: 'https://b.example/', title: '', url: 'https://b.example/', snippet: '', score: 0 },
    ]);
    expect(asked).toEqual([{ url: '/', body: '{"query":"herons","max_results":2}', authorization: 'Bearer secret' }]);
  });

  it('that is overloaded is asked again; one that refuses, answers nonsense or is gone is an error of its own', async () => {
    let calls = 0;
    const { url } = await serving(({ body }) => {
      if (body.includes('refused')) return { status: 422, body: 'too rude' };
      if (body.includes('nonsense')) return { body: '{"hits": []}' };
      return ++calls < 2 ? { status: 429, body: 'slow down' } : { body: JSON.stringify(answer) };
    });
    const search = openSearch({ kind: 'http', url, key: null });
    expect(await search.search('herons', 1, signal)).toHaveLength(1);
    expect(calls).toBe(2);
    await expect(search.search('refused', 1, signal)).rejects.toMatchObject({ code: 'bad_request' });
    await expect(search.search('nonsense', 1, signal)).rejects.toMatchObject({ code: 'setup_failed' });
    await server?.close();
    server = null;
    await expect(search.search('herons', 1, signal)).rejects.toMatchObject({ code: 'peer_unreachable' });
  });
});

describe('the search by vectors', () => {
  const rows = [
    { id: 'cat', title: 'Kittens', text: 'They sleep.' },
    { id: 'ship', text: 'A vessel in the harbour.' },
    { id: 'bread', text: 'The loaf is warm.' },
  ];

  it('finds what means the same, with vectors that are stored in the index', async () => {
    const { url } = await serving(fakeEmbeddings);
    const { path, embedded } = await built(rowsFile(rows), { embeddings: new Embeddings(`${url}/v1`, 'topics', null) });
    expect(embedded).toBe(3);
    const search = openSearch({ kind: 'index', path, embeddings: { url: `${url}/v1`, key: 'k' } });
    const hits = await search.search('feline', 2, signal);
    expect(hits[0]).toMatchObject({ id: 'cat', title: 'Kittens' });
    expect(hits[0]?.score).toBeCloseTo(1, 3);
    expect((await search.search('boat', 1, signal))[0]?.id).toBe('ship');
    expect(server?.asked.at(-1)).toMatchObject({ url: '/v1/embeddings', authorization: 'Bearer k' });
    await expect(search.search('', 1, signal)).rejects.toMatchObject({ code: 'bad_request' });
  });

  it('refuses an index without vectors, and a model that makes others', async () => {
    const { url } = await serving((asked) =>
      asked.body.includes('short') ? { body: '{"data": [{"index": 0, "embedding": [1]}]}' } : fakeEmbeddings(asked),
    );
    const plain = await built(rowsFile(rows));
    expect(() => openSearch({ kind: 'index', path: plain.path, embeddings: { url, key: null } })).toThrow(
      /has no vectors.*--embeddings/,
    );
    const { path } = await built(rowsFile(rows), { embeddings: new Embeddings(url, 'topics', null) });
    const search = openSearch({ kind: 'index', path, embeddings: { url, key: null } });
    await expect(search.search('short', 1, signal)).rejects.toMatchObject({
      message: expect.stringContaining('use the model'),
    });
  });
});

describe('a page of the web', () => {
  const pages: Readonly<Record<string, Answer>> = {
    '/heron': {
      type: 'text/html; charset=utf-8',
      body: `<title>Heron</title><nav>menu</nav><article><h1>Heron</h1>${LONG}</article>`,
    },
    '/plain': { type: 'text/plain', body: 'plain text' },
    '/moved': { status: 302, type: 'text/plain', location: '/heron', body: '' },
    '/loop': { status: 302, type: 'text/plain', location: '/loop', body: '' },
    '/metadata': { status: 302, type: 'text/plain', location: 'http://169.254.169.254/latest', body: '' },
    '/image': { type: 'image/png', body: 'x' },
    '/large': { type: 'text/html', body: 'x'.repeat(5 * 2 ** 20) },
  };
  const start = () => serving(({ url }) => pages[url] ?? { status: 404, body: '' });

  it('of an allowed host is its article as Markdown', async () => {
    const { url } = await start();
    const page = await openWebPage(`${url}/moved`, [new URL(url).host], signal);
    expect(page.title).toBe('Heron');
    expect(page.text).toContain('waits for fish in the shallow water');
    expect(page.text).not.toMatch(/menu|<p>/);
    expect((await openWebPage(`${url}/plain`, [new URL(url).host], signal)).text).toBe('plain text');
  });

  it.each([
    ['/none', /status 404/],
    ['/loop', /more than 5 redirects/],
    ['/image', /image\/png/],
    ['/large', /larger than 4 MiB/],
    ['/metadata', /does not allow 169\.254/],
  ])('%s cannot be opened', async (path, message) => {
    const { url } = await start();
    await expect(openWebPage(`${url}${path}`, [new URL(url).host], signal)).rejects.toMatchObject({
      code: 'bad_request',
      message: expect.stringMatching(message),
    });
  });

  it.each([
    ['file:///etc/passwd', /no URL with http/],
    ['http://127.0.0.1/', /loopback address/],
    ['http://[::ffff:10.0.0.1]/', /private address/],
    ['http://localhost/', /loopback address/],
    ['http://2130706433/', /loopback address/],
    ['http://example.org:8080/', /allows no port/],
  ])('%s is refused even where all hosts of the Internet are allowed', async (url, message) => {
    await expect(openWebPage(url, null, signal)).rejects.toMatchObject({
      code: 'bad_request',
      message: expect.stringMatching(message),
    });
  });

  it('of another host is refused', async () => {
    await expect(openWebPage('http://other.example/', ['a.example'], signal)).rejects.toThrow(
      /does not allow other\.example:80/,
    );
  });
});

import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Fastify, { type FastifyInstance } from 'fastify';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { dashboardRoutes } from '../../../src/rollout/http/dashboard.ts';
import { Workbench } from '../workbench.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-dashboard-'));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

/** Serves the routes of the dashboard alone. */
function serve(folder: string): FastifyInstance {
  const app = Fastify();
  for (const { path, handler } of dashboardRoutes(folder)) {
    app.get(path, (request, reply) => handler({ request, reply } as Parameters<typeof handler>[0]) as object);
  }
  return app;
}

async function writePage(): Promise<string> {
  const folder = join(dir, 'page');
  await mkdir(join(folder, 'assets'), { recursive: true });
  await writeFile(join(folder, 'index.html'), '<p>the page</p>');
  await writeFile(join(folder, 'assets', 'index-abc.js'), 'run()');
  await writeFile(join(folder, 'secret.key'), 'not a part of the page');
  return folder;
}

describe('the dashboard', () => {
  it('is served without scripts from elsewhere, and may not be framed', async () => {
    const { headers, body, statusCode } = await serve(await writePage()).inject('/dashboard/');
    expect({ statusCode, body }).toEqual({ statusCode: 200, body: '<p>the page</p>' });
    expect(headers['content-security-policy']).toContain("script-src 'self';");
    expect(headers['content-security-policy']).toContain("frame-ancestors 'none'");
    expect(headers['cache-control']).toBe('no-cache');
  });

  it('lets browsers keep files with a digest in their names, and serves only the kinds of files that the page has', async () => {
    const app = serve(await writePage());
    const script = await app.inject('/dashboard/assets/index-abc.js');
    expect(script.headers).toMatchObject({
      'content-type': 'text/javascript; charset=utf-8',
      'cache-control': 'public, max-age=31536000, immutable',
      'x-content-type-options': 'nosniff',
    });
    expect((await app.inject('/dashboard/secret.key')).statusCode).toBe(404);
  });

  it('redirects to itself with a relative address, so that it works below any path', async () => {
    const { statusCode, headers } = await serve(await writePage()).inject('/dashboard');
    expect({ statusCode, location: headers.location }).toEqual({ statusCode: 308, location: 'dashboard/' });
  });

  it('states what to do when the page was not built', async () => {
    const { statusCode, body } = await serve(join(dir, 'missing')).inject('/dashboard/');
    expect(statusCode).toBe(503);
    expect(body).toContain('npm run build');
  });

  it('needs no token, but its data does', async () => {
    const bench = await Workbench.create();
    try {
      const { server } = await bench.server({ token: 'a-token-of-the-test' });
      expect((await server.app.inject('/dashboard/')).statusCode).not.toBe(401);
      expect((await server.app.inject('/rollout/status')).statusCode).toBe(401);
    } finally {
      await bench.dispose();
    }
  });
});

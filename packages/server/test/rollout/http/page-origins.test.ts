import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { rolloutConfigSchema } from '../../../src/rollout/config.ts';
import type { Running } from '../workbench.ts';
import { Workbench } from '../workbench.ts';

const TOKEN = 'a-token-of-the-test';
const PAGE = 'https://docs.example.org';

let bench: Workbench;
beforeEach(async () => {
  bench = await Workbench.create();
});
afterEach(() => bench.dispose());

function start(origins: readonly string[]): Promise<Running> {
  return bench.server({ token: TOKEN, page_origins: [...origins] });
}

/** Sends the preflight request that a browser sends before a call with a token. */
function ask({ server }: Running, origin: string) {
  const headers = {
    origin,
    'access-control-request-method': 'POST',
    'access-control-request-headers': 'authorization',
  };
  return server.app.inject({ method: 'OPTIONS', url: '/rollout/task/submit', headers });
}

describe('pages of other origins', () => {
  it('may call the API when their origin is configured, with a token', async () => {
    const running = await start([PAGE]);
    const { statusCode, headers } = await ask(running, PAGE);
    expect(statusCode).toBe(204);
    expect(headers).toMatchObject({ 'access-control-allow-origin': PAGE, vary: 'origin' });
    expect(headers['access-control-allow-headers']).toContain('authorization');
    const call = (token: string) =>
      running.server.app.inject({
        url: '/rollout/status',
        headers: { origin: PAGE, authorization: `Bearer ${token}` },
      });
    const accepted = await call(TOKEN);
    expect(accepted.statusCode).toBe(200);
    expect(accepted.headers['access-control-allow-origin']).toBe(PAGE);
    // The page can also read why a call was refused.
    const refused = await call('another');
    expect(refused.statusCode).toBe(401);
    expect(refused.headers['access-control-allow-origin']).toBe(PAGE);
  });

  it.each(['https://docs.example.org.evil.test', 'http://docs.example.org', 'null'])(
    'get no permission when their origin is %s and another one is configured',
    async (origin) => {
      const { statusCode, headers } = await ask(await start([PAGE]), origin);
      expect(statusCode).toBe(401);
      expect(headers['access-control-allow-origin']).toBeUndefined();
    },
  );

  it('get no permission by default', async () => {
    const { headers } = await ask(await start([]), PAGE);
    expect(headers['access-control-allow-origin']).toBeUndefined();
  });

  it.each(['*', 'docs.example.org', 'https://docs.example.org/', 'https://docs.example.org/page'])(
    'are not configured by %s, which no browser sends as an origin',
    (origin) => {
      expect(rolloutConfigSchema.safeParse({ page_origins: [origin] }).success).toBe(false);
    },
  );
});

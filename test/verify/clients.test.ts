import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startTestService, type TestService } from '#floe/testing/index';
import { POLAR_CHECKS } from '../../verify/clients/polar-checks.ts';
import { PRORL_CHECKS } from '../../verify/clients/prorl-checks.ts';
import { type Check, SERVER_SETTINGS, type Target } from '../../verify/clients/target.ts';

const TOKEN = 'token-of-the-trainer';

/** The short form of `npm run verify -- clients`. */
describe('a client of another system', () => {
  let service: TestService;
  let target: Target;
  beforeAll(async () => {
    service = await startTestService({
      server: { token: TOKEN, polar: 'root', ...SERVER_SETTINGS },
      node: { token: TOKEN },
    });
    target = { url: service.url, token: TOKEN, engine: service.sim.url };
  }, 240_000);
  afterAll(() => service.close());

  const short = [...POLAR_CHECKS, ...PRORL_CHECKS].filter((check) => check.isShort === true);
  it.each(short.map((check): [string, Check] => [check.name, check]))(
    'runs unchanged: %s',
    { timeout: 240_000 },
    (_, check) => expect(check.run(target)).resolves.toBeUndefined(),
  );
});

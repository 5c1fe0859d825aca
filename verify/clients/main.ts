// `npm run verify -- clients`: starts `floe up --sim --polar`, sends it the requests that clients of Polar and ProRL Agent send, and checks that
// its replies have the fields that these clients read. The fields are written down as zod schemas in this folder. No code of Polar or ProRL
// Agent is run or installed.
//
//   npm run verify -- clients [--json [FILE]]
//
// Ends with "P passed, F failed".
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Checks } from '../runner/checks.ts';
import { startFloe } from '../runner/floe.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { POLAR_CHECKS } from './polar-checks.ts';
import { PRORL_CHECKS } from './prorl-checks.ts';
import { SERVER_SETTINGS } from './target.ts';

const { json } = readOptions({});
const dir = mkdtempSync(join(tmpdir(), 'floe-clients-'));
const config = join(dir, 'floe.json');
writeFileSync(config, JSON.stringify({ server: SERVER_SETTINGS }));
const checks = new Checks();
const floe = await startFloe(dir, ['--polar', '--sim', '--backend', 'local', '--config', config]);
try {
  const target = { url: floe.url, token: floe.token, engine: floe.engines[0] ?? '' };
  for (const { name, run } of [...POLAR_CHECKS, ...PRORL_CHECKS]) {
    await checks.check(name, async () => {
      await run(target);
      return '';
    });
  }
} finally {
  await floe.stop();
  rmSync(dir, { recursive: true, force: true });
}
const { passed, failed } = checks;
conclude({ line: `${passed} passed, ${failed} failed`, keys: { passed, failed }, isPassed: failed === 0, json });

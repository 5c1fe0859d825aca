import { messageOf } from '@floe-rl/core';
// `npm run verify -- clients`: starts `floe up --sim --polar`, sends it the requests that clients of Polar and ProRL Agent send, and checks that
// its replies have the fields that these clients read. The fields are written down as zod schemas in this folder. No code of Polar or ProRL
// Agent is run or installed.
//
//   npm run verify -- clients [--json [FILE]]
//
// Ends with "P passed, F failed".

import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { takeJsonOption } from '../../tools/json-option.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { Child } from '../faults/child.ts';
import { POLAR_CHECKS } from './polar-checks.ts';
import { PRORL_CHECKS } from './prorl-checks.ts';
import { SERVER_SETTINGS, type Target } from './target.ts';

const { json } = takeJsonOption(process.argv.slice(2));
const dir = mkdtempSync(join(tmpdir(), 'floe-clients-'));
const token = randomBytes(16).toString('hex');

/** Starts floe as a user does. Resolves when it accepts requests. */
async function startFloe(): Promise<{ readonly child: Child; readonly target: Target }> {
  const config = join(dir, 'floe.json');
  writeFileSync(config, JSON.stringify({ server: SERVER_SETTINGS }));
  const cli = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');
  const options = ['--polar', '--sim', '--json', '--port', '0', '--backend', 'local', '--log-level', 'silent'];
  const child = new Child([process.execPath, cli, 'up', ...options, '--config', config], {
    env: { FLOE_HOME: dir, FLOE_TOKEN: token },
  });
  const first = new Promise<string>((resolve) => child.lines.once('line', resolve));
  if (!(await child.becameReady())) throw new Error(`floe up ended: ${child.errors}`);
  const info = JSON.parse(await first) as { server: string; engines: string[] };
  return { child, target: { url: info.server, token, engine: info.engines[0] ?? '' } };
}

let passed = 0;
let failed = 0;
const { child, target } = await startFloe();
try {
  for (const { name, run } of [...POLAR_CHECKS, ...PRORL_CHECKS]) {
    try {
      await run(target);
      passed++;
      console.log(`ok    ${name}`);
    } catch (thrown) {
      failed++;
      console.log(`FAIL  ${name}\n      ${messageOf(thrown)}`);
    }
  }
} finally {
  await child.stop();
  rmSync(dir, { recursive: true, force: true });
}
console.log(`${passed} passed, ${failed} failed`);
if (json.line) console.log(JSON.stringify({ passed, failed }));
if (json.file !== null) writeFileSync(json.file, `${JSON.stringify({ passed, failed }, null, 2)}\n`);
process.exit(failed === 0 ? 0 : 1);

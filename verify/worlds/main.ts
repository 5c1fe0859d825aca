// `npm run verify -- worlds`: starts servers of OpenEnv, NeMo Gym and the Open Reward Standard from their own packages, plays episodes at them
// through a whole floe with the simulated engine, and ends a server in the middle of an episode. Every sampled token is compared with the
// engine's ledger.
//
//   npm run verify -- worlds [--json [FILE]]
//   npm run verify -- worlds --install     (packages of PyPI)
//
// Ends with "worlds: N ran, P passed, F failed, S skipped". Plays at servers whose packages are missing are skipped.
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { checkAgainstLedger, startTestService } from '#floe/testing/index';
import { takeJsonOption } from '../../tools/json-option.ts';
import { resultsOf } from '../envs/results.ts';
import { PLAYS, type Play, problemOf, scenarioOf, taskOf } from './plays.ts';
import { installServers, type RunningServer, SERVERS, startWorldServer } from './servers.ts';

const { args, json } = takeJsonOption(process.argv.slice(2));
const { values: options } = parseArgs({ args: [...args], options: { install: { type: 'boolean', default: false } } });
if (options.install) {
  installServers();
  process.exit(0);
}

const counts = { ran: 0, passed: 0, failed: 0, skipped: 0 };

function report(name: string, problem: string | null): void {
  counts.ran++;
  if (problem === null) counts.passed++;
  else counts.failed++;
  console.log(problem === null ? `passed  ${name}` : `FAILED  ${name}\n        ${problem}`);
}

const servers = new Map<string, RunningServer>();
for (const server of SERVERS) {
  const running = await startWorldServer(server);
  if (running !== null) servers.set(server.service, running);
}
const services = Object.fromEntries([...servers].map(([service, { url }]) => [service, url]));
const service = await startTestService({
  sim: { scenarios: PLAYS.map(scenarioOf), ledgerLimit: 10_000 },
  node: { plugins: { services } },
});

async function run(play: Play): Promise<string | null> {
  const [result] = await resultsOf(service.client, [taskOf(play)]);
  if (result === undefined) return 'the session has no result';
  const { mismatches } = checkAgainstLedger([result], service.sim.ledger.entries(), 'processed');
  return problemOf(play, result) ?? (mismatches.length === 0 ? null : 'tokens differ from the ledger of the engine');
}

/** Plays at a server that has ended: the session must fail as the fault of the infrastructure, without a reward. */
async function runWithoutServer(play: Play): Promise<string | null> {
  const environment = { ...play.environment, config: { ...play.environment.config, connect_seconds: 0 } };
  const [result] = await resultsOf(service.client, [{ ...taskOf(play), environment }]);
  const isRight = result?.outcome === 'infra_error' && result.reward === null;
  return isRight ? null : `${result?.outcome}, reward ${result?.reward}`;
}

try {
  for (const play of PLAYS) {
    if (servers.has(play.service)) {
      report(play.name, await run(play));
      continue;
    }
    counts.skipped++;
    console.log(`skipped ${play.name}: its package is not installed; run npm run verify -- worlds --install`);
  }
  for (const [name, server] of servers) {
    await server.stop();
    const play = PLAYS.find((one) => one.service === name);
    if (play !== undefined) report(`${name} when its server has ended`, await runWithoutServer(play));
  }
} finally {
  await service.close();
  for (const server of servers.values()) await server.stop();
}
const { ran, passed, failed, skipped } = counts;
console.log(`worlds: ${ran} ran, ${passed} passed, ${failed} failed, ${skipped} skipped`);
if (json.line) console.log(JSON.stringify(counts));
if (json.file !== null) writeFileSync(json.file, `${JSON.stringify(counts, null, 2)}\n`);
process.exit(failed === 0 ? 0 : 1);

// `npm run verify -- worlds`: starts servers of OpenEnv, NeMo Gym and the Open Reward Standard from their own packages. Plays episodes at them
// through a whole floe with the simulated engine, and ends a server in the middle of an episode. Every sampled token is compared with the
// engine's ledger.
//
//   npm run verify -- worlds [--json [FILE]]
//   npm run verify -- worlds --install     (packages of PyPI)
//
// Ends with "worlds: N ran, P passed, F failed, S skipped". Plays at servers whose packages are missing are skipped.
import { checkAgainstLedger, startTestService } from '#floe/testing/index';
import { resultsOf } from '../envs/results.ts';
import { Checks } from '../runner/checks.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { PLAYS, type Play, problemOf, scenarioOf, taskOf } from './plays.ts';
import { installServers, type RunningServer, SERVERS, startWorldServer } from './servers.ts';

const { options, json } = readOptions({ install: { type: 'boolean', default: false } });
if (options.install) {
  installServers();
  process.exit(0);
}

const checks = new Checks();
const report = (name: string, problem: string | null): void => checks.report(name, problem === null ? [] : [problem]);

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

/** Plays at a server that has ended. The session must fail with an infrastructure error and without a reward. */
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
    checks.skip(play.name, 'its package is not installed; run npm run verify -- worlds --install');
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
const { passed, failed, skipped } = checks;
const counts = { ran: passed + failed, passed, failed, skipped };
conclude({
  line: `worlds: ${counts.ran} ran, ${passed} passed, ${failed} failed, ${skipped} skipped`,
  keys: counts,
  isPassed: failed === 0,
  json,
});

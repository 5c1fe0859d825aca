// `npm run verify -- envs`: checks every environment without a model. Plays episodes of every environment and of every agent through a whole
// floe with the simulated engine. Runs a tool of an operator with each known defect. Compares every sampled token with the engine's ledger.
//
//   npm run verify -- envs [--seeds N] [--quick] [--json [FILE]]
//
// Ends with "envs: E environments, A agents, P passed, F failed". `--quick` plays two seeds of each environment, runs four guides instead of
// six, and runs the tool with each defect once instead of five times. It leaves out the environments of Python packages (gem-llm, verifiers),
// which are installed from PyPI.
import { checkEnvironment, ENVIRONMENTS } from '@floe-rl/agents';
import { Checks, type Finding } from '../runner/checks.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { agentNames, runAgents } from './agents.ts';
import { runGuides } from './guides.ts';
import { runHostileTools } from './hostile-tools.ts';
import { playEnvironments } from './play.ts';
import { runPythonPackages } from './python-packages.ts';

const { options, json } = readOptions({ seeds: { type: 'string' }, quick: { type: 'boolean', default: false } });
const SEEDS = Number(options.seeds ?? (options.quick ? 2 : 8));

async function checkAll(): Promise<Finding[]> {
  const findings: Finding[] = [];
  for (const definition of ENVIRONMENTS) {
    const { signal } = new AbortController();
    const check = await checkEnvironment(definition, {}, { seeds: 20, malformed: 1_000, signal });
    const { problems, perfect, random, idle } = check;
    const scores = `perfect ${perfect?.toFixed(2)}, random ${random?.toFixed(2)}, idle ${idle?.toFixed(2)}`;
    findings.push({ what: `check ${definition.name}`, isPassed: problems.length === 0, detail: problems[0] ?? scores });
  }
  return findings;
}

const checks = new Checks();
for (const [part, run] of [
  ['checks', checkAll],
  ['environments', () => playEnvironments(SEEDS)],
  ['agents', runAgents],
  ['python packages', async () => (options.quick ? [] : runPythonPackages())],
  ['guides', () => runGuides(options.quick)],
  ['tools with defects', () => runHostileTools(options.quick ? 1 : 5)],
] as const) {
  console.log(`▸ ${part}`);
  for (const finding of await run()) checks.add(finding);
}

const { passed, failed, findings } = checks;
const keys = {
  environments: ENVIRONMENTS.length,
  agents: agentNames().length,
  passed,
  failed,
};
const line = `envs: ${keys.environments} environments, ${keys.agents} agents, ${passed} passed, ${failed} failed`;
conclude({ line, keys, details: { ...keys, findings }, isPassed: failed === 0, json });

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { builtInAgents } from '@floe-rl/agents';
import type { TaskRequestInput } from '@floe-rl/core/schema';
import { buildIndex } from '@floe-rl/search';
import { chooseBackend } from '#floe/commands/backend';
import { checkAgainstLedger, startTestService, type TestService } from '#floe/testing/index';
import { repositoryRoot } from '../../tools/repository.ts';
import { makeImage } from '../fixtures/image.ts';
import type { Finding } from '../runner/checks.ts';
import { chromiumMissing } from '../services/tools.ts';
import { EXAMPLES, exampleScenarios, exampleTasks } from './example-tasks.ts';
import { examplePythonPlugins } from './python-examples.ts';
import { resultsOf } from './results.ts';

/** The agent whose examples need Chromium. */
const BROWSER_AGENT = 'computer_use';

export function agentNames(): readonly string[] {
  return [...builtInAgents().keys()];
}

/**
 * Runs every example task of floe's own agents. Each must get the reward 1, with the tokens of the ledger. An agent
 * without an example fails.
 */
export async function runAgents(): Promise<Finding[]> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-envs-'));
  const { backend } = await chooseBackend();
  const all = await exampleTasks();
  const image = join(dir, 'image');
  // Harbor's scripts write to the root of the sandbox, so they need isolation and a root file system of their own.
  const isolated = backend === 'local' ? all.filter(({ task }) => task.evaluator?.strategy !== 'harbor') : all;
  const noBrowser = chromiumMissing();
  if (noBrowser !== null) console.log(`skipped ${BROWSER_AGENT}: ${noBrowser}`);
  const tasks = noBrowser === null ? isolated : isolated.filter(({ agent }) => agent !== BROWSER_AGENT);
  makeImage(image, ['awk', 'bash', 'cat', 'chmod', 'find', 'head', 'sort']);
  const python = examplePythonPlugins();
  const service = await startTestService({
    server: { plugins: Object.keys(python) },
    sim: { scenarios: await exampleScenarios(tasks) },
    node: {
      default_backend: backend,
      upload_roots: [EXAMPLES],
      plugins: { services: { search: await exampleIndex(dir) }, python },
    },
  });
  try {
    const findings = agentNames()
      .filter((name) => !all.some(({ agent }) => agent === name))
      .map((name): Finding => ({ what: `agent ${name}`, isPassed: false, detail: 'has no example' }));
    for (const { agent, file, task } of tasks) {
      const runtime =
        task.evaluator?.strategy === 'harbor' ? { ...task.runtime, image, workdir: '/app' } : task.runtime;
      findings.push(await runTask(service, agent, file, { ...task, runtime }));
    }
    return findings;
  } finally {
    await service.close();
    await rm(dir, { recursive: true, force: true });
  }
}

async function runTask(service: TestService, agent: string, file: string, task: TaskRequestInput): Promise<Finding> {
  const results = await resultsOf(service.client, [{ ...task, num_samples: 1, max_attempts: 1 }]);
  const { mismatches } = checkAgainstLedger(results, service.sim.ledger.entries(), 'processed');
  const [result] = results;
  const why = result?.error?.message ?? result?.agent?.episode?.reason ?? '';
  return {
    what: `agent ${agent}: ${file}`,
    isPassed: result?.reward === 1 && mismatches.length === 0,
    detail: `reward ${result?.reward}, ${result?.agent?.turns} turns, ledger mismatches ${mismatches.length}; ${why}`,
  };
}

/** Makes an index of the documents of the example of the search agents, and resolves with its path. */
async function exampleIndex(dir: string): Promise<string> {
  const output = join(dir, 'index.db');
  const source = join(repositoryRoot(), 'examples', 'search', 'documents.jsonl');
  await buildIndex(
    {
      ...{ source, output, replaces: false, embeddings: null },
      onBadRow: (_, error) => {
        throw error;
      },
      mayFinish: () => {},
      onProgress: () => {},
    },
    new AbortController().signal,
  );
  return output;
}

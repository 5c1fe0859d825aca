import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '../client/index.ts';
import { parseJson } from '../core/parse.ts';
import { silentLogger } from '../observe/log.ts';
import type { AgentSpec, CompletionRecord, RuntimeBackend, SessionResult } from '../schema/index.ts';
import { checkAgainstLedger, type LedgerReport, type ScenarioInput, type SimServer, startSim } from '../sim/index.ts';
import { startNode, startServer } from './stack.ts';

/** Nothing that a harness would want a tool for: its first turn is its last. */
const INSTRUCTION = 'Answer with one short sentence. Do not use any tool.';

/** The one turn; it is sampled, so that its log-probabilities are worth comparing. */
const SCENARIO: ScenarioInput = {
  name: 'doctor',
  rules: [
    {
      reply: [
        { think: { noise: 16 } },
        {
          choice: {
            id: 'answer',
            options: [
              { reply: [{ text: 'All is well here.' }] },
              { reply: [{ text: 'There is nothing to be done.' }] },
            ],
          },
        },
      ],
    },
  ],
};

/** More than any harness's own prompt. */
const WINDOW_TOKENS = 131_072;

/** The slowest harness needs about ten seconds; one that waits for something that never comes is ended here. */
const TIMEOUT_SECONDS = 60;

/** What one session of one turn brought to light. */
export type Probe = {
  readonly result: SessionResult;
  readonly completions: readonly CompletionRecord[];
  readonly ledger: LedgerReport;
};

/**
 * Runs one session of the agent on this machine against the simulated engine, with a server and a node of its own, all
 * of which are gone when it settles. Rejects with what submission refuses, with what starting failed with, or with the
 * signal's reason.
 */
export async function probeAgent(
  agent: AgentSpec,
  backend: RuntimeBackend,
  harnessDir: string,
  signal: AbortSignal,
): Promise<Probe> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-doctor-'));
  const closers: (() => Promise<unknown>)[] = [() => rm(dir, { recursive: true, force: true, maxRetries: 3 })];
  try {
    const sim = await startSim({
      scenarios: [SCENARIO],
      maxModelLen: WINDOW_TOKENS,
      weightVersion: 'doctor',
      scaleOut: true,
    });
    closers.push(() => sim.close());
    const server = await startServer(join(dir, 'server'), { port: 0 }, silentLogger);
    closers.push(() => server.close());
    const node = await startNode(
      {
        node_id: 'doctor',
        server_url: server.url,
        state_dir: join(dir, 'gateway'),
        harness_dir: harnessDir,
        engines: [{ base_url: sim.url }],
        default_backend: backend,
      },
      silentLogger,
    );
    closers.push(() => node.close());
    const client = new FloeClient({ url: server.url });
    closers.push(() => client.close());
    return await runOne(client, sim, agent, signal);
  } finally {
    for (let close = closers.pop(); close !== undefined; close = closers.pop()) await close();
  }
}

async function runOne(client: FloeClient, sim: SimServer, agent: AgentSpec, signal: AbortSignal): Promise<Probe> {
  await client.submit({ instruction: INSTRUCTION, timeout_seconds: TIMEOUT_SECONDS, max_attempts: 1, agent }, signal);
  for await (const result of client.results({ signal })) {
    const bytes = result.completion_count === 0 ? '[]' : await client.completions(result.session_id, { signal });
    // Our own server's answer in our own form.
    const completions = parseJson(bytes) as CompletionRecord[];
    return { result, completions, ledger: checkAgainstLedger([result], sim.ledger.entries(), 'processed') };
  }
  throw new Error('the server ended its results before the only one came');
}

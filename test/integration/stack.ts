import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import type { Gateway, GatewayConfigInput } from '@floe-rl/node';
import { type Logger, silentLogger } from '@floe-rl/observe';
import type { RolloutConfigInput } from '@floe-rl/server';
import { type Scenario, type SimOptions, type SimServer, startSim } from '@floe-rl/sim';
import { chooseBackend } from '#floe/commands/backend';
import { startNode, startServer } from '#floe/up/stack';

export type TestStack = {
  readonly client: FloeClient;
  readonly sim: SimServer;
  readonly node: Gateway;
  readonly serverUrl: string;
  readonly dir: string;
  /** Submits a task and resolves with the results of all its sessions. */
  run(task: TaskRequestInput): Promise<SessionResult[]>;
  close(): Promise<void>;
};

export type TestStackOptions = {
  readonly scenarios?: readonly Scenario[];
  readonly sim?: SimOptions;
  readonly server?: RolloutConfigInput;
  readonly node?: Partial<GatewayConfigInput>;
  /** Logger of the server and the node. By default, nothing is logged. */
  readonly log?: Logger;
};

/** Returns the sandbox back ends that work on this machine. */
export async function workingBackends(): Promise<readonly ('bubblewrap' | 'local')[]> {
  const { problem } = await chooseBackend();
  return problem === null ? ['bubblewrap', 'local'] : ['local'];
}

/** Starts a rollout server, a node and a simulated engine in the test process, each on its own port. */
export async function startTestStack(options: TestStackOptions = {}): Promise<TestStack> {
  const { log = silentLogger } = options;
  const dir = await mkdtemp(join(tmpdir(), 'floe-test-'));
  const sim = await startSim({ ...options.sim, scenarios: [...(options.scenarios ?? [])] });
  const server = await startServer(join(dir, 'server'), { port: 0, ...options.server }, log);
  const node = await startNode(
    {
      node_id: 'test',
      server_url: server.url,
      state_dir: join(dir, 'gateway'),
      harness_dir: join(dir, 'harnesses'),
      engines: [{ base_url: sim.url }],
      default_backend: 'local',
      ...options.node,
    },
    log,
  );
  const client = new FloeClient({ url: server.url });
  return {
    client,
    sim,
    node,
    serverUrl: server.url,
    dir,
    async run(task) {
      const { session_ids } = await client.submit(task);
      const expected = new Set(session_ids);
      const results: SessionResult[] = [];
      for await (const result of client.results()) {
        if (expected.has(result.session_id)) results.push(result);
        if (results.length === expected.size) break;
      }
      return results;
    },
    async close() {
      await client.close();
      await node.close();
      await server.close();
      await sim.close();
      await rm(dir, { recursive: true, force: true });
    },
  };
}

/** Returns a shell command that makes one model call with Node and prints the text of the reply. */
export function oneCall(text: string): string {
  const body = JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: text }] });
  return `node -e '
    fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
      method: "POST",
      headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY, "content-type": "application/json" },
      body: ${JSON.stringify(body).replaceAll("'", '\\u0027')},
    }).then((reply) => reply.json()).then((reply) => console.log(reply.choices[0].message.content))'`;
}

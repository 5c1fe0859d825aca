import type { Command } from 'commander';
import type { EngineChange, EngineSpecInput, EnginesStatus, PauseMode } from '../schema/index.ts';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { json, line, note, paint, table } from './print.ts';
import { engineKey } from './secrets.ts';

type ChangeOptions = ConnectionOptions & { wait?: string };
type AddOptions = ChangeOptions & {
  kind?: EngineSpecInput['kind'];
  id?: string;
  pool?: string;
  model?: string;
  apiKeyFile?: string;
  logprobsMode?: 'raw' | 'processed';
  maxConcurrency?: string;
  requestsPerMinute?: string;
  tokensPerMinute?: string;
  replace?: boolean;
};

/** `floe engines …`: where the policy is served. */
export function registerEngines(program: Command): void {
  const engines = program.command('engines').description('the inference servers that sessions use');
  withConnectionOptions(
    engines.command('list', { isDefault: true }).description('all engines, and what each can do'),
  ).action((options: ConnectionOptions) =>
    withClient(options, async (client) => {
      const status = await client.engines();
      if (options.json) json(status);
      else show(status);
    }),
  );
  withChange(engines.command('add <url>').description('register an inference server (URL without /v1)'))
    .option('--kind <kind>', 'vllm, sglang, llama_cpp or openai', 'vllm')
    .option('--id <id>', 'default: derived from the URL')
    .option('--pool <name>', 'engines of one pool serve one policy', 'default')
    .option('--model <name>', "default: the server's first model")
    .option('--api-key-file <file>', 'a file with what is sent as a bearer token (default: $FLOE_ENGINE_API_KEY)')
    .option('--logprobs-mode <mode>', 'what its log-probabilities mean: raw or processed')
    .option('--max-concurrency <n>', 'calls at a time')
    .option('--requests-per-minute <n>', 'what its provider allows')
    .option('--tokens-per-minute <n>', 'what its provider allows, of prompts and replies together')
    .option('--replace', 'take the place of an engine that is registered under this id with another URL, model, …')
    .action((url: string, options: AddOptions) =>
      withClient(options, async (client) => {
        const change = await client.addEngine(specOf(url, options), {
          ...waitOf(options),
          replace: options.replace === true,
        });
        tell(change, options);
      }),
    );
  withChange(engines.command('remove <id>').description('remove an engine; `all` removes every one')).action(
    (id: string, options: ChangeOptions) =>
      withClient(options, async (client) => {
        const wait = waitOf(options);
        tell(id === 'all' ? await client.clearEngines(wait) : await client.removeEngine(id, wait), options);
      }),
  );
  withChange(engines.command('pause').description('hold new calls, before a weight update'))
    .option('--mode <mode>', 'keep: calls under way are frozen; abort: they are broken off and continued later', 'keep')
    .option('--reject', 'answer new calls 429 with Retry-After instead of holding them')
    .action((options: ChangeOptions & { mode: PauseMode; reject?: boolean }) =>
      withClient(options, async (client) => {
        const whilePaused = options.reject === true ? 'reject' : 'hold';
        tell(await client.pauseEngines(options.mode, { ...waitOf(options), whilePaused }), options);
      }),
    );
  withChange(engines.command('resume').description('let calls go on')).action((options: ChangeOptions) =>
    withClient(options, async (client) => tell(await client.resumeEngines(waitOf(options)), options)),
  );
  withChange(
    engines.command('version <name>').description('name the weights that are sampled with from now on'),
  ).action((name: string, options: ChangeOptions) =>
    withClient(options, async (client) => tell(await client.setPolicyVersion(name, waitOf(options)), options)),
  );
}

function withChange(command: Command): Command {
  return withConnectionOptions(command).option('--wait <seconds>', 'for the nodes to carry it out', '15');
}

function waitOf(options: ChangeOptions): { waitSeconds: number } {
  return { waitSeconds: Number(options.wait ?? 0) };
}

/** Absent options are left out, so that the server's defaults hold. */
function specOf(url: string, options: AddOptions): EngineSpecInput {
  const key = engineKey(options.apiKeyFile);
  return {
    base_url: url,
    kind: options.kind,
    pool: options.pool,
    ...(options.id === undefined ? {} : { engine_id: options.id }),
    ...(options.model === undefined ? {} : { model: options.model }),
    ...(key === undefined ? {} : { api_key: key }),
    ...(options.logprobsMode === undefined ? {} : { logprobs_mode: options.logprobsMode }),
    ...(options.maxConcurrency === undefined ? {} : { max_concurrency: Number(options.maxConcurrency) }),
    ...limitsOf(options),
  };
}

function limitsOf({ requestsPerMinute, tokensPerMinute }: AddOptions): Pick<EngineSpecInput, 'limits'> {
  if (requestsPerMinute === undefined && tokensPerMinute === undefined) return {};
  return {
    limits: {
      ...(requestsPerMinute === undefined ? {} : { requests_per_minute: Number(requestsPerMinute) }),
      ...(tokensPerMinute === undefined ? {} : { tokens_per_minute: Number(tokensPerMinute) }),
    },
  };
}

function tell(change: EngineChange, options: ConnectionOptions): void {
  if (options.json) {
    json(change);
    return;
  }
  const nodes = change.done.length === 1 ? 'node' : 'nodes';
  line(`revision ${change.revision}: carried out by ${change.done.length} ${nodes}`);
  if (change.pending.length > 0) note(`not yet carried out by ${change.pending.join(', ')}`);
  for (const { node_id, engine_id, message } of change.problems) {
    note(`${paint('red', 'problem')} ${node_id}: ${engine_id}: ${message}`);
  }
  if (change.problems.length > 0) process.exitCode = 1;
}

function show(status: EnginesStatus): void {
  const paused = status.paused === null ? '' : `, paused (${status.paused}, calls ${status.while_paused})`;
  line(`policy version ${status.policy_version ?? 'not named'}${paused}`);
  const rows = status.engines.flatMap((engine) => {
    const nodes = engine.nodes.length > 0 ? engine.nodes : [null];
    return nodes.map((node) => [
      engine.engine_id,
      engine.kind,
      engine.pool,
      node?.node_id ?? null,
      node === null ? 'no node' : node.info?.healthy === false ? 'unhealthy' : node.state,
      node?.info?.capabilities.token_input === undefined ? null : promptsOf(node.info.capabilities),
      node?.info?.policy_version ?? null,
      node?.info?.inflight ?? null,
    ]);
  });
  line(table(['engine', 'kind', 'pool', 'node', 'state', 'prompts', 'version', 'in flight'], rows));
  for (const engine of status.engines) {
    for (const { node_id, problem } of engine.nodes) {
      if (problem !== null) note(`${paint('red', 'problem')} ${node_id}: ${engine.engine_id}: ${problem}`);
    }
  }
  if (status.engines.length === 0) line('no engine: floe engines add http://HOST:PORT');
}

function promptsOf(capabilities: { readonly token_ids: boolean; readonly token_input: string }): string {
  if (!capabilities.token_ids) return 'text only';
  return capabilities.token_input === 'none' ? 'chat' : 'tokens';
}

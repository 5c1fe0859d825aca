import { FloeError } from '@floe-rl/core';
import {
  type EngineChange,
  type EngineSpecInput,
  type EnginesStatus,
  engineKindSchema,
  engineSpecSchema,
  type LogprobsMode,
  logprobsModeSchema,
  type PauseMode,
} from '@floe-rl/core/schema';
import type { Command } from 'commander';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { explained, listed } from './options.ts';
import { formatTable, paint, printJson, printLine, printNote } from './print.ts';
import { engineKey } from './secrets.ts';

type ChangeOptions = ConnectionOptions & { wait?: string };
type AddOptions = ChangeOptions & {
  kind?: EngineSpecInput['kind'];
  id?: string;
  pool?: string;
  model?: string;
  apiKeyFile?: string;
  logprobsMode?: LogprobsMode;
  tokenIds?: EngineSpecInput['token_ids'];
  tokenizer?: string;
  rack?: string;
  zone?: string;
  maxConcurrency?: string;
  adaptiveConcurrency?: string;
  requestsPerMinute?: string;
  tokensPerMinute?: string;
  replace?: boolean;
};

/** Registers the commands of `floe engines`, which list and change the inference servers of a rollout server. */
export function registerEngines(program: Command): void {
  const engines = program.command('engines').description('list and change the inference servers that sessions use');
  withConnectionOptions(
    engines.command('list', { isDefault: true }).description('list all engines with their state and capabilities'),
  ).action((options: ConnectionOptions) =>
    withClient(options, async (client) => {
      const status = await client.engines();
      if (options.json) printJson(status);
      else printStatus(status);
    }),
  );
  withChange(engines.command('add <url>').description('register an inference server; the URL has no /v1'))
    .option('--kind <kind>', listed(engineKindSchema.options), 'vllm')
    .option('--id <id>', 'id of the engine (default: derived from the URL)')
    .option('--pool <name>', 'pool of the engine; all engines of a pool serve the same policy', 'default')
    .option('--model <name>', "name of the model (default: the server's first one)")
    .option('--api-key-file <file>', 'file with the key to send as a bearer token (default: $FLOE_ENGINE_API_KEY)')
    .option(
      '--logprobs-mode <mode>',
      `kind of log-probabilities that the engine returns: ${listed(logprobsModeSchema.options)}`,
    )
    .option(
      '--token-ids <choice>',
      `whether an openai engine is asked for token ids: ${listed(engineSpecSchema.shape.token_ids.unwrap().options)}`,
    )
    .option('--tokenizer <folder>', "folder on the nodes with the model's tokenizer.json and chat template, for tinker")
    .option('--rack <name>', 'rack of the machine of the engine')
    .option('--zone <name>', 'zone of the machine of the engine')
    .option('--max-concurrency <n>', 'maximum number of concurrent calls')
    .option(
      '--adaptive-concurrency <min-max>',
      'adjust the maximum number of concurrent calls to the load of the engine, within these bounds, for example 4-512',
    )
    .option('--requests-per-minute <n>', 'rate limit of the provider')
    .option('--tokens-per-minute <n>', 'rate limit of the provider for prompt and response tokens together')
    .option('--replace', 'replace the engine with this id if its URL, model or another setting differs')
    .action((url: string, options: AddOptions) =>
      withClient(options, async (client) => {
        const change = await client.addEngine(specOf(url, options), {
          ...waitOf(options),
          replace: options.replace === true,
        });
        printChange(change, options);
      }),
    );
  withChange(engines.command('remove <id>').description('remove an engine, or all engines with the id `all`')).action(
    (id: string, options: ChangeOptions) =>
      withClient(options, async (client) => {
        const wait = waitOf(options);
        printChange(id === 'all' ? await client.clearEngines(wait) : await client.removeEngine(id, wait), options);
      }),
  );
  withChange(engines.command('pause').description('pause all engines before a weight update'))
    .option(
      '--mode <mode>',
      explained<PauseMode>({
        keep: 'freeze running calls',
        abort: 'abort running calls and continue them after the pause',
      }),
      'keep',
    )
    .option('--reject', 'answer new calls with 429 and Retry-After instead of holding them')
    .action((options: ChangeOptions & { mode: PauseMode; reject?: boolean }) =>
      withClient(options, async (client) => {
        const whilePaused = options.reject === true ? 'reject' : 'hold';
        printChange(await client.pauseEngines(options.mode, { ...waitOf(options), whilePaused }), options);
      }),
    );
  withChange(engines.command('resume').description('resume all engines')).action((options: ChangeOptions) =>
    withClient(options, async (client) => printChange(await client.resumeEngines(waitOf(options)), options)),
  );
  withChange(engines.command('version <name>').description('set the policy version of the current weights')).action(
    (name: string, options: ChangeOptions) =>
      withClient(options, async (client) => printChange(await client.setPolicyVersion(name, waitOf(options)), options)),
  );
}

function withChange(command: Command): Command {
  return withConnectionOptions(command).option(
    '--wait <seconds>',
    'time to wait until the nodes have applied the change',
    '15',
  );
}

function waitOf(options: ChangeOptions): { waitSeconds: number } {
  return { waitSeconds: Number(options.wait ?? 0) };
}

/**
 * Builds the description of an engine from the options of `floe engines add`. Absent options are omitted, so that the server's defaults
 * apply.
 */
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
    ...(options.tokenIds === undefined ? {} : { token_ids: options.tokenIds }),
    ...(options.tokenizer === undefined ? {} : { tokenizer: options.tokenizer }),
    place: { rack: options.rack ?? null, zone: options.zone ?? null },
    ...(options.maxConcurrency === undefined ? {} : { max_concurrency: Number(options.maxConcurrency) }),
    ...(options.adaptiveConcurrency === undefined ? {} : boundsOf(options.adaptiveConcurrency)),
    ...limitsOf(options),
  };
}

/** Parses `--adaptive-concurrency`. The schema of an engine validates the numbers. */
function boundsOf(text: string): Pick<EngineSpecInput, 'adaptive_concurrency'> {
  const [, min, max] = /^(\d+)-(\d+)$/.exec(text) ?? [];
  if (min !== undefined) return { adaptive_concurrency: { min: Number(min), max: Number(max) } };
  throw new FloeError('bad_request', `--adaptive-concurrency: ${text} is not two integers such as 4-512`);
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

function printChange(change: EngineChange, options: ConnectionOptions): void {
  if (options.json) {
    printJson(change);
    return;
  }
  const nodes = change.done.length === 1 ? 'node' : 'nodes';
  printLine(`revision ${change.revision}: applied by ${change.done.length} ${nodes}`);
  if (change.pending.length > 0) printNote(`Not yet applied by ${change.pending.join(', ')}.`);
  for (const { node_id, engine_id, message } of change.problems) {
    printNote(`${paint('red', 'problem')} ${node_id}: ${engine_id}: ${message}`);
  }
  if (change.problems.length > 0) process.exitCode = 1;
}

/** Prints the policy version, a table of the engines on each node, and the engines' problems. */
function printStatus(status: EnginesStatus): void {
  const paused = status.paused === null ? '' : `, paused (${status.paused}, calls ${status.while_paused})`;
  printLine(`policy version ${status.policy_version ?? 'not set'}${paused}`);
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
  printLine(formatTable(['engine', 'kind', 'pool', 'node', 'state', 'prompts', 'version', 'in flight'], rows));
  for (const engine of status.engines) {
    for (const { node_id, problem } of engine.nodes) {
      if (problem !== null) printNote(`${paint('red', 'problem')} ${node_id}: ${engine.engine_id}: ${problem}`);
    }
  }
  if (status.engines.length === 0)
    printLine('No engine is registered. Add one with: floe engines add http://HOST:PORT');
}

/** Returns the form in which an engine accepts prompts, as the table of engines shows it: `text only`, `chat` or `tokens`. */
function promptsOf(capabilities: { readonly token_ids: boolean; readonly token_input: string }): string {
  if (!capabilities.token_ids) return 'text only';
  return capabilities.token_input === 'none' ? 'chat' : 'tokens';
}

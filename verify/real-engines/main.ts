// `npm run verify -- engines`: runs the contract test of floe's engine adapters against real inference servers, which serve a tiny
// generated model. Installs or builds the servers first (about 13 GB and twenty minutes on two cores). With names (`llama_cpp`, `vllm`,
// `tinker`), tests only these servers.
//
//   npm run verify -- engines [NAME…] [--json]
import { mkdirSync, rmSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { messageOf } from '@floe-rl/core';
import type { EngineKind, EngineSpecInput } from '@floe-rl/core/schema';
import { countTests, type TestCounts } from '../../tools/vitest.ts';
import { readOptions, refuseUnknown } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { freePort } from '../services/ports.ts';
import {
  ENGINES_HOME,
  type Installed,
  installLlamaCpp,
  installModel,
  installSkyrl,
  installVllm,
  type Model,
  NO_SGLANG,
} from './install.ts';
import { type RunningServer, type ServerCommand, startServer } from './servers.ts';

const CONTEXT_TOKENS = 4096;
const MODEL = 'tiny';

/**
 * Settings of SkyRL. It compiles its model for each number of sequences and each token limit, which takes most of the time of a run.
 * Batches of one sequence keep the number of compilations small.
 */
const SKYRL_CONFIG = {
  max_lora_adapters: 4,
  max_lora_rank: 8,
  sample_max_num_sequences: 1,
  train_micro_batch_size: 1,
};

type Engine = {
  install(): Installed;
  command(installed: Installed, model: Model, port: number): ServerCommand;
  /** The kinds of engine adapters that are tested against this server. */
  readonly kinds: readonly EngineKind[];
  /** The settings of the engine adapters besides their kind and URL; the model's name when absent. */
  spec?(model: Model): Partial<EngineSpecInput>;
};

const ENGINES = {
  llama_cpp: {
    install: installLlamaCpp,
    command: ({ binary }, model, port) => ({
      command: binary,
      args: [
        ...['-m', model.gguf, '--alias', MODEL, '--host', '127.0.0.1', '--port', String(port)],
        // llama.cpp's server divides its context between two slots, so the total is twice the context length of one request.
        ...['-c', String(2 * CONTEXT_TOKENS), '-np', '2', '--threads', '2'],
        ...['--jinja', '--no-prefill-assistant', '--metrics'],
      ],
    }),
    kinds: ['llama_cpp', 'openai'],
  },
  vllm: {
    install: installVllm,
    command: ({ binary }, model, port) => ({
      command: binary,
      args: [
        ...['serve', model.folder, '--served-model-name', MODEL, '--host', '127.0.0.1', '--port', String(port)],
        ...['--dtype', 'float32', '--enforce-eager', '--max-model-len', String(CONTEXT_TOKENS), '--enable-scale-out'],
        ...['--enable-auto-tool-choice', '--tool-call-parser', 'hermes', '--reasoning-parser', 'qwen3'],
        ...['--logprobs-mode', 'processed_logprobs', '--enable-prompt-tokens-details'],
      ],
      env: {
        VLLM_CPU_KVCACHE_SPACE: '1',
        VLLM_CPU_OMP_THREADS_BIND: 'nobind',
        VLLM_SERVER_DEV_MODE: '1',
        VLLM_NO_USAGE_STATS: '1',
        HF_HUB_OFFLINE: '1',
      },
    }),
    kinds: ['vllm', 'openai'],
  },
  tinker: {
    install: installSkyrl,
    command: ({ binary }, model, port) => {
      const data = join(ENGINES_HOME, 'skyrl-data');
      rmSync(data, { recursive: true, force: true });
      mkdirSync(data);
      return {
        // The server starts its engine with the command line of this process, which must therefore be `uv run`.
        command: join(dirname(binary), 'uv'),
        args: [
          ...['run', '--no-project', '--python', binary, '-m', 'skyrl.tinker.api'],
          ...['--host', '127.0.0.1', '--port', String(port), '--base-model', model.llamaFolder, '--backend', 'jax'],
          ...['--backend-config', JSON.stringify(SKYRL_CONFIG)],
          ...['--checkpoints-base', data, '--database-url', `sqlite:///${join(data, 'tinker.db')}`],
        ],
        env: {
          PATH: `${dirname(binary)}${delimiter}${process.env.PATH ?? ''}`,
          UV_OFFLINE: '1',
          JAX_PLATFORMS: 'cpu',
          // Keeps compiled code for later runs.
          JAX_COMPILATION_CACHE_DIR: join(ENGINES_HOME, 'skyrl-compiled'),
          JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS: '0',
          HF_HUB_OFFLINE: '1',
        },
        healthPath: '/api/v1/healthz',
      };
    },
    kinds: ['tinker'],
    spec: ({ llamaFolder }) => ({ model: llamaFolder, tokenizer: llamaFolder }),
  },
} satisfies Readonly<Record<string, Engine>>;

type TestedKind = (typeof ENGINES)[keyof typeof ENGINES]['kinds'][number];

/** The kinds of engines that are not tested, with the reasons. */
const NOT_TESTED: Readonly<Record<Exclude<EngineKind, TestedKind>, string>> = { sglang: NO_SGLANG };

/** An engine of the adapters' contract test, in the form in which packages/capture/test/engines/real-engines.ts reads it. */
type TestedEngine = {
  readonly name: string;
  readonly spec: EngineSpecInput;
  /** The program that the server was installed with. */
  readonly binary: string;
};

async function serve(name: string, { install, command }: Engine, model: Model): Promise<RunningServer & Installed> {
  console.error(`${name}: installing, if it is missing`);
  const installed = install();
  console.error(`${name}: starting ${installed.version}`);
  const port = await freePort();
  const log = join(ENGINES_HOME, `${name}.log`);
  return { ...installed, ...(await startServer(command(installed, model, port), { port, log })) };
}

type Row = readonly [name: string, version: string, state: string];

const { names, json } = readOptions({}, { takesNames: true });
refuseUnknown('engine', names, Object.keys(ENGINES));
const model = installModel();
const rows: Row[] = [];
const tested: TestedEngine[] = [];
const running: RunningServer[] = [];
let counts: TestCounts = { passed: 0, failed: 0 };
try {
  for (const [name, engine] of Object.entries<Engine>(ENGINES)) {
    if (names.length > 0 && !names.includes(name)) continue;
    try {
      const server = await serve(name, engine, model);
      running.push(server);
      rows.push([name, server.version, `tested as ${engine.kinds.join(' and ')}`]);
      for (const kind of engine.kinds) {
        const spec = { kind, base_url: server.url, model: MODEL, ...engine.spec?.(model) };
        tested.push({ name: kind === name ? name : `${kind} of ${name}`, spec, binary: server.binary });
      }
    } catch (error) {
      const message = messageOf(error);
      console.error(`${name}: ${message}`);
      rows.push([name, '-', `skipped: ${message.split('\n')[0]}`]);
    }
  }
  for (const [kind, reason] of Object.entries(NOT_TESTED)) rows.push([kind, '-', `skipped: ${reason}`]);
  if (tested.length > 0) {
    const args = ['--config', 'verify/real-engines/vitest.config.ts'];
    counts = await countTests(args, { FLOE_REAL_ENGINES: JSON.stringify(tested) });
  }
} finally {
  await Promise.all(running.map((server) => server.stop()));
}
for (const [name, version, state] of rows) console.log(`${name.padEnd(10)} ${version.padEnd(24)} ${state}`);
const engines = rows.map(([name, version, state]) => ({ name, version, state }));
conclude({
  line: `${counts.passed} passed, ${counts.failed} failed`,
  keys: { ...counts, engines },
  isPassed: counts.failed === 0 && counts.passed > 0,
  json,
});

// The processes of the loop: an inference server, floe, and Python programs.

import { mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { repositoryRoot } from '../../tools/repository.ts';
import type { Installed } from '../real-engines/install.ts';
import { type RunningServer, startServer } from '../real-engines/servers.ts';
import { Child } from '../runner/child.ts';
import { FLOE, PYTHON_PACKAGE, type RunningFloe } from '../runner/floe.ts';
import { freePort } from '../services/ports.ts';

export const EXAMPLE = join(repositoryRoot(), 'examples', 'learn-real');
/** Maximum length of a sequence in tokens. The tiny model has the same maximum. */
const CONTEXT_TOKENS = 1024;
/**
 * Number of sessions whose agents run concurrently, and number of sandboxes that start concurrently. They are large because agents mostly wait
 * for the model.
 */
export const WORKERS = ['--run', '16', '--init', '8'];

/** Starts vLLM with a model folder. Its weights are named `0`. */
export async function startVllm({ binary }: Installed, model: string, log: string): Promise<RunningServer> {
  const port = await freePort();
  const args = [
    ...['serve', model, '--served-model-name', 'tiny', '--host', '127.0.0.1', '--port', String(port)],
    ...['--dtype', 'float32', '--enforce-eager', '--max-model-len', String(CONTEXT_TOKENS), '--max-num-seqs', '16'],
    ...['--enable-scale-out', '--enable-auto-tool-choice', '--tool-call-parser', 'hermes'],
    ...['--logprobs-mode', 'processed_logprobs'],
  ];
  const env = {
    VLLM_CPU_KVCACHE_SPACE: '1',
    VLLM_CPU_OMP_THREADS_BIND: 'nobind',
    VLLM_SERVER_DEV_MODE: '1',
    VLLM_NO_USAGE_STATS: '1',
    HF_HUB_OFFLINE: '1',
    OMP_NUM_THREADS: '1',
  };
  const server = await startServer({ command: binary, args, env }, { port, log });
  const reply = await fetch(`${server.url}/update_weight_version`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ new_version: '0' }),
  });
  if (!reply.ok) throw new Error(`vLLM does not accept a name of its weights: ${await reply.text()}`);
  return server;
}

/** Runs a command of floe to its end. Its output is appended to `log`. */
export function floeCommand({ env }: RunningFloe, args: readonly string[], log: string): Promise<void> {
  return runProgram(process.execPath, [FLOE, ...args], env, log);
}

/** Runs a Python program of the example, or of the verification, to its end. Its output is appended to `log`. */
export function runPython(
  python: string,
  args: readonly string[],
  env: Readonly<Record<string, string>>,
  log: string,
): Promise<void> {
  const variables = {
    PYTHONPATH: [...(process.env.PYTHONPATH?.split(':') ?? []), PYTHON_PACKAGE, EXAMPLE].join(':'),
    HF_HUB_OFFLINE: '1',
    TRL_EXPERIMENTAL_SILENCE: '1',
    TOKENIZERS_PARALLELISM: 'false',
    OMP_NUM_THREADS: '1',
    ...env,
  };
  return runProgram(python, args, variables, log);
}

async function runProgram(
  command: string,
  args: readonly string[],
  env: Readonly<Record<string, string>>,
  log: string,
): Promise<void> {
  mkdirSync(dirname(log), { recursive: true });
  const child = new Child([command, ...args], { env, log });
  const { code, signal } = await child.exited;
  if (code === 0) return;
  throw new Error(`${[command, ...args].slice(0, 3).join(' ')} ended with ${code ?? signal}; ${child.errors}`);
}

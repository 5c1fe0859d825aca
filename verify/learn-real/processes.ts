// The processes of the loop: an inference server, floe, and Python programs.

import { spawn } from 'node:child_process';
import { closeSync, mkdirSync, openSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { repositoryRoot } from '../../tools/repository.ts';
import type { Installed } from '../real-engines/install.ts';
import { type RunningServer, startServer } from '../real-engines/servers.ts';
import { freePort } from '../services/ports.ts';

export const EXAMPLE = join(repositoryRoot(), 'examples', 'learn-real');
const FLOE = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');
const PYTHON_PACKAGE = join(repositoryRoot(), 'python', 'src');
/** Maximum length of a sequence in tokens, which the tiny model also has. */
const CONTEXT_TOKENS = 1024;
/** Numbers of sessions whose agents run, and whose sandboxes start, concurrently. They are large because agents mostly wait for the model. */
const WORKERS = ['--run', '16', '--init', '8'];
/** Maximum number of lines from the end of a log that an error message quotes. */
const QUOTED_LINES = 12;

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

/** A running floe: its server, a client of it, and the variables by which Python programs reach it. */
export type RunningFloe = RunningServer & {
  readonly client: FloeClient;
  readonly env: Readonly<Record<string, string>>;
};

/** Starts `floe up` with the given options, such as the engine. Its data is in `dir`. */
export async function startFloe(dir: string, options: readonly string[]): Promise<RunningFloe> {
  mkdirSync(dir, { recursive: true });
  const port = await freePort();
  const args = [FLOE, 'up', '--port', String(port), '--dir', join(dir, 'data'), ...WORKERS, ...options];
  const home = join(dir, 'home');
  const command = { command: process.execPath, args, env: { FLOE_HOME: home } };
  const server = await startServer(command, { port, log: join(dir, 'floe.log') });
  const token = readFileSync(join(home, 'control-token'), 'utf8').trim();
  const env = { FLOE_URL: server.url, FLOE_TOKEN: token, FLOE_HOME: home };
  return { ...server, client: new FloeClient({ url: server.url, token }), env };
}

/** Runs a command of floe to its end, and returns its standard output. */
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

function runProgram(
  command: string,
  args: readonly string[],
  env: Readonly<Record<string, string>>,
  log: string,
): Promise<void> {
  mkdirSync(dirname(log), { recursive: true });
  const output = openSync(log, 'a');
  const child = spawn(command, args, { env: { ...process.env, ...env }, stdio: ['ignore', output, output] });
  closeSync(output);
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) => {
      if (code === 0) return resolve();
      const lines = readFileSync(log, 'utf8').trimEnd().split('\n').slice(-QUOTED_LINES).join('\n');
      reject(
        new Error(
          `${[command, ...args].slice(0, 3).join(' ')} ended with ${code ?? signal}; the end of ${log}:\n${lines}`,
        ),
      );
    });
  });
}

// `npm run engines:real`: the adapters' contract against real servers, which serve a tiny model made here. Installs or builds them
// first (about 7 GB and ten minutes on two cores). Names as arguments (`llama_cpp`, `vllm`) leave the others out.
import { spawn } from 'node:child_process';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { HOME, installLlamaCpp, installModel, installVllm, NO_SGLANG } from './install.mjs';
import { freePort, startServer } from './servers.mjs';

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const CONTEXT = '4096';
const MODEL = 'tiny';

/** Each makes a server ready to be started, and says which adapters are tested against it. */
const ENGINES = {
  llama_cpp: {
    install: installLlamaCpp,
    command: ({ binary }, model, port) => ({
      command: binary,
      args: [
        ...['-m', model.gguf, '--alias', MODEL, '--host', '127.0.0.1', '--port', String(port)],
        // Two slots share the context.
        ...['-c', String(2 * CONTEXT), '-np', '2', '--threads', '2'],
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
        ...['--dtype', 'float32', '--enforce-eager', '--max-model-len', CONTEXT, '--enable-scale-out'],
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
};

function say(text) {
  process.stderr.write(`${text}\n`);
}

async function serve(name, model) {
  const { install, command, kinds } = ENGINES[name];
  say(`${name}: installing, if it is not there`);
  const installed = install();
  say(`${name}: starting ${installed.version}`);
  const port = await freePort();
  const server = await startServer({ ...command(installed, model, port), port, log: join(HOME, `${name}.log`) });
  const specs = kinds.map((kind) => ({
    name: kind === name ? name : `${kind} of ${name}`,
    spec: { kind, base_url: server.url, model: MODEL },
  }));
  return { ...server, version: installed.version, specs };
}

/** Runs the contract; its report goes through but for the last line. @returns {Promise<{ passed: number, failed: number }>} */
function test(specs) {
  const args = ['run', '--config', 'real-engines/vitest.config.mjs', '--reporter=./tools/summary-reporter.mjs'];
  const child = spawn(process.execPath, [join(ROOT, 'node_modules', 'vitest', 'vitest.mjs'), ...args], {
    cwd: ROOT,
    env: { ...process.env, FLOE_REAL_ENGINES: JSON.stringify(specs) },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let output = '';
  child.stdout.on('data', (chunk) => {
    output += chunk;
  });
  return new Promise((resolve) => {
    child.once('close', (code) => {
      const counts = /(\d+) passed, (\d+) failed\s*$/.exec(output);
      process.stdout.write(counts === null ? output : output.slice(0, counts.index));
      const failed = counts === null ? 1 : Number(counts[2]);
      resolve({ passed: counts === null ? 0 : Number(counts[1]), failed: code === 0 ? failed : Math.max(1, failed) });
    });
  });
}

const asked = process.argv.slice(2);
const unknown = asked.find((name) => !(name in ENGINES));
if (unknown !== undefined) {
  say(`${unknown} is none of ${Object.keys(ENGINES).join(', ')}`);
  process.exit(2);
}
const names = asked.length === 0 ? Object.keys(ENGINES) : asked;
const model = installModel();
const rows = [];
const running = [];
let result = { passed: 0, failed: 0 };
const stopAll = () => Promise.all(running.splice(0).map(({ stop }) => stop()));
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => stopAll().finally(() => process.exit(130)));
try {
  for (const name of names) {
    try {
      const server = await serve(name, model);
      running.push(server);
      rows.push([name, server.version, `tested as ${ENGINES[name].kinds.join(' and ')}`]);
    } catch (error) {
      say(`${name}: ${error.message}`);
      rows.push([name, '-', `skipped: ${error.message.split('\n')[0]}`]);
    }
  }
  rows.push(['sglang', '-', `skipped: ${NO_SGLANG}`]);
  const specs = running.flatMap((server) => server.specs);
  if (specs.length > 0) result = await test(specs);
} finally {
  await stopAll();
}
for (const [name, version, state] of rows) process.stdout.write(`${name.padEnd(10)} ${version.padEnd(24)} ${state}\n`);
process.stdout.write(`${result.passed} passed, ${result.failed} failed\n`);
process.exitCode = result.failed > 0 || running.length + result.passed === 0 ? 1 : 0;

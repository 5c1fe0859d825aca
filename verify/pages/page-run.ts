import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { repositoryRoot } from '../../tools/repository.ts';
import { Child } from '../runner/child.ts';
import { FLOE, writePrograms } from '../runner/floe.ts';
import { freePorts } from '../services/ports.ts';
import { type Block, isShell } from './blocks.ts';
import { differenceOf } from './quoted.ts';

/** The result of a block of commands. `failure` is `null` when all commands succeeded. `printed` is the last line of their output. */
export type BlockResult = { readonly block: Block; readonly failure: string | null; readonly printed: string };

/** How a page is run. The defaults are what the pages of `docs` need. */
export type PageOptions = {
  /** Folder of the page and of all output. A given folder is kept. The default is a temporary folder, which is removed. */
  readonly dir?: string;
  /** Makes the files that the page finds in its empty folder. The default links the packages floe and zod and the examples of this checkout. */
  readonly prepare?: (place: string) => void;
  /** Shell scripts by name. The page's commands find them as programs, in addition to `floe`. */
  readonly programs?: Readonly<Record<string, string>>;
  /** Variables of the page. A variable that is `undefined` is removed. */
  readonly env?: NodeJS.ProcessEnv;
  /** Options of `floe up` in addition to the options on the page. */
  readonly up?: readonly string[];
  /** Ports that are replaced wherever they occur in the page, and their replacements: a port, or `null` for a free port. */
  readonly ports?: Readonly<Record<string, number | null>>;
  /** Standard input of each block of commands. */
  readonly input?: string;
  /** Whether the last line of a block of `text` must equal the last line that the commands before it print. Numbers may differ. */
  readonly isQuoted?: boolean;
  /** Maximum time in milliseconds for all commands of the page. */
  readonly limitMs?: number;
};

/** Maximum time in milliseconds for all commands of a page. */
const PAGE_TIMEOUT_MS = 180_000;
/** Maximum number of lines from the end of a block's output that a failure quotes. */
const QUOTED_LINES = 12;

/** Matches hosts with a port in pages. On this machine they are all the same host, and each port is replaced by a free one. */
const ADDRESS = /\b(?:localhost|127\.0\.0\.1|10\.\d+\.\d+\.\d+|(?:server|gpu|head|node-)\d*|db\.example):(\d{4,5})\b/g;
const PORT_OPTION = /--port (\d{4,5})\b/g;
/** Default ports of a server that is started without `--port`, and of a simulated engine. */
const DEFAULT_PORTS = ['8080', '8090'];

/**
 * Free ports by the ports of the page. The ports of `bare` are replaced anywhere in the text, and other ports only in addresses and after
 * `--port`.
 */
type Ports = { readonly free: ReadonlyMap<string, number>; readonly bare: readonly string[] };

/**
 * Runs the commands of a page in one shell in an empty folder, with the page's files. The command `floe` runs this checkout with a home of its
 * own. A server that a page starts runs until the page ends; the command returns when the server is ready.
 */
export async function runPage(blocks: readonly Block[], options: PageOptions = {}): Promise<BlockResult[]> {
  const commands = blocks.filter(({ language, notRun }) => isShell(language) && notRun === null);
  if (commands.length === 0) return [];
  const dir = options.dir ?? mkdtempSync(join(tmpdir(), 'floe-page-'));
  const place = join(dir, 'page');
  try {
    mkdirSync(place);
    (options.prepare ?? linkCheckout)(place);
    const ports = await portsOf(commands, options.ports ?? {});
    for (const { file, text } of blocks) {
      if (file === null) continue;
      mkdirSync(dirname(join(place, file)), { recursive: true });
      writeFileSync(join(place, file), withPorts(text, ports));
    }
    writeFileSync(join(dir, 'input'), options.input ?? '');
    writeFileSync(join(dir, 'page.sh'), script(commands, ports, dir));
    const env = environment(dir, ports, options);
    const child = new Child(['bash', join(dir, 'page.sh')], {
      ...{ cwd: place, env, log: join(dir, 'shell.log'), isGroup: true },
    });
    const status = await child.end(options.limitMs ?? PAGE_TIMEOUT_MS);
    return commands.map((block, index) => resultOf(block, outputOf(dir, index), status, options.isQuoted ?? false));
  } finally {
    if (options.dir === undefined) rmSync(dir, { recursive: true, force: true });
  }
}

/** Lets a page import the packages floe and zod of this checkout, and read its examples. */
export function linkCheckout(place: string): void {
  const root = repositoryRoot();
  linkPackages(place);
  for (const name of ['examples', 'python', 'deploy']) symlinkSync(join(root, name), join(place, name));
}

/** Lets modules in a folder import the packages floe and zod of this checkout. */
export function linkPackages(place: string): void {
  const root = repositoryRoot();
  mkdirSync(join(place, 'node_modules'), { recursive: true });
  symlinkSync(join(root, 'packages', 'floe'), join(place, 'node_modules', 'floe'));
  symlinkSync(join(root, 'node_modules', 'zod'), join(place, 'node_modules', 'zod'));
}

async function portsOf(blocks: readonly Block[], given: NonNullable<PageOptions['ports']>): Promise<Ports> {
  const text = blocks.map((block) => `${block.before}\n${block.text}`).join('\n');
  const named = [ADDRESS, PORT_OPTION].flatMap((pattern) => [...text.matchAll(pattern)].map(([, port = '']) => port));
  const wanted = [...new Set([...DEFAULT_PORTS, ...named, ...Object.keys(given)])];
  const free = await freePorts(wanted.length);
  return {
    free: new Map(wanted.map((port, index) => [port, given[port] ?? free[index] ?? 0])),
    bare: Object.keys(given),
  };
}

function withPorts(text: string, { free, bare }: Ports): string {
  const named = text
    .replaceAll(ADDRESS, (_, port: string) => `127.0.0.1:${free.get(port) ?? port}`)
    .replaceAll(PORT_OPTION, (_, port: string) => `--port ${free.get(port) ?? port}`);
  return bare.reduce((each, port) => each.replaceAll(new RegExp(`\\b${port}\\b`, 'g'), String(free.get(port))), named);
}

/** Files of a block: its output, its errors, and a file that exists when all of its commands succeeded. */
type Output = { readonly out: string; readonly err: string; readonly done: string };

function outputOf(dir: string, index: number): Output {
  return { out: join(dir, `out-${index}`), err: join(dir, `err-${index}`), done: join(dir, `done-${index}`) };
}

function script(blocks: readonly Block[], ports: Ports, dir: string): string {
  const parts = blocks.map(({ before, text }, index) => {
    const code = withPorts(`${before}\n${text}`, ports).replaceAll('ses_…', '$(first-session)');
    const { out, err, done } = outputOf(dir, index);
    return `{\n${code}\n} >'${out}' 2>'${err}' <'${join(dir, 'input')}'\ntouch '${done}'\n`;
  });
  return `set -euo pipefail\n${parts.join('')}`;
}

function environment(dir: string, { free }: Ports, options: PageOptions): NodeJS.ProcessEnv {
  const bin = join(dir, 'bin');
  writePrograms(bin, {
    floe: floeScript(dir, free, options.up ?? []),
    'one-session': ONE_SESSION,
    'first-session': FIRST_SESSION,
    ...options.programs,
  });
  return {
    // Variables that configure floe and Python for this process must not reach the page.
    ...{ FLOE_TOKEN: undefined, FLOE_DATABASE_URL: undefined, FLOE_BLOBS: undefined, PYTHONPATH: undefined },
    ...{ VIRTUAL_ENV: undefined, npm_config_ignore_scripts: undefined },
    PATH: `${bin}:${process.env.PATH}`,
    HOME: dir,
    FLOE: repositoryRoot(),
    FLOE_HOME: join(dir, '.floe'),
    FLOE_HARNESS_DIR: process.env.FLOE_HARNESS_DIR ?? join(process.env.HOME ?? '', '.cache', 'floe', 'harnesses'),
    FLOE_URL: `http://127.0.0.1:${free.get('8080')}`,
    NO_COLOR: '1',
    ...options.env,
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

/** The program `one-session [TASK_ID [SOURCE]]`, which runs a session with one model call. Pages that read a session use it. */
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
function floeScript(dir: string, ports: ReadonlyMap<string, number>, up: readonly string[]): string {
  const floe = `'${process.execPath}' '${FLOE}'`;
  return `#!/bin/bash
case "$1" in up|server|gateway|sim|view) ;; *) exec ${floe} "$@" ;; esac
command=$1; log='${dir}'/server-$$; port=()
case " $* " in *' --help '*) exec ${floe} "$@" ;; *' --port '*) ;; *)
  case $command in up|server) port=(--port ${ports.get('8080')}) ;; sim) port=(--port ${ports.get('8090')}) ;; esac ;;
esac
case $command in sim|view) ;; *) port+=(--log-level warn) ;; esac
[ $command = up ] && port+=(${up.join(' ')})
${floe} "$@" "\${port[@]}" >"$log" 2>&1 &
until grep -qE '^(Submit a task|rollout server:|node .*: control|simulated engine:|[0-9]+ sessions  http)' "$log"; do
  kill -0 $! 2>/dev/null || { cat "$log"; exit 1; }
  sleep 0.05
done
cat "$log"
`;
}

/** Returns the result of a block, with the end of its output when the block failed. */
function resultOf(block: Block, { out, err, done }: Output, status: number | string, isQuoted: boolean): BlockResult {
  if (!existsSync(out)) return { block, failure: 'was not reached, because a block before it failed', printed: '' };
  const printed = linesOf(out);
  const last = printed.at(-1) ?? '';
  if (!existsSync(done)) {
    const lines = [...printed, ...linesOf(err)].slice(-QUOTED_LINES);
    return { block, failure: `ended with ${status}: ${lines.join('\n')}`, printed: last };
  }
  const quoted = isQuoted ? block.quoted?.trim().split('\n').at(-1) : undefined;
  return { block, failure: quoted === undefined ? null : differenceOf(last, quoted), printed: last };
}

function linesOf(file: string): string[] {
  return readFileSync(file, 'utf8')
    .split('\n')
    .filter((line) => line.trim() !== '');
}

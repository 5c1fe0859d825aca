import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { satisfies } from 'semver';
import { readTaskFile } from '#floe/commands/yaml-file';
import type { Packages } from '../../tools/packages.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import type { Check } from '../runner/checks.ts';
import { freePort } from '../services/ports.ts';
import { UserFolder } from './folder.ts';
import { runReadme, tarballOf } from './readmes.ts';

/** Example that is part of the package `floe`. Its agent runs on the node, so no sandbox and no harness is needed. */
const EXAMPLE = join('examples', 'tool-call');
/** The only packages that a user of `@floe-rl/client` installs. `@floe-rl/client` contains `@floe-rl/core`. */
const CLIENT_PACKAGES = ['@floe-rl/client', '@floe-rl/core', 'undici', 'zod'];
/** The oldest version of Node that floe supports. */
const OLDEST_NODE = '20.19.0';

type Locked = { readonly hasInstallScript?: boolean; readonly engines?: { readonly node?: string } };
type Lock = { readonly packages: Readonly<Record<string, Locked>> };
type Sbom = { readonly components: readonly { readonly name: string; readonly group?: string }[] };

/** Installs the packages into empty folders and uses each of them: the server, the client in TypeScript and the client in Python. */
export async function checkInstalled(check: Check, packages: Packages): Promise<void> {
  const [server, client, python] = [new UserFolder(), new UserFolder(), new UserFolder()];
  try {
    await check('floe is installed from an empty cache, and nothing that it installs has an install script', () =>
      installServer(server, packages),
    );
    await check(`everything that floe installs supports Node ${OLDEST_NODE}`, () => checkEngines(server));
    await check('the list of contents has every installed package', () => compareSbom(server, packages.sbom));
    await check('npx floe --version prints the version', () => {
      const printed = server.run('npx', '--no-install', 'floe', '--version').trim();
      if (printed !== packages.version) throw new Error(`it printed ${printed}`);
      return printed;
    });
    await check('every export of floe can be imported', () => importAll(server, 'floe'));
    for (const kind of ['env', 'agent', 'tool', 'evaluator']) {
      await check(`what floe ${kind} init makes can be installed and passes its test`, () =>
        testScaffold(server, kind),
      );
    }
    const port = await freePort();
    const example = join('node_modules', 'floe', EXAMPLE);
    const up = ['up', '--sim', '--scenario', join(example, 'scenario.yaml'), '--port', String(port)];
    // The program is not started by npx, because npx does not forward signals.
    const program = join(server.path, 'node_modules', '.bin', 'floe');
    const child = await server.start('Submit a task', program, ...up, '--log-level', 'warn');
    try {
      const url = `http://127.0.0.1:${port}`;
      for (const folder of [server, client, python]) await prepareUser(folder, server, url);
      await check('floe up runs a task of the examples', () => submitExample(server, join(example, 'task.yaml')));
      await check('the server of the package has the dashboard', () => loadDashboard(url));
      await check('@floe-rl/client installs itself, undici and zod', () =>
        installClient(client, tarballOf(packages, '@floe-rl/client')),
      );
      await check('every export of @floe-rl/client can be imported', () => importAll(client, '@floe-rl/client'));
      await check('@floe-rl/client has types', () => compileClient(client));
      await check('@floe-rl/client submits a task and reads its result', () => useClient(client));
      await check('the program in the README of @floe-rl/client runs', () => {
        const { FLOE_URL, FLOE_TOKEN } = client.env;
        return runReadme('@floe-rl/client', packages, { FLOE_URL, FLOE_TOKEN });
      });
      await check('the wheel installs itself into an empty environment', () => installWheel(python, packages));
      await check('the wheel submits a task and reads its result', () => useWheel(python));
    } finally {
      await child.stop();
    }
  } finally {
    for (const folder of [server, client, python]) folder.remove();
  }
}

function installServer(folder: UserFolder, packages: Packages): string {
  folder.run('npm', 'install', '--no-audit', '--no-fund', tarballOf(packages, 'floe'));
  const entries = Object.entries(lockOf(folder).packages).filter(([path]) => path !== '');
  const scripts = entries.filter(([, { hasInstallScript }]) => hasInstallScript === true);
  if (scripts.length > 0) throw new Error(`install scripts: ${scripts.map(([path]) => path).join(', ')}`);
  return `${entries.length} packages`;
}

function checkEngines(folder: UserFolder): string {
  const entries = Object.entries(lockOf(folder).packages).flatMap(([path, { engines }]) =>
    path === '' || engines?.node === undefined ? [] : [{ path, range: engines.node }],
  );
  const refusing = entries.filter(({ range }) => !satisfies(OLDEST_NODE, range));
  if (refusing.length > 0) throw new Error(refusing.map(({ path, range }) => `${path} needs ${range}`).join(', '));
  return `${entries.length} packages state their versions of Node`;
}

function lockOf(folder: UserFolder): Lock {
  return JSON.parse(readFileSync(join(folder.path, 'package-lock.json'), 'utf8')) as Lock;
}

/** Compares names only, because npm chooses newer versions of indirect dependencies than the lock file of this checkout has. */
function compareSbom(folder: UserFolder, path: string): string {
  const { components } = JSON.parse(readFileSync(path, 'utf8')) as Sbom;
  const listed = new Set(components.map(({ name, group }) => (group === undefined ? name : `${group}/${name}`)));
  const modules = join(folder.path, 'node_modules');
  const installed = readdirSync(modules).flatMap((name) =>
    name.startsWith('@') ? readdirSync(join(modules, name)).map((each) => `${name}/${each}`) : [name],
  );
  const missing = installed.filter((name) => !/^\.|^floe$/.test(name) && !listed.has(name));
  if (missing.length > 0) throw new Error(`not in the list: ${missing.join(', ')}`);
  if (!listed.has('preact')) throw new Error('preact, which the dashboard contains, is not in the list');
  return `${listed.size} packages`;
}

function importAll(folder: UserFolder, name: string): string {
  const manifest = readFileSync(join(folder.path, 'node_modules', name, 'package.json'), 'utf8');
  const { exports } = JSON.parse(manifest) as { exports: object };
  const modules = Object.keys(exports).filter((path) => path !== './package.json');
  const specifiers = modules.map((path) => `${name}${path.slice(1)}`);
  const text = `for (const name of ${JSON.stringify(specifiers)}) if (Object.keys(await import(name)).length === 0) throw new Error(name);`;
  folder.run(process.execPath, '--input-type=module', '--eval', text);
  return specifiers.join(', ');
}

function testScaffold(folder: UserFolder, kind: string): string {
  folder.run('npx', '--no-install', 'floe', kind, 'init', `my-${kind}`);
  folder.run('npm', '--prefix', `my-${kind}`, 'install', '--no-audit', '--no-fund');
  folder.run('npm', '--prefix', `my-${kind}`, 'test');
  return '';
}

/** Sets the environment variables that lead programs in the folder to the server, and writes a task to `task.json`. */
async function prepareUser(folder: UserFolder, server: UserFolder, url: string): Promise<void> {
  folder.env.FLOE_URL = url;
  folder.env.FLOE_TOKEN = readFileSync(join(server.env.FLOE_HOME ?? '', 'control-token'), 'utf8').trim();
  const task = await readTaskFile(join(repositoryRoot(), EXAMPLE, 'task.yaml'));
  folder.write('task.json', JSON.stringify(task));
}

function submitExample(folder: UserFolder, task: string): string {
  folder.run('npx', '--no-install', 'floe', 'submit', task, '--watch');
  const [line = ''] = folder.run('npx', '--no-install', 'floe', 'results', '--json').split('\n');
  const { reward, trajectory } = JSON.parse(line) as { reward: number; trajectory: { traces: unknown[] } };
  if (reward !== 1 || trajectory.traces.length === 0) throw new Error(`the result is ${line.slice(0, 500)}`);
  return 'reward 1';
}

async function loadDashboard(url: string): Promise<string> {
  const page = await (await fetch(`${url}/dashboard/`)).text();
  const assets = [...page.matchAll(/(?:src|href)="\.\/([^"]+\.(?:js|css))"/g)].map(([, path]) => path);
  if (assets.length === 0) throw new Error('the page has no scripts');
  for (const path of assets) {
    const { status } = await fetch(`${url}/dashboard/${path}`);
    if (status !== 200) throw new Error(`${path} has the status ${status}`);
  }
  return `${assets.length} assets`;
}

function installClient(folder: UserFolder, tarball: string): string {
  folder.write('package.json', '{"name": "trainer", "private": true, "type": "module"}\n');
  folder.run('npm', 'install', '--no-audit', '--no-fund', tarball);
  const installed = Object.keys(lockOf(folder).packages).flatMap((path) =>
    path === '' ? [] : [path.slice(path.lastIndexOf('node_modules/') + 'node_modules/'.length)],
  );
  if (installed.sort().join() !== CLIENT_PACKAGES.join()) throw new Error(`it installed ${installed.join(', ')}`);
  return installed.join(', ');
}

function compileClient(folder: UserFolder): string {
  const types = join(repositoryRoot(), 'node_modules', '@types');
  folder.write(
    'types.ts',
    `import { FloeClient } from '@floe-rl/client';
import type { SessionResult, TaskRequestInput } from '@floe-rl/client/schema';
export const task: TaskRequestInput = { instruction: 'hi', agent: { harness: 'shell' } };
export const reward = ({ reward }: SessionResult): number | null => reward;
// @ts-expect-error the client has no such call
export const wrong = (client: FloeClient): unknown => client.nothing();
`,
  );
  const options = {
    target: 'ES2023',
    module: 'nodenext',
    strict: true,
    noEmit: true,
    types: ['node'],
    typeRoots: [types],
  };
  folder.write('tsconfig.json', JSON.stringify({ compilerOptions: options, files: ['types.ts'] }));
  folder.run(process.execPath, join(repositoryRoot(), 'node_modules', 'typescript', 'bin', 'tsc'), '-p', '.');
  return '';
}

function useClient(folder: UserFolder): string {
  folder.write(
    'trainer.js',
    `import { readFileSync } from 'node:fs';
import { FloeClient } from '@floe-rl/client';
import { sessionResultSchema } from '@floe-rl/client/schema';

const client = new FloeClient({ url: process.env.FLOE_URL, token: process.env.FLOE_TOKEN });
const { task_id } = await client.submit(JSON.parse(readFileSync('task.json', 'utf8')));
for await (const result of client.results()) {
  if (result.task_id !== task_id) continue;
  console.log(sessionResultSchema.parse(result).outcome, result.reward, result.trajectory.traces.length);
  break;
}
await client.close();
`,
  );
  return expected(folder.run(process.execPath, 'trainer.js'), 'completed 1 1');
}

function installWheel(folder: UserFolder, { wheel, version }: Packages): string {
  folder.run('python3', '-m', 'venv', 'venv');
  folder.run(pythonOf(folder), '-m', 'pip', 'install', '--quiet', '--no-index', '--disable-pip-version-check', wheel);
  const program = `from importlib import metadata
print(*sorted(f"{d.name} {d.version}" for d in metadata.distributions() if d.name not in ("pip", "setuptools")))`;
  return expected(folder.run(pythonOf(folder), '-c', program), `floe-rl ${version}`);
}

function useWheel(folder: UserFolder): string {
  const program = `import json, os, floe
with floe.Client(os.environ["FLOE_URL"], token=os.environ["FLOE_TOKEN"]) as client:
    task = client.submit(json.load(open("task.json")))
    client.task(task["task_id"], wait=60)
    [result] = client.task_results(task["task_id"])
    print(result["outcome"], result["reward"], len(result["trajectory"]["traces"]))`;
  return expected(folder.run(pythonOf(folder), '-c', program), 'completed 1 1');
}

function pythonOf(folder: UserFolder): string {
  return join(folder.path, 'venv', 'bin', 'python');
}

function expected(printed: string, text: string): string {
  if (printed.trim() !== text) throw new Error(`it printed ${printed.trim()}, not ${text}`);
  return text;
}

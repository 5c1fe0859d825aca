// `npm run verify -- notebooks [--json [FILE]]`: runs the notebooks of examples/notebooks. Notebooks in Python run in Jupyter's kernel, by
// nbclient. The cells of a JavaScript notebook are joined to one module, which Node runs, because every Jupyter kernel for Node must be built.
// Ends with "notebooks: N notebooks, C cells, F failed".

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { repositoryRoot } from '../../tools/repository.ts';
import { Checks } from '../runner/checks.ts';
import { PYTHON_PACKAGE, startFloe } from '../runner/floe.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { venvWith } from '../services/venv.ts';
import { linkPackages } from './page-run.ts';

const ROOT = repositoryRoot();
const FOLDER = join(ROOT, 'examples', 'notebooks');
const PACKAGES = ['nbclient==0.10.2', 'ipykernel==7.4.0', 'numpy==2.3.4'];
/** Maximum time in milliseconds that a notebook takes. */
const TIMEOUT_MS = 300_000;
/**
 * Python program that runs a notebook. Its arguments are the notebook's path and the folder to run it in. It raises an exception when a cell
 * fails.
 */
const RUN_NOTEBOOK = `import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300, resources={"metadata": {"path": sys.argv[2]}}).execute()
cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
texts = [output.get("text", "") for cell in cells for output in cell.outputs]
print([text for text in texts if text][-1].strip().splitlines()[-1])`;

type Cell = { readonly cell_type: string; readonly source: readonly string[] };
type Notebook = {
  readonly cells: readonly Cell[];
  readonly metadata: { readonly kernelspec: { readonly language: string } };
};

function codeOf({ cells }: Notebook): string[] {
  return cells.flatMap(({ cell_type, source }) => (cell_type === 'code' ? [source.join('')] : []));
}

/** Runs a program in a folder and returns the last line that it prints. Throws an Error with its output when it fails. */
function lastLine(program: string, args: readonly string[], cwd: string, env: NodeJS.ProcessEnv): string {
  const { status, stdout, stderr } = spawnSync(program, args, { cwd, env, encoding: 'utf8', timeout: TIMEOUT_MS });
  if (status !== 0) throw new Error(`exit ${status}: ${`${stdout}${stderr}`.trim().slice(-1_500)}`);
  return stdout.trim().split('\n').at(-1) ?? '';
}

/** Runs the cells of a notebook in JavaScript. They can import the package floe and no other package. */
function runInNode(notebook: Notebook, dir: string): string {
  linkPackages(dir);
  const file = join(dir, 'notebook.mjs');
  writeFileSync(file, codeOf(notebook).join('\n\n'));
  return lastLine(process.execPath, [file], dir, process.env);
}

/** Runs a notebook in Python, with the server that its first cell describes. */
async function runInPython(path: string, dir: string): Promise<string> {
  const { python } = venvWith(join(homedir(), '.cache', 'floe', 'notebooks'), [PACKAGES]);
  const scenario = /floe up --sim --scenario (\S+)/.exec(readFileSync(path, 'utf8'))?.[1]?.replace(/\\n.*/, '') ?? '';
  const floe = await startFloe(join(dir, 'home'), ['--sim', '--scenario', join(ROOT, scenario)]);
  const env = { ...process.env, ...floe.env, PYTHONPATH: PYTHON_PACKAGE, PYTHONDONTWRITEBYTECODE: '1' };
  try {
    return lastLine(python, ['-c', RUN_NOTEBOOK, path, FOLDER], dir, env);
  } finally {
    await floe.stop();
  }
}

const { json } = readOptions({});
const checks = new Checks();
const names = readdirSync(FOLDER).filter((name) => name.endsWith('.ipynb'));
let cells = 0;
for (const name of names) {
  const path = join(FOLDER, name);
  const notebook = JSON.parse(readFileSync(path, 'utf8')) as Notebook;
  const dir = mkdtempSync(join(tmpdir(), 'floe-notebook-'));
  cells += codeOf(notebook).length;
  const isPython = notebook.metadata.kernelspec.language === 'python';
  await checks.check(name, () => (isPython ? runInPython(path, dir) : runInNode(notebook, dir)));
  rmSync(dir, { recursive: true, force: true });
}
const { failed } = checks;
const line = `notebooks: ${names.length} notebooks, ${cells} cells, ${failed} failed`;
conclude({ line, keys: { notebooks: names.length, cells, failed }, isPassed: failed === 0, json });

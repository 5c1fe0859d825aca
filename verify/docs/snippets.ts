import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseSync } from 'oxc-parser';
import type { Block } from '../pages/blocks.ts';
import type { Finding } from './finding.ts';

/** Checks the syntax of JavaScript. */
export function checkJavaScript(blocks: readonly Block[]): Finding[] {
  return blocks.flatMap((block) => {
    const { errors } = parseSync('block.mjs', block.before + block.text);
    return errors.map(({ message }) => ({ where: whereOf(block), problem: message }));
  });
}

/** Checks the types of TypeScript with the compiler. Code before the block declares what the page has introduced in its text. */
export function checkTypeScript(blocks: readonly Block[], root: string): Finding[] {
  if (blocks.length === 0) return [];
  const dir = mkdtempSync(join(tmpdir(), 'floe-snippets-'));
  try {
    mkdirSync(join(dir, 'node_modules'));
    symlinkSync(join(root, 'packages', 'floe'), join(dir, 'node_modules', 'floe'));
    for (const name of ['zod', '@types'])
      symlinkSync(join(root, 'node_modules', name), join(dir, 'node_modules', name));
    writeFileSync(join(dir, 'package.json'), '{"type": "module"}');
    for (const [index, { before, text }] of blocks.entries()) {
      // A file without an import or export is no module, so that its await at the top level would be refused.
      writeFileSync(join(dir, `block-${index}.ts`), `${before}\n${text}\nexport {};\n`);
    }
    const options = {
      strict: true,
      noEmit: true,
      target: 'ES2023',
      lib: ['ES2023'],
      module: 'nodenext',
      skipLibCheck: true,
    };
    // Pages about the client alone import it under this name.
    const paths = { '@floe-rl/client': [join(root, 'packages', 'client', 'dist', 'index.d.ts')] };
    const compilerOptions = { ...options, paths, types: ['node'], typeRoots: ['node_modules/@types'] };
    writeFileSync(join(dir, 'tsconfig.json'), JSON.stringify({ compilerOptions, include: ['*.ts'] }));
    const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc');
    const { stdout } = spawnSync(process.execPath, [compiler, '-p', dir, '--pretty', 'false'], {
      cwd: dir,
      encoding: 'utf8',
    });
    return [...stdout.matchAll(/^block-(\d+)\.ts\((\d+),\d+\): (.*)$/gm)].flatMap(([, index, line, problem = '']) => {
      const block = blocks[Number(index)];
      if (block === undefined) return [];
      const inBlock = Number(line) - block.before.split('\n').length;
      return [{ where: `${block.page}:${block.line + inBlock}`, problem }];
    });
  } finally {
    rmSync(dir, { recursive: true });
  }
}

/** Compiles Python, and checks that each name that is imported from the package `floe` is defined there. Prints a line of JSON for each problem. */
const PYTHON_CHECK = `
import ast, json, pathlib, sys

root = pathlib.Path(sys.argv[1])

def names(module):
    base = root.joinpath(*module.split("."))
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    if not file.is_file():
        return None
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(one.asname or one.name for one in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    if base.is_dir():
        found.update(child.stem for child in base.iterdir())
    return found

for index, text in enumerate(json.load(sys.stdin)):
    def report(problem, line):
        print(json.dumps({"index": index, "problem": problem, "line": line}))
    try:
        tree = compile(text, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        report(error.msg, error.lineno)
        continue
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "floe":
            known = names(node.module)
            if known is None:
                report(f"there is no module {node.module}", node.lineno)
            else:
                for one in node.names:
                    if one.name not in known:
                        report(f"{node.module} has no {one.name}", node.lineno)
`;

/** Checks Python blocks with the interpreter, as the constant above describes. */
export function checkPython(blocks: readonly Block[], root: string): Finding[] {
  if (blocks.length === 0) return [];
  const input = JSON.stringify(blocks.map(({ before, text }) => `${before}${text}`));
  const sources = join(root, 'python', 'src');
  const { status, stdout, stderr } = spawnSync('python3', ['-c', PYTHON_CHECK, sources], { input, encoding: 'utf8' });
  if (status !== 0) return [{ where: 'python3', problem: stderr || 'cannot be started' }];
  return stdout
    .split('\n')
    .filter((line) => line !== '')
    .flatMap((line) => {
      const { index, problem, line: inBlock } = JSON.parse(line) as { index: number; problem: string; line: number };
      const block = blocks[index];
      return block === undefined ? [] : [{ where: `${block.page}:${block.line + inBlock}`, problem }];
    });
}

function whereOf({ page, line }: Block): string {
  return `${page}:${line}`;
}

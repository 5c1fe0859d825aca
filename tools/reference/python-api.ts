import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { repositoryRoot } from '../repository.ts';

/** The modules of the package `floe` that programs import, and the public names of their files. */
const MODULES: Readonly<Record<string, Readonly<Record<string, readonly string[]>>>> = {
  floe: { client: ['Client'], batches: ['BatchCalls'], engines: ['EngineCalls'], errors: ['FloeError'] },
  'floe.weights': {
    'weights/update': ['update_weights', 'updating', 'engine_urls', 'WeightUpdateError'],
    'weights/vllm': ['VllmReload', 'VllmTransfer', 'VllmLora'],
    'weights/sglang': ['SglangPush'],
  },
  'floe.handler': { handler: ['AgentHandler', 'Job', 'StageError'] },
  'floe.episode': { episode: ['Episode'] },
};

/** Parameters that several methods of batches have, which the page lists once. */
const RECORDS =
  'format: FormatName | None = None, advantages: AdvantageMethod | None = None, per_session: bool = False, per_turn: bool = False, ' +
  'constrained: ConstrainedUse | None = None, options: Mapping[str, Any] | None = None';

/** A class or function, with the methods of a class. Names that begin with `_` are left out, except `__init__`. */
type Definition = {
  readonly signature: string;
  readonly name: string;
  readonly about: string;
  readonly isMethod: boolean;
};

/** Renders docs/python-reference.md from the signatures and the doc strings of the package `floe`. */
export function pythonPage(): string {
  const folder = join(repositoryRoot(), 'python', 'src', 'floe');
  const parts = Object.entries(MODULES).flatMap(([module, files]) => [
    `## ${module}`,
    '',
    ...Object.entries(files).flatMap(([file, names]) =>
      definitionsOf(readFileSync(join(folder, `${file}.py`), 'utf8'))
        .filter(({ name }) => names.includes(name.split('.')[0] ?? ''))
        .flatMap(definitionLines),
    ),
  ]);
  return [
    '# Python reference',
    '',
    'Generated from the sources of the package `floe-rl` by `npm run generate`; [from Python](python.md) explains them. `floe.AsyncClient` has the methods of',
    '`floe.Client` as coroutines. Methods of `BatchCalls` and `EngineCalls` are methods of both clients. `**records` stands for the keyword arguments',
    `\`${RECORDS}\`.`,
    '',
    ...parts,
  ].join('\n');
}

function definitionLines({ signature, name, about, isMethod }: Definition): string[] {
  if (isMethod) return [`- \`${signature}\`${about === '' ? '' : `: ${about.replaceAll(/\s+/g, ' ')}`}`, ''];
  if (signature.startsWith('class ')) return [`### \`${signature}\``, '', ...(about === '' ? [] : [about, ''])];
  return [`### \`${name}\``, '', '```text', signature, '```', '', ...(about === '' ? [] : [about, ''])];
}

/** Returns a method's signature on one line, with the name of its class, without `def` and `self`. */
function methodSignature(signature: string, owner: string): string {
  return signature
    .replaceAll(/\s+/g, ' ')
    .replace(/^(?:async )?def (\w+)/, `${owner}.$1`)
    .replace(/\(\s*self(?:,\s*)?/, '(')
    .replace(/,? \)/, ')')
    .replace('( ', '(')
    .replace(/ -> None$/, '')
    .replace(RECORDS, '**records');
}

function definitionsOf(source: string): Definition[] {
  const lines = source.split('\n');
  const definitions: Definition[] = [];
  let owner: string | null = null;
  for (const [index, line] of lines.entries()) {
    const [, indent = '', kind = '', name = ''] = /^( {4})?(class|def|async def) (\w+)/.exec(line) ?? [];
    if (name === '') continue;
    if (indent === '') owner = kind === 'class' && !name.startsWith('_') ? name : null;
    if ((name.startsWith('_') && name !== '__init__') || (indent !== '' && owner === null)) continue;
    const end = lines.findIndex((one, at) => at >= index && /:(?:\s*#.*)?$/.test(one));
    const signature = lines
      .slice(index, end + 1)
      .map((one) => one.slice(indent.length))
      .join('\n')
      .replace(/:$/, '');
    definitions.push({
      signature: owner === null || indent === '' ? signature : methodSignature(signature, owner),
      name: indent === '' ? name : `${owner}.${name}`,
      about: docStringAfter(lines, end + 1),
      isMethod: indent !== '',
    });
  }
  return definitions;
}

/** Returns the doc string that begins in a line; empty when there is none. */
function docStringAfter(lines: readonly string[], start: number): string {
  const [, text] = /^\s*"""([\s\S]*?)"""/.exec(lines.slice(start, start + 60).join('\n')) ?? [];
  return (text ?? '').replaceAll(/^[ \t]+/gm, '').trim();
}

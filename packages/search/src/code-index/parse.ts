import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { optionalPackages } from '@floe-rl/core';
import type { Node, Parser, Query } from 'web-tree-sitter';
import { type Grammar, queryOf } from './languages.ts';

/** A named part of code, such as a class or a function. Lines are numbered from 1, and `lastLine` is included. */
export type Definition = {
  readonly name: string;
  /** The name, preceded by the names of the definitions around it, such as `Shop.add`. */
  readonly path: string;
  readonly kind: string;
  readonly line: number;
  readonly lastLine: number;
};

/** A place where code uses a name. */
export type Reference = { readonly name: string; readonly line: number };

export type ParsedCode = { readonly definitions: readonly Definition[]; readonly references: readonly Reference[] };

/** Maximum number of definitions of a file, and maximum number of its references. */
const MAX_ENTRIES = 20_000;
/** Longest name in characters. */
const MAX_NAME_CHARS = 200;

type Loaded = { readonly parser: Parser; readonly query: Query };

const loaded = new Map<Grammar, Promise<Loaded>>();

/**
 * Finds definitions and references. Broken code is parsed as far as possible. The duration depends on the code and has no limit. Rejects with
 * `setup_failed` when the optional packages are missing.
 */
export async function parseCode(text: string, grammar: Grammar): Promise<ParsedCode> {
  const known = loaded.get(grammar);
  const loading = known ?? load(grammar);
  if (known === undefined) loaded.set(grammar, loading);
  const { parser, query } = await loading;
  const tree = parser.parse(text);
  if (tree === null) return { definitions: [], references: [] };
  try {
    return entriesOf(query, tree.rootNode);
  } finally {
    tree.delete();
  }
}

async function load(grammar: Grammar): Promise<Loaded> {
  const { Parser, Language, Query } = await treeSitter();
  const folder = dirname(createRequire(import.meta.url).resolve('@vscode/tree-sitter-wasm/package.json'));
  const language = await Language.load(join(folder, 'wasm', `tree-sitter-${grammar}.wasm`));
  const parser = new Parser();
  parser.setLanguage(language);
  return { parser, query: new Query(language, queryOf(grammar)) };
}

let packages: ReturnType<typeof importPackages> | null = null;

function treeSitter(): ReturnType<typeof importPackages> {
  packages ??= optionalPackages(importPackages, ['web-tree-sitter', '@vscode/tree-sitter-wasm'], 'the code index');
  return packages;
}

async function importPackages() {
  createRequire(import.meta.url).resolve('@vscode/tree-sitter-wasm/package.json');
  const { Parser, Language, Query } = await import('web-tree-sitter');
  await Parser.init();
  return { Parser, Language, Query };
}

/** Throws `setup_failed` when the optional packages are missing. */
export async function requireTreeSitter(): Promise<void> {
  await treeSitter();
}

function entriesOf(query: Query, root: Node): ParsedCode {
  const found: Omit<Definition, 'path'>[] = [];
  const references: Reference[] = [];
  for (const { captures } of query.matches(root)) {
    const name = captures.find((capture) => capture.name === 'name')?.node;
    const [outer] = captures;
    if (outer === undefined) continue;
    const named = name ?? outer.node;
    const entry = { name: named.text.slice(0, MAX_NAME_CHARS), line: named.startPosition.row + 1 };
    if (name === undefined) {
      if (references.length < MAX_ENTRIES) references.push(entry);
    } else if (found.length < MAX_ENTRIES) {
      const { startPosition, endPosition } = outer.node;
      found.push({ name: entry.name, kind: outer.name, line: startPosition.row + 1, lastLine: endPosition.row + 1 });
    }
  }
  return { definitions: withPaths(found), references };
}

/** Adds to each definition its path, which has the names of the definitions around it. A function in a class gets the kind `method`. */
function withPaths(found: readonly Omit<Definition, 'path'>[]): Definition[] {
  const outer: Definition[] = [];
  return [...found]
    .sort((a, b) => a.line - b.line || b.lastLine - a.lastLine)
    .map((one) => {
      while ((outer.at(-1)?.lastLine ?? Number.POSITIVE_INFINITY) < one.lastLine) outer.pop();
      while (outer.length > 0 && (outer.at(-1)?.lastLine ?? 0) < one.line) outer.pop();
      const around = outer.at(-1);
      const isMethod = one.kind === 'function' && around?.kind === 'class';
      const path = around === undefined ? one.name : `${around.path}.${one.name}`.slice(-2 * MAX_NAME_CHARS);
      const definition = { ...one, kind: isMethod ? 'method' : one.kind, path };
      outer.push(definition);
      return definition;
    });
}

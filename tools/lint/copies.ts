import { Visitor } from 'oxc-parser';
import { PRODUCT } from './sizes.ts';
import type { Problem, SourceFile } from './source.ts';

/** A small function that is easily written a second time. It is defined once, and all other files import it. */
type Definition = {
  /** The import that replaces a copy. */
  readonly remedy: string;
  /** Files that may have the pattern: the file with the definition, and files with a reason. */
  readonly allowedIn: readonly string[];
  /** Names of earlier copies. A function of the product with another meaning must have a more specific name. */
  readonly names: readonly string[];
  /** Matches the body of a copy. */
  readonly pattern: RegExp;
};

const DEFINITIONS: readonly Definition[] = [
  {
    remedy: 'import messageOf from @floe-rl/core',
    allowedIn: ['packages/core/src/thrown.ts'],
    names: ['messageOf'],
    pattern: /\b(\w+) instanceof Error\s*\? \1\.message\s*: String\(\1\)/g,
  },
  {
    remedy: 'import isRecord from @floe-rl/core',
    allowedIn: ['packages/core/src/record.ts'],
    names: ['isRecord', 'isObject', 'isJsonObject'],
    pattern:
      /typeof (\w+) (?:=== 'object'\s*&& \1 !== null\s*&& !|!== 'object'\s*\|\| \1 === null\s*\|\| )Array\.isArray\(\1\)/g,
  },
  {
    remedy: 'import contentText from @floe-rl/core/schema',
    // A search needs the texts of the parts separately.
    allowedIn: ['packages/core/src/schema/chat.ts', 'packages/core/src/protocol/search-text.ts'],
    names: ['contentText', 'textOf'],
    pattern: /\b(\w+)\.type === 'text'\s*\? \1\.text\s*: '/g,
  },
  {
    remedy: 'import shellWord from @floe-rl/core',
    // The box server quotes bytes, which may be invalid as text.
    allowedIn: ['packages/core/src/shell-word.ts', 'packages/sandbox/src/box/shell.ts'],
    names: ['shellWord', 'quoted'],
    pattern: /\.replaceAll\("'", (["`])'\\\\''\1\)/g,
  },
  {
    remedy: 'import lowerCaseWords from @floe-rl/core',
    allowedIn: ['packages/core/src/words.ts'],
    names: ['lowerCaseWords'],
    pattern: /\[\^?\\p\{L\}\\p\{N\}(?:\\p\{M\})?\]\+/g,
  },
  {
    remedy: 'make the back end a HostBackend of packages/sandbox/src/backends/host-provider.ts',
    allowedIn: ['packages/sandbox/src/backends/host-provider.ts'],
    names: ['removeDeadGatewayDirs'],
    pattern: /\bthis node does not allow sandboxes on the host network/g,
  },
  {
    remedy: 'start a sandbox with a box server by startBoxed of packages/sandbox/src/backends/boxed/start.ts',
    allowedIn: ['packages/sandbox/src/backends/boxed/start.ts'],
    names: ['startBoxed'],
    pattern: /\bnew BoxRuntime\(/g,
  },
  {
    remedy: 'import fileBlocks from packages/sandbox/src/backends/host-limits.ts',
    allowedIn: ['packages/sandbox/src/backends/host-limits.ts'],
    names: ['fileBlocks'],
    pattern: /\bmax_file_mb \* MIB\b/g,
  },
  {
    remedy: 'import programCommand from packages/sandbox/src/backends/sandbox-programs.ts',
    allowedIn: ['packages/sandbox/src/backends/sandbox-programs.ts'],
    names: ['programCommand'],
    pattern: /'--library-path\b'/g,
  },
  {
    remedy: 'import sandboxEnvironment from packages/sandbox/src/workspace/environment.ts',
    allowedIn: ['packages/sandbox/src/workspace/environment.ts'],
    names: ['sandboxEnvironment'],
    pattern: /\.\.\.baseEnvironment\(AGENT_HOME\)/g,
  },
];

/** The only module that makes errors with `details.issues` itself. */
const FIELDS = 'packages/core/src/fields.ts';

/** Reports copies of functions that are defined once. Names are checked only in the product. */
export function checkCopies(file: SourceFile): Problem[] {
  const problems: Problem[] = [];
  const report = (start: number, message: string): void => {
    problems.push({ path: file.path, line: file.lineAt(start), message });
  };
  const rules = DEFINITIONS.filter(({ allowedIn }) => !allowedIn.includes(file.path));
  for (const { pattern, remedy } of rules) {
    for (const { index } of file.text.matchAll(pattern)) report(index, `this is written once; ${remedy}`);
  }
  const checkName = (name: string, start: number): void => {
    const rule = PRODUCT.test(file.path) ? rules.find(({ names }) => names.includes(name)) : undefined;
    if (rule !== undefined) {
      report(start, `${name} is defined once; ${rule.remedy}, or name the function for what differs`);
    }
  };
  new Visitor({
    FunctionDeclaration: ({ id, start }) => {
      if (id !== null) checkName(id.name, start);
    },
    VariableDeclarator: ({ id, init, start }) => {
      const isFunction = init?.type === 'ArrowFunctionExpression' || init?.type === 'FunctionExpression';
      if (id.type === 'Identifier' && isFunction) checkName(id.name, start);
    },
    NewExpression: ({ callee, arguments: [, , details], start }) => {
      if (file.path === FIELDS || callee.type !== 'Identifier' || callee.name !== 'FloeError') return;
      if (details?.type !== 'ObjectExpression') return;
      const isIssues = details.properties.some(
        (property) =>
          property.type === 'Property' && property.key.type === 'Identifier' && property.key.name === 'issues',
      );
      if (isIssues) report(start, 'errors for fields are made in one place; import fieldError from @floe-rl/core');
    },
  }).visit(file.program);
  return problems;
}

import { type ObjectExpression, type TSTypeLiteral, Visitor } from 'oxc-parser';
import { PRODUCT } from './sizes.ts';
import type { Problem, SourceFile } from './source.ts';

/** The folder that may keep the functions of promises in a map, and send messages itself. */
const CHANNEL = 'packages/core/src/channel/';

/** Exports of `node:worker_threads` that start a thread or send messages. */
const THREAD_EXPORTS = ['MessageChannel', 'parentPort', 'Worker'];

/** Files that send messages without a channel, each with a reason. */
const OWN_MESSAGES: readonly string[] = [
  // A thread that is one line of JavaScript and loads no module, and whose pattern may never end.
  'packages/evaluators/src/pattern-match.ts',
  // The box server in sandboxes speaks the same messages, and imports nothing.
  'packages/sandbox/src/spawn/spawn-helper.ts',
];

const PENDING =
  'requests that wait for a reply are kept in one place; use PendingRequests or Channel from @floe-rl/core';
const MESSAGES = 'processes and threads of floe call each other through Channel or Thread from @floe-rl/core';

/**
 * Reports maps of pending requests outside the channel of core: a map into which both functions of a promise are put, as `resolve` and
 * `reject`. In the product, it also reports threads without a channel, and messages to a parent process.
 */
export function checkChannels(file: SourceFile): Problem[] {
  if (file.path.startsWith(CHANNEL)) return [];
  const mayNotSend = PRODUCT.test(file.path) && !OWN_MESSAGES.includes(file.path);
  const problems: Problem[] = [];
  const report = (start: number, message: string): void => {
    problems.push({ path: file.path, line: file.lineAt(start), message });
  };
  /** Local types whose values have both functions, by name, and the types of the values of all maps. */
  const settlers = new Set<string>();
  const valueTypes: { readonly name: string; readonly start: number }[] = [];
  new Visitor({
    TSTypeAliasDeclaration: ({ id, typeAnnotation }) => {
      if (typeAnnotation.type === 'TSTypeLiteral' && isSettler(typeAnnotation)) settlers.add(id.name);
    },
    NewExpression: ({ callee, typeArguments, start }) => {
      const value = typeArguments?.params[1];
      if (callee.type !== 'Identifier' || callee.name !== 'Map' || value === undefined) return;
      if (value.type === 'TSTypeLiteral' && isSettler(value)) report(start, PENDING);
      if (value.type === 'TSTypeReference' && value.typeName.type === 'Identifier') {
        valueTypes.push({ name: value.typeName.name, start });
      }
    },
    CallExpression: ({ callee, arguments: [, value], start }) => {
      if (callee.type !== 'MemberExpression' || callee.property.type !== 'Identifier') return;
      const isProcess = callee.object.type === 'Identifier' && callee.object.name === 'process';
      if (isProcess && callee.property.name === 'send' && mayNotSend) report(start, MESSAGES);
      if (callee.property.name !== 'set' || value?.type !== 'ObjectExpression') return;
      if (hasBoth(namesOf(value))) report(start, PENDING);
    },
    ImportDeclaration: ({ source, specifiers, importKind, start }) => {
      if (!mayNotSend || source.value !== 'node:worker_threads' || importKind === 'type') return;
      const isUsed = specifiers.some(
        (specifier) =>
          specifier.type === 'ImportSpecifier' &&
          specifier.importKind !== 'type' &&
          specifier.imported.type === 'Identifier' &&
          THREAD_EXPORTS.includes(specifier.imported.name),
      );
      if (isUsed) report(start, MESSAGES);
    },
  }).visit(file.program);
  for (const { name, start } of valueTypes) if (settlers.has(name)) report(start, PENDING);
  return problems;
}

function namesOf({ properties }: ObjectExpression): string[] {
  return properties.flatMap((property) =>
    property.type === 'Property' && property.key.type === 'Identifier' ? [property.key.name] : [],
  );
}

function isSettler({ members }: TSTypeLiteral): boolean {
  return hasBoth(
    members.flatMap((member) =>
      (member.type === 'TSPropertySignature' || member.type === 'TSMethodSignature') && member.key.type === 'Identifier'
        ? [member.key.name]
        : [],
    ),
  );
}

function hasBoth(names: readonly string[]): boolean {
  return names.includes('resolve') && names.includes('reject');
}

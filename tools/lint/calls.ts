import { type CallExpression, type ImportDeclarationSpecifier, type NewExpression, Visitor } from 'oxc-parser';
import type { Problem, SourceFile } from './source.ts';

/** The only module that may set timers and read the time. All other modules get a Clock as an argument. */
const CLOCK = 'packages/core/src/clock.ts';
/** The only module that may add abort listeners. */
const ABORT = 'packages/core/src/abort.ts';
/** The only module that may draw random numbers. All other modules get a RandomSource as an argument. */
const RANDOM = 'packages/core/src/random.ts';

/** Calls that are allowed only in certain files, by the text of the call. `remedy` is the advice that the report gives. */
const FORBIDDEN_CALLS: Readonly<Record<string, { readonly remedy: string; readonly allowedIn: readonly string[] }>> = {
  setTimeout: { remedy: 'take a Clock (core/clock.ts)', allowedIn: [CLOCK] },
  setInterval: { remedy: 'take a Clock (core/clock.ts)', allowedIn: [CLOCK] },
  'Date.now': { remedy: 'take a Clock (core/clock.ts)', allowedIn: [CLOCK] },
  'performance.now': { remedy: 'take a Clock (core/clock.ts)', allowedIn: [CLOCK] },
  'AbortSignal.timeout': { remedy: 'use abortAfter with a Clock (core/abort.ts)', allowedIn: [] },
  'Math.random': { remedy: 'take a RandomSource (core/random.ts)', allowedIn: [RANDOM] },
  structuredClone: { remedy: 'pass the value on: token data is never cloned', allowedIn: [] },
};

/** Exports of undici that make requests or connections. Types and the rest may be imported anywhere. */
const UNDICI_CALLS: readonly string[] = [
  'Agent',
  'BalancedPool',
  'Client',
  'default',
  'Dispatcher',
  'EnvHttpProxyAgent',
  'EventSource',
  'fetch',
  'getGlobalDispatcher',
  'H2CClient',
  'Pool',
  'pipeline',
  'ProxyAgent',
  'request',
  'RetryAgent',
  'setGlobalDispatcher',
  'stream',
];
/** The files of packages that may import {@link UNDICI_CALLS}. All others make bounded calls through `@floe-rl/core/http`. */
const UNDICI_FILES: readonly string[] = [
  'packages/core/src/http/call.ts',
  'packages/core/src/http/connections.ts',
  // Exchanges with engines receive undici's events directly, without a body stream.
  'packages/capture/src/engines/engine-server.ts',
  // An agent for WebSockets, with a maximum size of messages.
  'packages/agents/src/environments/remote/socket.ts',
];
const OUTBOUND_REMEDY = 'make bounded calls through @floe-rl/core/http';

const TIMER_MODULES = ['node:timers', 'node:timers/promises', 'timers', 'timers/promises'];

/** Matches modules that must have a default export, because another program loads them. */
const DEFAULT_EXPORTS = /(vitest\.config|reporter|\.test)\.ts$|^examples\//;

export function checkCalls(file: SourceFile): Problem[] {
  const problems: Problem[] = [];
  const report = (start: number, message: string): void => {
    problems.push({ path: file.path, line: file.lineAt(start), message });
  };
  for (const { specifier, start } of file.imports) {
    if (TIMER_MODULES.includes(specifier)) report(start, `${specifier} is not imported here; use core/clock.ts`);
  }
  const mustBound = /^packages\/[^/]+\/src\//.test(file.path) && !UNDICI_FILES.includes(file.path);
  new Visitor({
    ImportDeclaration: ({ source, importKind, specifiers, start }) => {
      if (!mustBound || source.value !== 'undici' || importKind === 'type') return;
      for (const specifier of specifiers) {
        const name = importedName(specifier);
        if (name === null || UNDICI_CALLS.includes(name)) {
          report(start, `${name ?? 'all'} of undici is not imported here; ${OUTBOUND_REMEDY}`);
        }
      }
    },
    ImportExpression: ({ source, start }) => {
      if (mustBound && source.type === 'Literal' && source.value === 'undici') {
        report(start, `all of undici is not imported here; ${OUTBOUND_REMEDY}`);
      }
    },
    CallExpression: (call) => {
      const name = calleeName(call);
      if (mustBound && name === 'fetch') report(call.start, `fetch() is not called here; ${OUTBOUND_REMEDY}`);
      const rule = Object.hasOwn(FORBIDDEN_CALLS, name) ? FORBIDDEN_CALLS[name] : undefined;
      if (rule !== undefined && !rule.allowedIn.includes(file.path)) {
        report(call.start, `${name}() is not called here; ${rule.remedy}`);
      }
      if (file.path !== ABORT && listensForAbort(call)) {
        report(
          call.start,
          "addEventListener('abort') is not called here; use onAbort, raceAbort or linkAbort (core/abort.ts)",
        );
      }
    },
    NewExpression: (made) => {
      const isDate = made.callee.type === 'Identifier' && made.callee.name === 'Date';
      if (isDate && made.arguments.length === 0 && file.path !== CLOCK) {
        report(made.start, 'new Date() reads the wall clock; take a Clock (core/clock.ts)');
      }
    },
    ExportDefaultDeclaration: ({ start }) => {
      if (!DEFAULT_EXPORTS.test(file.path)) report(start, 'a default export has no name; use a named export');
    },
    // An entry may re-export a whole entry of another package, because that entry names its exports.
    ExportAllDeclaration: ({ start, source }) => {
      if (!source.value.startsWith('@floe-rl/')) report(start, 'name what is exported instead of *');
    },
  }).visit(file.program);
  return problems;
}

/**
 * Returns the name of the called function: `f` for `f()`, and `a.b` for `a.b()` and `globalThis.a.b()`; an empty string for any other
 * callee.
 */
function calleeName({ callee }: CallExpression | NewExpression): string {
  if (callee.type === 'Identifier') return callee.name;
  if (callee.type !== 'MemberExpression' || callee.computed || callee.property.type !== 'Identifier') return '';
  const { object, property } = callee;
  if (object.type === 'Identifier')
    return object.name === 'globalThis' ? property.name : `${object.name}.${property.name}`;
  return '';
}

/** Returns the exported name of an imported value; an empty string for a type, and `null` for a namespace. */
function importedName(specifier: ImportDeclarationSpecifier): string | null {
  if (specifier.type === 'ImportNamespaceSpecifier') return null;
  if (specifier.type === 'ImportDefaultSpecifier') return 'default';
  if (specifier.importKind === 'type') return '';
  return specifier.imported.type === 'Literal' ? specifier.imported.value : specifier.imported.name;
}

function listensForAbort({ callee, arguments: [first] }: CallExpression): boolean {
  return (
    callee.type === 'MemberExpression' &&
    callee.property.type === 'Identifier' &&
    callee.property.name === 'addEventListener' &&
    first?.type === 'Literal' &&
    first.value === 'abort'
  );
}

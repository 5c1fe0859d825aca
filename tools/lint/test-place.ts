import type { Problem, SourceFile } from './source.ts';

/** Modules and names in tests that start programs, or that need a program or permission which a machine may lack. */
const MODULES = /^(node:child_process|playwright-core)$|\/backends\/workbench\.ts$/;
const NAMES = /\b(describeIf|itIf|usePostgres)\b/;

/** Reports a test that starts programs and is not in a folder `test/integration/`. At most two test files of these folders run at once. */
export function checkTestPlace({ path, text, imports, lineAt }: SourceFile): Problem[] {
  if (!path.endsWith('.test.ts') || path.includes('test/integration/')) return [];
  const module = imports.find(({ specifier }) => MODULES.test(specifier));
  const name = NAMES.exec(text);
  if (module === undefined && name === null) return [];
  const used = module?.specifier ?? name?.[0];
  const message = `uses ${used}, so it starts programs or depends on the machine: move it to test/integration/`;
  return [{ path, line: lineAt(module?.start ?? name?.index ?? 0), message }];
}

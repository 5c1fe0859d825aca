import { relative } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';
import { FAST_FOLDERS } from './tests.ts';

/**
 * Sorts test files so that the tests nearest to the mutated file run first: `packages/capture/test/tokens/audit.test.ts` before the rest of `packages/capture/test/tokens/` for
 * a mutant of `packages/capture/src/tokens/audit.ts`. A test run ends at the first failure, so no other tests run for a mutant that the nearest
 * ones detect.
 *
 * A mutant in code that runs outside of a test, while a module is loaded or in `beforeAll`, can affect every test. All tests would take minutes
 * for each of these mutants, so the fast tests of other folders are left out.
 */
export class NearestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const { root, related } = this.ctx.config;
    // The runner sets `related` to the mutated file. In the first run, which mutates nothing, it names all files.
    const [mutated] = related?.length === 1 ? related : [];
    if (mutated === undefined) return files;
    const source = foldersOf(relative(root, mutated));
    // The runner names the tests that execute the mutant, unless something outside of a test executes it too.
    const isRunOutside = files.every(({ project }) => project.config.testNamePattern === undefined);
    return files
      .map((file) => ({ file, folders: foldersOf(relative(root, file.moduleId)) }))
      .filter(
        ({ file, folders }) =>
          !isRunOutside || sharedCount(source, folders) > 1 || !isFast(relative(root, file.moduleId)),
      )
      .map(({ file, folders }) => ({ file, shared: sharedCount(source, folders) }))
      .sort((a, b) => b.shared - a.shared)
      .map(({ file }) => file);
  }
}

function isFast(path: string): boolean {
  return FAST_FOLDERS.some((folder) => path.startsWith(`${folder}/`));
}

/** Returns the package of a file and its folders below `src/` or `test/`, and the name of the file without its extension. */
function foldersOf(path: string): readonly string[] {
  return path
    .replace(/(\.test)?\.ts$/, '')
    .replace(/^packages\/([^/]+)\/(src|test)\//, '$1/')
    .split('/');
}

/** Returns how many names at the start of two paths are the same. */
function sharedCount(a: readonly string[], b: readonly string[]): number {
  const differing = a.findIndex((name, index) => name !== b[index]);
  return differing < 0 ? a.length : differing;
}

import { statSync } from 'node:fs';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** Bytes that a file of integration tests counts as larger than it is, because it takes longer than any other. */
const INTEGRATION_BYTES = 10_000_000;

/**
 * Starts the test files that probably take longest first, so that no worker is left alone with one at the end: integration tests, which start
 * programs, and then the largest files.
 */
export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const weightOf = ({ moduleId }: TestSpecification): number =>
      statSync(moduleId).size + (moduleId.includes('/integration/') ? INTEGRATION_BYTES : 0);
    return files
      .map((file) => ({ file, weight: weightOf(file) }))
      .sort((a, b) => b.weight - a.weight)
      .map(({ file }) => file);
  }
}

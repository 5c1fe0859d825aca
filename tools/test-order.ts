import { statSync } from 'node:fs';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** This number is added to the size of each file of integration tests, because such a file takes longer than any other. */
const INTEGRATION_BYTES = 10_000_000;

/**
 * Starts the test files that probably take longest first, so that no worker has a long file left at the end. Integration tests, which start
 * programs, come first, and then the largest files.
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

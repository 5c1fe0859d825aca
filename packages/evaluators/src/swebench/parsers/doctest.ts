import { FAILED, type LogParser, PASSED, Pauses, TestStatuses } from './log-parser.ts';
import { readXml, type XmlReader } from './xml.ts';

const START = '<doctest';
const END = '</doctest>';

/**
 * doctest's reporter `xml`. It reports a test for each `SubCase`, which passes when all of its expressions pass. Text before and after the
 * document is ignored.
 */
export const doctest: LogParser = function* (log) {
  const statuses = new TestStatuses();
  const start = log.indexOf(START);
  if (start < 0) return statuses;
  const end = log.indexOf(END, start);
  const cases = new DoctestCases();
  if (end < 0 || !(yield* readXml(log.slice(start, end + END.length), cases))) return statuses.giveUp();
  const pauses = new Pauses();
  for (const { name, from, to } of cases.testCases) {
    yield* pauses.at(from);
    for (const subCase of cases.subCases.slice(from, to)) {
      statuses.set(`${name} > ${subCase.name}`, subCase.passed ? PASSED : FAILED);
      if (statuses.isUnreadable) return statuses;
    }
  }
  return statuses;
};

type SubCase = { readonly name: string; passed: boolean };
/** The sub-cases of a test case are those with an index from `from` to before `to`. */
type TestCase = { readonly name: string; readonly from: number; to: number };

class DoctestCases implements XmlReader {
  readonly testCases: TestCase[] = [];
  readonly subCases: SubCase[] = [];
  private readonly openTestCases: TestCase[] = [];
  private readonly openSubCases: SubCase[] = [];

  begin(element: string, attributes: ReadonlyMap<string, string>): void {
    const name = attributes.get('name') ?? 'None';
    if (element === 'TestCase') {
      const testCase = { name, from: this.subCases.length, to: 0 };
      this.testCases.push(testCase);
      this.openTestCases.push(testCase);
    } else if (element === 'SubCase') {
      const subCase = { name, passed: true };
      this.subCases.push(subCase);
      this.openSubCases.push(subCase);
    } else if (element === 'Expression' && attributes.get('success') !== 'true') this.failInnermost();
  }

  end(element: string): void {
    if (element === 'TestCase') {
      const testCase = this.openTestCases.pop();
      if (testCase !== undefined) testCase.to = this.subCases.length;
    } else if (element === 'SubCase' && this.openSubCases.pop()?.passed === false) this.failInnermost();
  }

  /** A failed expression fails all sub-cases around it: each sub-case fails the enclosing sub-case when it ends. */
  private failInnermost(): void {
    const innermost = this.openSubCases.at(-1);
    if (innermost !== undefined) innermost.passed = false;
  }
}

import { indentOf, strip } from './python-text.ts';

/** The suites around a test, in logs that show them as indented headings. A heading closes all suites with the same or a larger indentation. */
export class IndentedSuites {
  private readonly open: { readonly heading: string; readonly indent: number }[] = [];

  get headings(): string[] {
    return this.open.map(({ heading }) => heading);
  }

  /** Reads a line that is not the result of a test. A line without white space at its start is not a heading. */
  read(line: string): void {
    const indent = indentOf(line);
    if (indent === 0) return;
    while ((this.open.at(-1)?.indent ?? 0) >= indent) this.open.pop();
    this.open.push({ heading: strip(line), indent });
  }

  /** Returns the name of a test, with the headings of its suites. */
  nameOf(test: string): string {
    return [...this.headings, test].join(' - ');
  }
}

/** What a test runner may say of a node (one test, in pytest's words). */
export type NodeStatus = 'PASSED' | 'FAILED' | 'ERROR' | 'SKIPPED';

/** Found with different statuses: such a node equals no expectation, so a forged line cannot outvote the real one. */
export type FoundStatus = NodeStatus | 'CONFLICTING';

const LINE = /^(PASSED|FAILED|ERROR|SKIPPED)[ \t]+(\S.*)$/;
/** Terminal colours, which runners add when they are told to. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: the escape character is what colours begin with
const COLOUR = /\u001b\[[0-9;]*m/g;
/** Separates a node from why it failed. Node names may contain it, too. */
const REASON = ' - ';

/**
 * The nodes that a test command reported, from the lines `PASSED|FAILED|ERROR|SKIPPED <node>` of its output. Behind the
 * node may follow ` - <reason>`; where a node's own name has that in it, the names in `expected` decide.
 */
export function parseReport(output: string, expected: ReadonlySet<string>): Map<string, FoundStatus> {
  const found = new Map<string, FoundStatus>();
  for (const line of output.replaceAll(COLOUR, '').split(/\r\n|\r|\n/)) {
    const match = LINE.exec(line);
    if (match === null) continue;
    const status = match[1] as NodeStatus;
    const node = nodeOf((match[2] as string).trimEnd(), expected);
    const before = found.get(node);
    found.set(node, before === undefined || before === status ? status : 'CONFLICTING');
  }
  return found;
}

function nodeOf(text: string, expected: ReadonlySet<string>): string {
  if (expected.has(text)) return text;
  const first = text.indexOf(REASON);
  for (let cut = first; cut >= 0; cut = text.indexOf(REASON, cut + 1)) {
    const head = text.slice(0, cut);
    if (expected.has(head)) return head;
  }
  return first < 0 ? text : text.slice(0, first);
}

import type { DirectoryListing, FileText, RunResult } from './tools.ts';

/**
 * Texts about tools in a sandbox that agents read. They are the same for the MCP server in the sandbox and for the tools of floe's agents on
 * the node, so that a policy meets one set of tools.
 */
export const TOOL_DESCRIPTIONS = {
  bash: 'Runs a command in a shell that keeps its state: directory, variables and background processes. Without a terminal and without stdin.',
  python:
    'Runs Python code in a process that keeps its state, and returns output, the value of the last expression and images.',
  readFile: 'Reads lines of a text file.',
  writeFile: 'Creates a file or replaces its content, and creates missing directories.',
  editFile: 'Replaces text of a file. old_text must occur exactly once, unless replace_all is true.',
  listFiles: 'Lists a directory.',
} as const;

/** Returns stdout and stderr of a run, without empty outputs and without the newline at their end. */
export function outputTexts({ stdout, stderr }: Pick<RunResult, 'stdout' | 'stderr'>): string[] {
  return [stdout, stderr].map((output) => output.replace(/\n$/, '')).filter((output) => output !== '');
}

/**
 * Returns notes about facts of a run that its output does not show, such as a passed time limit. `what` names the program that ran the code,
 * such as `shell`.
 */
export function runNotes(
  { timedOut, processEnd, droppedBytes }: Pick<RunResult, 'timedOut' | 'processEnd' | 'droppedBytes'>,
  what: string,
): string[] {
  return [
    ...(droppedBytes > 0 ? [`[${droppedBytes} bytes in the middle of the output are left out]`] : []),
    ...(timedOut ? ['[the time limit passed]'] : []),
    ...(processEnd === null ? [] : [`[the ${what} has ended; the next call starts a new one without its state]`]),
  ];
}

/** Returns the lines of a file, with a note about the lines after them. */
export function fileLines({ text, nextLine, isCut }: FileText): string {
  if (nextLine === null) return text;
  return `${text}\n[${isCut ? 'the line is cut; ' : ''}continue with first_line ${nextLine}]`;
}

/** Returns a line for each entry of a directory: its name and its size or type. */
export function listingLines({ entries, isPartial }: DirectoryListing): string {
  const lines = entries.map(({ name, type, bytes }) => `${name}${type === 'directory' ? '/' : ''}\t${bytes ?? type}`);
  return [...lines, ...(isPartial ? ['[there are more entries]'] : [])].join('\n');
}

/** Returns a tool's report of how many texts it replaced. */
export function replacedText(count: number): string {
  return `replaced ${count} occurrence${count === 1 ? '' : 's'}`;
}

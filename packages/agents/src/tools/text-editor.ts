import type { FileText } from '@floe-rl/sandbox';
import { type Box, ToolError } from './tool.ts';

/** An edit of a file. */
export type EditCommand =
  | { readonly command: 'create'; readonly text: string }
  | { readonly command: 'str_replace'; readonly oldText: string; readonly newText: string }
  | { readonly command: 'insert'; readonly line: number; readonly text: string }
  | { readonly command: 'undo_edit' };

/** Number of lines before and after a change that an edit shows. */
const CONTEXT_LINES = 4;
/** Maximum number of characters of earlier contents that are kept to take edits back. */
const MAX_HISTORY_CHARS = 16 * 1024 * 1024;
/** Maximum number of characters of the lines of one view. */
const MAX_VIEW_CHARS = 24_000;
/** Maximum number of directories in a directory whose entries are listed too, and of lines of a listing. */
const MAX_DIRECTORIES = 100;
const MAX_LISTING_LINES = 1_000;
/** Maximum number of places that are named where text occurs more than once. */
const MAX_PLACES = 10;

/**
 * Views and edits text files of a sandbox. Files with other bytes than UTF-8 are not edited, because those bytes would be lost. All methods
 * reject with a {@link ToolError} for what the agent can mend.
 */
export class TextEditor {
  private readonly box: Box;
  /** Contents before edits, in the order of the edits; `null` for a file that did not exist. */
  private readonly history: { readonly path: string; readonly before: string | null }[] = [];

  constructor(box: Box) {
    this.box = box;
  }

  /** Returns lines of a file with their numbers, or the entries of a directory. `path` is absolute. */
  async view(path: string, range: readonly [number, number] | null, signal: AbortSignal): Promise<string> {
    const [first, last] = range ?? [1, -1];
    if (first < 1 || (last !== -1 && last < first)) {
      throw new ToolError('failed', `view_range must be [first, last] with 1 <= first <= last, or a last of -1`);
    }
    const read = await this.readLines(path, first, last, signal);
    if (read === null) {
      if (range === null) return this.listing(path, signal);
      throw new ToolError('not_a_file', `${path} is a directory, which has no lines`);
    }
    const { text, nextLine, isCut } = read;
    if (text.includes('\0')) throw new ToolError('failed', `${path} is not a text file`);
    if (text === '') return first === 1 ? `${path} is empty` : `${path} has fewer than ${first} lines`;
    const lines = linesOf(text);
    const shown = lines.slice(0, countFitting(lines));
    const next = shown.length < lines.length ? first + shown.length : nextLine;
    const isWhole = next === null || (last !== -1 && next > last);
    return [
      numbered(shown.map(cutLine), first),
      ...(isCut || shown.some((line) => line.length > MAX_VIEW_CHARS) ? ['[the line is cut]'] : []),
      ...(isWhole ? [] : [`[continue with view_range [${next}, -1]]`]),
    ].join('\n');
  }

  /** Edits a file, and returns the lines around the change. `path` is absolute. */
  async edit(path: string, edit: EditCommand, signal: AbortSignal): Promise<string> {
    if (edit.command === 'undo_edit') return this.undo(path, signal);
    if (edit.command === 'create') return this.create(path, edit.text, signal);
    const before = await this.textOf(path, signal);
    const { after, line, lineCount } =
      edit.command === 'insert' ? inserted(path, before, edit) : replaced(path, before, edit);
    await this.box.writeFile(path, after, signal);
    this.remember(path, before);
    const first = Math.max(1, line - CONTEXT_LINES);
    const shown = linesOf(after).slice(first - 1, line + lineCount - 1 + CONTEXT_LINES);
    return `${path} is changed:\n${numbered(shown, first)}`;
  }

  private async create(path: string, text: string, signal: AbortSignal): Promise<string> {
    let before: string | null = null;
    try {
      before = await this.textOf(path, signal);
    } catch (error) {
      if (!(error instanceof ToolError)) throw error;
      // The content of a file that is no text cannot be restored.
      if (error.reason !== 'not_found') throw error;
    }
    await this.box.writeFile(path, text, signal);
    this.remember(path, before);
    return before === null ? `${path} is created` : `${path} is replaced`;
  }

  private async undo(path: string, signal: AbortSignal): Promise<string> {
    const index = this.history.findLastIndex((edit) => edit.path === path);
    const edit = this.history[index];
    if (edit === undefined) throw new ToolError('failed', `there is no edit of ${path} to take back`);
    if (edit.before === null) {
      throw new ToolError('failed', `the only edit of ${path} left is its creation; remove the file in another way`);
    }
    await this.box.writeFile(path, edit.before, signal);
    this.history.splice(index, 1);
    return `the last edit of ${path} is taken back`;
  }

  private remember(path: string, before: string | null): void {
    this.history.push({ path, before });
    let chars = this.history.reduce((sum, edit) => sum + (edit.before?.length ?? 0), 0);
    while (chars > MAX_HISTORY_CHARS) chars -= this.history.shift()?.before?.length ?? 0;
  }

  /** Resolves with the whole text of a file. */
  private async textOf(path: string, signal: AbortSignal): Promise<string> {
    const { text, nextLine } = await this.box.readFile(path, {}, signal);
    if (nextLine !== null)
      throw new ToolError('too_large', `${path} is too large for this tool; edit it in another way`);
    // U+FFFD stands for bytes that are not UTF-8.
    if (text.includes('\0') || text.includes('\uFFFD')) {
      throw new ToolError('failed', `${path} is not a text file in UTF-8; edit it in another way`);
    }
    return text;
  }

  /** Resolves with lines of a file, or with `null` for a directory. */
  private async readLines(path: string, first: number, last: number, signal: AbortSignal): Promise<FileText | null> {
    const range = { firstLine: first, lineCount: last === -1 ? undefined : last - first + 1 };
    try {
      return await this.box.readFile(path, range, signal);
    } catch (error) {
      if (error instanceof ToolError && error.reason === 'not_a_file') return null;
      throw error;
    }
  }

  /** Lists a directory two levels deep, without hidden entries. */
  private async listing(path: string, signal: AbortSignal): Promise<string> {
    const { entries, isPartial } = await this.box.list(path, signal);
    const lines: string[] = [];
    let directories = 0;
    for (const { name, type } of entries) {
      if (name.startsWith('.')) continue;
      lines.push(type === 'directory' ? `${name}/` : name);
      if (type !== 'directory' || directories++ >= MAX_DIRECTORIES) continue;
      const inner = await this.box.list(`${path}/${name}`, signal).catch(unreadable);
      lines.push(
        ...inner.entries
          .filter((entry) => !entry.name.startsWith('.'))
          .map((entry) => `${name}/${entry.name}${entry.type === 'directory' ? '/' : ''}`),
      );
    }
    const more = isPartial || lines.length > MAX_LISTING_LINES || directories > MAX_DIRECTORIES;
    const shown = lines.slice(0, MAX_LISTING_LINES);
    return [`${path}:`, ...shown, ...(more ? ['[there are more entries]'] : [])].join('\n');
  }
}

/** A directory that cannot be listed, for instance because it belongs to another user, is shown without entries. */
function unreadable(error: unknown): { readonly entries: readonly [] } {
  if (error instanceof ToolError) return { entries: [] };
  throw error;
}

/** A new text, with the first line that is different and the number of new lines. */
type Change = { readonly after: string; readonly line: number; readonly lineCount: number };

function replaced(
  path: string,
  before: string,
  { oldText, newText }: Extract<EditCommand, { readonly command: 'str_replace' }>,
): Change {
  if (oldText === '') throw new ToolError('no_match', 'old_str is empty; use `insert` to add text');
  if (oldText === newText) throw new ToolError('failed', 'old_str and new_str are equal, so nothing would change');
  const places: number[] = [];
  for (let at = before.indexOf(oldText); at >= 0; at = before.indexOf(oldText, at + oldText.length)) places.push(at);
  const [at] = places;
  if (at === undefined) throw new ToolError('no_match', absent(path, before, oldText));
  if (places.length > 1) {
    const lines = places.slice(0, MAX_PLACES).map((place) => lineAt(before, place));
    const where = `${lines.join(', ')}${places.length > MAX_PLACES ? ', …' : ''}`;
    throw new ToolError(
      'several_matches',
      `old_str occurs ${places.length} times in ${path}, in the lines ${where}; add lines around it to make it unique`,
    );
  }
  const after = before.slice(0, at) + newText + before.slice(at + oldText.length);
  return { after, line: lineAt(before, at), lineCount: newText.split('\n').length };
}

function absent(path: string, before: string, oldText: string): string {
  const plain = `old_str does not occur in ${path}`;
  if (before.replaceAll('\r\n', '\n').includes(oldText)) return `${plain}, whose lines end with \\r\\n`;
  const squeezed = (text: string): string => text.replace(/\s+/g, ' ').trim();
  const isNear = squeezed(oldText) !== '' && squeezed(before).includes(squeezed(oldText));
  return isNear ? `${plain} with this white space` : plain;
}

function inserted(
  path: string,
  before: string,
  { line, text }: Extract<EditCommand, { readonly command: 'insert' }>,
): Change {
  const lines = linesOf(before);
  if (line < 0 || line > lines.length) {
    throw new ToolError('failed', `insert_line must be from 0 to ${lines.length}, the number of lines of ${path}`);
  }
  const added = linesOf(text);
  const after = [...lines.slice(0, line), ...added, ...lines.slice(line)].join('\n');
  const endsWithNewline = before === '' || before.endsWith('\n');
  return { after: endsWithNewline ? `${after}\n` : after, line: line + 1, lineCount: added.length };
}

/** Returns the lines of a text, whose last line may end with a newline or not. */
function linesOf(text: string): string[] {
  if (text === '') return [];
  return (text.endsWith('\n') ? text.slice(0, -1) : text).split('\n');
}

/** Returns how many of the first lines one view can show: at least one. */
function countFitting(lines: readonly string[]): number {
  let chars = 0;
  const over = lines.findIndex((line) => {
    chars += line.length + 1;
    return chars > MAX_VIEW_CHARS;
  });
  return over < 0 ? lines.length : Math.max(1, over);
}

function cutLine(line: string): string {
  return line.slice(0, MAX_VIEW_CHARS);
}

function lineAt(text: string, at: number): number {
  return text.slice(0, at).split('\n').length;
}

function numbered(lines: readonly string[], first: number): string {
  return lines.map((line, index) => `${String(first + index).padStart(6)}\t${line}`).join('\n');
}

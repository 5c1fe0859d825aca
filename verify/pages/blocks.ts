/**
 * A block of code of a page. A comment before a block, which readers do not see, changes how it is checked:
 *
 * - `<!-- not run: REASON -->`: the block cannot be run or checked here.
 * - `<!-- before: CODE -->`: commands or code that are put before the block.
 * - `<!-- file: NAME -->`: the block is the content of that file.
 *
 * `<!-- not run on this page: REASON -->` applies to all commands after it. Code and data are still checked.
 */
export type Block = {
  /** Path of the page, relative to the repository. */
  readonly page: string;
  /** Number of the line with the fence, counted from 1. */
  readonly line: number;
  readonly language: string;
  readonly text: string;
  /** Why the block is not run; `null` when it is run. */
  readonly notRun: string | null;
  /** Code that runs before the block's own code; empty for none. */
  readonly before: string;
  /** Text of the next block when its language is `text`: the output of the commands; `null` when there is no such block. */
  readonly quoted: string | null;
  /** Name of the file that has the block as its content. It comes from a comment before the block or in its first line; `null` for none. */
  readonly file: string | null;
};

const MARK = /^<!--\s*(not run on this page|not run|before|file):\s*([\s\S]*?)\s*-->$/;
const FENCE = /^(\s*)(`{3,})(\w*)/;
const FILE_COMMENT = /^(?:#|\/\/) ((?:[\w-]+\/)*[\w-]+\.[a-z]+)\b/;

/** Returns the blocks of code of a page in their order. Throws an Error for a comment of this kind that belongs to no block or has no value. */
export function blocksOf(page: string, markdown: string): Block[] {
  const lines = markdown.split('\n');
  const blocks: Block[] = [];
  let marks = new Map<string, string>();
  let reasonOfPage: string | null = null;
  for (let index = 0; index < lines.length; index++) {
    const line = lines[index] ?? '';
    const fence = FENCE.exec(line);
    if (fence !== null) {
      const [, indent = '', ticks = '', language = ''] = fence;
      const end = lines.findIndex((one, at) => at > index && one.trim() === ticks);
      if (end < 0) throw new Error(`${page}:${index + 1}: the block of code does not end`);
      const text = lines.slice(index + 1, end).map((one) => one.replace(new RegExp(`^ {0,${indent.length}}`), ''));
      blocks.push({
        page,
        line: index + 1,
        language,
        text: `${text.join('\n')}\n`,
        notRun: marks.get('not run') ?? (isShell(language) ? reasonOfPage : null),
        before: marks.get('before') ?? '',
        quoted: null,
        file: marks.get('file') ?? FILE_COMMENT.exec(text[0] ?? '')?.[1] ?? null,
      });
      marks = new Map();
      index = end;
    } else if (line.trim().startsWith('<!--')) {
      const end = lines.findIndex((one, at) => at >= index && one.includes('-->'));
      const comment = lines.slice(index, end < 0 ? lines.length : end + 1).join('\n');
      const [, name, value = ''] = MARK.exec(comment.trim()) ?? [];
      if (name !== undefined && value === '') throw new Error(`${page}:${index + 1}: the mark "${name}" has no value`);
      if (name === 'not run on this page') reasonOfPage = value;
      else if (name !== undefined) marks.set(name, value);
      if (end < 0) throw new Error(`${page}:${index + 1}: the comment does not end`);
      index = end;
    } else if (line.trim() !== '' && marks.size > 0) {
      break;
    }
  }
  const [misplaced] = marks.keys();
  if (misplaced !== undefined) throw new Error(`${page}: a mark "${misplaced}" is before no block of code`);
  return blocks.map((block, index) => {
    const next = blocks[index + 1];
    return next?.language === 'text' ? { ...block, quoted: next.text } : block;
  });
}

export function isShell(language: string): boolean {
  return language === 'sh' || language === 'bash';
}

import { homedir } from 'node:os';
import { join } from 'node:path';
import { type CodeHit, CodeIndexes, type CodeMatches, type MatchKind } from '@floe-rl/search';
import { z } from 'zod';
import { requireBox } from '../require-box.ts';
import { defineTool, ToolError } from '../tool.ts';
import { defineToolset } from '../toolset.ts';

/** Time limit of a call in milliseconds; the first makes the index. */
const TIMEOUT_MS = 180_000;
/** Longest query in characters. */
const MAX_QUERY_CHARS = 500;

const configSchema = z.strictObject({
  root: z.string().min(1).nullable().default(null).describe('folder whose code is searched; null: the workdir'),
});

/** Indexes of this process by their folder. They stay open, because all sessions share them. */
const indexes = new Map<string, CodeIndexes>();

/** Finds definitions, uses and text in the code of the sandbox. */
export const codeSearchToolset = defineToolset({
  name: 'code_search',
  description: 'finds definitions, uses and text in the code of the sandbox',
  config: configSchema,
  scope: 'session',
  async open({ root }, { box, services }) {
    const sandbox = requireBox('code_search', box);
    const shell = sandbox.shell();
    const code = indexesIn(services.code_index_dir ?? defaultFolder());
    const tool = defineTool({
      name: 'code_search',
      description:
        'Searches the code. A name such as `parse` or `Parser.parse` finds its definition with its source and uses; otherwise similar names, lines that contain the text (`*` stands for anything), or parts with its words are found.',
      effect: 'environment',
      timeoutMs: TIMEOUT_MS,
      parameters: z.object({
        query: z.string().describe('name, text or words'),
        path: z.string().default('').describe('text that the paths must contain, such as `src/` or `.py`'),
        max_results: z.int().min(1).max(50).default(10),
      }),
      async run({ query, path, max_results: count }, { count: add }, signal) {
        if (query.trim() === '') throw new ToolError('failed', 'the query is empty');
        if (query.length > MAX_QUERY_CHARS) {
          throw new ToolError(
            'failed',
            `the query has ${query.length} characters; at most ${MAX_QUERY_CHARS} are searched`,
          );
        }
        const { search, fileCount, omitted, parsed } = await code.update(shell, root ?? sandbox.workdir, signal);
        if (fileCount === 0) throw new ToolError('not_found', `there is no code below ${root ?? sandbox.workdir}`);
        add('code_search.parsed_files', parsed);
        const matches = await search.find({ text: query, path, count }, signal);
        add(`code_search.${matches.kind ?? 'nothing'}`);
        return [
          ...matchLines(matches),
          ...(omitted > 0 ? [`[${omitted} files are too large or too many and are not searched]`] : []),
          `[Hint: ${hintFor(matches)}]`,
        ].join('\n\n');
      },
    });
    return { tools: [tool], close: () => shell.close() };
  },
  async problem(_, { box, services }, signal) {
    if (box === null) return 'the session has no sandbox';
    const shell = box.shell();
    try {
      return await indexesIn(services.code_index_dir ?? defaultFolder()).problem(shell, signal);
    } finally {
      await shell.close();
    }
  },
});

function indexesIn(folder: string): CodeIndexes {
  const known = indexes.get(folder);
  if (known !== undefined) return known;
  const created = new CodeIndexes(folder);
  indexes.set(folder, created);
  return created;
}

/** Agents' processes have no variables of the environment but `HOME`. */
function defaultFolder(): string {
  return join(homedir(), '.cache', 'floe', 'code-index');
}

function matchLines({ hits, total, uses, useCount }: CodeMatches): string[] {
  const rest = total > hits.length ? [`(${total - hits.length} more)`] : [];
  const places = uses.map(({ path, line }) => `${path}:${line}`).join(', ');
  const more = useCount > uses.length ? ` and ${useCount - uses.length} more` : '';
  return [...hits.map(hitText), ...rest, ...(useCount > 0 ? [`Used in: ${places}${more}`] : [])];
}

function hitText({ path, line, lastLine, definition, source }: CodeHit): string {
  const lines = line === lastLine ? `${line}` : `${line}-${lastLine}`;
  const shown = source.split('\n').length;
  const cut = definition !== null && shown < lastLine - line + 1 ? `\n… ${lastLine - line + 1 - shown} more lines` : '';
  return `${path}:${lines}${definition === null ? '' : ` ${definition}`}\n${source}${cut}`;
}

const HINTS: Readonly<Record<MatchKind, string>> = {
  entity: 'lines before and after a definition are in its file; a caller can be searched by its own name.',
  fuzzy: 'no definition has exactly this name. If one of these is meant, search it by its name for source and uses.',
  substring: 'no definition has this name; these are lines with the text. `path` limits them to some files.',
  words: 'no line contains the text; these parts have some of its words. A name from the code finds its definition.',
};

function hintFor({ kind, hits, total }: CodeMatches): string {
  if (kind === null) return 'nothing has these words. Try a shorter or another name, or leave out `path`.';
  if (kind === 'entity' && total > 1) {
    return 'several definitions have this name. Add the class or module, as in `Class.name`, or `path`, to see one in full.';
  }
  if (kind === 'substring' && total > hits.length)
    return 'there are more lines than shown; use a longer text or `path`.';
  return HINTS[kind];
}
